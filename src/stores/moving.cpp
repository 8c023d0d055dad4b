#include <once/stores/moving.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
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

// Put before the cursors of lists of the second store. A list of the first one goes on there: it no longer changes.
constexpr char of_second = '>';

// Who asks whether the records have moved: it gets the store to use now, or null with the reason.
using Told = Callback<void(Store* to, const std::string& why_not)>;

// What the completions of the first store share with the thread that looks. It outlives the store.
struct Asked {
  const unsigned process = forks();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Told> waiting;
  std::string why_not;
  Steady::time_point next_look;
  std::thread::id thread;  // Of none: it does not run.
  bool ended = false;
  std::function<std::thread()> start;  // Throws Exception.
  std::function<void(const std::string& name)> when_moved;

  [[nodiscard]] bool is_forked() const noexcept { return forks() != process; }
};

// Answers at once, or from the thread.
void ask(Asked& asked, Told told) {
  if (asked.is_forked()) return told(nullptr, "");  // The thread is the parent's.
  std::unique_lock lock(asked.mutex);
  std::string why_not = asked.why_not;
  if (!asked.ended && Steady::now() >= asked.next_look) {
    try {
      if (asked.thread == std::thread::id()) {
        std::thread thread = asked.start();
        asked.thread = thread.get_id();
        thread.detach();
      }
      asked.waiting.push_back(std::move(told));
      asked.changed.notify_all();
      return;
    } catch (const Exception& error) {
      why_not = " (whether it has moved is not known: " + std::string(error.what()) + ")";
    }
  }
  lock.unlock();
  told(nullptr, why_not);
}

class MovingStore final : public Store {
 public:
  MovingStore(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to, Millis look_every)
      : from_(std::move(from)), open_to_(std::move(open_to)), look_every_(look_every) {
    if (from_->gate() == nullptr) {
      throw Exception(ErrorKind::misuse, from_->name() +
                                             " cannot be moved while programs use it: only stores in SQLite and "
                                             "PostgreSQL can");
    }
    asked_->start = [this] { return start_thread_of(from_->name(), [this, asked = asked_] { work(*asked); }); };
    asked_->why_not = look();
  }
  MovingStore(const MovingStore&) = delete;
  MovingStore& operator=(const MovingStore&) = delete;

  ~MovingStore() override {
    if (!asked_->is_forked()) {
      std::unique_lock lock(asked_->mutex);
      asked_->ended = true;
      asked_->changed.notify_all();
      // On the thread itself, somebody whom it told has dropped the store.
      if (asked_->thread != std::this_thread::get_id()) {
        asked_->changed.wait(lock, [this] { return asked_->thread == std::thread::id(); });
      }
    }
    from_.reset();  // Ends its operations. Nothing of theirs reaches the other store now.
  }

  void insert(RecordPtr record, Done done) override {
    write(std::move(done),
          [record = std::move(record)](Store& store, Done answered) { store.insert(record, std::move(answered)); });
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    write(std::move(done), [record = std::move(record), seen](Store& store, Done answered) {
      store.replace(record, seen, std::move(answered));
    });
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    write(std::move(done),
          [record = std::move(record), seen, companion = std::move(companion)](Store& store, Done answered) {
            store.replace_with(record, seen, companion, std::move(answered));
          });
  }
  void remove(std::string key, Seen seen, Done done) override {
    write(std::move(done),
          [key = std::move(key), seen](Store& store, Done answered) { store.remove(key, seen, std::move(answered)); });
  }

  void get(std::string key, Done done) override {
    if (Store* const to = to_in_use()) return to->get(std::move(key), std::move(done));
    from_->get(std::move(key), [done = std::move(done)](Answer answer) mutable {
      answer.place = 0;
      done(std::move(answer));
    });
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    if (!query.cursor.empty()) {
      const bool in_second = query.cursor.front() == of_second;
      if (in_second) query.cursor.erase(0, 1);
      Store* const to = to_in_use();
      if (in_second && to != nullptr) return list_second(*to, std::move(query), std::move(done));
      return from_->list(std::move(query), std::move(done));
    }
    if (Store* const to = to_in_use()) return list_second(*to, std::move(query), std::move(done));
    ask(*asked_, [this, asked = asked_, query = std::move(query), done = std::move(done)](Store* to,
                                                                                          const std::string&) mutable {
      if (to != nullptr) return list_second(*to, std::move(query), std::move(done));
      if (has_ended(*asked)) return done({.error = Error{ErrorKind::unavailable, "the store was closed"}});
      from_->list(std::move(query), std::move(done));
    });
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (Store* const to = to_in_use()) return to->sweep(now, limit, std::move(done));
    from_->sweep(now, limit, [asked = asked_, now, limit, done = std::move(done)](SweepAnswer answer) mutable {
      if (!answer.error || answer.error->kind != ErrorKind::misuse) return done(std::move(answer));
      ask(*asked, [now, limit, answer = std::move(answer), done = std::move(done)](Store* to,
                                                                                   const std::string& why_not) mutable {
        if (to != nullptr) return to->sweep(now, limit, std::move(done));
        answer.error->message += why_not;
        done(std::move(answer));
      });
    });
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return in_use().time(); }
  [[nodiscard]] std::optional<StoreTime> time_at(const Clock& clock, Uptime uptime) const noexcept override {
    return in_use().time_at(clock, uptime);
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities can = in_use().capabilities();
    can.hands_out = false;
    can.has_finish_function = false;
    can.default_skew = std::max(can.default_skew, least_skew);
    return can;
  }
  [[nodiscard]] std::string name() const override { return in_use().name(); }
  [[nodiscard]] Store* below() const noexcept override { return &in_use(); }
  [[nodiscard]] StoreGate* gate() noexcept override { return in_use().gate(); }

  void when_moved(std::function<void(const std::string& name)> told) {
    const std::lock_guard lock(asked_->mutex);
    if (to_in_use() == nullptr) asked_->when_moved = std::move(told);
  }

 private:
  [[nodiscard]] Store* to_in_use() const noexcept { return in_use_.load(std::memory_order_acquire); }
  [[nodiscard]] Store& in_use() const noexcept {
    Store* const to = to_in_use();
    return to != nullptr ? *to : *from_;
  }

  // What was certainly not written because the store takes no such write is tried again in the other store.
  template <class Call>
  void write(Done done, Call call) {
    if (Store* const to = to_in_use()) return call(*to, std::move(done));
    Call again = call;
    call(*from_, [asked = asked_, again = std::move(again), done = std::move(done)](Answer answer) mutable {
      answer.place = 0;  // A hint for this store only.
      const bool maybe_moved = answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::misuse &&
                               !answer.unfit && !answer.declined;
      if (!maybe_moved) return done(std::move(answer));
      ask(*asked, [again = std::move(again), answer = std::move(answer), done = std::move(done)](
                      Store* to, const std::string& why_not) mutable {
        if (to != nullptr) return again(*to, std::move(done));
        answer.error.message += why_not;
        done(std::move(answer));
      });
    });
  }

  static void list_second(Store& to, ListQuery query, Callback<void(ListPage)> done) {
    to.list(std::move(query), [done = std::move(done)](ListPage page) mutable {
      if (!page.cursor.empty()) page.cursor.insert(0, 1, of_second);
      done(std::move(page));
    });
  }

  static bool has_ended(Asked& asked) {
    if (asked.is_forked()) return false;
    const std::lock_guard lock(asked.mutex);
    return asked.ended;
  }

  // Runs as long as the store exists, once somebody has asked. Any of those whom it tells may drop the store.
  void work(Asked& asked) {
    std::unique_lock lock(asked.mutex);
    while (!asked.ended) {
      asked.changed.wait(lock, [&] { return asked.ended || !asked.waiting.empty(); });
      if (asked.ended) break;
      std::vector<Told> told = std::exchange(asked.waiting, {});
      lock.unlock();
      const std::string why_not = look();
      Store* const to = to_in_use();
      lock.lock();
      asked.why_not = why_not;
      if (to != nullptr && asked.when_moved) std::exchange(asked.when_moved, nullptr)(to->name());
      if (to == nullptr) asked.next_look = Steady::now() + look_every_;
      for (Told& each : told) {
        Store* const use = asked.ended ? nullptr : to;
        lock.unlock();
        each(use, why_not);
        lock.lock();
      }
    }
    for (Told& each : std::exchange(asked.waiting, {})) {
      lock.unlock();
      each(nullptr, "");
      lock.lock();
    }
    asked.thread = {};
    asked.changed.notify_all();
  }

  // Uses the other store if the move is over. Otherwise returns why not, to be put after what the first one said.
  std::string look() {
    if (to_in_use() != nullptr) return {};
    try {
      const GateMark mark = from_->gate()->mark();
      if (mark.gate != Gate::closed) return {};
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
      in_use_.store(to_.get(), std::memory_order_release);
      return {};
    } catch (const Exception& error) {
      return " (the store that it moves to cannot be used yet: " + std::string(error.what()) + ")";
    }
  }

  std::unique_ptr<Store> from_;
  const std::function<std::unique_ptr<Store>()> open_to_;
  const Millis look_every_;
  std::unique_ptr<Store> to_;            // Only for look() until it is in use.
  std::atomic<Store*> in_use_{nullptr};  // to_, once the records have moved.
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
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
