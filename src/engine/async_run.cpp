#include <once/engine/async_run.hpp>

#include <utility>

#include <once/decide.hpp>
#include <once/engine/exceptions.hpp>

#include "engine/claim_state.hpp"
#include "engine/core.hpp"
#include "engine/run.hpp"
#include "engine/running.hpp"

namespace once::detail {

AsyncRun::AsyncRun(Engine& engine) : core_(engine.core_) {}
AsyncRun::~AsyncRun() = default;

void AsyncRun::start(std::optional<Request> request, std::string_view operation, Outcome& outcome) {
  outcome_ = &outcome;
  operation_ = operation;
  if (!request) {
    state_ = State::ready;
    return ready();
  }
  std::optional<Begin> known;
  try {
    policy_ = core_->take_in(*request);
    Running::refuse_here(*core_, request->key.stored());
    known = core_->flights.cached(*request, policy_);
  } catch (...) {  // misuse, for the caller.
    return end({.error = std::current_exception()});
  }
  if (known) return begun(std::move(*known));
  if (*core_->options.disabled) {
    attempt_ = core_->attempt_of(std::move(*request), policy_);
    state_ = State::ready;
    return ready();
  }
  claim(core_->attempt_of(std::move(*request), policy_));
}

void AsyncRun::claim(std::shared_ptr<EngineAttempt> attempt) {
  attempt_ = attempt;
  core_->begin(std::move(attempt), [self = shared_from_this()](Begin begin) { self->begun(std::move(begin)); });
}

namespace {

// Releases a claim whose work has not run, and calls `then` when that is written or has failed.
template <class Then>
void give_back(Claim&& claim, std::string_view why, Then&& then) {
  auto kept = std::make_shared<Claim>(std::move(claim));
  kept->release(why, [kept, then = std::forward<Then>(then)](const Finish&) { then(); });
}

constexpr std::string_view cancelled_before = "its caller cancelled the call before the work began";

}  // namespace

void AsyncRun::begun(Begin begin) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::claiming && begin.kind == Begin::Kind::claimed) {
      claim_ = std::move(begin.claim);
      state_ = State::ready;
    }
  }
  if (begin.claim) return give_back(std::move(begin.claim), cancelled_before, [] {});  // Its caller no longer waits.
  if (begin.kind == Begin::Kind::claimed) return ready();
  bool unprotected = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::claiming) return;
    is_over(begin, *outcome_);
    unprotected = runs_unprotected(*outcome_, policy_);
    if (unprotected) state_ = State::ready;
  }
  if (unprotected) return ready();
  end({});
}

void AsyncRun::claim_again(std::shared_ptr<EngineAttempt> attempt) {
  const bool again = ++times_ < max_claims;
  const Error error = again ? Error() : no_time_to_begin(policy_);
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::claiming) return;  // Cancelled meanwhile.
    outcome_->error = error;
  }
  if (again) return claim(std::move(attempt));
  core_->tell({.kind = EventKind::store_error, .key = attempt->key, .trace = attempt->trace.get(), .error = &error});
  end({});
}

Context* AsyncRun::begin_work() {
  Claim late;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::ready) return nullptr;
    // The claim may have waited for its turn. Work that has not begun can be released safely.
    if (claim_ && !claim_.is_ours()) {
      late = std::exchange(claim_, Claim());
      state_ = State::claiming;
    } else {
      state_ = State::working;
    }
  }
  if (late) {
    give_back(std::move(late), "the claim was lost before the work began",
              [self = shared_from_this()] { self->claim_again(self->core_->again(*self->attempt_)); });
    return nullptr;
  }
  const std::string* key = attempt_ == nullptr ? nullptr : &attempt_->key;
  if (claim_) {
    lost_.emplace(claim_.stop_token(), [this] { stop_.request_stop(); });
  } else {
    if (key != nullptr) operation_ = scope_of(*key);
    core_->tell_unprotected(operation_, key == nullptr ? std::string_view() : std::string_view(*key));
  }
  context_.reset(new Context(*core_, claim_ ? &claim_ : nullptr, key));
  context_->stop_ = &stop_;
  return context_.get();
}

void AsyncRun::returned(Result result) {
  try {
    check(result);
  } catch (...) {  // misuse: treated as the work's exception.
    return threw(std::current_exception());
  }
  outcome_->result = std::move(result);
  if (!claim_) {
    outcome_->error = {};
    outcome_->kind = Outcome::Kind::unprotected;
    return end({});
  }
  std::shared_ptr<const Companion> companion = context_->own_writes_.take_companion();
  if (context_->own_writes_.was_handed_out()) {
    return context_->own_writes_.read_outcome(
        [self = shared_from_this()](Finish finish) { self->completed(std::move(finish), true); });
  }
  const bool together = companion != nullptr;
  claim_.complete(outcome_->result, std::move(companion), [self = shared_from_this(), together](Finish finish) {
    self->completed(std::move(finish), together);
  });
}

void AsyncRun::completed(Finish finish, bool companion) {
  try {
    settle(std::move(finish), companion, policy_, *outcome_);
  } catch (const Declined&) {
    return end_thrown(std::current_exception(), true);
  } catch (...) {  // Unrecorded.
    return end({.error = std::current_exception()});
  }
  end({});
}

void AsyncRun::threw(std::exception_ptr error) {
  if (!claim_) return end({.error = std::move(error)});
  if (context_->own_writes_.may_be_committed()) {
    return context_->own_writes_.read_outcome(
        [self = shared_from_this(), error = std::move(error)](const Finish& finish) {
          // As in run_work(): the transaction has finished the claim, or may still do so.
          if (finish.kind != Finish::Kind::declined) return self->end({.error = error});
          self->end_thrown(error, false);
        });
  }
  if (!is_claim_lost(error) || !claim_.stop_token().stop_requested()) return end_thrown(error, false);
  // As in run_work(): it is not known what a lost attempt did, so its claim is left to lapse.
  claim_.give_up([self = shared_from_this(), error](Finish finish) { self->end_with(error, std::move(finish), true); });
}

void AsyncRun::end_thrown(const std::exception_ptr& error, bool superseded_counts) {
  try {
    std::rethrow_exception(error);
  } catch (...) {  // Any exception: finish_thrown() reads it from here.
    finish_thrown(claim_, policy_, core_->options.throw_rule,
                  [self = shared_from_this(), error, superseded_counts](Finish finish) {
                    self->end_with(error, std::move(finish), superseded_counts);
                  });
  }
}

void AsyncRun::end_with(const std::exception_ptr& error, Finish finish, bool superseded_counts) {
  if (!superseded_counts || finish.kind != Finish::Kind::superseded) return end({.error = error});
  settle_lost(std::move(finish), *outcome_);
  end({});
}

void AsyncRun::cancel(bool stop_work) {
  Claim unused;
  State was{};
  {
    const std::lock_guard lock(mutex_);
    was = state_;
    if (was == State::claiming || was == State::ready) {
      state_ = State::over;
      unused = std::move(claim_);
    }
  }
  if (was == State::working) {
    if (stop_work) stop_.request_stop();
  } else if (unused) {
    give_back(std::move(unused), cancelled_before,
              [self = shared_from_this()] { self->finished({.cancelled = true}); });
  } else if (was != State::over) {
    finished({.cancelled = true});
  }
}

void AsyncRun::end(End end) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::over) return;  // Cancelled meanwhile, and reported.
    state_ = State::over;
  }
  finished(std::move(end));
}

}  // namespace once::detail
