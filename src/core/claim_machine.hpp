// A claim as a machine: events come in, actions go out. It decides what is written when, what an answer means, when the
// claim is lost and who is told what. It takes no lock and reads no clock: the time comes with the events. The engine's
// shell (engine/claim_state) guards it, and carries the actions out in their order, without a lock.
//
// 1. The shell calls an event, with its mutex held. 2. It carries out what was added to `out`. 3. Send: it calls
// transmit(), gives the write to the store, and its answer to answered(). And so on.
//
// docs/claim-table.md prints what it does in each state; tests/core/claims has transcripts.
#pragma once

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
  // What is written. fence: a renewal in place of a completion whose companion was declined, before anybody is told so.
  enum class Op : std::uint8_t { renew, step, complete, fail, hold, release, fence };
  struct Together {
    std::shared_ptr<const Companion> companion;
    Error declined;  // fence: what is told once it is written.
  };
  // Moved from its maker to where it is written, for every finish: what only few of them have is one word or none.
  struct Write {
    Op op = Op::renew;
    Result result;
    // fail: what is stored. hold, release: the message is the reason. step: the code is its name. Null: nothing.
    std::unique_ptr<Failure> text;
    FinishDone done;  // A passenger. Empty for a renewal, and once the caller was told.
    unsigned tries = 0;
    Uptime patient_until{};  // A finish under a fixed lease: until when its caller waits for further tries.
    bool offloaded = false;  // The bytes at result.location are ours to remove if the claim turns out to be lost.
    std::unique_ptr<Together> together;  // complete with a companion, and its fence.
  };
  // What goes to the store.
  struct Transmit {
    RecordPtr next;
    Seen seen;
    bool removes = false;
    std::shared_ptr<const Companion> companion;
  };

  // What an observer is told; the names are those of once::EventKind.
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
  struct Send {};  // Call transmit(), and give what it gives to the store.
  // Call retry() with `turn` after the backoff of so many `tries` from `from` on, at `latest` at the latest.
  struct RetryAt {
    Uptime from;
    Uptime latest;
    unsigned tries;
    std::uint64_t turn;
  };
  struct DropRetry {};  // The timer set last is not wanted any more; if it fires all the same, its turn is over.
  struct BeatAt {       // Call beat() then.
    Uptime due;
  };
  struct Tell {
    Notice notice;
    Uptime since;
    RecordPtr record;
    std::optional<Error> error;
  };
  struct StopWork {};  // The work must stop: somebody else may have the claim.
  struct Reply {
    FinishDone done;
    Finish finish;
  };
  // The claim was lost: tell `done` what stands under its key, superseded or lost.
  struct LookUp {
    FinishDone done;
    bool is_seen;  // Then `seen` has just been there (null: nothing was). Otherwise it is to be read.
    RecordPtr seen;
  };
  struct Read {};   // Give read() the record that stands under the key.
  struct Discard {  // A result outside the store that nobody will look for.
    std::string location;
  };
  // Nothing more will be written: whoever waits for the key may go on.
  struct Ended {
    RecordPtr record;  // What is stored now. Null: not known …
    bool gone;         // … or nothing.
  };
  using Action = std::variant<Send, RetryAt, DropRetry, BeatAt, Tell, StopWork, Reply, LookUp, Read, Discard, Ended>;

  // In the order in which they are carried out. Most events lead to few, which need no room of their own.
  class Actions {
   public:
    template <class Kind>
    void add(Kind action) {
      all_.emplace_back(std::in_place_type<Kind>, std::move(action));
    }
    // Calls `each` with every action, as an rvalue.
    template <class Each>
    void take(Each&& each) {
      for (Action& action : all_) std::visit(each, std::move(action));
    }
    [[nodiscard]] bool is_send() const noexcept {  // That, and nothing else.
      return all_.size() == 1 && std::holds_alternative<Send>(all_.front());
    }

   private:
    boost::container::small_vector<Action, 4> all_;
  };

  struct Setting {
    std::size_t max_record_bytes = 0;  // Of the store.
    bool is_observed = false;          // Otherwise there is no Tell.
  };
  // `attempt` and `policy` must outlive it. `leased_at`: when the write that made the lease was sent; `claimed_at`:
  // when its answer was there; `until`: trusted_until() of it.
  ClaimMachine(const Attempt& attempt, const EffectivePolicy& policy, Setting setting, RecordPtr record,
               std::uint64_t place, Uptime leased_at, Uptime claimed_at, Uptime until);

  ClaimMachine(const ClaimMachine&) = delete;
  ClaimMachine& operator=(const ClaimMachine&) = delete;

  // ---- events. Those of the caller throw Exception(misuse) for what must not be, and change nothing then.
  void beat(Uptime now, Actions& out);             // What BeatAt asked for.
  void note(std::string_view text, Actions& out);  // Renews with a note.
  void step(Step step, FinishDone done, Actions& out);
  void ask_finish();                             // A finish is being made ready: there will be no other.
  void finish(Write&& write, Actions& out);      // Its write: complete, fail, hold, release.
  void abandon(Actions& out);                    // The handle was dropped. Nothing if a finish was asked for.
  void retry(std::uint64_t turn, Actions& out);  // What RetryAt asked for.
  // What Send asked for. Nothing if it is not wanted any more. `random`: bits of the new revision.
  [[nodiscard]] std::optional<Transmit> transmit(const Moment& moment, std::uint32_t random);
  // The store's answer to it. `moment` counts only if looks_at_time() says so.
  void answered(Answer&& answer, const Moment& moment, Actions& out);
  [[nodiscard]] bool looks_at_time(const Answer& answer) const noexcept;

  // The finish is left to a transaction of the user's own: it writes conditional on the owner, and the claim is renewed
  // until its outcome is told. `done` is told then.
  void hand_out(FinishDone done, Actions& out);
  enum class Outcome : std::uint8_t {
    committed,
    rolled_back,  // Nothing was written, nor will be.
    in_doubt,     // Its answer was lost.
  };
  void handed_back(Outcome outcome, Actions& out);
  void read(Answer&& answer, Actions& out);  // What Read asked for.

  // ---- what is
  enum class Stage : std::uint8_t {
    idle,        // Nothing is written.
    writing,     // A write is on its way, or about to be.
    waiting,     // It failed, and is tried again later.
    handed_out,  // The finish is with the user's transaction, and nothing is written.
    lost,        // Somebody else has the claim, and no finish was asked for yet.
    ended,
  };
  [[nodiscard]] Stage stage() const noexcept;
  [[nodiscard]] std::optional<Op> op() const noexcept {  // writing, waiting: what.
    return current_ ? std::optional(current_->op) : std::nullopt;
  }
  [[nodiscard]] bool is_handed_out() const noexcept { return handed_out_; }
  [[nodiscard]] const RecordPtr& record() const noexcept { return record_; }  // As last acknowledged.
  [[nodiscard]] Uptime deadline() const noexcept { return trusted_until_; }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  [[nodiscard]] bool must_stop() const noexcept { return lost_ || overdue_; }
  [[nodiscard]] bool finishing() const noexcept { return finish_queued_; }  // Its finish is written, or about to be.
  [[nodiscard]] bool is_ours(Uptime now) const noexcept { return !lost_ && now < trusted_until_; }
  [[nodiscard]] const Step* find_step(std::string_view name) const noexcept;  // Finished; null: it is not.
  [[nodiscard]] Uptime renew_interval() const noexcept { return std::chrono::nanoseconds(policy_.lease) / 3; }
  [[nodiscard]] Uptime first_beat() const noexcept {
    return heartbeats() ? leased_at_ + renew_interval() : trusted_until_;
  }
  [[nodiscard]] bool waits(std::uint64_t turn) const noexcept {  // For retry().
    return current_ && phase_ == Phase::waits && turn == turn_;
  }
  // What a result in the record may take, beside everything but the input and the steps, which give way to it.
  [[nodiscard]] std::size_t inline_limit() const noexcept;

 private:
  enum class Phase : std::uint8_t { ready, sent, waits };  // current_ is to be sent, on its way, or tried again later.
  // A write on its way: what it wants to leave in the store, when it was sent, when its lease was counted from, and how
  // well the time was known then.
  struct Sent {
    RecordPtr next;
    Uptime at{};
    Uptime counted_at{};
    Millis error{0};
  };

  [[nodiscard]] bool heartbeats() const noexcept { return policy_.heartbeat && !policy_.fixed_lease; }
  static bool is_finish(Op op) noexcept { return op != Op::renew && op != Op::step; }
  [[nodiscard]] bool has_room_for(const Step& step) const noexcept;
  [[nodiscard]] RecordPtr build(Write& write, Stamp stamp) const;  // Takes the write's result.
  void fit(Record& next) const;

  void start(Write&& write, Actions& out);
  void pump(Actions& out);  // Starts the next write if none is under way.
  void drop_current(Actions& out);
  void on_written(Sent&& sent, std::uint64_t place, const Moment& moment, Actions& out);
  void on_refused(RecordPtr seen, std::uint64_t place, Sent&& sent, const Moment& moment, Actions& out);
  void on_failed(Answer&& answer, Sent&& sent, const Moment& moment, Actions& out);
  void on_declined(Error error, const Moment& moment, Actions& out);
  void tell_declined(Error error, const Moment& moment, Actions& out);
  void lose(RecordPtr seen, Uptime since, Actions& out);
  void adopt(RecordPtr seen, std::uint64_t place, Actions& out);
  void trust(const Sent& sent, const Moment& moment);
  void forget_written(const Record& stored);
  void end_write(Finish finish, Actions& out);
  void meet_loss(Write&& write, Actions& out);
  void discard(const Write& write, const Record* stored, Actions& out) const;
  void find_handed_out(RecordPtr record, Actions& out);
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
  std::uint64_t place_;          // Where the store keeps it.
  std::vector<Step> unwritten_;  // Steps that finished but could not be written yet: they go with the next write.
  std::string unwritten_note_;
  Uptime trusted_until_;
  std::vector<Write> queue_;
  std::optional<Write> current_;  // The write under way.
  Phase phase_ = Phase::ready;    // Of current_.
  Sent sent_;                     // current_, while it is on its way.
  // What current_ sent when an answer was lost. That try may still arrive, so every other one repeats its bytes: two
  // different writes never have the same revision. Empty: no try is in doubt.
  Sent doubtful_;
  std::uint64_t turn_ = 0;  // Of the retry that counts.
  FinishDone handed_done_;
  Outcome outcome_ = Outcome::in_doubt;  // As told last.
  bool handed_out_ = false;
  bool finishing_ = false;      // A finish was asked for …
  bool finish_queued_ = false;  // … and what it writes is ready.
  bool dropped_ = false;        // The handle is gone.
  bool ended_ = false;          // Finished, abandoned or given up: nothing more is written.
  bool lost_ = false;           // Somebody else has it.
  bool overdue_ = false;        // Our own measure of the lease has run out.
  unsigned unsettled_ = 0;      // Leases in a row that cannot be trusted until the next heartbeat.
};

// Leaves of a result what a replay needs to say what is missing; gives its bytes back.
std::string drop_bytes(Result& result);

}  // namespace once
