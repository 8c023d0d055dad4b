// A store in front of the memory store, or of another, that does to each call what a test says, and counts them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/store.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sql.hpp>

namespace once::testing {

// Thread-safe, except for the public settings.
class ScriptStore final : public Store {
 public:
  enum class Next {
    carry_out,
    fail,    // Not carried out, unavailable.
    drop,    // Not carried out, in_doubt (a read: unavailable).
    lose,    // Carried out, in_doubt (a read: unavailable).
    late,    // in_doubt at once, carried out by land().
    stall,   // Carried out, answered by answer_stalled().
    block,   // Neither, until answer_stalled().
    bad,     // Not carried out: the record can never be kept.
    denied,  // Not carried out: misuse that an operator may fix.
  };
  enum class Tells { by_call, in_answers, never };

  explicit ScriptStore(std::shared_ptr<Clock> clock) : inner_(stores::make_memory_store(std::move(clock))) {}
  explicit ScriptStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  // What happens to the calls to come, one by one; after the last, `otherwise` happens to each.
  void script(std::deque<Next> next) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(next);
  }
  void otherwise(Next next) {
    const std::lock_guard lock(mutex_);
    otherwise_ = next;
  }
  // Runs once, before the next write is carried out: another attempt is faster.
  void before_next_write(std::function<void(Store&)> act) {
    const std::lock_guard lock(mutex_);
    before_ = std::move(act);
  }

  Store& inner() noexcept { return *inner_; }
  std::size_t stalled() const {
    const std::lock_guard lock(mutex_);
    return stalled_.size();
  }
  void answer_stalled() { run(stalled_); }  // In their order; calls that come meanwhile are answered next time.
  void land() { run(late_); }

  // The calls so far: "insert", "replace", "replace_with", "remove", "get".
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  void forget_calls() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

  Tells tells = Tells::by_call;
  Millis told_error{0};
  Millis told_off{0};  // How far off the time is that answers tell.
  std::optional<std::size_t> max_record_bytes;
  Millis default_skew{0};
  bool durable = false;
  bool keeps_compressed = true;

  void insert(RecordPtr record, Done done) override {
    call(
        "insert", true, [record](Store& s, Done d) { s.insert(record, std::move(d)); }, std::move(done),
        record_bytes(*record));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    call(
        "replace", true, [record, seen](Store& s, Done d) { s.replace(record, seen, std::move(d)); }, std::move(done),
        record_bytes(*record));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    call(
        "replace_with", true,
        [record, seen, companion](Store& s, Done d) { s.replace_with(record, seen, companion, std::move(d)); },
        std::move(done), record_bytes(*record));
  }
  stores::SqlStatement finish_statement(const Record& record, std::uint64_t place) override {
    return inner_->finish_statement(record, place);
  }
  void remove(std::string key, Seen seen, Done done) override {
    call(
        "remove", true, [key, seen](Store& s, Done d) { s.remove(key, seen, std::move(d)); }, std::move(done), 0);
  }
  void get(std::string key, Done done) override {
    call(
        "get", false, [key](Store& s, Done d) { s.get(key, std::move(d)); }, std::move(done), 0);
  }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    inner_->list(std::move(query), std::move(done));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    inner_->sweep(now, limit, std::move(done));
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
    return tells == Tells::by_call ? inner_->time() : std::nullopt;
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities own = inner_->capabilities();
    if (max_record_bytes) own.max_record_bytes = *max_record_bytes;
    own.default_skew = default_skew;
    own.tells_time = tells != Tells::never;
    own.durable = durable;
    own.keeps_compressed = keeps_compressed;
    return own;
  }
  [[nodiscard]] std::string name() const override { return "script:"; }

 private:
  using Carry = std::function<void(Store&, Done)>;

  void call(const char* what, bool writes, Carry carry, Done done, std::size_t bytes) {
    Next next = Next::carry_out;
    std::function<void(Store&)> before;
    {
      const std::lock_guard lock(mutex_);
      calls_.emplace_back(what);
      next = otherwise_;
      if (!script_.empty()) {
        next = script_.front();
        script_.pop_front();
      }
      if (writes) before = std::exchange(before_, nullptr);
    }
    if (before) before(*inner_);
    if (max_record_bytes && bytes > *max_record_bytes) next = Next::bad;
    const ErrorKind lost = writes ? ErrorKind::in_doubt : ErrorKind::unavailable;
    switch (next) {
      case Next::carry_out:
        return carry(*inner_, [this, done = std::move(done)](Answer a) mutable { done(timed(std::move(a))); });
      case Next::fail:
        return done(Answer::fail(ErrorKind::unavailable, "the store is down"));
      case Next::bad:
        return done(Answer::cannot_keep("the record is too large"));
      case Next::denied:
        return done(Answer::fail(ErrorKind::misuse, "no permission"));
      case Next::drop:
        return done(Answer::fail(lost, "no answer"));
      case Next::lose:
        carry(*inner_, [](const Answer&) {});
        return done(Answer::fail(lost, "no answer"));
      case Next::late: {
        {
          const std::lock_guard lock(mutex_);
          late_.emplace_back([this, carry = std::move(carry)] { carry(*inner_, [](const Answer&) {}); });
        }
        return done(Answer::fail(lost, "no answer"));
      }
      case Next::stall:
        return carry(*inner_, [this, &done](Answer a) {
          const std::lock_guard lock(mutex_);
          stalled_.emplace_back([done = std::move(done), a = timed(std::move(a))]() mutable { done(std::move(a)); });
        });
      case Next::block: {
        const std::lock_guard lock(mutex_);
        stalled_.emplace_back([this, carry = std::move(carry), done = std::move(done)]() mutable {
          carry(*inner_, [this, &done](Answer a) { done(timed(std::move(a))); });
        });
      }
    }
  }

  Answer timed(Answer answer) const {
    if (tells != Tells::never) answer.time = StoreTime{inner_->time()->now + told_off, told_error};
    return answer;
  }

  void run(std::vector<Callback<void()>>& list) {
    std::vector<Callback<void()>> all;
    {
      const std::lock_guard lock(mutex_);
      all = std::exchange(list, {});
    }
    for (auto& one : all) one();
  }

  std::shared_ptr<Store> inner_;
  mutable std::mutex mutex_;
  std::deque<Next> script_;
  Next otherwise_ = Next::carry_out;
  std::function<void(Store&)> before_;
  std::vector<Callback<void()>> stalled_;
  std::vector<Callback<void()>> late_;
  std::vector<std::string> calls_;
};

}  // namespace once::testing
