#include <once/reconcile.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/fingerprint.hpp>
#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "platform/wait.hpp"

namespace once {

namespace {

constexpr std::string_view gave_up_text = "reconcile gave up";
constexpr Millis most_pause = std::chrono::hours{24 * 30};

void check(const ReconcileOptions& options) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw Exception(ErrorKind::misuse, std::string("ReconcileOptions::") + what);
  };
  require(options.store != nullptr && options.ask != nullptr, "store and ask are required");
  require(options.settle >= Millis{0} && options.settle <= most_pause, "settle must be 0 to 30 days");
  require(options.first_pause >= Millis{1} && options.first_pause <= options.longest_pause &&
              options.longest_pause <= most_pause,
          "first_pause must be 1 ms to longest_pause, which is at most 30 days");
  require(options.records_per_pass >= 1 && options.records_per_pass <= 10'000, "records_per_pass must be 1 to 10 000");
  require(options.at_once >= 1, "at_once must be at least 1");
  check(Policy{.retention = options.retention, .failure_retention = options.failure_retention});
}

Millis pause_after(unsigned tries, const ReconcileOptions& options) noexcept {
  Millis pause = options.first_pause;
  for (unsigned i = 1; i < tries && pause < options.longest_pause; ++i) pause *= 2;
  return std::min(pause, options.longest_pause);
}

// Calls back once: with the answer, or with none if it is dropped.
class AnswerOnce {
 public:
  explicit AnswerOnce(Callback<void(Finding)> done) : done_(std::move(done)) {}
  AnswerOnce(AnswerOnce&& other) noexcept : done_(std::exchange(other.done_, nullptr)) {}
  AnswerOnce& operator=(AnswerOnce&&) = delete;
  AnswerOnce(const AnswerOnce&) = delete;
  AnswerOnce& operator=(const AnswerOnce&) = delete;
  ~AnswerOnce() { (*this)(Finding::not_known("the question ended without an answer")); }

  void operator()(Finding finding) {
    if (!done_) return;
    Callback<void(Finding)> done = std::exchange(done_, nullptr);
    done(std::move(finding));
  }

 private:
  Callback<void(Finding)> done_;
};

}  // namespace

AskService ask_blocking(std::function<Finding(const Record& record)> ask) {
  return [ask = std::move(ask)](const RecordPtr& record, Callback<void(Finding)> answer) { answer(ask(*record)); };
}

Time attempt_ended_at(const Record& unknown) noexcept {
  const auto& entries = unknown.history.entries;
  const auto last =
      std::find_if(entries.rbegin(), entries.rend(), [](const auto& entry) { return entry.attempt != 0; });
  const bool lapsed = last != entries.rend() && last->attempt == unknown.attempt && last->what == "lapsed";
  return lapsed ? last->at : unknown.finished_at;
}

bool has_given_up(const Record& unknown) noexcept {
  return std::ranges::any_of(unknown.history.entries, [&](const HistoryEntry& entry) {
    return entry.attempt == 0 && entry.what == gave_up_text && entry.at >= unknown.finished_at;
  });
}

void drop_if_too_large(Record& decided, std::size_t max_record_bytes) {
  shorten(decided, max_record_bytes);
  Result& result = decided.result;
  if (record_bytes(decided) <= max_record_bytes || result.bytes.empty()) return;
  result.size = result.bytes.size();
  result.digest = sha256(result.bytes);
  result.placement = Placement::dropped;
  result.bytes.clear();
}

class Reconciler::Core : public std::enable_shared_from_this<Reconciler::Core> {
 public:
  explicit Core(ReconcileOptions options) : options_(std::move(options)) {
    check(options_);
    if (!options_.clock) options_.clock = system_clock();
    if (!options_.random) options_.random = system_random();
  }

  using Done = Callback<void(Reconciled)>;

  void ask(RecordPtr unknown, Done done) { ask(std::move(unknown), options_.ask, std::move(done)); }

  void ask(RecordPtr unknown, const AskService& by, Done done) {
    if (unknown->state != State::unknown) {
      return done({.kind = Reconciled::Kind::changed, .record = std::move(unknown), .why = {}, .error = {}});
    }
    if (options_.tries != 0 && has_given_up(*unknown)) {
      return done({.kind = Reconciled::Kind::gave_up, .record = std::move(unknown), .why = {}, .error = {}});
    }
    if (!begin(*unknown)) {
      return done({.kind = Reconciled::Kind::not_asked, .record = std::move(unknown), .why = {}, .error = {}});
    }
    const std::optional<Time> asked_at = earliest_now();
    put(by, unknown, [self = shared_from_this(), unknown, asked_at, done = std::move(done)](Finding finding) mutable {
      self->take(std::move(unknown), asked_at, std::move(finding), std::move(done));
    });
  }

  void find_out(RecordPtr unknown, Callback<void(Finding)> done) {
    const std::optional<Time> asked_at = earliest_now();
    put(options_.ask, unknown,
        [self = shared_from_this(), unknown, asked_at, done = std::move(done)](Finding finding) mutable {
          if (auto early = self->early(*unknown, asked_at, finding))
            finding = Finding::not_known(std::move(early->why));
          finding.retention = self->retention_of(finding);
          done(std::move(finding));
        });
  }

  [[nodiscard]] bool concerns(const Record& unknown) const {
    return unknown.key.starts_with(options_.key_prefix) && (!options_.concerns || options_.concerns(unknown));
  }

  void pass(Callback<void(ReconcilePass)> done) {
    ListQuery query{.state = State::unknown,
                    .key_prefix = options_.key_prefix,
                    .expired_at = {},
                    .cursor = {},
                    .limit = options_.records_per_pass};
    {
      const std::lock_guard lock(mutex_);
      query.cursor = cursor_;
    }
    options_.store->list(std::move(query), [self = shared_from_this(), done = std::move(done)](ListPage page) mutable {
      self->look_at(std::move(page), std::move(done));
    });
  }

 private:
  static void put(const AskService& by, const RecordPtr& unknown, Callback<void(Finding)> done) {
    auto answer = std::make_shared<AnswerOnce>(std::move(done));
    try {
      by(unknown, [answer](Finding finding) { (*answer)(std::move(finding)); });
    } catch (const std::exception& error) {
      (*answer)(Finding::not_known(error.what()));
    } catch (...) {  // It has no text.
      (*answer)(Finding::not_known("the question failed"));
    }
  }

  // What this object knows of an unknown record.
  struct Known {
    Time finished_at{};  // Of that record: another one is a new question.
    unsigned tries = 0;  // Questions that the service could not answer.
    unsigned early = 0;  // Those that it answered before that counts.
    Uptime due{};
    bool asking = false;
    std::uint64_t round = 0;  // When it was last seen.
  };

  struct Pass {
    std::deque<RecordPtr> left;
    Callback<void(ReconcilePass)> done;
    ReconcilePass counts;
    unsigned running = 0;
    bool pumping = false;
    std::mutex mutex;  // Guards the others.
  };

  void look_at(ListPage page, Callback<void(ReconcilePass)> done) {
    auto pass = std::make_shared<Pass>();
    pass->done = std::move(done);
    {
      const std::lock_guard lock(mutex_);
      if (page.error) {
        cursor_.clear();
      } else {
        for (const Record& record : page.records) {
          if (const auto found = known_.find(record.key); found != known_.end()) found->second.round = round_;
        }
        cursor_ = std::move(page.cursor);
        if (cursor_.empty()) end_round();
      }
    }
    if (page.error) {
      tell({.kind = EventKind::store_error, .error = &*page.error});
      pass->counts.error = std::move(page.error);
    }
    for (Record& record : page.records) {
      if (!options_.concerns || options_.concerns(record)) pass->left.push_back(share(std::move(record)));
    }
    pass->counts.seen = pass->left.size();
    pump(pass);
  }

  // Forgets records that are no longer unknown. Under the mutex.
  void end_round() {
    std::erase_if(known_, [&](const auto& one) { return !one.second.asking && one.second.round < round_; });
    ++round_;
  }

  // Asks about the records that are left. Answers that come at once are taken here, one after the other.
  void pump(const std::shared_ptr<Pass>& pass) {
    std::unique_lock lock(pass->mutex);
    if (pass->pumping) return;
    pass->pumping = true;
    while (!pass->left.empty() && pass->running < options_.at_once) {
      RecordPtr next = std::move(pass->left.front());
      pass->left.pop_front();
      ++pass->running;
      lock.unlock();
      ask(std::move(next), [self = shared_from_this(), pass](Reconciled reconciled) {
        {
          const std::lock_guard counting(pass->mutex);
          --pass->running;
          using Kind = Reconciled::Kind;
          if (reconciled.kind != Kind::not_asked && reconciled.kind != Kind::changed) ++pass->counts.asked;
          if (reconciled.is_decided()) ++pass->counts.decided;
        }
        self->pump(pass);
      });
      lock.lock();
    }
    pass->pumping = false;
    if (pass->running != 0 || !pass->left.empty()) return;
    Callback<void(ReconcilePass)> done = std::exchange(pass->done, nullptr);
    lock.unlock();
    if (done) done(std::move(pass->counts));
  }

  bool begin(const Record& unknown) {
    const std::lock_guard lock(mutex_);
    if (running_ >= options_.at_once) return false;
    Known& known = known_[unknown.key];
    if (known.asking) return false;
    if (known.finished_at != unknown.finished_at) known = {.finished_at = unknown.finished_at};
    known.round = round_;
    if (options_.clock->uptime() < known.due) return false;
    known.asking = true;
    ++running_;
    return true;
  }

  // The question is over. With a pause, the record is asked about again after it.
  void end(const std::string& key, std::optional<Millis> pause) {
    const std::lock_guard lock(mutex_);
    --running_;
    const auto found = known_.find(key);
    if (pause) {
      found->second.asking = false;
      found->second.due = options_.clock->uptime() + *pause;
    } else {
      known_.erase(found);
    }
  }

  struct Early {
    std::string why;
    Millis counts_in;
  };
  // Empty: what the service says counts. It answers as of the question or later, so what it says it has not done counts
  // as of then.
  [[nodiscard]] std::optional<Early> early(const Record& unknown, std::optional<Time> asked_at,
                                           const Finding& finding) const {
    if (finding.kind != Finding::Kind::not_done) return std::nullopt;
    if (!asked_at) return Early{"the store's time is not known yet", options_.first_pause};
    const Time settled_at = attempt_ended_at(unknown) + finding.settle.value_or(options_.settle);
    if (*asked_at >= settled_at) return std::nullopt;
    const Millis left = settled_at - *asked_at;
    return Early{"not done so far, which counts only after " + std::to_string(left.count()) + " ms more", left};
  }

  // How long its decision is kept.
  [[nodiscard]] Millis retention_of(const Finding& finding) const {
    if (finding.retention) return *finding.retention;
    const bool failed = finding.kind == Finding::Kind::failed;
    return failed ? options_.failure_retention.value_or(options_.retention) : options_.retention;
  }

  void take(RecordPtr unknown, std::optional<Time> asked_at, Finding finding, Done done) {
    operate::Resolution resolution{.retention = retention_of(finding)};
    switch (finding.kind) {
      case Finding::Kind::not_known:
        return later(std::move(unknown), std::move(finding.why), std::nullopt, std::move(done));
      case Finding::Kind::not_done: {
        if (auto too_early = early(*unknown, asked_at, finding)) {
          return later(std::move(unknown), std::move(too_early->why), too_early->counts_in, std::move(done));
        }
        resolution.as = operate::As::released;
        break;
      }
      case Finding::Kind::happened:
        resolution.as = operate::As::completed;
        break;
      case Finding::Kind::failed:
        resolution.as = operate::As::failed;
        resolution.failure = std::move(finding.failure);
        break;
    }
    resolution.result = std::move(finding.result);
    if (finding.why.empty()) {
      finding.why = resolution.as == operate::As::released ? "the service has not done it" : "the service says so";
    }
    Owner fresh;
    options_.random->fill(fresh.bytes);
    const operate::Reason reason{.by = options_.by, .text = std::move(finding.why)};
    operate::Plan plan;
    try {
      check(resolution.result);
      plan = operate::plan_resolve(*unknown, resolution, reason, fresh, stamp());
    } catch (const Exception& error) {  // A result that no record can have.
      return later(std::move(unknown), error.what(), std::nullopt, std::move(done));
    }
    if (!plan.next) return later(std::move(unknown), std::move(plan.refusal), std::nullopt, std::move(done));
    drop_if_too_large(*plan.next, options_.store->capabilities().max_record_bytes);
    const auto kind = std::array{Reconciled::Kind::completed, Reconciled::Kind::failed,
                                 Reconciled::Kind::released}[static_cast<std::size_t>(resolution.as)];
    write(std::move(unknown), std::move(*plan.next), kind, EventKind::reconciled, std::move(done));
  }

  // Still unknown. `counts_in`: when such an answer would count. Empty: never, so the question was a try.
  void later(RecordPtr unknown, std::string why, std::optional<Millis> counts_in, Done done) {
    if (why.empty()) why = "the service does not know";
    const Error told{ErrorKind::unavailable, why};
    tell({.kind = EventKind::reconcile_later, .key = unknown->key, .record = unknown.get(), .error = &told});
    unsigned tries = 0;
    Millis pause{};
    {
      const std::lock_guard lock(mutex_);
      Known& known = known_.find(unknown->key)->second;
      pause = pause_after(counts_in ? ++known.early : ++known.tries, options_);
      tries = known.tries;
    }
    if (counts_in || options_.tries == 0 || tries < options_.tries) {
      end(unknown->key, counts_in ? std::min(pause, *counts_in) : pause);
      return done(
          {.kind = Reconciled::Kind::not_known, .record = std::move(unknown), .why = std::move(why), .error = {}});
    }
    const Stamp now = stamp();
    const std::string text = "asked " + std::to_string(tries) + " times; the last answer: " + why;
    Record next = *unknown;
    next.note = clean_text(std::string(gave_up_text) + " by " + options_.by + ": " + text);
    next.revision = next_revision(unknown->revision, now.random);
    append(next.history, {.what = std::string(gave_up_text),
                          .who = options_.by,
                          .why = text,
                          .at = now.now,
                          .revision = next.revision,
                          .replaced = unknown->revision});
    write(std::move(unknown), std::move(next), Reconciled::Kind::gave_up, EventKind::reconcile_gave_up,
          std::move(done));
  }

  void write(RecordPtr unknown, Record next, Reconciled::Kind kind, EventKind event, Done done) {
    const Record& seen = *unknown;
    operate::apply(*options_.store, seen, 0, std::move(next),
                   [self = shared_from_this(), unknown = std::move(unknown), kind, event,
                    done = std::move(done)](operate::Applied applied) mutable {
                     self->written(*unknown, std::move(applied), kind, event, std::move(done));
                   });
  }

  void written(const Record& unknown, operate::Applied applied, Reconciled::Kind kind, EventKind event, Done done) {
    const bool failed = applied.kind == operate::Applied::Kind::failed;
    end(unknown.key, failed ? std::optional(options_.first_pause) : std::nullopt);
    switch (applied.kind) {
      case operate::Applied::Kind::done:
        tell({.kind = event, .key = applied.record->key, .record = applied.record.get()});
        break;
      case operate::Applied::Kind::changed:
        kind = Reconciled::Kind::changed;
        break;
      case operate::Applied::Kind::failed:
        kind = Reconciled::Kind::not_stored;
        tell({.kind = EventKind::store_error, .key = unknown.key, .error = &applied.error});
        break;
    }
    done({.kind = kind,
          .record = std::move(applied.record),
          .why = applied.error.message,
          .error = std::move(applied.error)});
  }

  // Empty: a store that tells its time has not told it yet, and this host's may be wrong.
  [[nodiscard]] std::optional<Time> earliest_now() const {
    const Store& store = *options_.store;
    if (const auto told = store.time()) return told->now - told->error;
    if (store.capabilities().tells_time) return std::nullopt;
    return options_.clock->now();
  }

  [[nodiscard]] Stamp stamp() const {
    std::array<std::uint8_t, 4> bytes{};
    options_.random->fill(bytes);
    std::uint32_t random = 0;
    for (const std::uint8_t byte : bytes) random = random << 8U | byte;
    return {operate::now(*options_.store, *options_.clock), random};
  }

  void tell(const Event& event) const {
    if (options_.observer) options_.observer(event);
  }

  ReconcileOptions options_;
  std::mutex mutex_;  // Guards the following members.
  std::map<std::string, Known, std::less<>> known_;
  std::string cursor_;  // Where the next pass begins.
  std::uint64_t round_ = 1;
  unsigned running_ = 0;
};

Reconciler::Reconciler(ReconcileOptions options) : core_(std::make_shared<Core>(std::move(options))) {}

void Reconciler::ask(RecordPtr unknown, Callback<void(Reconciled)> done) {
  core_->ask(std::move(unknown), std::move(done));
}

void Reconciler::ask(RecordPtr unknown, const AskService& by, Callback<void(Reconciled)> done) {
  core_->ask(std::move(unknown), by, std::move(done));
}

Reconciled Reconciler::ask(RecordPtr unknown) {
  return wait_for<Reconciled>([&](Callback<void(Reconciled)> done) { ask(std::move(unknown), std::move(done)); });
}

void Reconciler::find_out(RecordPtr unknown, Callback<void(Finding)> done) const {
  core_->find_out(std::move(unknown), std::move(done));
}

Finding Reconciler::find_out(RecordPtr unknown) const {
  return wait_for<Finding>([&](Callback<void(Finding)> done) { find_out(std::move(unknown), std::move(done)); });
}

bool Reconciler::concerns(const Record& unknown) const { return core_->concerns(unknown); }

void Reconciler::pass(Callback<void(ReconcilePass)> done) { core_->pass(std::move(done)); }

ReconcilePass Reconciler::pass() {
  return wait_for<ReconcilePass>([&](Callback<void(ReconcilePass)> done) { pass(std::move(done)); });
}

}  // namespace once
