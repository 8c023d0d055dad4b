#include <once/engine/local.hpp>

#include <string>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/exceptions.hpp>

#include "core/claim_machine.hpp"
#include "engine/claim_state.hpp"
#include "engine/core.hpp"
#include "engine/run.hpp"
#include "engine/running.hpp"
#include "platform/wait.hpp"

namespace once::detail {

namespace {

constexpr unsigned most_local_refusals = 1'000;  // As of an ordinary claim: so many mean a faulty store.
constexpr Millis after_a_local_one{1'000};       // For callers that found another local transaction.

void refuse_policy(const EngineCore& core, const EffectivePolicy& policy, const LocalTransaction& transaction) {
  const auto refuse = [](const std::string& why) {
    throw Exception(ErrorKind::misuse, "run_local(): " + why + ". Nothing was run");
  };
  if (&innermost(transaction.store()) != &innermost(*core.options.store)) {
    refuse("the transaction is not one of the engine's store");
  }
  if (core.capabilities.seals) {
    refuse("the store is sealed, and its results would be kept in the clear: use run() with a companion");
  }
  if (policy.on_throw != OnThrow::release || core.options.throw_rule) {
    refuse(
        "whatever the work throws, its transaction is rolled back and the next caller runs: OnThrow::store, "
        "OnThrow::hold "
        "and a throw_rule cannot be kept. Set Policy::on_throw to release, or use run()");
  }
}

class Local {
 public:
  Local(EngineCore& core, std::shared_ptr<EngineAttempt> attempt, LocalTransaction& transaction)
      : core_(core), attempt_(std::move(attempt)), transaction_(transaction), since_(core.uptime()) {}

  Outcome run(const std::function<Result()>& work) {
    Outcome outcome;
    if (std::optional<Begin> told = claim()) {
      transaction_.rollback();
      Begin begun = answer(*std::move(told));
      is_over(begun, outcome);
      return outcome;
    }
    tell(Flights::event_of(verdict_), claimed_);
    try {
      const Running running(core_, attempt_->key);
      outcome.result = work();
    } catch (...) {  // Any exception is passed to the caller.
      transaction_.rollback();
      tell(EventKind::released, claimed_);
      throw;
    }
    tell(EventKind::work_done, claimed_);
    outcome.record = finish(outcome.result);
    outcome.kind = Outcome::Kind::executed;
    tell(EventKind::completed, outcome.record);
    remove_orphan();
    return outcome;
  }

 private:
  // Empty: the claim is written, and its key is locked.
  std::optional<Begin> claim() {
    try {
      if (!core_.moment().told) {  // Nothing is decided by the host's clock.
        const Answer asked = read();
        if (asked.status == AnswerStatus::failed) return failed(asked.error);
      }
      for (unsigned refusals = 0; refusals < most_local_refusals; ++refusals) {
        const Time now = core_.moment().now;
        auto next = std::make_shared<Record>();
        if (verdict_ == Verdict::mark_unknown) {
          *next = *seen_;
          mark_lapsed(*next, core_.stamp(now));
        } else {
          attempt_->forget_owner();  // No claim of its transaction is in doubt.
          const Stamp stamp = core_.claim_stamp(*attempt_, now);
          once::claim(*next, *attempt_, policy(), stamp, seen_.get(), verdict_);
        }
        shorten(*next, core_.capabilities.max_record_bytes);
        std::optional<Seen> where;
        if (seen_ != nullptr) where = Seen{.owner = seen_->owner, .revision = seen_->revision};
        const Uptime sent = core_.uptime();
        std::optional<Answer> answer = transaction_.write(*next, where ? &*where : nullptr, left_to_wait());
        if (!answer) return conflict();
        core_.learn(*answer, sent);
        if (answer->status == AnswerStatus::failed) return failed(answer->error);
        if (answer->status == AnswerStatus::done) {
          claimed_ = std::move(next);
          if (verdict_ != Verdict::mark_unknown) return std::nullopt;
          transaction_.commit();
          return Flights::begin_of({Verdict::unknown}, claimed_);
        }
        if (auto told = look_at(std::move(answer->record))) return told;
      }
      return failed({ErrorKind::corrupt, "the store refused " + std::to_string(most_local_refusals) +
                                             " conditional writes of one claim in a row"});
    } catch (const Exception& error) {
      return failed(error.error());
    } catch (...) {  // Of the user's library.
      transaction_.rollback();
      throw;
    }
  }

  // The record in the way. Empty: write again.
  std::optional<Begin> look_at(RecordPtr record) {
    seen_ = std::move(record);
    verdict_ = Verdict::execute;
    if (seen_ == nullptr) return std::nullopt;  // It was removed meanwhile.
    if (is_sealed(*seen_)) return failed(sealed_error(*seen_));
    const Decision decision = decide(seen_.get(), *attempt_, policy(), core_.moment().earliest());
    switch (decision.verdict) {
      case Verdict::execute:
      case Verdict::retry:
      case Verdict::take_over:
      case Verdict::mark_unknown:
        verdict_ = decision.verdict;
        return std::nullopt;
      case Verdict::resume:  // The owner is new, so nobody else has it.
        return failed({ErrorKind::corrupt, "the store shows a claim of an owner that has not been told to it yet"});
      default:
        return Flights::begin_of(decision, seen_);
    }
  }

  // What is stored then.
  RecordPtr finish(Result result) {
    ClaimMachine machine(*attempt_, policy(), {.max_record_bytes = core_.capabilities.max_record_bytes}, claimed_, 0,
                         since_, since_, Uptime::max());
    RecordPtr completion;
    try {
      fit_inline(result, machine.inline_limit(), compress_over(policy(), core_.capabilities), "stored with its work");
      completion = machine.completion(std::move(result), core_.stamp(core_.moment().now));
      transaction_.finish(*completion);
      transaction_.commit();
      return completion;
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::in_doubt) decline(error.error());
      return look_after_doubt(std::move(completion), error.error());
    } catch (...) {  // Of the user's library.
      transaction_.rollback();
      tell(EventKind::released, claimed_);
      throw;
    }
  }

  [[noreturn]] void decline(const Error& error) {
    transaction_.rollback();
    tell(EventKind::declined, claimed_, &error);
    tell(EventKind::released, claimed_);
    throw Declined(error.kind, "the work ran, but its transaction could not be committed: " + error.message, nullptr);
  }

  RecordPtr look_after_doubt(RecordPtr completion, const Error& error) {
    const Answer asked = read();
    const bool is_there = asked.status != AnswerStatus::failed && asked.record != nullptr &&
                          asked.record->owner == attempt_->owner && asked.record->state == State::completed;
    if (is_there) return completion;
    tell(EventKind::unrecorded, claimed_, &error);
    throw Unrecorded(ErrorKind::in_doubt,
                     "the work ran, and it is not known yet whether its transaction was committed, with the result, or "
                     "not at all. Call again: it is replayed, or runs: " +
                         error.message,
                     nullptr);
  }

  Answer read() {
    const Uptime sent = core_.uptime();
    Answer answer = wait_for<Answer>([&](Done done) { core_.options.store->get(attempt_->key, std::move(done)); });
    core_.learn(answer, sent);
    return answer;
  }

  Begin failed(Error error) {
    tell(EventKind::store_error, nullptr, &error);
    Begin begin;
    begin.error = std::move(error);
    begin.record = seen_;
    return begin;
  }

  Begin conflict() const {
    Begin begin;
    begin.kind = Begin::Kind::conflict;
    begin.record = seen_;
    begin.retry_after = after_a_local_one;
    return begin;
  }

  // With its event, and its result fetched.
  Begin answer(Begin&& begin) {
    Begin whole = wait_for<Begin>([&](Callback<void(Begin&&)> done) {
      Caller caller;
      caller.attempt = attempt_;
      caller.done = std::move(done);
      caller.since = since_;
      caller.led = true;
      core_.flights.reply(std::move(caller), std::move(begin));
    });
    if (whole.kind != Begin::Kind::claimed) return whole;
    // Its result was gone, and the key is free by now.
    whole.claim.release("a local transaction cannot use an ordinary claim");
    Begin begun;
    begun.error = {ErrorKind::unavailable,
                   "the record changed while its result was fetched, and nothing was run: try again"};
    return begun;
  }

  // The result of a record that was written over: no caller will need it.
  void remove_orphan() {
    if (seen_ == nullptr || seen_->result.placement != Placement::offloaded || !core_.options.offload) return;
    core_.options.offload->remove(seen_->result.location,
                                  [core = core_.shared_from_this(), key = attempt_->key](OffloadAnswer answer) {
                                    if (!answer.error) return;
                                    core->tell({.kind = EventKind::store_error, .key = key, .error = &*answer.error});
                                  });
  }

  [[nodiscard]] const EffectivePolicy& policy() const noexcept { return attempt_->policy; }
  [[nodiscard]] Millis left_to_wait() const {
    if (policy().on_conflict == OnConflict::fail) return Millis{0};
    return std::max(Millis{0}, policy().wait - std::chrono::floor<Millis>(core_.uptime() - since_));
  }
  void tell(EventKind kind, const RecordPtr& record, const Error* error = nullptr) const {
    core_.tell({.kind = kind,
                .key = attempt_->key,
                .record = record.get(),
                .trace = attempt_->trace.get(),
                .error = error,
                .took = core_.uptime() - since_});
  }

  EngineCore& core_;
  const std::shared_ptr<EngineAttempt> attempt_;
  LocalTransaction& transaction_;
  const Uptime since_;
  Verdict verdict_ = Verdict::execute;
  RecordPtr seen_;     // The record in the way. Null: none.
  RecordPtr claimed_;  // What was written over it.
};

}  // namespace

Outcome run_local(EngineCore& core, Request&& request, LocalTransaction& transaction,
                  const std::function<Result()>& work) {
  struct Over {  // Whatever happens.
    ~Over() { transaction.rollback(); }
    LocalTransaction& transaction;
  } const over{transaction};
  EffectivePolicy policy = core.take_in(request);
  refuse_policy(core, policy, transaction);
  if (Running::refuse_anywhere(core, request.key.stored())) policy.on_conflict = OnConflict::fail;
  if (*core.options.disabled) {
    const std::string key = std::move(request.key).stored();
    core.tell_unprotected(scope_of(key), key);
    Outcome outcome;
    outcome.result = work();
    transaction.commit();
    outcome.kind = Outcome::Kind::unprotected;
    return outcome;
  }
  if (auto known = core.flights.cached(request, policy)) {
    Outcome outcome;
    is_over(*known, outcome);
    return outcome;
  }
  return Local(core, core.attempt_of(std::move(request), policy), transaction).run(work);
}

}  // namespace once::detail
