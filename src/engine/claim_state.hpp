// One claim: guards the machine that decides (core/claim_machine), and carries out its actions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <once/decide.hpp>
#include <once/engine/claim.hpp>
#include <once/engine/event.hpp>
#include <once/policy.hpp>
#include <once/store.hpp>

#include "core/claim_machine.hpp"
#include "core/claims_server.hpp"
#include "engine/engine_attempt.hpp"
#include "engine/heartbeats.hpp"
#include "platform/word_lock.hpp"

namespace once {

class EngineCore;
class Handing;

// Results longer than this are compressed.
std::size_t compress_over(const EffectivePolicy& policy, const Capabilities& store) noexcept;
// Not offloaded, compressed or dropped, and longer.
bool is_longer(const Result& result, std::size_t limit) noexcept;
// Compresses it if it is long. Throws Exception(misuse) if it is too long for the record then, `what` being "handed
// out".
void fit_inline(Result& result, std::size_t limit, std::size_t compress_over, const char* what);

class ClaimState : public std::enable_shared_from_this<ClaimState> {
 public:
  using Op = ClaimMachine::Op;
  using Together = ClaimMachine::Together;
  using Write = ClaimMachine::Write;

  // The times: as for ClaimMachine. `at_server`: what its writes go to, in place of the store.
  ClaimState(std::shared_ptr<EngineCore>&& core, std::shared_ptr<const EngineAttempt>&& attempt, RecordPtr&& record,
             std::uint64_t place, Uptime leased_at, Uptime claimed_at, Uptime trusted_until,
             std::shared_ptr<ServerClaim> at_server = nullptr);
  ClaimState(const ClaimState&) = delete;
  ClaimState& operator=(const ClaimState&) = delete;
  ~ClaimState();

  // Unchanging parts, readable without a lock.
  const std::shared_ptr<const EngineAttempt> attempt;  // Has the claim's key, owner and policy.
  const std::uint64_t token;
  const std::uint32_t number;  // Of the attempt, from 1.

  [[nodiscard]] const std::string& key() const noexcept { return attempt->key; }
  [[nodiscard]] Uptime first_beat() const noexcept {
    return machine_.first_beat();
  }  // Call it before others have the claim.
  [[nodiscard]] Uptime renew_interval() const noexcept { return machine_.renew_interval(); }
  [[nodiscard]] RecordPtr record() const;  // As last written.
  [[nodiscard]] std::stop_token stop_token();
  [[nodiscard]] std::stop_token loss_token();
  [[nodiscard]] Uptime deadline() const;
  [[nodiscard]] bool finishing() const;  // Its finish is written, or about to be.
  [[nodiscard]] bool is_ours() const;    // Certainly ours now.
  [[nodiscard]] std::optional<std::string> step(std::string_view name) const;

  void beat();                       // From the heartbeat: renews, or finds that the lease has ended.
  void note(std::string_view text);  // Renews with a note.
  void add_step(Step step, FinishDone done);
  // complete, fail, hold, release; `result` of the first two. Throws Exception(misuse) for a second one.
  void finish(Write&& write, Result&& result = {});
  void abandon();  // The handle was dropped. No effect after a finish.
  // Leaves the completion to the user's transaction; without a result there is no statement for it. Throws
  // Exception(misuse).
  std::shared_ptr<Handing> hand_out(std::optional<Result> result);
  // For a claim that is handed out with this result. Its retention counts from now.
  [[nodiscard]] stores::SqlStatement finish_statement(Result result) const;
  void handed_back(ClaimMachine::Outcome outcome, FinishDone done);
  void forget_handed_out();
  void take_back();
  // Abandons the claim, and gives the record now stored: superseded or lost.
  void give_up(FinishDone done);

  // For Flights. The mutex of the key's shard guards the first; the second never changes.
  LiveClaims::Link live_link;
  std::size_t flight_hash = 0;  // Of the key.

 private:
  using Actions = ClaimMachine::Actions;

  [[nodiscard]] std::size_t compress_over() const noexcept;
  void compress(Result& result, std::size_t limit) const;
  void offload(Write&& write, Result&& result);
  void enqueue(std::unique_lock<WordLock> lock, Write&& write, Result&& result);
  // Gives the record now stored under a lost claim's key: superseded or lost. The first one reads the store. `missed`:
  // the location of a result that could not be fetched.
  void look_up_loss(FinishDone done, std::string missed = {});
  void tell_loss(FinishDone done, RecordPtr record, std::string missed = {});
  void tell(EventKind kind, const Record* record, const Error* error, Uptime since) const;

  // Calls an event of the machine, and carries out its actions.
  template <class Event>
  void on(Event&& event);
  void carry_out(std::unique_lock<WordLock> lock, Actions& actions);
  void transmit(std::unique_lock<WordLock> lock);
  void on_answer(Answer&& answer, Uptime sent, std::optional<Uptime> until = std::nullopt);
  void act(ClaimMachine::Send&&);
  void act(ClaimMachine::RetryAt&& retry);
  void act(ClaimMachine::DropRetry&& drop);
  void act(ClaimMachine::BeatAt&& beat);
  void act(ClaimMachine::Tell&& told) const;
  void act(ClaimMachine::StopWork&&);
  void act(ClaimMachine::Reply&& reply);
  void act(ClaimMachine::LookUp&& look);
  void act(ClaimMachine::Read&&);
  void act(ClaimMachine::Discard&& discard);
  void act(ClaimMachine::Ended&& ended);

  const std::shared_ptr<EngineCore> core_;
  const std::shared_ptr<ServerClaim> at_server_;  // Null: its writes go to the store.

  mutable WordLock mutex_;
  ClaimMachine machine_;
  std::optional<std::stop_source> stop_;  // Made at the first stop_token() …
  std::optional<std::stop_source> loss_;  // … and loss_token().
  Timers::Id retry_timer_ = 0;            // 0: not set.
  std::uint64_t retry_turn_ = 0;          // The turn that it is for.
  std::atomic<bool> ended_{false};        // The machine's, for reading without the mutex.
};

}  // namespace once
