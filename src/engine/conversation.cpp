#include "engine/conversation.hpp"

#include <algorithm>
#include <utility>

#include "engine/core.hpp"

namespace once {

namespace {

constexpr unsigned max_tries = 6;  // For one doubtful write: about a second, with the backoff below.
constexpr unsigned max_refusals =
    1'000;  // Each means that another attempt made progress. This many mean a faulty store.
constexpr Millis first_ask_again{20};
constexpr Millis most_ask_again{500};

}  // namespace

void Conversation::start(std::shared_ptr<EngineCore> core, EngineAttempt& attempt, Millis lease, Start start,
                         OnEnd on_end) {
  auto self = std::make_unique<Conversation>(std::move(core), attempt, lease, std::move(on_end));
  Conversation& talk = *self;
  switch (start.kind) {
    case Start::Kind::insert:
      return talk.insert(std::move(self), start.now);
    case Start::Kind::read:
      return talk.read(std::move(self));
    case Start::Kind::seen:
      return talk.consider(std::move(self), std::move(start.record), start.place);
  }
}

Conversation::Conversation(std::shared_ptr<EngineCore>&& core, EngineAttempt& attempt, Millis lease, OnEnd&& on_end)
    : core_(std::move(core)), attempt_(attempt), policy_(attempt.policy), on_end_(std::move(on_end)) {
  policy_.lease = lease;
}

void Conversation::insert(Self self, Uptime now) {
  const Moment moment = now == Uptime() ? core_->moment() : core_->moment_at(now);
  ask_ = Ask::insert;
  verdict_ = Verdict::execute;
  told_ = moment.told;
  error_ = moment.error;
  auto next = std::make_shared_for_overwrite<Record>();  // A () would first write zeros over all of it.
  const Stamp stamp = core_->claim_stamp(attempt_, moment.now);
  claim(*next, attempt_, policy_, stamp, nullptr, verdict_);
  if (!next->input.empty()) shorten(*next, core_->capabilities.max_record_bytes);
  // If our earlier claim was removed, the new one must not look like it: another write that names the old one may still
  // arrive.
  if (written_ != nullptr) next->revision = next_revision(written_->revision, stamp.random);
  written_ = std::move(next);
  written_at_ = moment.uptime;
  core_->options.store->insert(written_, [self = std::move(self)](Answer&& answer) mutable {
    Conversation& talk = *self;
    talk.on_answer(std::move(self), std::move(answer), talk.written_at_);
  });
}

void Conversation::insert_or_end(Self self, std::uint64_t place) {
  if (attempt_.attaches) return end_seen(nullptr, place);
  insert(std::move(self));
}

void Conversation::read(Self self) {
  ask_ = Ask::read;
  const Uptime sent = core_->uptime();
  core_->options.store->get(attempt_.key, [self = std::move(self), sent](Answer&& answer) mutable {
    Conversation& talk = *self;
    talk.on_answer(std::move(self), std::move(answer), sent);
  });
}

void Conversation::consider(Self self, std::shared_ptr<const Record> record, std::uint64_t place) {
  // Even if it has expired: this program lacks the key, and would store the next result in the clear.
  if (is_sealed(*record)) return on_failed(std::move(self), sealed_error(*record));
  const Moment moment = core_->moment();
  const Decision decision = decide(record.get(), attempt_, policy_, moment.earliest());
  if (attempt_.attaches && decision.verdict != Verdict::resume) return end_seen(std::move(record), place);
  switch (decision.verdict) {
    case Verdict::execute:
    case Verdict::retry:
    case Verdict::take_over: {
      // A record with our owner that is over: a copy of this process has run what we had in doubt.
      if (record->owner == attempt_.owner) forget_owner();
      verdict_ = decision.verdict;
      told_ = moment.told;
      error_ = moment.error;
      if (decision.verdict != Verdict::execute) shown_ = record;
      orphan_ = record->result.placement == Placement::offloaded ? record->result.location : std::string();
      auto next = std::make_shared<Record>();
      claim(*next, attempt_, policy_, core_->claim_stamp(attempt_, moment.now), record.get(), verdict_);
      shorten(*next, core_->capabilities.max_record_bytes);
      return replace(std::move(self), std::move(next), *record, place, Ask::claim_over, moment.uptime);
    }
    case Verdict::mark_unknown: {
      auto next = std::make_shared<Record>(*record);
      mark_lapsed(*next, core_->stamp(moment.now));
      shorten(*next, core_->capabilities.max_record_bytes);
      shown_ = record;
      return replace(std::move(self), std::move(next), *record, place, Ask::mark, moment.uptime);
    }
    case Verdict::resume: {
      if (attempt_.attaches) {
        if (is_released(*record)) return end_seen(std::move(record), place);
        // After a write of ours, whatever another handle has written since is later.
        if (in_doubt_ && !is_explained(*record)) {
          return fail({ErrorKind::in_doubt, "another handle of the claim has written meanwhile"});
        }
        verdict_ = Verdict::resume;
        written_ = std::move(record);
        return rewrite(std::move(self), place);
      }
      if (!is_explained(*record)) {  // A copy of this process wrote it.
        forget_owner();
        return end_seen(std::move(record), place);
      }
      // If several answers were lost, only the last write's lease is known well enough. An operator may have changed
      // the record since. Or it is from this caller's earlier conversation, before its wait.
      const bool last = written_ != nullptr && record->revision == written_->revision;
      verdict_ = Verdict::resume;
      written_ = std::move(record);
      return last ? won(std::move(self), place) : correct(std::move(self), place);
    }
    default:
      return end_seen(std::move(record), place);
  }
}

void Conversation::replace(Self self, RecordPtr next, const Record& seen, std::uint64_t place, Ask ask,
                           Uptime counted_at) {
  ask_ = ask;
  written_ = std::move(next);
  seen_ = {.owner = seen.owner, .revision = seen.revision, .place = place};
  written_at_ = counted_at;
  core_->options.store->replace(written_, seen_, [self = std::move(self)](Answer&& answer) mutable {
    Conversation& talk = *self;
    talk.on_answer(std::move(self), std::move(answer), talk.written_at_);
  });
}

void Conversation::on_answer(Self self, Answer&& answer, Uptime sent) {
  core_->learn(answer, sent);
  // Also a refused claim may be stored: the network may deliver it again, when nothing is in its way.
  if (answer.status != AnswerStatus::done && (ask_ == Ask::insert || ask_ == Ask::claim_over || ask_ == Ask::correct)) {
    attempt_.may_be_stored.push_back(written_->revision);
  }
  switch (answer.status) {
    case AnswerStatus::done:
      return on_done(std::move(self), std::move(answer));
    case AnswerStatus::refused:
      if (++refusals_ > max_refusals) {
        return on_failed(std::move(self), {ErrorKind::corrupt, "the store refused " + std::to_string(refusals_) +
                                                                   " conditional writes of one claim in a row"});
      }
      if (answer.record) return consider(std::move(self), std::move(answer.record), answer.place);
      // No record: it was removed meanwhile, or the store could not return it.
      if (ask_ == Ask::insert) return read(std::move(self));
      return insert_or_end(std::move(self), answer.place);
    case AnswerStatus::failed:
      // Our claim, which could not be corrected, is also in the store.
      if (answer.error.kind == ErrorKind::in_doubt || ask_ == Ask::correct) in_doubt_ = true;
      return on_failed(std::move(self), std::move(answer.error));
  }
}

void Conversation::on_done(Self self, Answer&& answer) {
  switch (ask_) {
    case Ask::read:
      if (answer.record) return consider(std::move(self), std::move(answer.record), answer.place);
      return insert_or_end(std::move(self), answer.place);
    case Ask::mark:
      return end_seen(std::move(written_), answer.place);
    case Ask::claim_over:
      remove_orphan();
      return won(std::move(self), answer.place);
    case Ask::insert:
    case Ask::correct:
      return won(std::move(self), answer.place);
  }
}

void Conversation::on_failed(Self self, Error error) {
  core_->tell({.kind = EventKind::store_error, .key = attempt_.key, .trace = attempt_.trace.get(), .error = &error});
  const bool may_pass = error.kind == ErrorKind::in_doubt || error.kind == ErrorKind::unavailable;
  // Without a doubtful write there is nothing to clear up, so the caller gets the error at once.
  if (in_doubt_ && may_pass && ++failures_ < max_tries) {
    core_->options.timers->at(core_->uptime() + core_->backoff(failures_, first_ask_again, most_ask_again),
                              [self = std::move(self)]() mutable {
                                Conversation& talk = *self;
                                talk.read(std::move(self));
                              });
    return;
  }
  if (in_doubt_ && error.kind == ErrorKind::unavailable) error.kind = ErrorKind::in_doubt;
  fail(std::move(error));
}

void Conversation::fail(Error error) {
  End failed;
  failed.kind = End::Kind::failed;
  failed.error = std::move(error);
  failed.record = std::move(shown_);
  end(std::move(failed));
}

void Conversation::won(Self self, std::uint64_t place) {
  const Millis tolerance = tolerance_of(policy_);
  const Moment moment = core_->moment();
  // The answer may have shown that the known time is doubtful.
  error_ = std::max(error_, moment.error);
  if (moment.told) {
    // The lease was computed from this host's clock, or from a vague or wrong store time. If it is now known to be
    // wrong, compute it again before the work runs. Otherwise a lease that looks short is taken over early, and one
    // that looks long locks the key.
    const Millis by = short_by(policy_, *written_, written_at_, moment);
    // A claim that is taken up keeps a longer lease: an operator may have extended it.
    const Millis off = attempt_.attaches ? std::max(by, Millis{0}) : std::chrono::abs(by);
    if (off > std::max(tolerance, moment.error)) return correct(std::move(self), place);
    if (!told_ || error_ > tolerance) error_ = off + moment.error;
    told_ = true;
  }
  // The answer may have taken longer than the lease, or this process was stopped meanwhile. Then another attempt may
  // have the claim, and only another write can show it.
  const Uptime trusted_until = once::trusted_until(policy_, written_at_, error_);
  if (moment.uptime >= trusted_until) return correct(std::move(self), place);
  End claim;
  claim.kind = End::Kind::claimed;
  claim.verdict = verdict_;
  claim.record = std::move(written_);
  claim.place = place;
  claim.core = std::move(core_);
  claim.leased_at = written_at_;
  claim.claimed_at = moment.uptime;
  claim.trusted_until = trusted_until;
  end(std::move(claim));
}

void Conversation::correct(Self self, std::uint64_t place) {
  if (++corrections_ > max_tries) {
    Error error{ErrorKind::in_doubt, "the lease of " + std::to_string(policy_.lease.count()) + " ms expired " +
                                         std::to_string(max_tries) +
                                         " times before the store answered: use a longer lease"};
    core_->tell({.kind = EventKind::store_error, .key = attempt_.key, .trace = attempt_.trace.get(), .error = &error});
    return fail(std::move(error));
  }
  rewrite(std::move(self), place);
}

void Conversation::rewrite(Self self, std::uint64_t place) {
  const Moment moment = core_->moment();
  told_ = moment.told;
  error_ = moment.error;
  const RecordPtr seen = std::move(written_);
  attempt_.may_be_stored.push_back(seen->revision);
  auto next = std::make_shared<Record>(*seen);
  if (attempt_.attaches) {  // Its work may have begun: only the lease is counted anew.
    EffectivePolicy renewing = policy_;
    renewing.fixed_lease = false;
    next->holder = attempt_.holder;
    renew(*next, renewing, core_->stamp(moment.now));
    shorten(*next, core_->capabilities.max_record_bytes);
  } else {
    retime(*next, policy_, core_->stamp(moment.now));
  }
  replace(std::move(self), std::move(next), *seen, place, Ask::correct, moment.uptime);
}

// Removes the result of an expired record, or of a failure that is executed again: no caller will need it.
void Conversation::remove_orphan() {
  if (orphan_.empty() || !core_->options.offload) return;
  core_->options.offload->remove(std::exchange(orphan_, {}), [core = core_, key = attempt_.key](OffloadAnswer answer) {
    if (!answer.error) return;
    core->tell({.kind = EventKind::store_error, .key = key, .error = &*answer.error});
  });
}

void Conversation::forget_owner() noexcept {
  attempt_.forget_owner();
  in_doubt_before_ = 0;
  in_doubt_ = false;
}

bool Conversation::is_explained(const Record& record) const noexcept {
  if (written_ != nullptr && leads_back(record, written_->revision)) return true;
  const auto& own = attempt_.may_be_stored;
  return std::any_of(own.begin(), own.end(), [&](std::uint64_t revision) { return leads_back(record, revision); });
}

void Conversation::end_seen(std::shared_ptr<const Record> record, std::uint64_t place) {
  // What was refused is over, unless the network delivers it again: then it is as a stranger's.
  auto& own = attempt_.may_be_stored;
  if (!in_doubt_) own.resize(std::min(own.size(), in_doubt_before_));
  if (own.empty() && !attempt_.attaches) attempt_.forget_owner();
  End seen;
  seen.kind = End::Kind::seen;
  seen.record = std::move(record);
  seen.place = place;
  end(std::move(seen));
}

void Conversation::end(End&& end) { on_end_(std::move(end)); }

}  // namespace once
