// The handle on a claim: who holds it may run the operation, and finishes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <once/finish.hpp>
#include <once/record.hpp>

namespace once {

namespace detail {
class AsyncRun;
}

class ClaimState;
class Companion;  // once/store.hpp

// Movable, not copyable; an empty one must only be tested, assigned to or destroyed. Its methods may be called from
// any thread; steps, heartbeats and the finish take turns on one copy of the record. One finish per claim: a second,
// unless the first was declined, throws Exception(misuse). Destroyed without a finish, it is left to lapse (the work
// may have acted, so nothing is deleted) and the engine says so by an event.
//
// The asynchronous forms complete before they return, or from a thread of the store or of the timers, or from one that
// is waiting in another blocking call; completions must not block and must not throw.
class Claim {
 public:
  Claim() = default;
  explicit Claim(std::shared_ptr<ClaimState> state) noexcept;
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&& other) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim();

  explicit operator bool() const noexcept { return state_ != nullptr; }

  [[nodiscard]] const std::string& key() const noexcept;  // Stored form. Lives as long as the claim.
  [[nodiscard]] std::uint32_t attempt() const noexcept;   // From 1.
  [[nodiscard]] std::uint64_t token() const noexcept;     // Fencing token.
  [[nodiscard]] Owner owner() const noexcept;
  [[nodiscard]] std::string derived_key(std::string_view name) const;  // Stable over attempts; see once/decide.hpp.

  // Asked to stop when the claim is lost, or its lease may have run out: somebody else may run the operation now.
  [[nodiscard]] std::stop_token stop_token() const;
  // When the claim stops being certainly ours unless a renewal succeeds; on Clock::uptime(). Moves with each renewal.
  [[nodiscard]] Uptime deadline() const noexcept;
  // Certainly ours at this moment. Look at it just before you act: whoever was stopped for longer than its lease lost
  // its claim without noticing.
  [[nodiscard]] bool is_ours() const noexcept;
  // A copy of the record as last written by us.
  [[nodiscard]] Record record() const;

  // The result of a step that is finished already, by this attempt or one before it.
  [[nodiscard]] std::optional<std::string> step(std::string_view name) const;
  // Keeps a step's result. Throws Exception(misuse) for an empty, over-long or repeated name.
  // unrecorded: kept in this process, and written with whatever is written next; unless the record would be too large
  // for its store, or have too little room there to be ended, about 8 KB (misuse); then the step is not kept at all and
  // step() does not find it.
  Finish add_step(std::string name, std::string result);
  void add_step(std::string name, std::string result, FinishDone done);

  // Renews the lease at once and leaves a note in the record for people. Does not wait.
  void heartbeat(std::string_view note = {});

  // A finish throws Exception(misuse) for a second one, or a Result with too long a content type or location.
  Finish complete(Result result);
  // The result and the companion's writes are committed together, or neither is: Store::replace_with(). Without one
  // (null), as above. What is told as unrecorded was perhaps committed, both or neither.
  Finish complete(Result result, std::shared_ptr<const Companion> with);
  Finish fail(Failure failure, Result result = {});
  Finish release(
      std::string_view reason = {});     // With finished steps the record stays, open to all; otherwise it goes.
  Finish hold(std::string_view reason);  // Outcome unknown: nobody runs it until somebody decides.

  void complete(Result result, FinishDone done);
  void complete(Result result, std::shared_ptr<const Companion> with, FinishDone done);
  void fail(Failure failure, Result result, FinishDone done);
  void release(std::string_view reason, FinishDone done);
  void hold(std::string_view reason, FinishDone done);

 private:
  friend class Engine;
  friend class detail::AsyncRun;
  void give_up(FinishDone done);

  std::shared_ptr<ClaimState> state_;
};

}  // namespace once
