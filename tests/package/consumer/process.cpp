// process MODE DATABASE: what else goes on in a process that uses the library. Exits with 0 if every operation ran
// once.
#include <dlfcn.h>
#include <pthread.h>
#include <sqlite3.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
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
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <locale>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <once/idempotent.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sqlite.hpp>

#include "plugin.hpp"

namespace {

using std::chrono::seconds;

// Made before main() and destroyed behind it.
once::Engine everywhere({.store = once::stores::make_memory_store(), .scope = "process"});

once::Engine engine_of(const char* database) {
  return once::Engine({.store = once::stores::make_sqlite_store({.path = database}),
                       .policy = {.lease = seconds(1), .wait = seconds(240)},
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

// 10,000 threads with small stacks wait for one result, or as many as the process may have. All of them have called
// before it is there.
void stacks(once::Engine& engine) {
  constexpr std::size_t least = 200;
  struct Call {
    once::Engine& engine;
    std::atomic<std::size_t> called = 0;
    std::atomic<bool> may_end = false;
    std::atomic<int> ran = 0;
  } call{engine};
  const auto work = [](void* given) -> void* {
    auto& its = *static_cast<Call*>(given);
    ++its.called;
    its.called.notify_one();
    const auto outcome = its.engine.run("k", {}, [&its] {
      its.may_end.wait(false);
      return std::to_string(++its.ran);
    });
    expect(outcome.value() == "1", "another result");
    return nullptr;
  };
  pthread_attr_t small{};
  pthread_attr_init(&small);
  expect(pthread_attr_setstacksize(&small, std::size_t{64} * 1024) == 0, "pthread_attr_setstacksize");
  std::vector<pthread_t> threads;
  for (pthread_t thread{}; threads.size() < 10'000; threads.push_back(thread)) {
    if (pthread_create(&thread, &small, work, &call) == 0) continue;
    expect(threads.size() >= least, "pthread_create");
    break;
  }
  pthread_attr_destroy(&small);
  for (std::size_t seen = 0; (seen = call.called) < threads.size();) call.called.wait(seen);
  call.may_end = true;
  call.may_end.notify_all();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  expect(call.ran == 1, "it ran more than once");
}

// A handler that owns something can only be moved. So can a result.
void move_only(once::Engine& engine) {
  auto text = std::make_unique<std::string>("owned");
  const auto work = [text = std::move(text)] { return std::move(*text); };
  static_assert(!std::is_copy_constructible_v<decltype(work)>);
  expect(engine.run("const", {}, work).value() == "owned", "a handler by reference");
  auto other = std::make_unique<int>(7);
  const auto outcome = engine.run("moved", {}, [other = std::move(other)] { return std::to_string(*other); });
  expect(outcome.value() == "7", "a handler that is moved");
  auto pay = once::idempotent(engine, {.name = "pay", .key = "@"},
                              [count = std::make_unique<int>(0)](std::string_view) { return ++*count; });
  auto moved = std::move(pay);
  expect(moved(R"({"id":1})") == 1 && moved(R"({"id":1})") == 1 && moved(R"({"id":2})") == 2, "a moved operation");
}

// SQLite's own list, from its first entry.
std::string vfs_names() {
  std::string names;
  for (const sqlite3_vfs* vfs = sqlite3_vfs_find(nullptr); vfs != nullptr; vfs = vfs->pNext) {
    names += vfs->zName;
    names += ' ';
  }
  return names;
}

// Two copies of once on one file, with one SQLite. One of them goes.
void plugin(const char* database, const std::string& file) {
  const std::string before = vfs_names();
  for (int round = 0; round < 3; ++round) {
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    expect(handle != nullptr, "dlopen");
    const auto run = reinterpret_cast<decltype(&plugin_run)>(dlsym(handle, "plugin_run"));
    expect(run != nullptr, "dlsym");
    const std::string own = "own" + std::to_string(round);
    {
      once::Engine engine = engine_of(database);
      std::atomic<int> theirs = 0;
      std::thread other([&run, &theirs, database, round] {
        for (int i = 0; i < 20; ++i) theirs += run(database, ("k" + std::to_string(20 * round + i)).c_str());
      });
      int ran = 0;
      for (int i = 0; i < 100; ++i) {
        const std::string key = own + '-' + std::to_string(i);
        static_cast<void>(engine.run(key, {}, [&ran] { return std::to_string(++ran); }).value());
      }
      other.join();
      expect(ran == 100 && theirs == 20, "two copies on one file");
      expect(run(database, own.c_str()) == 1 && run(database, own.c_str()) == 0, "the plugin did not replay");
      const auto outcome = engine.run(own, {}, [] { return std::string("again"); });
      expect(outcome.kind == once::Outcome::Kind::replayed, "one copy ran what the other had");
    }
    expect(dlclose(handle) == 0, "dlclose");
  }
  expect(vfs_names() == before, "a VFS was left behind");
  // What a VFS that is gone would break: the host's own databases, its copies, and its stores.
  sqlite3* own = nullptr;
  expect(sqlite3_open_v2(":memory:", &own, SQLITE_OPEN_READWRITE, "unix-none") == SQLITE_OK, "sqlite3_open_v2");
  sqlite3_close(own);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  expect(waitpid(child, &status, 0) == child && status == 0, "a copy of the process");
  const auto outcome = engine_of(database).run("own0", {}, [] { return std::string("again"); });
  expect(outcome.kind == once::Outcome::Kind::replayed, "the store after the plugin was unloaded");
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
  } else if (mode == "move_only") {
    move_only(engine);
  } else if (mode == "plugin") {
    plugin(argv[2], std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plugin.so");
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
