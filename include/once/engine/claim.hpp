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
#include <once/stores/sql.hpp>
#include <once/trace.hpp>

namespace once {

namespace detail {
class AsyncRun;
class OwnWrites;
}  // namespace detail

// These are private: src/engine has them.
class ClaimState;
class Flights;
class Handing;

// A finish that is left to a transaction of your own: Claim::hand_out(), Context::hand_out(). The claim is renewed
// meanwhile, and only the transaction can finish it:
//
// 1. Begin a transaction in the store's own database, by any client library, and write.
// 2. Execute finish_statement(), last, outside of savepoints. It raises an error if the claim was lost: roll back.
// 3. Commit, and tell how that ended. Until then the engine knows nothing, and calls for the key wait or conflict.
//
// commit() does 2 and 3. Movable, not copyable; an empty one may only be tested, assigned and destroyed. Its methods
// may be called from any thread, one at a time. Destroyed without a word: as unknown().
//
// Each of the three that tell gives the Finish, again after the first time:
// - recorded: the transaction was committed, with the finish. `record`: as stored.
// - superseded, lost: another attempt has the claim. Nothing of the transaction can have been committed, unless its
//   result has expired since (Policy::retention), or an operator came in between.
// - declined: nothing was and will be committed. The claim is still yours: hand it out again, or finish it otherwise.
// - unrecorded: not known yet. Ask again with unknown(); the claim is renewed while its handle lives.
class HandedOut {
 public:
  HandedOut() = default;
  explicit HandedOut(std::shared_ptr<Handing> handing) noexcept;  // For the engine.
  HandedOut(HandedOut&&) noexcept;
  HandedOut& operator=(HandedOut&& other) noexcept;
  HandedOut(const HandedOut&) = delete;
  HandedOut& operator=(const HandedOut&) = delete;
  ~HandedOut();

  explicit operator bool() const noexcept { return handing_ != nullptr; }  // False: empty.

  // Made anew at each call: the result's retention counts from it, so call it when you execute it. See
  // Store::finish_statement(), which says what it throws.
  [[nodiscard]] stores::SqlStatement finish_statement() const;

  // The commit was acknowledged. The record is read all the same: if the transaction did not execute the statement,
  // this is declined (misuse). If it cannot be read, the word counts.
  Finish committed();
  // The transaction is certainly not committed, and never will be. Not checked: if it was committed all the same, the
  // next write of the claim finds out, and is refused.
  Finish rolled_back();
  // The commit's answer was lost: the record is read. superseded, lost and recorded are certain. While the record is
  // still in progress, the transaction may be committed later: unrecorded.
  Finish unknown();
  // These are the same three without blocking.
  void committed(FinishDone done);
  void rolled_back(FinishDone done);
  void unknown(FinishDone done);

  // Executes the statement, commits, and tells. For stores::SqliteTransaction, or another type with
  // - finish(const stores::SqlStatement&), which throws stores::FinishRefused if the claim was lost, and
  // - commit(), which throws an Exception of kind in_doubt if it is not known whether it was committed.
  // Whatever else these throw, as a std::exception, means that the transaction is rolled back: declined, with its text.
  template <class Transaction>
  [[nodiscard]] Finish commit(Transaction& transaction);

  // Ends the hand-out without a word about the transaction: the claim is yours as before, and its next finish finds
  // out. For who has not seen the transaction at all. Empty, or how the claim has ended already.
  [[nodiscard]] std::optional<Finish> take_back();

 private:
  friend class detail::OwnWrites;

  std::shared_ptr<Handing> handing_;
};

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
  explicit Claim(std::shared_ptr<ClaimState> state) noexcept;  // For the engine.
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&& other) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim();

  explicit operator bool() const noexcept { return state_ != nullptr; }  // False: empty.

  [[nodiscard]] const std::string& key() const noexcept;               // Stored form. Lives as long as the claim.
  [[nodiscard]] std::uint32_t attempt() const noexcept;                // From 1.
  [[nodiscard]] std::uint64_t token() const noexcept;                  // Fencing token.
  [[nodiscard]] Owner owner() const noexcept;                          // Names this claim, for Engine::attach().
  [[nodiscard]] std::string derived_key(std::string_view name) const;  // Stable over attempts; see once/decide.hpp.

  // The trace context to send to services downstream: that of the work. Its parent is empty if the call is not traced.
  [[nodiscard]] TraceContext trace() const;

  // Set when the claim is lost, or its lease may have ended: another attempt may run the operation now. It stays set.
  // If the lease ended because the host slept, and the record is still this claim's, a renewal may save the claim after
  // that: deadline() moves again, and a token that is taken only then is not set.
  [[nodiscard]] std::stop_token stop_token() const;
  // Set when the claim is not renewed any more: another attempt has it, or no renewal succeeded for one more lease
  // after its own. Between the two, pause the work rather than ending it, if it can be paused. Afterwards steps and the
  // finish are still recorded if the record is still this claim's, but with heartbeats is_ours() stays false.
  [[nodiscard]] std::stop_token loss_token() const;
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
  // kept in this process, and written with the next write; but not kept (step() does not find it) if it is too large
  // for the store, or leaves too little room (about 8 KB) to end the record. The error is misuse then.
  Finish add_step(std::string name, std::string result);
  // The same without blocking. Throws before it begins, or calls `done`.
  void add_step(std::string name, std::string result, FinishDone done);

  // Renews the lease at once and leaves a note in the record for people. Does not wait.
  void heartbeat(std::string_view note = {});

  // The finishes. Each throws Exception(misuse) for a second finish, or for a Result whose content type or location is
  // too long.
  Finish complete(Result result);
  // Commits the result and the companion's writes together, or neither: Store::replace_with(). Null: as above.
  // unrecorded: either both were committed, or neither.
  Finish complete(Result result, std::shared_ptr<const Companion> with);
  // Stores the failure, which is replayed for Policy::failure_retention. `result`: bytes that belong to it.
  Finish fail(Failure failure, Result result = {});
  // Keeps the record, as a released one, if it has steps, or if a finish that was declined might still reach the
  // store. Otherwise removes it.
  Finish release(std::string_view reason = {});
  Finish hold(std::string_view reason);  // The outcome is unknown: an operator decides.

  // Leaves the completion to a transaction of your own: see HandedOut. Until that is over, no finish, step or other
  // hand_out() is possible. Throws Exception(misuse), and hands out nothing: for a store that cannot
  // (Capabilities::hands_out), while a step is being written, after a finish, and for a result that is too large for
  // the record (it is compressed, but not offloaded).
  [[nodiscard]] HandedOut hand_out(Result result);
  // The same without a statement: for a program that makes its own, with key() and owner().
  [[nodiscard]] HandedOut hand_out();

  // For a result that tells of a failure, as an HTTP answer of 400: kept for Policy::failure_retention.
  void complete_as_failure(Result result, FinishDone done);
  // These are the finishes above without blocking. They throw before they begin, or call `done`.
  void complete(Result result, FinishDone done);
  void complete(Result result, std::shared_ptr<const Companion> with, FinishDone done);
  void fail(Failure failure, Result result, FinishDone done);
  void release(std::string_view reason, FinishDone done);
  void hold(std::string_view reason, FinishDone done);

 private:
  friend class Engine;
  friend class detail::AsyncRun;
  friend class Flights;
  void give_up(FinishDone done);

  std::shared_ptr<ClaimState> state_ = {};
};

template <class Transaction>
Finish HandedOut::commit(Transaction& transaction) {
  Error error;
  try {
    transaction.finish(finish_statement());
    transaction.commit();
    return committed();
  } catch (const stores::FinishRefused&) {
    Finish said = unknown();  // The record says who has it.
    if (said.kind != Finish::Kind::unrecorded) return said;
    error.message =
        "the finish was refused, but the claim is not lost: a transaction of repeatable read or serializable that "
        "began before the claim does not see it. Repeat the transaction";
  } catch (const Exception& thrown) {
    if (thrown.kind() == ErrorKind::in_doubt) return unknown();
    error = thrown.error();
  } catch (const std::exception& thrown) {
    error.message = thrown.what();
  }
  Finish finish = rolled_back();
  if (finish.kind == Finish::Kind::declined) finish.error = std::move(error);
  return finish;
}

}  // namespace once
