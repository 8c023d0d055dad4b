#include <once/stores/moving.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/gate.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>

#include "platform/forks.hpp"
#include "platform/thread.hpp"

namespace once::stores {

namespace {

using Steady = std::chrono::steady_clock;

constexpr Millis least_skew{2'000};
constexpr std::size_t most_record_bytes = std::size_t{16} * 1024 * 1024;  // Of either kind. The engine asks once.
constexpr Millis least_pause{100};                                        // Between two looks, also if much is refused.
// Operations that began before the change have the first store's time in their leases and tokens.
constexpr Millis most_apart{1'000};

// Put before the cursors of lists of the second store. A list of the first one goes on there: it no longer changes.
constexpr char of_second = '>';

Millis apart(const StoreTime& one, const StoreTime& other) {
  return std::chrono::abs(std::chrono::ceil<Millis>(one.now - other.now)) + one.error + other.error;
}

// Both stores, and what looks whether the records have moved: a thread, with which the first store's completions and
// the caller's object share this.
class Pair {
 public:
  Pair(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to, Millis look_every)
      : from_(std::move(from)), open_to_(std::move(open_to)), look_every_(look_every) {
    why_not_ = look(true);
  }

  [[nodiscard]] Store& from() const noexcept { return *from_; }
  [[nodiscard]] Store* to() const noexcept { return in_use_.load(std::memory_order_acquire); }
  [[nodiscard]] Store& in_use() const noexcept {
    Store* const second = to();
    return second != nullptr ? *second : *from_;
  }
  // What is added to the error of the second store's time.
  [[nodiscard]] Millis error() const noexcept { return to() != nullptr ? apart_ : Millis{0}; }

  void when_moved(std::function<void(const std::string& name)> told) {
    const std::lock_guard lock(mutex_);
    if (to() == nullptr) when_moved_ = std::move(told);
  }

  // While one exists, this thread runs a completion of the first store, which may drop the caller's object.
  class Completing {
   public:
    explicit Completing(const Pair& pair) noexcept : before_(std::exchange(innermost_, &pair)) {}
    Completing(const Completing&) = delete;
    Completing& operator=(const Completing&) = delete;
    ~Completing() { innermost_ = before_; }
    [[nodiscard]] static bool is_of(const Pair& pair) noexcept { return innermost_ == &pair; }

   private:
    const Pair* before_;
    static thread_local const Pair* innermost_;
  };

  // The first store has refused something: looks soon. Why the second was not used at the last look.
  std::string refused() {
    if (is_forked()) return {};
    const std::lock_guard lock(mutex_);
    if (!ended_ && to() == nullptr) {
      is_woken_ = true;
      changed_.notify_all();
    }
    return why_not_;
  }

  // The thread, until end() or the change.
  void work() {
    std::unique_lock lock(mutex_);
    while (!ended_ && to() == nullptr) {
      const auto until = Steady::now() + look_every_;
      changed_.wait_for(lock, std::min(least_pause, look_every_), [&] { return ended_; });
      changed_.wait_until(lock, until, [&] { return ended_ || is_woken_; });
      if (ended_) break;
      is_woken_ = false;
      is_looking_ = true;
      lock.unlock();
      std::string why_not = look(false);
      lock.lock();
      is_looking_ = false;
      changed_.notify_all();
      why_not_ = std::move(why_not);
    }
    if (to() != nullptr && when_moved_ && !ended_) {
      const auto told = std::move(when_moved_);
      const std::string name = to()->name();
      lock.unlock();
      told(name);
      lock.lock();
    }
    if (!is_left_) return;
    lock.unlock();
    destroy_stores();
  }

  // The caller's object is gone. Waits for a look that is under way, and ends the stores. A completion does not wait,
  // as the look may wait for that: the thread ends the stores then.
  void end() {
    if (!is_forked()) {
      std::unique_lock lock(mutex_);
      ended_ = true;
      changed_.notify_all();
      if (is_looking_ && Completing::is_of(*this)) {
        is_left_ = true;
        return;
      }
      changed_.wait(lock, [&] { return !is_looking_; });
    }
    destroy_stores();
  }

 private:
  [[nodiscard]] bool is_forked() const noexcept { return forks() != process_; }  // The thread is the parent's.

  // Uses the second store if the move is over. Otherwise returns why not, to be put after what the first one said.
  std::string look(bool first) {
    GateMark mark;
    try {
      mark = from_->gate()->mark();
    } catch (const std::exception& error) {
      return " (whether it has moved is not known: " + std::string(error.what()) + ")";
    }
    if (mark.gate != Gate::closed) return {};
    try {
      if (to_ == nullptr) to_ = open_to_();
      StoreGate* const gate = to_->gate();
      const GateMark other = gate == nullptr ? GateMark() : gate->mark();
      if (!takes_claims(other) || other.move != mark.move) {
        return " (" + to_->name() + " is not where this move leads, or it is not over: its gate is " +
               std::string(to_string(other.gate)) + ")";
      }
      // It answers, and its time is known from now on.
      const Answer answer = blocking::get(*to_, Key("once", "what time is it").stored());
      if (answer.status == AnswerStatus::failed) throw Exception(answer.error);
      const std::optional<StoreTime> before = from_->time();
      const std::optional<StoreTime> now = to_->time();
      if (!first && before && now) apart_ = apart(*before, *now);
      if (apart_ > most_apart) {
        return " (the clocks of both stores are up to " + std::to_string(apart_.count()) +
               " ms apart, so a running program cannot change over: restart it)";
      }
      in_use_.store(to_.get(), std::memory_order_release);
      return {};
    } catch (const std::exception& error) {
      return " (the store that it moves to cannot be used yet: " + std::string(error.what()) + ")";
    }
  }

  // The first one ends its operations.
  void destroy_stores() {
    from_.reset();
    to_.reset();
  }

  const unsigned process_ = forks();
  std::unique_ptr<Store> from_;
  const std::function<std::unique_ptr<Store>()> open_to_;
  const Millis look_every_;
  std::unique_ptr<Store> to_;            // Only for look() until it is in use.
  Millis apart_{0};                      // The same.
  std::atomic<Store*> in_use_{nullptr};  // to_, once the records have moved.

  std::mutex mutex_;  // Guards the following members.
  std::condition_variable changed_;
  std::string why_not_;
  std::function<void(const std::string& name)> when_moved_;
  bool is_woken_ = false;
  bool is_looking_ = false;
  bool ended_ = false;    // The caller's object is gone.
  bool is_left_ = false;  // The thread destroys the stores.
};

thread_local const Pair* Pair::Completing::innermost_ = nullptr;

class MovingStore final : public Store {
 public:
  MovingStore(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to, Millis look_every) {
    if (from->gate() == nullptr) {
      throw Exception(ErrorKind::misuse, from->name() +
                                             " cannot be moved while programs use it: only stores in SQLite and "
                                             "PostgreSQL can");
    }
    pair_ = std::make_shared<Pair>(std::move(from), std::move(open_to), look_every);
    start_thread_of(pair_->from().name(), [pair = pair_] { pair->work(); }).detach();
  }
  MovingStore(const MovingStore&) = delete;
  MovingStore& operator=(const MovingStore&) = delete;
  ~MovingStore() override { pair_->end(); }

  void insert(RecordPtr record, Done done) override {
    if (Store* const to = pair_->to()) return to->insert(std::move(record), std::move(done));
    pair_->from().insert(std::move(record), of_first(std::move(done)));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    if (Store* const to = pair_->to()) return to->replace(std::move(record), seen, std::move(done));
    pair_->from().replace(std::move(record), seen, of_first(std::move(done)));
  }
  void replace_with(RecordPtr /*record*/, Seen /*seen*/, std::shared_ptr<const Companion> /*companion*/,
                    Done done) override {
    done(Answer::decline(ErrorKind::misuse,
                         name() + " moves (moves_to=), and the rows that are to be committed together with a result do "
                                  "not. Stop such programs for the move, and give them the URL of one store"));
  }
  void remove(std::string key, Seen seen, Done done) override {
    if (Store* const to = pair_->to()) return to->remove(std::move(key), seen, std::move(done));
    pair_->from().remove(std::move(key), seen, of_first(std::move(done)));
  }
  void get(std::string key, Done done) override {
    if (Store* const to = pair_->to()) return to->get(std::move(key), std::move(done));
    pair_->from().get(std::move(key), of_first(std::move(done)));
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    Store* const to = pair_->to();
    if (to == nullptr || (!query.cursor.empty() && query.cursor.front() != of_second)) {
      return pair_->from().list(std::move(query), [pair = pair_, done = std::move(done)](ListPage page) mutable {
        const Pair::Completing completing(*pair);
        done(std::move(page));
      });
    }
    if (!query.cursor.empty()) query.cursor.erase(0, 1);
    to->list(std::move(query), [done = std::move(done)](ListPage page) mutable {
      if (!page.cursor.empty()) page.cursor.insert(0, 1, of_second);
      done(std::move(page));
    });
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (Store* const to = pair_->to()) return to->sweep(now, limit, std::move(done));
    pair_->from().sweep(now, limit, [pair = pair_, done = std::move(done)](SweepAnswer answer) mutable {
      const Pair::Completing completing(*pair);
      done(std::move(answer));
    });
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return widened(pair_->in_use().time()); }
  [[nodiscard]] std::optional<StoreTime> time_at(const Clock& clock, Uptime uptime) const noexcept override {
    return widened(pair_->in_use().time_at(clock, uptime));
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities can = pair_->in_use().capabilities();
    can.max_record_bytes = std::min(can.max_record_bytes, most_record_bytes);
    can.hands_out = false;
    can.has_finish_function = false;
    can.default_skew = std::max(can.default_skew, least_skew);
    return can;
  }
  [[nodiscard]] std::string name() const override { return pair_->in_use().name(); }
  [[nodiscard]] Store* below() const noexcept override { return &pair_->in_use(); }
  [[nodiscard]] StoreGate* gate() noexcept override { return pair_->in_use().gate(); }

  void when_moved(std::function<void(const std::string& name)> told) { pair_->when_moved(std::move(told)); }

 private:
  [[nodiscard]] std::optional<StoreTime> widened(std::optional<StoreTime> time) const noexcept {
    if (time) time->error += pair_->error();
    return time;
  }

  [[nodiscard]] Done of_first(Done done) const {
    return [pair = pair_, done = std::move(done)](Answer answer) mutable {
      const Pair::Completing completing(*pair);
      answer.place = 0;  // A hint for this store only.
      const bool may_have_moved = answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::misuse &&
                                  !answer.unfit && !answer.declined;
      if (may_have_moved) answer.error.message += pair->refused();
      done(std::move(answer));
    };
  }

  std::shared_ptr<Pair> pair_;
};

}  // namespace

std::unique_ptr<Store> make_moving_store(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to,
                                         Millis look_every) {
  return std::make_unique<MovingStore>(std::move(from), std::move(open_to), look_every);
}

void when_moved(Store& store, std::function<void(const std::string& name)> told) {
  for (Store* at = &store; at != nullptr; at = at->below()) {
    if (auto* const moving = dynamic_cast<MovingStore*>(at)) return moving->when_moved(std::move(told));
  }
}

}  // namespace once::stores
