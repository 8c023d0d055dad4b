// process MODE DATABASE: what else goes on in a process that uses the library. Exits with 0 if every operation ran
// once.
#include <pthread.h>
#include <sys/signalfd.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <locale>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <once/idempotent.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sqlite.hpp>

namespace {

using std::chrono::seconds;

// Made before main() and destroyed behind it.
once::Engine everywhere({.store = once::stores::make_memory_store(), .scope = "process"});

once::Engine engine_of(const char* database) {
  return once::Engine({.store = once::stores::make_sqlite_store({.path = database}),
                       .policy = {.lease = seconds(1), .wait = seconds(60)},
                       .scope = "process"});
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

void expect(bool condition, const char* what) {
  if (!condition) fail(what);
}

// A stackful coroutine, as fiber libraries have them.
class Fiber {
 public:
  explicit Fiber(std::function<void(Fiber&)> body) : body_(std::move(body)) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.data();
    own_.uc_stack.ss_size = stack_.size();
    own_.uc_link = &other_;
    starting = this;
    makecontext(
        &own_, [] { starting->body_(*starting); }, 0);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  void resume() {
    starting = this;
    swapcontext(&other_, &own_);
  }
  void suspend() { swapcontext(&own_, &other_); }

 private:
  static Fiber* starting;
  std::function<void(Fiber&)> body_;
  std::vector<char> stack_ = std::vector<char>(std::size_t{512} * 1024);
  ucontext_t own_ = {};
  ucontext_t other_ = {};
};
Fiber* Fiber::starting = nullptr;

// Two fibers of one thread, each in the work of its own key. The one that began first ends first.
void fiber(once::Engine& engine) {
  const auto runs = [&engine](const char* key) {
    return [&engine, key](Fiber& self) {
      const auto outcome = engine.run(key, {}, [&self, key] {
        self.suspend();
        return std::string(key);
      });
      expect(outcome.value() == key, "a fiber got another result");
    };
  };
  auto first = std::make_unique<Fiber>(runs("first"));
  auto second = std::make_unique<Fiber>(runs("second"));
  first->resume();
  second->resume();
  first->resume();
  first.reset();  // Its stack is gone.
  second->resume();
  second.reset();
  int ran = 0;
  static_cast<void>(engine.run("third", {}, [&ran] { return std::to_string(++ran); }));
  expect(ran == 1, "a call after the fibers did not run");
}

// A thread that ends in its work, without an exception that C++ knows. Its claim lapses, and another call takes over.
void end_thread(once::Engine& engine, bool cancel) {
  std::array<int, 2> never{};
  expect(pipe(never.data()) == 0, "pipe");
  std::promise<void> began;
  struct Call {
    once::Engine& engine;
    std::promise<void>& began;
    int never = 0;
    bool cancel = false;
  } call{engine, began, never[0], cancel};
  const auto work = [](void* given) -> void* {
    auto& its = *static_cast<Call*>(given);
    static_cast<void>(its.engine.run("k", {}, [&its] {
      its.began.set_value();
      if (!its.cancel) pthread_exit(nullptr);
      char byte = 0;
      return std::to_string(read(its.never, &byte, 1));  // Where it is cancelled.
    }));
    return nullptr;
  };
  pthread_t thread{};
  expect(pthread_create(&thread, nullptr, work, &call) == 0, "pthread_create");
  began.get_future().wait();
  if (cancel) pthread_cancel(thread);
  pthread_join(thread, nullptr);
  const auto outcome = engine.run("k", {}, [] { return std::string("again"); });
  expect(outcome.value() == "again", "the work of a thread that ended counts");
}

// The usual daemon: SIGTERM is blocked in main(), which reads a signalfd. No thread of the library may take it.
void signals(once::Engine& engine) {
  static_cast<void>(engine.run("warm", {}, [] { return std::string(); }));
  sigset_t terminated{};
  sigemptyset(&terminated);
  sigaddset(&terminated, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminated, nullptr);
  std::promise<void> received;
  std::thread worker([&engine, &received] {
    const auto outcome = engine.run("job", {}, [&received] {
      kill(getpid(), SIGTERM);
      received.get_future().wait();
      return std::string("done");
    });
    expect(outcome.value() == "done", "the job did not end");
  });
  const int descriptor = signalfd(-1, &terminated, 0);
  signalfd_siginfo info{};
  expect(read(descriptor, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTERM, "signalfd");
  received.set_value();
  worker.join();
}

// One payload is one key, in every rounding mode and every locale, and a number is read as it was written.
void numbers(once::Engine& engine, const std::function<void(int)>& change, int changes) {
  int ran = 0;
  const auto pay =
      once::idempotent(engine, {.name = "pay", .key = "@"}, [&ran](std::string_view) { return ++ran / 8.0 + 0.1; });
  double first = 0;
  for (int i = 0; i < changes; ++i) {
    change(i);
    const double got = pay(R"({"amount":123456.789,"lat":52.520008})");
    change(0);
    if (i == 0) first = got;
    expect(ran == 1 && !(got < first) && !(got > first), "one amount ran twice, or was read differently");
  }
}

struct Dot : std::numpunct<char> {
 protected:
  [[nodiscard]] char do_decimal_point() const override { return ','; }
  [[nodiscard]] char do_thousands_sep() const override { return '.'; }
  [[nodiscard]] std::string do_grouping() const override { return "\3"; }
};

// Many threads with small stacks wait for one result.
void stacks(once::Engine& engine) {
  struct Call {
    once::Engine& engine;
    std::atomic<int> ran = 0;
  } call{engine};
  const auto work = [](void* given) -> void* {
    auto& its = *static_cast<Call*>(given);
    const auto outcome = its.engine.run("k", {}, [&its] { return std::to_string(++its.ran); });
    expect(outcome.value() == "1", "another result");
    return nullptr;
  };
  pthread_attr_t small{};
  pthread_attr_init(&small);
  expect(pthread_attr_setstacksize(&small, std::size_t{64} * 1024) == 0, "pthread_attr_setstacksize");
  std::vector<pthread_t> threads(200);
  for (pthread_t& thread : threads) expect(pthread_create(&thread, &small, work, &call) == 0, "pthread_create");
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&small);
  expect(call.ran == 1, "it ran more than once");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string mode = argv[1];
  once::Engine engine = engine_of(argv[2]);
  if (mode == "fiber") {
    fiber(engine);
  } else if (mode == "cancel" || mode == "exit_thread") {
    end_thread(engine, mode == "cancel");
  } else if (mode == "signals") {
    signals(engine);
  } else if (mode == "rounding") {
    constexpr std::array modes{FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    numbers(
        engine, [&modes](int i) { std::fesetround(modes.at(static_cast<std::size_t>(i))); }, 4);
  } else if (mode == "locale") {
    numbers(
        engine,
        [](int i) { std::locale::global(i == 0 ? std::locale::classic() : std::locale(std::locale(), new Dot)); }, 2);
  } else if (mode == "stacks") {
    stacks(engine);
  } else if (mode == "global") {
    expect(everywhere.run("k", {}, [] { return std::string("r"); }).value() == "r", "the global engine");
    std::atexit([] { expect(everywhere.run("k", {}, [] { return std::string("other"); }).value() == "r", "at exit"); });
  } else if (mode == "exit") {  // In the work, with another thread that waits for its result.
    std::thread([] { static_cast<void>(everywhere.run("k", {}, []() -> std::string { std::exit(0); })); }).join();
  } else {
    return 2;
  }
  return 0;
}
