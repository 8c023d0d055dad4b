// A claim as a machine: events come in, actions go out. It decides what to write and when, what an answer means, when
// the claim is lost, and what to report. It takes no lock and reads no clock: the time comes with the events. The
// engine's shell (engine/claim_state) guards it, and carries the actions out in order, without a lock.
//
// 1. The shell calls an event, with its mutex held.
// 2. It carries out the actions added to `out`.
// 3. For Send it calls transmit(), gives the write to the store, and later the store's answer to answered().
//
// A lost answer:
//
// 1. finish() with a result. The machine sends revision 2 over revision 1.
// 2. The store writes it, but the answer is lost: in_doubt.
// 3. The machine sends the same bytes again, revision 2 over 1.
// 4. The store refuses, because it has revision 2. That is the record which the machine wrote, so it is recorded.
// (The first transcript in tests/core/claims/lost_answers.txt)
//
// docs/claim-table.md prints what it does in each state. tests/core/claims has more transcripts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <boost/container/small_vector.hpp>

#include <once/decide.hpp>
#include <once/finish.hpp>
#include <once/policy.hpp>
#include <once/store.hpp>

#include "core/lease.hpp"

namespace once {

class ClaimMachine {
 public:
  // What is written. fence: a renewal after the companion of a completion was declined, before that is reported.
  enum class Op : std::uint8_t { renew, step, complete, fail, hold, release, fence };
  struct Together {
    std::shared_ptr<const Companion> companion;
    Error declined;  // fence: what to report once it is written.
  };
  // Moved for every finish, so members that few of them need are pointers. The result of a finish is apart.
  struct Write {
    explicit Write(Op what = Op::renew, FinishDone&& then = nullptr) : op(what), done(std::move(then)) {}

    Op op;
    // fail: what to store. hold, release: the message is the reason. step: the code is its name. Null: none.
    std::unique_ptr<Failure> text;
    FinishDone done;  // Only carried along. Empty for a renewal, and after the caller got its answer.
    unsigned tries = 0;
    Uptime patient_until{};              // A finish under a fixed lease: how long its caller waits for retries.
    bool is_failure = false;             // complete: the result tells of a failure, kept as long as failures are.
    bool offloaded = false;              // The bytes at the result's location must be removed if the claim is lost.
    std::unique_ptr<Together> together;  // complete with a companion, and its fence.
  };
  // A write for the store, or for the server that writes.
  struct Transmit {
    Op op = Op::renew;
    bool is_failure = false;  // As in Write.
    RecordPtr next;
    Seen seen;
    bool removes = false;
    std::shared_ptr<const Companion> companion;
  };

  // What is reported to an observer, named as in once::EventKind.
  enum class Notice : std::uint8_t {
    renewed,
    step_recorded,
    completed,
    failed,
    held,
    released,
    renewal_lost,
    finish_refused,
    abandoned,
    declined,
    unrecorded,
    store_error,
  };

  // ---- actions
  struct Send {};  // Call transmit(), and give its write to the store.
  // Call retry() with `turn` after the backoff of `tries`, counted from `from`, but not after `latest`.
  struct RetryAt {
    Uptime from;
    Uptime latest;
    unsigned tries;
    std::uint64_t turn;
  };
  struct DropRetry {  // Cancel the timer of this turn. If it fires anyway, its turn is out of date.
    std::uint64_t turn;
  };
  struct BeatAt {  // Call beat() at `due`.
    Uptime due;
  };
  struct Tell {
    Notice notice;
    Uptime since;
    RecordPtr record;
    std::optional<Error> error;
  };
  // The work must stop: another attempt may have the claim. Not for good: the lease ended, perhaps because the host
  // slept, and a renewal is tried for at most one more lease. Work that can be paused may continue once it is renewed.
  struct StopWork {
    bool for_good = true;
  };
  struct Reply {
    FinishDone done;
    Finish finish;
  };
  // The claim was lost: give `done` the record now stored, as superseded or lost.
  struct LookUp {
    FinishDone done;
    bool is_seen;  // `seen` was just read (null: no record). Otherwise read it.
    RecordPtr seen;
  };
  struct Read {};   // Read the record, and give it to read().
  struct Discard {  // Remove a result outside the store that no record names.
    std::string location;
  };
  // Nothing more will be written: callers that wait for the key may continue.
  struct Ended {
    RecordPtr record;           // What is stored now. Null: not known …
    bool gone;                  // … or nothing, if `gone`.
    FinishDone done = nullptr;  // Then give it `record`, as recorded. Null: nobody waits for that.
  };
  using Action = std::variant<Send, RetryAt, DropRetry, BeatAt, Tell, StopWork, Reply, LookUp, Read, Discard, Ended>;

  // In the order of execution. Most events cause only a few, which need no allocation.
  class Actions {
   public:
    template <class Kind>
    void add(Kind&& action) {
      all_.emplace_back(std::in_place_type<Kind>, std::forward<Kind>(action));
    }
    // Calls `each` with every action, as an rvalue.
    template <class Each>
    void take(Each&& each) {
      for (Action& action : all_) std::visit(each, std::move(action));
    }
    [[nodiscard]] bool is_send() const noexcept {  // Only a Send.
      return all_.size() == 1 && std::holds_alternative<Send>(all_.front());
    }

   private:
    boost::container::small_vector<Action, 4> all_;
  };

  struct Setting {
    std::size_t max_record_bytes = 0;  // Of the store.
    bool is_observed = false;          // Otherwise there are Tell actions of unrecorded and finish_refused only.
  };
  // `attempt` and `policy` must outlive it. `leased_at`: when the claim's write was sent. `claimed_at`: when its answer
  // came. `until`: its trusted_until().
  ClaimMachine(const Attempt& attempt, const EffectivePolicy& policy, Setting setting, RecordPtr record,
               std::uint64_t place, Uptime leased_at, Uptime claimed_at, Uptime until);

  ClaimMachine(const ClaimMachine&) = delete;
  ClaimMachine& operator=(const ClaimMachine&) = delete;

  // ---- events. Those of the caller throw Exception(misuse) for wrong calls, and then change nothing.
  void beat(Uptime now, Actions& out);             // For BeatAt.
  void note(std::string_view text, Actions& out);  // Renews with a note.
  void step(Step step, FinishDone done, Actions& out);
  void ask_finish();  // A finish is being prepared: no other may follow.
  // complete, fail, hold or release. `result`: of the first two.
  void finish(Write&& write, Result&& result, Actions& out);
  void abandon(Actions& out);                    // The handle was dropped. No effect after ask_finish().
  void retry(std::uint64_t turn, Actions& out);  // For RetryAt.
  // For Send. Empty if it is no longer needed. `random`: bits of the new revision.
  [[nodiscard]] std::optional<Transmit> transmit(const Moment& moment, std::uint32_t random);
  // The store's answer to it. `moment` is used only if looks_at_time(). `until`: after a renewal or a step, the claim
  // is ours until then, as a server says that has its lease. Otherwise that follows from when it was sent.
  void answered(Answer&& answer, const Moment& moment, Actions& out, std::optional<Uptime> until = std::nullopt);
  [[nodiscard]] bool looks_at_time(const Answer& answer) const noexcept;

  // The user's own transaction writes the finish, conditional on the owner. The claim is renewed until handed_back()
  // gives its outcome; then `done` is called. It is also called with `unrecorded` while the outcome is not known:
  // handed_back() may be called again then, with another `done`.
  void hand_out(FinishDone done, Actions& out);
  enum class Outcome : std::uint8_t {
    committed,
    rolled_back,  // Nothing was or will be written.
    in_doubt,     // Its answer was lost.
  };
  void handed_back(Outcome outcome, Actions& out, FinishDone done = nullptr);
  void forget_handed_out(Actions& out);  // Nobody can tell the outcome any more: the record is read.
  // The next finish is conditional on the revision, so it finds out whether the transaction was committed, and is
  // `recorded` with its record then. The first `done` is not called. No effect once the outcome is known.
  void take_back(Actions& out);
  void read(Answer&& answer, Actions& out);  // For Read.
  // The completion that the transaction is to write. Throws Exception(misuse) if the store cannot keep it.
  [[nodiscard]] RecordPtr completion(Result&& result, Stamp stamp) const;

  // ---- state
  enum class Stage : std::uint8_t {
    idle,        // No write.
    writing,     // A write is sent, or about to be.
    waiting,     // A write failed, and is retried later.
    handed_out,  // The finish is with the user's transaction; no write.
    lost,        // Another attempt has the claim, and no finish was asked for.
    ended,
  };
  [[nodiscard]] Stage stage() const noexcept;
  [[nodiscard]] std::optional<Op> op() const noexcept {  // writing, waiting: its kind.
    return current_ ? std::optional(current_->op) : std::nullopt;
  }
  [[nodiscard]] bool is_handed_out() const noexcept { return handed_out_; }
  [[nodiscard]] const RecordPtr& record() const noexcept { return record_; }  // As last acknowledged.
  [[nodiscard]] std::uint64_t place() const noexcept { return place_; }       // Answer::place of it.
  [[nodiscard]] Uptime claimed_at() const noexcept { return claimed_at_; }
  // A step that is written after the claim was given up does not bring it back: its work has been told of the loss.
  [[nodiscard]] Uptime deadline() const noexcept {
    return given_up_ ? std::min(trusted_until_, give_up_at_) : trusted_until_;
  }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  [[nodiscard]] bool must_stop() const noexcept { return lost_ || overdue_ || given_up_; }
  [[nodiscard]] bool must_stop_for_good() const noexcept { return lost_ || given_up_ || (overdue_ && !heartbeats()); }
  // The finish is being written, or about to be; or the user's transaction may have committed it. What is found then
  // may be older than a question that comes now.
  [[nodiscard]] bool finishing() const noexcept { return finish_queued_ || handed_out_ || taken_back_; }
  [[nodiscard]] bool is_ours(Uptime now) const noexcept { return !lost_ && now < deadline(); }
  [[nodiscard]] const Step* find_step(std::string_view name) const noexcept;  // Null: not finished.
  [[nodiscard]] Uptime renew_interval() const noexcept { return std::chrono::nanoseconds(policy_.lease) / 3; }
  [[nodiscard]] Uptime first_beat() const noexcept {
    return heartbeats() ? std::min(leased_at_ + renew_interval(), trusted_until_) : trusted_until_;
  }
  [[nodiscard]] bool waits(std::uint64_t turn) const noexcept {  // For retry().
    return current_ && phase_ == Phase::waits && turn == turn_;
  }
  // How many bytes a result may have in the record. Input, history and steps do not count: they are dropped for it.
  [[nodiscard]] std::size_t inline_limit() const noexcept;

 private:
  enum class Phase : std::uint8_t { ready, sent, waits };  // current_ is to be sent, was sent, or is retried later.
  // A write that was sent: the record to store, when it was sent, the start of its lease, and the error of the time
  // then.
  struct Sent {
    RecordPtr next;
    Uptime at{};
    Uptime counted_at{};
    Millis error{0};
  };

  [[nodiscard]] bool heartbeats() const noexcept { return policy_.heartbeat && !policy_.fixed_lease; }
  static bool is_finish(Op op) noexcept { return op != Op::renew && op != Op::step; }
  // Taken back, the claim was found to be finished by the transaction, and nobody was told yet.
  [[nodiscard]] bool found_finished() const noexcept { return ended_ && !lost_ && !finishing_; }
  [[nodiscard]] bool has_room_for(const Step& step) const noexcept;
  [[nodiscard]] RecordPtr build(Write& write, Stamp stamp);  // A finish: moves the result.
  [[nodiscard]] bool is_removal(const Record& next) const noexcept;
  void fit(Record& next) const;
  bool leave_out_more(const Write& write);

  void start(Write&& write, Actions& out);
  void pump(Actions& out);  // Starts the next write if none is running.
  void drop_current(Actions& out);
  void on_written(Sent&& sent, std::uint64_t place, const Moment& moment, std::optional<Uptime> until, Actions& out);
  void on_refused(RecordPtr seen, std::uint64_t place, Sent&& sent, const Moment& moment, Actions& out);
  void on_failed(Answer&& answer, Sent&& sent, const Moment& moment, Actions& out);
  void on_declined(Error error, const Moment& moment, Actions& out);
  void tell_declined(Error error, const Moment& moment, Actions& out);
  void lose(RecordPtr seen, Uptime since, Actions& out);
  void adopt(RecordPtr seen, std::uint64_t place, Actions& out);
  [[nodiscard]] bool is_as_sent(const Record& stored, const Record& meant) const;
  [[nodiscard]] bool is_explained(const Record& stored) const noexcept;
  void settle_doubts() noexcept;
  void trust(const Sent& sent, const Moment& moment);
  void forget_written(const Record& stored);
  void end_write(Finish finish, Actions& out);
  void meet_loss(Write&& write, Actions& out);
  void discard(const Write& write, const Record* stored, Actions& out) const;
  void find_handed_out(RecordPtr record, Actions& out);
  void come_too_late(Write&& write, Actions& out);
  void lose_handed_out(RecordPtr seen, Actions& out);
  void end_handed_out(Error error, Actions& out);
  void leave_handed_out(Error error, Actions& out);
  void tell(Notice notice, Uptime since, Actions& out, const RecordPtr& record = nullptr,
            std::optional<Error> error = std::nullopt) const;

  const Attempt& attempt_;
  const EffectivePolicy& policy_;
  const Setting setting_;
  const Uptime leased_at_;
  const Uptime claimed_at_;

  RecordPtr record_;
  std::uint64_t place_;          // Answer::place of record_.
  std::vector<Step> unwritten_;  // Finished steps that are not written yet: the next write has them.
  std::string unwritten_note_;
  Uptime trusted_until_;
  std::vector<Write> queue_;
  std::optional<Write> current_;  // The running write.
  std::optional<Result> result_;  // Of the finish. While that is on its way, the sent record has it.
  Phase phase_ = Phase::ready;    // Of current_.
  Sent sent_;                     // current_, while it is on its way.
  // What current_ sent when an answer was lost. That try may still arrive, so every retry repeats its bytes: two
  // different writes must not have the same revision. Empty: no try is in doubt.
  Sent doubtful_;
  // The revisions of all writes over record_ that failed or were refused: one of them may be stored, because the
  // network may deliver it twice. Empty when record_ is another.
  boost::container::small_vector<std::uint64_t, 2> may_be_stored_;
  std::uint64_t turn_ = 0;  // Of the current retry.
  FinishDone handed_done_;
  Outcome outcome_ = Outcome::in_doubt;  // The last handed_back().
  bool handed_out_ = false;
  bool forgotten_ = false;       // forget_handed_out() was called for it.
  bool taken_back_ = false;      // The user's transaction may have finished the claim.
  bool without_extras_ = false;  // The store has no room for the finish: without input, history and steps …
  bool late_finish_ = false;     // A finish that was declined may still reach the store.
  bool finishing_ = false;       // A finish was asked for …
  bool finish_queued_ = false;   // … and its write is ready.
  bool dropped_ = false;         // The handle was destroyed.
  bool ended_ = false;           // Finished or abandoned: nothing more is written.
  bool lost_ = false;            // Another attempt has it …
  bool lost_to_copy_ = false;    // … or a copy of this process.
  bool overdue_ = false;         // The lease has ended by our own clock …
  Uptime give_up_at_{};          // … and is renewed until then.
  bool given_up_ = false;        // It was not. Only steps and the finish are still tried.
  unsigned unsettled_ = 0;       // How many leases in a row are not trusted until the next heartbeat.
};

// Makes the result a dropped one, with size and digest. Returns its bytes.
std::string drop_bytes(Result& result);

}  // namespace once
