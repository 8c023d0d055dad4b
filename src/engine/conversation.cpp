#include "engine/conversation.hpp"

#include <algorithm>
#include <utility>

#include "engine/core.hpp"

namespace once {

namespace {

constexpr unsigned max_tries = 6;         // Of one doubtful write; with the backoff below about a second.
constexpr unsigned max_refusals = 1'000;  // Each means that somebody else got on; so many mean a store that is not one.
constexpr Millis first_backoff{20};
constexpr Millis most_backoff{500};

}  // namespace

void Conversation::start(std::shared_ptr<EngineCore> core, std::shared_ptr<const Attempt> attempt, const Policy& policy,
                         Start start, OnEnd on_end) {
  const auto self = std::make_shared<Conversation>(std::move(core), std::move(attempt), policy, std::move(on_end));
  switch (start.kind) {
    case Start::Kind::insert:
      return self->insert();
    case Start::Kind::read:
      return self->read();
    case Start::Kind::seen:
      return self->consider(std::move(start.record), start.place);
  }
}

Conversation::Conversation(std::shared_ptr<EngineCore> core, std::shared_ptr<const Attempt> attempt,
                           const Policy& policy, OnEnd on_end)
    : core_(std::move(core)), attempt_(std::move(attempt)), policy_(policy), on_end_(std::move(on_end)) {}

void Conversation::insert() {
  const EngineCore::Moment moment = core_->moment();
  ask_ = Ask::insert;
  verdict_ = Verdict::execute;
  knew_time_ = moment.told;
  written_ = std::make_shared<const Record>(claimed(*attempt_, policy_, moment.now, nullptr, verdict_));
  const Uptime sent = core_->uptime();
  core_->options.store->insert(
      *written_, [self = shared_from_this(), sent](Answer answer) { self->on_answer(std::move(answer), sent); });
}

void Conversation::read() {
  ask_ = Ask::read;
  const Uptime sent = core_->uptime();
  core_->options.store->get(
      attempt_->key, [self = shared_from_this(), sent](Answer answer) { self->on_answer(std::move(answer), sent); });
}

void Conversation::consider(std::shared_ptr<const Record> record, std::uint64_t place) {
  const EngineCore::Moment moment = core_->moment();
  const Decision decision = decide(record.get(), *attempt_, policy_, moment.earliest());
  knew_time_ = moment.told;
  switch (decision.verdict) {
    case Verdict::execute:
    case Verdict::retry:
    case Verdict::take_over:
      verdict_ = decision.verdict;
      return replace(claimed(*attempt_, policy_, moment.now, record.get(), verdict_), *record, place, Ask::claim_over);
    case Verdict::mark_unknown:
      return replace(
          marked_unknown(*record, "the lease of " + record->holder + " lapsed before it finished", moment.now), *record,
          place, Ask::mark);
    case Verdict::resume:
      verdict_ = Verdict::resume;
      written_ = std::move(record);
      return won(place, first_doubt_.value_or(core_->uptime() - policy_.lease));
    default:
      return end_seen(std::move(record), place);
  }
}

void Conversation::replace(Record next, const Record& seen, std::uint64_t place, Ask ask) {
  ask_ = ask;
  written_ = std::make_shared<const Record>(std::move(next));
  seen_ = {.owner = seen.owner, .revision = seen.revision, .place = place};
  const Uptime sent = core_->uptime();
  core_->options.store->replace(
      *written_, seen_, [self = shared_from_this(), sent](Answer answer) { self->on_answer(std::move(answer), sent); });
}

void Conversation::on_answer(Answer answer, Uptime sent) {
  core_->learn(answer, sent);
  switch (answer.status) {
    case Answer::Status::done:
      return on_done(std::move(answer), sent);
    case Answer::Status::refused:
      if (++refusals_ > max_refusals) {
        return on_failed({ErrorKind::corrupt, "the store refused " + std::to_string(refusals_) +
                                                  " conditional writes of one claim in a row"});
      }
      if (answer.record) return consider(std::make_shared<const Record>(std::move(*answer.record)), answer.place);
      // Nothing there: it went away in between, or the store could not say what it is.
      return ask_ == Ask::insert ? read() : insert();
    case Answer::Status::failed:
      if (answer.error.kind == ErrorKind::in_doubt && !first_doubt_) first_doubt_ = sent;
      return on_failed(std::move(answer.error));
  }
}

void Conversation::on_done(Answer answer, Uptime sent) {
  switch (ask_) {
    case Ask::read:
      if (answer.record) return consider(std::make_shared<const Record>(std::move(*answer.record)), answer.place);
      return insert();
    case Ask::mark:
      return end_seen(std::move(written_), answer.place);
    case Ask::correct:
      return won(answer.place, sent);
    case Ask::insert:
    case Ask::claim_over:
      break;
  }
  if (!knew_time_) {
    // The lease was counted on this host's clock. If the answer shows that clock to be wrong, count again before
    // anything runs: a lease that looks short would be taken over early, one that looks long would lock the key.
    const EngineCore::Moment moment = core_->moment();
    const Time meant = moment.now + policy_.lease - std::chrono::floor<Millis>(core_->uptime() - sent);
    const Millis off = std::chrono::abs(written_->lease_until - meant);
    if (moment.told && off > std::max(policy_.skew.value_or(Millis{0}) / 2, moment.error)) {
      knew_time_ = true;
      const std::shared_ptr<const Record> seen = written_;
      return replace(retimed(*seen, policy_, moment.now), *seen, answer.place, Ask::correct);
    }
  }
  won(answer.place, sent);
}

void Conversation::on_failed(Error error) {
  core_->tell({.kind = EventKind::store_error, .key = attempt_->key, .error = &error});
  const bool may_pass = error.kind == ErrorKind::in_doubt || error.kind == ErrorKind::unavailable;
  // Without a doubtful write there is nothing of ours to clear up, and the caller may as well be told at once.
  if (first_doubt_ && may_pass && ++failures_ < max_tries) {
    core_->options.timers->at(core_->uptime() + core_->backoff(failures_, first_backoff, most_backoff),
                              [self = shared_from_this()] { self->read(); });
    return;
  }
  if (first_doubt_ && error.kind == ErrorKind::unavailable) error.kind = ErrorKind::in_doubt;
  End failed;
  failed.kind = End::Kind::failed;
  failed.error = std::move(error);
  end(std::move(failed));
}

void Conversation::won(std::uint64_t place, Uptime leased_at) {
  End claim;
  claim.kind = End::Kind::claimed;
  claim.verdict = verdict_;
  claim.record = std::move(written_);
  claim.place = place;
  claim.leased_at = leased_at;
  end(std::move(claim));
}

void Conversation::end_seen(std::shared_ptr<const Record> record, std::uint64_t place) {
  End seen;
  seen.kind = End::Kind::seen;
  seen.record = std::move(record);
  seen.place = place;
  end(std::move(seen));
}

void Conversation::end(End end) {
  OnEnd on_end = std::move(on_end_);
  on_end(std::move(end));
}

}  // namespace once
