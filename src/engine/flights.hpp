// Calls with the same key in one process share one conversation with the store: a flight.
//
// 1. A calls begin(K). K has no flight, so A starts one, leads it and inserts a record (claiming).
// 2. B calls begin(K), joins the flight and sends nothing.
// 3. The insert succeeds: A gets the claim (held), B waits.
// 4. A finishes. B gets A's result, without a request.
// (SharingTest.AHundredCallersAreOneConversation)
//
// If another process has the claim, A's insert is refused in step 3. Then all callers that wait share one series of
// polls (polling; SharingTest.WaitersShareTheirPolls).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>

#include "core/claims_server.hpp"
#include "engine/conversation.hpp"
#include "engine/engine_attempt.hpp"
#include "engine/heartbeats.hpp"
#include "platform/hashed_key.hpp"
#include "platform/word_lock.hpp"

namespace once {

class ClaimState;
class EngineCore;

// One call of begin().
struct Caller {
  std::shared_ptr<EngineAttempt> attempt;
  Callback<void(Begin&&)> done;
  Uptime since{};
  Uptime wait_until{};  // OnConflict::wait: until when.
  bool led = false;     // It has led a conversation with the store.
  // It joined after the current request was sent, and needs the answer to a later one:
  // 1. A's request reaches the store, which reads the result "first".
  // 2. An operator replaces it by "second".
  // 3. B joins.
  // 4. A's answer arrives: "first". B must get "second", so one more read serves all late callers.
  // (SharingTest.NobodySharesAnAnswerThatWasFormedBeforeHeCame)
  bool late = false;
  std::shared_ptr<const Record> missed;  // The record whose result could not be fetched.

  [[nodiscard]] bool waits(Uptime now) const noexcept {
    return attempt->policy.on_conflict == OnConflict::wait && now < wait_until;
  }
};

class Flights {
 public:
  explicit Flights(EngineCore& core) noexcept : core_(core) {}

  // The local cache's answer. Empty: call join().
  [[nodiscard]] std::optional<Begin> cached(const Request& request, const EffectivePolicy& policy);
  void join(Caller&& caller);
  // As join(), where a server claims. It lets its callers wait, so they have no flight here.
  void begin_at(ClaimsServer& server, Caller&& caller);
  // Engine::attach(): a conversation of its own, whose claim has no flight.
  void attach(std::shared_ptr<EngineAttempt> attempt, Callback<void(Attached&&)> done);

  // Gives a caller his answer, with its event. A result that is not in the record is fetched first; if it is gone, the
  // caller joins again.
  void reply(Caller&& caller, Begin&& begin);
  static Begin begin_of(const Decision& decision, std::shared_ptr<const Record> record);
  // Which event a claim is.
  static EventKind event_of(Verdict verdict) noexcept;

  // A flight's claim has ended. `record`: what is stored now. Null: nothing is stored if `gone`, otherwise not known.
  void ended(ClaimState& claim, const std::shared_ptr<const Record>& record, bool gone);

  // Heartbeats of the live claims of flights.
  void beat_at(ClaimState& claim, Uptime due);  // The next one is due then. No effect if the claim has ended.
  void forget(ClaimState& claim) noexcept;      // The claim is being destroyed.
  [[nodiscard]] Uptime collect_due(Uptime now,
                                   std::vector<std::shared_ptr<ClaimState>>& due);  // LiveClaims::collect().

 private:
  enum class Phase : std::uint8_t {
    claiming,  // A caller talks to the store.
    held,      // A claim of this process is live.
    polling,   // Another process's claim is live, and callers wait for it.
  };
  struct Course {
    std::shared_ptr<const EngineAttempt> first;  // Owns the flight's key.
    std::size_t hash = 0;                        // Of that key.
    Phase phase = Phase::claiming;
    ClaimState* holder = nullptr;        // held: the claim. Null once it is no longer live.
    std::shared_ptr<const Record> seen;  // polling: the record that the last poll found.
    unsigned polls = 0;
    std::optional<Uptime> timer;  // When the current timer fires …
    Timers::Id timer_id = 0;      // … and its id.
    std::uint64_t turn = 0;       // Number of the current timer. Timers with another number do nothing.
  };
  struct Flight : Course {
    std::vector<Caller> callers;  // In the order they came. claiming: the first one leads.
  };
  using Table = std::unordered_map<HashedKey, Flight, HashedKey::Hash>;
  struct Shard {
    WordLock mutex;
    Table flights;
    std::vector<Table::node_type> spare;  // A few nodes of ended flights, for new ones.
    LiveClaims claims;
  };
  using Replies = std::vector<std::pair<Caller, Begin>>;
  // What to do about the callers that got no answer.
  enum class Rest : std::uint8_t {
    waits,  // Nothing, or there are none.
    asks,   // A late caller needs a later answer: the first one reads.
    talks,  // The first one may claim: it talks to the store, from the record seen.
  };
  static constexpr std::size_t shards = 16;

  Shard& shard_of(const HashedKey& name) noexcept { return shards_[name.shard(shards)]; }

  // The flight's claim, or null if it is being destroyed.
  [[nodiscard]] static std::shared_ptr<ClaimState> holder_of(const Flight& flight);
  // The first caller of the flight leads. Only on_end() ends the flight, so the pointer stays valid.
  void converse(std::unique_lock<WordLock> lock, Flight* flight, Conversation::Start start);
  void on_end(Flight* flight, Conversation::End&& end);
  // Reads the record for all callers of the flight, of which there is at least one.
  void ask_again(std::unique_lock<WordLock> lock, Flight& flight);
  // Decides for every caller of the flight by the stored record. `own`: the record is that of this process's live
  // claim, so late callers may be answered by it too.
  Rest settle(Flight& flight, const std::shared_ptr<const Record>& record, bool own, Replies& replies);
  static Flight& add(Shard& shard, const HashedKey& name);
  void erase(Shard& shard, Table::iterator flight);
  void go_on(Shard& shard, std::unique_lock<WordLock> lock, Flight* flight, const std::shared_ptr<const Record>& record,
             std::uint64_t place);
  void drop_timer(Flight& flight) noexcept;
  void set_timer(Flight& flight, Uptime at);  // Unless an earlier one is set.
  [[nodiscard]] Uptime next_poll(Flight& flight) const;
  [[nodiscard]] Uptime look_at_holder(const Flight& flight, const std::shared_ptr<const Record>& record) const;
  [[nodiscard]] static Uptime first_deadline(const Flight& flight) noexcept;
  void on_timer(const std::string& key, std::uint64_t turn);
  void reply(Replies replies);
  struct Attaching {
    std::shared_ptr<EngineAttempt> attempt;
    Callback<void(Attached&&)> done;
    Uptime since{};
  };
  void begun_at_server(Caller&& caller, ClaimsServer::Begun&& begun);
  // Its heartbeats begin. Returns the first one's time.
  Uptime add_without_flight(ClaimState& claim);
  void attached(Attaching& call, Conversation::End&& end);
  // What is stored now is not the caller's claim.
  void not_attached(Attaching&& call, std::shared_ptr<const Record> record);
  // Takes the attempt.
  [[nodiscard]] static std::shared_ptr<ClaimState> claimed(Conversation::End& end,
                                                           std::shared_ptr<EngineAttempt>& attempt);

  EngineCore& core_;
  std::array<Shard, shards> shards_;
};

}  // namespace once
