// The handle of a claim. Its owner may run the operation, and must finish the claim.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <once/finish.hpp>
#include <once/record.hpp>
#include <once/trace.hpp>

namespace once {

namespace detail {
class AsyncRun;
}

class ClaimState;
class Flights;
class Companion;  // once/store.hpp

// Movable, not copyable. Only test, assign or destroy an empty one. Its methods may be called from any thread; steps,
// heartbeats and the finish take turns on one copy of the record. One finish per claim: a second throws
// Exception(misuse), unless the first was declined. Destroyed without a finish, it lapses: the work may have acted, so
// nothing is deleted. An event (`abandoned`) reports that.
//
// The asynchronous forms complete before they return, or from a thread of the store or the timers, or from a thread
// that waits in another blocking call. Completions must not block and must not throw.
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

  // The trace context to send to services downstream: that of the work. Its parent is empty if the call is not traced.
  [[nodiscard]] TraceContext trace() const;

  // Set when the claim is lost, or its lease may have ended: another attempt may run the operation now.
  [[nodiscard]] std::stop_token stop_token() const;
  // Until when the claim is certainly ours, on Clock::uptime(). Each renewal moves it.
  [[nodiscard]] Uptime deadline() const noexcept;
  // Certainly ours at this moment. Check it just before you act: a process that was stopped for longer than its lease
  // has lost its claim without noticing.
  [[nodiscard]] bool is_ours() const noexcept;
  // A copy of the record as this claim last wrote it.
  [[nodiscard]] Record record() const;

  // The result of a step that this attempt or an earlier one has finished. Empty: not finished.
  [[nodiscard]] std::optional<std::string> step(std::string_view name) const;
  // Keeps a step's result. Throws Exception(misuse) for a name that is empty, too long or used already. unrecorded:
  // kept in this process, and written with the next write. Error misuse: the record would be too large for its store,
  // or leave too little room (about 8 KB) to end it. Then the step is not kept, and step() does not find it.
  Finish add_step(std::string name, std::string result);
  void add_step(std::string name, std::string result, FinishDone done);

  // Renews the lease at once and leaves a note in the record for people. Does not wait.
  void heartbeat(std::string_view note = {});

  // The finishes. Each throws Exception(misuse) for a second finish, or for a Result whose content type or location is
  // too long.
  Finish complete(Result result);
  // Commits the result and the companion's writes together, or neither: Store::replace_with(). Null: as above.
  // unrecorded: either both were committed, or neither.
  Finish complete(Result result, std::shared_ptr<const Companion> with);
  Finish fail(Failure failure, Result result = {});
  Finish release(std::string_view reason = {});  // Keeps the record if it has steps.
  Finish hold(std::string_view reason);          // The outcome is unknown: an operator decides.

  void complete(Result result, FinishDone done);
  void complete(Result result, std::shared_ptr<const Companion> with, FinishDone done);
  // For a result that tells of a failure, as an HTTP answer of 400: kept for Policy::failure_retention.
  void complete_as_failure(Result result, FinishDone done);
  void fail(Failure failure, Result result, FinishDone done);
  void release(std::string_view reason, FinishDone done);
  void hold(std::string_view reason, FinishDone done);

 private:
  friend class Engine;
  friend class detail::AsyncRun;
  friend class Flights;
  void give_up(FinishDone done);

  std::shared_ptr<ClaimState> state_;
};

}  // namespace once
