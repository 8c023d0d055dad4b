#include "stores/server/claim.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "stores/server/messages.hpp"

namespace once::stores {

namespace {

constexpr Millis finish_timeout{10'000};  // Longer than a server waits for its store.
constexpr unsigned most_losses = 3;       // Of claims, before one can be used.
constexpr Millis longest_wait{30'000};    // Of one request: shorter than what gateways give up after.

// A third of the lease is left for more tries.
Millis renew_timeout(Millis lease) { return std::clamp(lease / 3, Millis{500}, Millis{5'000}); }

// The server has measured it by a clock of its own. Never longer than what was asked for.
Uptime end_of(Uptime sent, Millis valid_for, Millis lease) {
  valid_for = std::min(valid_for, lease);
  return sent + valid_for - std::chrono::nanoseconds(valid_for) / 1'000'000 * StoreClock::drift_ppm;
}

Error with_name(const ServerParts& parts, Error error) {
  error.message.insert(0, parts.name + ": ");
  return error;
}

std::string random_id(const ServerParts& parts) {
  Owner bytes;
  parts.random->fill(bytes.bytes);  // From the kernel at this moment: no copy of this process draws the same.
  return bytes.hex();
}

}  // namespace

void ServerParts::look(std::string stored_key, Done done) const {
  Sending sending;
  try {
    sending = look_request(stored_key);
  } catch (const Exception& error) {
    return done(Answer::fail(error.kind(), name + ": " + error.what()));
  }
  struct Look {
    std::string key;
    Done done;
  };
  auto kept = std::make_shared<Look>(Look{std::move(stored_key), std::move(done)});
  transport->send(std::move(sending), finish_timeout, [kept, clock = clock, name = name](Exchanged&& exchanged) {
    if (exchanged.error) return kept->done(Answer::fail(exchanged.error->kind, name + ": " + exchanged.error->message));
    Answer answer = read_look(exchanged.response, kept->key, clock->now());
    if (answer.status == AnswerStatus::failed) answer.error.message.insert(0, name + ": ");
    kept->done(std::move(answer));
  });
}

Millis ServerParts::pause(unsigned tries) const {
  constexpr Millis first{10};
  constexpr Millis most{1'000};
  std::uint8_t drawn = 0;
  random->fill({&drawn, 1});
  const Millis whole = std::min(most, first * (1U << std::min(tries, 10U)));
  return whole / 2 + whole / 2 * drawn / 255;
}

// ---- the claim's writes

struct HttpClaim::Job {
  struct Part {
    Sending sending;
    std::string_view wanted;  // "renewed", "recorded"
    Millis timeout;
    bool is_extra = false;  // A step of before, which may be left out if the record has no room for it.
  };
  RecordPtr next;
  std::vector<Part> parts;
  std::size_t at = 0;
  Uptime sent{};
  Uptime give_up{};
  unsigned tries = 0;
  bool is_probe = false;  // Not a write of the machine's, which may run at the same time.
  Written written;
  Callback<void(Written&&)> done;
};

HttpClaim::HttpClaim(std::shared_ptr<const ServerParts> parts, std::string id, std::string key, Millis lease,
                     const Record& record)
    : parts_(std::move(parts)),
      id_(std::move(id)),
      key_(std::move(key)),
      owner_(record.owner),
      lease_(lease),
      steps_(record.steps.size()),
      note_(record.note) {}

// A sign of life, which the server answers by what the record says.
void HttpClaim::read(Done done) {
  auto kept = std::make_shared<Done>(std::move(done));
  renew([self = shared_from_this(), kept](Written&& written) {
    Answer answer = std::move(written.answer);
    if (answer.status == AnswerStatus::refused) {
      answer.status = AnswerStatus::done;
    } else if (answer.status == AnswerStatus::done) {
      Record ours;
      ours.key = self->key_;
      ours.owner = self->owner_;
      ours.lease_until = self->parts_->clock->now() + self->lease_;
      answer.record = share(std::move(ours));
    }
    (*kept)(std::move(answer));
  });
}

void HttpClaim::renew(Callback<void(Written&&)> done) {
  auto job = std::make_shared<Job>();
  job->next = std::make_shared<const Record>();
  job->done = std::move(done);
  job->is_probe = true;
  job->parts.push_back(
      {.sending = renew_request(id_, {}), .wanted = "renewed", .timeout = renew_timeout(lease_), .is_extra = false});
  next(job);
}

void HttpClaim::write(ClaimMachine::Transmit&& write, Callback<void(Written&&)> done) {
  using Op = ClaimMachine::Op;
  if (write.companion != nullptr) {
    return done({.answer = Answer::decline(ErrorKind::misuse,
                                           parts_->name + ": a server cannot commit other writes together with a "
                                                          "result: open its own store, or write them apart")});
  }
  auto job = std::make_shared<Job>();
  job->next = std::move(write.next);
  job->done = std::move(done);
  const Record& next = *job->next;
  const auto add = [&](Sending sending, std::string_view wanted, Millis timeout) {
    job->parts.push_back({.sending = std::move(sending), .wanted = wanted, .timeout = timeout});
  };
  try {
    // A completed operation needs its steps no more.
    for (std::size_t i = write.op == Op::complete ? next.steps.size() : steps_; i < next.steps.size(); ++i) {
      add(step_request(id_, next.steps[i]), "recorded", finish_timeout);
      job->parts.back().is_extra = write.op != Op::step || i + 1 < next.steps.size();
    }
    switch (write.op) {
      case Op::renew:
      case Op::fence:
        add(renew_request(id_, next.note == note_ ? std::string() : next.note), "renewed", renew_timeout(lease_));
        break;
      case Op::step:
        if (job->parts.empty()) add(renew_request(id_, {}), "renewed", renew_timeout(lease_));  // Kept before.
        break;
      case Op::complete:
      case Op::fail:
      case Op::hold:
        add(finish_request(id_, next, write.is_failure), "recorded", finish_timeout);
        break;
      case Op::release:
        add(release_request(id_, next.note), "recorded", finish_timeout);
        break;
    }
  } catch (const Exception& error) {
    return job->done({.answer = Answer::cannot_keep(parts_->name + ": " + error.what())});
  }
  // Renewals are the machine's to try again: it knows when the lease ends.
  if (job->parts.back().wanted == "recorded") {
    job->give_up = parts_->clock->uptime() + parts_->transport->options().timeout;
  }
  this->next(job);
}

void HttpClaim::again(const std::shared_ptr<Job>& job, Error error, bool is_final) {
  const Uptime at = parts_->clock->uptime() + parts_->pause(job->tries++);
  if (is_final || at >= job->give_up) return job->done({.answer = Answer::fail(error.kind, std::move(error.message))});
  try {
    parts_->timers->at(at, [self = shared_from_this(), job] { self->next(job); });
  } catch (const Exception& failure) {
    job->done({.answer = Answer::fail(failure.kind(), failure.what())});
  }
}

void HttpClaim::next(const std::shared_ptr<Job>& job) {
  if (job->at == job->parts.size()) {
    if (!job->is_probe) {
      steps_ = std::max(steps_, job->next->steps.size());
      note_ = job->next->note;
    }
    return job->done(std::move(job->written));
  }
  const Job::Part& part = job->parts[job->at];
  job->sent = parts_->clock->uptime();
  parts_->transport->send(part.sending, part.timeout, [self = shared_from_this(), job](Exchanged&& exchanged) {
    self->answered(job, std::move(exchanged));
  });
}

void HttpClaim::answered(const std::shared_ptr<Job>& job, Exchanged&& exchanged) {
  const Job::Part& part = job->parts[job->at];
  if (exchanged.error) {
    return again(job, with_name(*parts_, std::move(*exchanged.error)), exchanged.is_final);
  }
  WriteAnswer read = read_write(exchanged.response, part.wanted, *job->next);
  if (read.answer.status == AnswerStatus::failed) {
    if (part.is_extra && read.answer.unfit) {
      ++job->at;
      return next(job);
    }
    read.answer.error = with_name(*parts_, std::move(read.answer.error));
    if (read.answer.error.kind == ErrorKind::in_doubt) return again(job, std::move(read.answer.error), false);
    return job->done({.answer = std::move(read.answer)});
  }
  if (read.answer.status == AnswerStatus::refused) {
    const bool is_wanted = read.is_finished || part.wanted != "renewed";
    if (!read.must_look || !is_wanted) return job->done({.answer = std::move(read.answer)});
    return parts_->look(key_, [job, is_finished = read.is_finished, owner = owner_](Answer&& seen) {
      // Over it is in any case.
      std::optional<Record> record = seen.status == AnswerStatus::done ? copy_of(seen.record) : std::nullopt;
      if (record && is_finished && record->state != State::in_progress) record->owner = owner;
      job->done({.answer = Answer::refuse(record ? share(*std::move(record)) : nullptr)});
    });
  }
  if (read.valid_for) job->written.until = end_of(job->sent, *read.valid_for, lease_);
  job->written.answer = std::move(read.answer);
  ++job->at;
  next(job);
}

// ---- begin

namespace {

class Beginning : public std::enable_shared_from_this<Beginning> {
 public:
  Beginning(std::shared_ptr<const ServerParts> parts, const Attempt& attempt, const EffectivePolicy& policy,
            Millis wait, Callback<void(ClaimsServer::Begun&&)> done)
      : parts_(std::move(parts)), attempt_(attempt), policy_(policy), done_(std::move(done)) {
    waited_until_ = parts_->clock->uptime() + wait;
  }

  // A new call, which the server has not seen.
  void start() {
    const Millis left = std::chrono::ceil<Millis>(waited_until_ - parts_->clock->uptime());
    const Millis wait = std::clamp(left, Millis{0}, longest_wait);
    try {
      sending_ = begin_request(attempt_, policy_, wait, random_id(*parts_));
    } catch (const Exception& error) {
      return fail(error.error());
    }
    give_up_ = parts_->clock->uptime() + wait + parts_->transport->options().timeout;
    tries_ = 0;
    send();
  }

 private:
  // The same bytes each time: that is how the server knows a call again whose answer was lost.
  void send() {
    sent_ = parts_->clock->uptime();
    const Millis left = std::max(std::chrono::ceil<Millis>(give_up_ - sent_), Millis{1});
    parts_->transport->send(
        sending_, left, [self = shared_from_this()](Exchanged&& exchanged) { self->answered(std::move(exchanged)); });
  }

  void answered(Exchanged&& exchanged) {
    if (exchanged.error) {
      if (exchanged.is_final) return fail(*exchanged.error);
      return again(parts_->pause(tries_), *exchanged.error, [](Beginning& self) { self.send(); });
    }
    BeginAnswer answer = read_begin(exchanged.response, attempt_, parts_->clock->now());
    if (!answer.claim.empty()) return claimed(std::move(answer));
    if (answer.record == nullptr) {
      if (!answer.retry_after) return fail(answer.error, answer.is_unreadable);
      return again(*answer.retry_after, answer.error, [](Beginning& self) { self.send(); });
    }
    const Uptime now = parts_->clock->uptime();
    if (answer.decision.verdict == Verdict::conflict && now < waited_until_) {
      // It was held for as long as was asked. If it was not, the server must not be asked at once again.
      const bool was_held = now - sent_ >= Millis{100};
      const unsigned tries = was_held ? 0 : std::min(++conflicts_, 10U);
      return at(now + std::min<Uptime>(parts_->pause(tries), waited_until_ - now),
                [](Beginning& self) { self.start(); });
    }
    ClaimsServer::Begun begun;
    begun.record = std::move(answer.record);
    begun.decision = answer.decision;
    done_(std::move(begun));
  }

  void claimed(BeginAnswer&& answer) {
    Record record = *answer.record;
    if (policy_.on_lapse == OnLapse::hold) record.on_lapse = OnLapse::hold;
    // An ID of another version. Its owner is only compared here.
    if (record.owner == Owner()) parts_->random->fill(record.owner.bytes);
    answer.record = share(std::move(record));
    claim_ = std::make_shared<HttpClaim>(parts_, std::move(answer.claim), attempt_.key, policy_.lease, *answer.record);
    begun_.record = std::move(answer.record);
    begun_.decision = answer.decision;
    begun_.sent = sent_;
    begun_.until = end_of(sent_, answer.valid_for, policy_.lease);
    assured();
  }

  // After a wait the claim may be over before it came. Nothing has run: if it is lost, another one is as good.
  void assured() {
    if (parts_->clock->uptime() < begun_.until) {
      begun_.claim = std::move(claim_);
      return done_(std::move(begun_));
    }
    begun_.sent = parts_->clock->uptime();
    claim_->renew([self = shared_from_this()](ServerClaim::Written&& written) { self->renewed(std::move(written)); });
  }

  void renewed(ServerClaim::Written&& written) {
    switch (written.answer.status) {
      case AnswerStatus::done:
        begun_.until = written.until.value_or(begun_.until);
        if (parts_->clock->uptime() < begun_.until) return assured();
        return again(parts_->pause(tries_),
                     {ErrorKind::unavailable, "the claim is over each time before it can be used: use a longer lease"},
                     [](Beginning& self) { self.assured(); });
      case AnswerStatus::refused:
        if (++losses_ < most_losses) return start();
        return fail({ErrorKind::unavailable, "the claim was lost " + std::to_string(losses_) +
                                                 " times before the work could begin: use a longer lease"});
      case AnswerStatus::failed:
        return again(parts_->pause(tries_), written.answer.error, [](Beginning& self) { self.assured(); });
    }
  }

  template <class Then>
  void again(Millis pause, const Error& error, Then then) {
    const Uptime now = parts_->clock->uptime();
    ++tries_;
    if (now + pause >= give_up_) return fail(error);
    at(now + pause, then);
  }

  template <class Then>
  void at(Uptime when, Then then) {
    try {
      parts_->timers->at(when, [self = shared_from_this(), then] { then(*self); });
    } catch (const Exception& error) {
      fail(error.error());
    }
  }

  void fail(const Error& error, bool is_unreadable = false) {
    ClaimsServer::Begun begun;
    begun.error = with_name(*parts_, error);
    begun.is_unreadable = is_unreadable;
    done_(std::move(begun));
  }

  const std::shared_ptr<const ServerParts> parts_;
  const Attempt& attempt_;  // Lives until `done_` is called.
  const EffectivePolicy policy_;
  Callback<void(ClaimsServer::Begun&&)> done_;
  Uptime waited_until_;
  Sending sending_;
  Uptime give_up_{};
  Uptime sent_{};
  unsigned tries_ = 0;
  unsigned conflicts_ = 0;
  unsigned losses_ = 0;
  std::shared_ptr<HttpClaim> claim_;
  ClaimsServer::Begun begun_;
};

}  // namespace

void begin_at_server(std::shared_ptr<const ServerParts> parts, const Attempt& attempt, const EffectivePolicy& policy,
                     Millis wait, Callback<void(ClaimsServer::Begun&&)> done) {
  std::make_shared<Beginning>(std::move(parts), attempt, policy, wait, std::move(done))->start();
}

}  // namespace once::stores
