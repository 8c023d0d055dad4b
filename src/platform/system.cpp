#include <once/platform/system.hpp>

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "platform/forks.hpp"
#include "platform/thread.hpp"
#include "platform/wait.hpp"

namespace once {

namespace {

std::chrono::nanoseconds read(clockid_t id) noexcept {
  timespec spec{};
  clock_gettime(id, &spec);  // Cannot fail for the two clocks it is called with.
  return std::chrono::seconds(spec.tv_sec) + std::chrono::nanoseconds(spec.tv_nsec);
}

class SystemClock final : public Clock {
 public:
  [[nodiscard]] Time now() const noexcept override { return Time(std::chrono::floor<Millis>(read(CLOCK_REALTIME))); }
  [[nodiscard]] Uptime uptime() const noexcept override { return read(CLOCK_BOOTTIME); }
};

// The kernel's bytes at the moment of use, and nothing kept: whatever copies this process with its memory (fork(),
// clone(), a snapshot of a machine or of a function, CRIU) copies no byte that is still to be used. The system call
// itself, as later C libraries answer getrandom() from a state in the process's memory.
class SystemRandom final : public Random {
 public:
  // Ends the program, with what it says, if the kernel refuses, as a sandbox may make it: without an owner that nobody
  // else has, nothing may run.
  void fill(std::span<std::uint8_t> out) noexcept override {
    while (!out.empty()) {
      const long got = syscall(SYS_getrandom, out.data(), out.size(), 0U);
      if (got >= 0) {  // Over 256 bytes a signal may cut it short (getrandom(2)).
        out = out.subspan(static_cast<std::size_t>(got));
      } else if (errno != EINTR) {
        no_bytes(errno);
      }
    }
  }

 private:
  [[noreturn]] static void no_bytes(int error) {
    throw std::system_error(error, std::generic_category(), "no random bytes from the kernel (getrandom)");
  }
};

class SystemTimers final : public Timers {
 public:
  explicit SystemTimers(std::shared_ptr<Clock> clock) : state_(std::make_shared<State>(std::move(clock))) {}

  SystemTimers(const SystemTimers&) = delete;
  SystemTimers& operator=(const SystemTimers&) = delete;

  ~SystemTimers() override {
    if (forks() != forks_) {  // The thread is the parent's. It cannot be joined, and may have held the lock.
      static_cast<void>(new (std::nothrow) std::pair(std::move(state_), std::move(thread_)));
      return;
    }
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
      state_->wake.notify_one();
    }
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // Destroyed from one of its own timers: the thread ends later, with the shared state.
    } else {
      thread_.join();
    }
  }

  void make_ready() override {
    if (is_ready_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(state_->mutex);
    start();
  }

  Id at(Uptime at, Callback<void()> fire) override {
    const std::lock_guard lock(state_->mutex);
    start();  // First: if it throws, the timer does not exist.
    const Id id = ++state_->last_id;
    const auto [place, added] = state_->queue.emplace(std::pair(at, id), std::move(fire));
    state_->when.emplace(id, at);
    if (place == state_->queue.begin()) state_->wake.notify_one();
    return id;
  }

  bool cancel(Id id) noexcept override {
    Callback<void()> dropped;  // Destroyed outside the lock: its destructor may call this object.
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->when.find(id);
    if (found == state_->when.end()) return false;
    auto node = state_->queue.extract(std::pair(found->second, id));
    dropped = std::move(node.mapped());
    state_->when.erase(found);
    return true;
  }

 private:
  struct State {
    explicit State(std::shared_ptr<Clock> c) : clock(std::move(c)) {}
    std::shared_ptr<Clock> clock;
    std::mutex mutex;
    std::condition_variable wake;
    std::map<std::pair<Uptime, Id>, Callback<void()>> queue;
    std::map<Id, Uptime> when;
    Id last_id = 0;
    bool stopping = false;
  };

  // Call it under the lock.
  void start() {
    if (thread_.joinable()) return;
    thread_ = start_thread_of("timers", [state = state_] { run(*state); });
    is_ready_.store(true, std::memory_order_relaxed);
  }

  static void run(State& state) {
    std::unique_lock lock(state.mutex);
    while (!state.stopping) {
      if (state.queue.empty()) {
        state.wake.wait(lock);
        continue;
      }
      const auto first = state.queue.begin();
      const Uptime left = first->first.first - state.clock->uptime();
      if (left > Uptime{0}) {
        // A condition variable does not count time in suspend. Checking every second limits the delay.
        state.wake.wait_for(lock, std::min<Uptime>(left, std::chrono::seconds(1)));
        continue;
      }
      auto node = state.queue.extract(first);
      state.when.erase(node.key().second);
      lock.unlock();
      {
        const WakesAfter completions;
        node.mapped()();
        node.mapped() = nullptr;  // Its content is destroyed outside the lock.
      }
      lock.lock();
    }
  }

  std::shared_ptr<State> state_;
  std::thread thread_;
  std::atomic<bool> is_ready_{false};  // The thread runs.
  const unsigned forks_ = forks();
};

}  // namespace

std::shared_ptr<Clock> system_clock() {
  static const auto clock = std::make_shared<SystemClock>();
  return clock;
}

std::shared_ptr<Random> system_random() {
  static const auto random = std::make_shared<SystemRandom>();
  return random;
}

std::shared_ptr<Timers> make_system_timers(std::shared_ptr<Clock> clock) {
  return std::make_shared<SystemTimers>(std::move(clock));
}

std::string process_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return "?:" + std::to_string(getpid());
  return std::string(host.data()) + ":" + std::to_string(getpid());
}

}  // namespace once
