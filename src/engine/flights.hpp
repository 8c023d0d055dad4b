// Calls with one key in one process share one conversation with the store: a flight.
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

#include "engine/conversation.hpp"
#include "engine/heartbeats.hpp"
#include "platform/hashed_key.hpp"

namespace once {

class ClaimState;
class EngineCore;

// One call of begin().
struct Caller {
  std::shared_ptr<const Attempt> attempt;
  EffectivePolicy policy;
  Callback<void(Begin)> done;
  Uptime since{};
  Uptime wait_until{};  // OnConflict::wait: until when.
  bool led = false;     // Took part in a conversation with the store itself.
  // Came when the question under way had been asked. Its answer may have been formed before, and what an operator was
  // told since then is not in it: this caller's answer has to be that of a later question.
  bool late = false;
  std::string missed;                   // Where a result was that could not be fetched, ...
  std::shared_ptr<const Record> shown;  // ... and the record that said so.

  [[nodiscard]] bool waits(Uptime now) const noexcept {
    return policy.on_conflict == OnConflict::wait && now < wait_until;
  }
};

class Flights {
 public:
  explicit Flights(EngineCore& core) noexcept : core_(core) {}

  // What the local cache has for this call. Empty: ask by join().
  [[nodiscard]] std::optional<Begin> cached(const Request& request, const EffectivePolicy& policy);
  void join(Caller&& caller);

  // A claim that a flight led to has ended. `record`: what is stored now; null with `gone`: nothing is;
  // null without: not known.
  void ended(ClaimState& claim, const std::shared_ptr<const Record>& record, bool gone);

  // Heartbeats of the claims that flights have led to and that have not ended.
  void beat_at(ClaimState& claim, Uptime due);  // The next one. Nothing if the claim has ended.
  void forget(ClaimState& claim) noexcept;      // The claim dies.
  [[nodiscard]] Uptime collect_due(Uptime now,
                                   std::vector<std::shared_ptr<ClaimState>>& due);  // LiveClaims::collect().

 private:
  enum class Phase : std::uint8_t {
    claiming,  // A caller talks to the store.
    held,      // A claim of this process is live.
    polling,   // Somebody else's claim is live, and callers wait for it.
  };
  struct Flight {
    std::shared_ptr<const Attempt> first;  // Keeps the key that the flight is filed under.
    std::size_t hash = 0;                  // Of that key.
    Phase phase = Phase::claiming;
    std::vector<Caller> callers;         // In the order they came. claiming: the first one leads.
    ClaimState* holder = nullptr;        // held: one of the shard's live claims; null once it is none.
    std::shared_ptr<const Record> seen;  // polling: what stood in the way last.
    unsigned polls = 0;
    std::optional<Uptime> timer;  // When the timer that counts will fire …
    Timers::Id timer_id = 0;      // … and its name.
    std::uint64_t turn = 0;       // Which timer counts: the others find another number and do nothing.
  };
  using Table = std::unordered_map<HashedKey, Flight, HashedKey::Hash>;
  struct Shard {
    std::mutex mutex;
    Table flights;
    std::vector<Table::node_type> spare;  // Of flights that have ended, for the next ones: a few.
    LiveClaims claims;
  };
  using Replies = std::vector<std::pair<Caller, Begin>>;
  // What has to be done about the callers that were not answered.
  enum class Rest : std::uint8_t {
    waits,  // Nothing, or there are none.
    asks,   // Somebody needs a later answer: the first one reads.
    talks,  // The first one has to talk to the store about what was seen.
  };
  static constexpr std::size_t shards = 16;

  Shard& shard_of(const HashedKey& name) noexcept { return shards_[name.shard(shards)]; }

  // Null unless the flight is held by a claim that somebody still has.
  [[nodiscard]] static std::shared_ptr<ClaimState> holder_of(const Flight& flight);
  // The first caller of the flight leads. Until on_end nobody else ends the flight, so the pointer stays good.
  void converse(std::unique_lock<std::mutex> lock, Flight* flight, Conversation::Start start);
  void on_end(Flight* flight, Conversation::End&& end);
  // Reads what stands in the store, for all callers of the flight: there is at least one.
  void ask_again(std::unique_lock<std::mutex> lock, Flight& flight);
  // Decides for every caller of the flight over what is stored now. `own`: as this process's own live claim has it,
  // which is told to everybody.
  Rest settle(Flight& flight, const std::shared_ptr<const Record>& record, bool own, Replies& replies);
  static Flight& add(Shard& shard, const HashedKey& name);
  void erase(Shard& shard, Table::iterator flight);
  void go_on(Shard& shard, std::unique_lock<std::mutex> lock, Flight* flight,
             const std::shared_ptr<const Record>& record, std::uint64_t place);
  void drop_timer(Flight& flight) noexcept;
  void set_timer(Flight& flight, Uptime at);  // Unless one comes no later.
  [[nodiscard]] Uptime next_poll(Flight& flight) const;
  [[nodiscard]] Uptime look_at_holder(const Flight& flight, const std::shared_ptr<const Record>& record) const;
  [[nodiscard]] static Uptime first_deadline(const Flight& flight) noexcept;
  void on_timer(const std::string& key, std::uint64_t turn);
  void reply(Replies replies);
  void reply(Caller&& caller, Begin&& begin);
  static Begin begin_of(const Decision& decision, std::shared_ptr<const Record> record);
  [[nodiscard]] static std::shared_ptr<ClaimState> claimed(Conversation::End& end,
                                                           Caller& caller);  // Takes the attempt.

  EngineCore& core_;
  std::array<Shard, shards> shards_;
};

}  // namespace once
