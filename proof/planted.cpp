// Bugs that are put in on purpose, one at a time, between the observer and the store. docs/proof.md lists them.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/forwarding_store.hpp"
#include "observed_store.hpp"

namespace once::proof {

namespace {

using Status = AnswerStatus;

// Those of the worker itself (worker.cpp), then those of this file.
constexpr std::array<std::string_view, 8> of_the_worker = {
    "acts_late",    "released_after_acting", "tenants_mixed",   "unprotected",
    "log_unsynced", "file_unsynced",         "log_synced_late", "acts_again"};
constexpr std::array<std::string_view, 23> of_the_store = {
    "unfenced_finish", "ignores_revision",  "revision_repeats", "acknowledged_early", "stale_read",     "lost_insert",
    "lost_finish",     "double_insert",     "remove_anything",  "another_key",        "live_is_lapsed", "loses_steps",
    "forgets_hold",    "token_kept",        "attempt_kept",     "payloads_mixed",     "result_changes", "sweeps_early",
    "doubt_is_done",   "lost_is_unwritten", "full_is_done",     "host_clock",         "cut_off_is_done"};

class PlantedStore final : public testing::ForwardingStore, public std::enable_shared_from_this<PlantedStore> {
 public:
  PlantedStore(std::shared_ptr<Store> inner, std::string bug)
      : ForwardingStore(std::move(inner)), bug_(std::move(bug)) {}

  void insert(RecordPtr record, Done done) override {
    if (is("lost_insert") && now_and_then(10)) return done(Answer::ok());
    if (is("acknowledged_early")) return acknowledge(std::move(record), std::nullopt, std::move(done));
    record = spoilt(std::move(record), nullptr);
    if (!is("double_insert")) return inner_->insert(record, spoiling(std::move(done)));
    inner_->insert(record, [self = shared_from_this(), record, done = std::move(done)](Answer answer) mutable {
      if (answer.status != Status::refused || answer.record == nullptr) return done(std::move(answer));
      self->inner_->replace(record, {answer.record->owner, answer.record->revision}, std::move(done));
    });
  }

  void replace(RecordPtr record, Seen seen, Done done) override {
    const bool finish = record->state == State::completed || record->state == State::failed;
    if (is("lost_finish") && finish && now_and_then(5)) return done(Answer::ok());
    if (is("acknowledged_early")) return acknowledge(std::move(record), seen, std::move(done));
    record = spoilt(std::move(record), &seen);
    if (!(is("unfenced_finish") && finish) && !is("ignores_revision")) {
      return inner_->replace(std::move(record), seen, spoiling(std::move(done)));
    }
    inner_->replace(record, seen,
                    [self = shared_from_this(), record, seen, done = std::move(done)](Answer answer) mutable {
                      if (answer.status != Status::refused || answer.record == nullptr ||
                          (self->is("ignores_revision") && answer.record->owner != seen.owner)) {
                        return done(std::move(answer));
                      }
                      self->inner_->replace(record, {answer.record->owner, answer.record->revision}, std::move(done));
                    });
  }

  void remove(std::string key, Seen seen, Done done) override {
    if (!is("remove_anything")) return inner_->remove(std::move(key), seen, spoiling(std::move(done)));
    inner_->remove(key, seen, [self = shared_from_this(), key, done = std::move(done)](Answer answer) mutable {
      if (answer.status != Status::refused || answer.record == nullptr) return done(std::move(answer));
      self->inner_->remove(key, {answer.record->owner, answer.record->revision}, std::move(done));
    });
  }

  void get(std::string key, Done done) override {
    if (is("stale_read")) {
      const std::lock_guard lock(mutex_);
      const auto known = last_.find(key);
      if (known != last_.end() && now_and_then(3)) {
        Answer answer = Answer::ok();
        answer.record = known->second;
        return done(std::move(answer));
      }
    }
    inner_->get(std::move(key), spoiling(std::move(done)));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (is("sweeps_early")) now += std::chrono::hours(24);
    inner_->sweep(now, limit, std::move(done));
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
    return is("host_clock") ? std::nullopt : inner_->time();
  }

 private:
  [[nodiscard]] bool is(std::string_view bug) const { return bug_ == bug; }
  bool now_and_then(std::uint64_t of) { return ++calls_ % of == 0; }

  // Done at once, written a little later: what a store does that acknowledges before it syncs.
  void acknowledge(RecordPtr record, std::optional<Seen> seen, Done done) {
    std::thread([self = shared_from_this(), record = std::move(record), seen] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (seen) {
        self->inner_->replace(record, *seen, [](const Answer&) {});
      } else {
        self->inner_->insert(record, [](const Answer&) {});
      }
    }).detach();
    done(Answer::ok());
  }

  // The record as it is written.
  RecordPtr spoilt(RecordPtr record, const Seen* seen) const {
    Record next = *record;
    const bool takes_over = seen != nullptr && next.owner != seen->owner;
    if (is("revision_repeats") && seen != nullptr) next.revision = seen->revision;
    if (is("loses_steps") && takes_over) next.steps.clear();
    if (is("forgets_hold")) next.on_lapse = OnLapse::takeover;
    if (is("token_kept") && takes_over) next.token = 1;
    if (is("attempt_kept")) next.attempt = 1;
    if (is("payloads_mixed")) next.fingerprint = {};
    return share(std::move(next));
  }

  // The answer as it is given.
  Done spoiling(Done done) {
    return [self = shared_from_this(), done = std::move(done)](Answer answer) mutable {
      self->spoil(answer);
      done(std::move(answer));
    };
  }
  void spoil(Answer& answer) {
    if (is("host_clock")) answer.time.reset();
    const bool failed = answer.status == Status::failed;
    const bool in_doubt = failed && answer.error.kind == ErrorKind::in_doubt;
    const bool unavailable = failed && answer.error.kind == ErrorKind::unavailable;
    if ((in_doubt && is("doubt_is_done")) || (unavailable && is("full_is_done")) ||
        ((in_doubt || unavailable) && is("cut_off_is_done"))) {
      answer = Answer::ok();
    } else if (in_doubt && is("lost_is_unwritten")) {
      answer.error.kind = ErrorKind::unavailable;
    }
    if (answer.record == nullptr) return;
    Record shown = *answer.record;
    const std::lock_guard lock(mutex_);
    if (is("live_is_lapsed") && shown.state == State::in_progress && shown.lease_until != Time{}) {
      shown.lease_until -= std::chrono::minutes(10);
    }
    if (is("result_changes") && shown.state == State::completed && now_and_then(3)) shown.result.bytes += '!';
    if (is("stale_read")) last_[shown.key] = answer.record;
    if (is("another_key") && shown.state == State::completed) {
      const RecordPtr before = std::exchange(another_, answer.record);
      if (before != nullptr && now_and_then(3)) {
        shown = *before;
        shown.key = answer.record->key;
        shown.fingerprint = answer.record->fingerprint;
      }
    }
    answer.record = share(std::move(shown));
  }

  const std::string bug_;
  std::atomic<std::uint64_t> calls_{0};
  std::mutex mutex_;
  std::map<std::string, RecordPtr> last_;
  RecordPtr another_;
};

}  // namespace

std::shared_ptr<Store> plant(std::shared_ptr<Store> inner, const std::string& bug) {
  if (bug.empty() || std::ranges::find(of_the_worker, bug) != of_the_worker.end()) return inner;
  if (std::ranges::find(of_the_store, bug) == of_the_store.end()) {
    throw Exception(ErrorKind::misuse, "there is no planted bug " + bug);
  }
  return std::make_shared<PlantedStore>(std::move(inner), bug);
}

}  // namespace once::proof
