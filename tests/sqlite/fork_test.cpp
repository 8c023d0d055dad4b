// fork() with an open store: a separate program, because the thread sanitizer allows no thread in the child then.
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "engine/core.hpp"
#include "engine/running.hpp"
#include "platform/completion_loop.hpp"
#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace {

using stores::make_sqlite_store;
using ::testing::IsEmpty;

// Far longer than what is waited for here: whoever comes to wait for it is not told "at once", and the alarm ends him.
constexpr std::chrono::minutes long_wait{5};
constexpr unsigned alarm_s = 60;

bool puts(Store& store, const std::string& key) {
  return blocking::insert(store, plain_record(key)).status == AnswerStatus::done;
}

bool is_told(const std::optional<Error>& error) {
  return error && error->kind == ErrorKind::misuse && error->message.find("fork") != std::string::npos &&
         error->message.find("exec") != std::string::npos;
}

bool cannot_be_opened(const std::string& path) {
  try {
    const auto store = make_sqlite_store({.path = path, .busy_timeout = long_wait});
    return false;
  } catch (const Exception& error) {
    return is_told(error.error());
  }
}

// Checks the child of a process with an open store. Returns 0, or the number of the failed check.
int meets(std::unique_ptr<Store>& store, const Scratch& scratch) {
  if (!is_told(blocking::insert(*store, plain_record("child#1")).error)) return 1;
  if (!is_told(blocking::replace(*store, plain_record("k#1"), Seen{}).error)) return 2;
  if (!is_told(blocking::remove(*store, "k#1", Seen{}).error)) return 3;
  if (!is_told(blocking::get(*store, "k#1").error)) return 4;
  if (!is_told(blocking::list(*store, {}).error)) return 5;
  if (!is_told(blocking::sweep(*store, Time{}, 1).error)) return 6;
  if (!cannot_be_opened(scratch.file())) return 7;
  if (!cannot_be_opened(scratch.file("link.db"))) return 8;
  if (!cannot_be_opened(scratch.file("other.db"))) return 9;
  store.reset();
  if (!cannot_be_opened(scratch.file())) return 10;
  return 0;
}

// The exit status of a child that runs `work`; -1: it was killed.
template <class Work>
int in_child(Work&& work) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    alarm(alarm_s);
    _exit(std::forward<Work>(work)());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SqliteFork, ChildrenAreToldWhileTheParentWrites) {
  const SoundScratch scratch;
  auto store = make_sqlite_store({.path = scratch.file(), .busy_timeout = long_wait, .checkpoint_pages = 100});
  std::filesystem::create_symlink("once.db", scratch.file("link.db"));
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int n = 0; !stop; ++n) {
        if (!puts(*store, "w" + std::to_string(writer) + "#" + std::to_string(n))) ++failed;
      }
    });
  }
  for (int child = 0; child < 20; ++child) {
    EXPECT_EQ(in_child([&] { return meets(store, scratch); }), 0) << "child " << child;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(puts(*store, "last#1"));
  EXPECT_FALSE(blocking::get(*store, "child#1").record);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

TEST(SqliteFork, AGrandchildIsToldToo) {
  const SoundScratch scratch;
  auto store = make_sqlite_store({.path = scratch.file(), .busy_timeout = long_wait});
  ASSERT_TRUE(puts(*store, "k#1"));
  std::filesystem::create_symlink("once.db", scratch.file("link.db"));
  EXPECT_EQ(in_child([&] { return in_child([&] { return meets(store, scratch); }); }), 0);
  EXPECT_TRUE(puts(*store, "k#2"));
}

// The parent's threads are not there in the child, and others may have their places, and their names in the C library.
template <class Work>
void where_threads_have_taken_the_places(Work&& work) {
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 8; ++i) others.emplace_back([&] { done.wait(false); });
  std::forward<Work>(work)();
  done = true;
  done.notify_all();
  for (std::thread& other : others) other.join();
}

TEST(SqliteFork, AnInheritedStoreIsLeftWhereAThreadHasTakenTheWritersPlace) {
  const SoundScratch scratch;
  auto store = make_sqlite_store({.path = scratch.file()});
  ASSERT_TRUE(puts(*store, "k#1"));
  EXPECT_EQ(in_child([&] {
              where_threads_have_taken_the_places([&] { store.reset(); });
              return 0;
            }),
            0);
  EXPECT_TRUE(puts(*store, "k#2"));
}

TEST(SqliteFork, AChildOfAProcessThatHasClosedItsStoresMayOpenOne) {
  const SoundScratch scratch;
  {
    const auto store = make_sqlite_store({.path = scratch.file()});
    ASSERT_TRUE(puts(*store, "k#1"));
  }
  EXPECT_EQ(in_child([&] {
              auto store = make_sqlite_store({.path = scratch.file()});
              const bool works = blocking::get(*store, "k#1").record && puts(*store, "k#2");
              const auto inherits = [&] { return is_told(blocking::get(*store, "k#1").error) ? 0 : 2; };
              return works ? in_child(inherits) : 1;
            }),
            0);
  EXPECT_TRUE(blocking::get(*make_sqlite_store({.path = scratch.file()}), "k#2").record);
}

// What a program has is an engine, whose timers have a thread too. A child that returns from main() destroys both.
TEST(SqliteFork, AnEngineIsToldAndMayBeDestroyed) {
  const SoundScratch scratch;
  const std::shared_ptr<Store> store = make_sqlite_store({.path = scratch.file()});
  auto engine = std::make_unique<Engine>(EngineOptions{.store = store});
  const auto run = [&](const char* name) { return engine->run(name, "", [&] { return std::string(name); }).value(); };
  ASSERT_EQ(run("a"), "a");
  ASSERT_TRUE(puts(*store, "k#1"));  // The writer has nothing of the engine any more: it is destroyed in the child.
  EXPECT_EQ(in_child([&] {
              for (const char* name : {"a", "b"}) {  // One that is stored, and one that is not.
                try {
                  run(name);
                  return 1;
                } catch (const Exception& error) {
                  if (!is_told(error.error())) return 2;
                }
              }
              where_threads_have_taken_the_places([&] { engine.reset(); });
              return 0;
            }),
            0);
  EXPECT_EQ(run("b"), "b");
}

// --- The table of running work, in the child of a fork ---

// 1. Thread A runs the work of a key. 2. Another thread forks: A is not there in the child. 3. A thread of the child
// gets A's place, and its name in the C library. It is not in that work.
TEST(RunningFork, ChildForgetsWorkOfOtherThreads) {
  const SoundScratch scratch;
  const auto core = std::make_shared<EngineCore>(EngineOptions{.store = make_sqlite_store({.path = scratch.file()})});
  const std::string other_key = "other";
  const std::string own_key = "own";
  std::atomic<bool> entered{false};
  std::atomic<bool> done{false};
  pthread_t name{};
  std::thread other([&] {
    // Not in the thread's stack, which the child uses anew.
    const auto running = std::make_unique<Running>(*core, other_key);
    name = pthread_self();
    entered = true;
    entered.notify_all();
    done.wait(false);
  });
  entered.wait(false);
  const Running own(*core, own_key);
  EXPECT_EQ(in_child([&] {
              std::atomic<int> same{0};
              std::atomic<int> refused{0};
              std::atomic<int> left{8};
              const auto look = [&] {
                if (pthread_equal(pthread_self(), name) != 0) ++same;
                try {
                  if (Running::refuse_anywhere(*core, other_key)) ++refused;
                } catch (const Exception&) {
                  ++refused;
                }
                --left;
                left.notify_all();
                for (int now = left; now != 0; now = left) left.wait(now);  // All of them have places at one time.
              };
              std::vector<std::thread> threads;
              for (int i = 0; i < 8; ++i) threads.emplace_back(look);
              for (std::thread& each : threads) each.join();
              if (same == 0) return 1;
              if (refused != 0) return 2;
              try {  // The thread that forked is still in its own work.
                Running::refuse_here(*core, own_key);
                return 3;
              } catch (const Exception& error) {
                return error.kind() == ErrorKind::misuse ? 0 : 4;
              }
            }),
            0);
  done = true;
  done.notify_all();
  other.join();
}

TEST(RunningFork, ChildWaitsForNoLockOfTheTable) {
  const SoundScratch scratch;
  const auto core = std::make_shared<EngineCore>(EngineOptions{.store = make_sqlite_store({.path = scratch.file()})});
  const std::string key = "k";
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      while (!stop) const Running running(*core, key);
    });
  }
  for (int child = 0; child < 100; ++child) {
    EXPECT_EQ(in_child([&] {
                const Running running(*core, key);
                return 0;
              }),
              0)
        << child << ": ended by its alarm";
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

// A daemon: the process that has opened the store ends, in order or not, and its child continues.
TEST(SqliteFork, ADaemonIsToldAndLosesNothingOfWhatItsParentWrote) {
  for (const bool in_order : {true, false}) {
    const SoundScratch scratch;
    std::filesystem::create_symlink("once.db", scratch.file("link.db"));
    std::array<int, 2> go{};
    std::array<int, 2> result{};
    ASSERT_EQ(pipe2(go.data(), O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(result.data(), O_CLOEXEC), 0);
    EXPECT_EQ(in_child([&] {
                auto store = make_sqlite_store({.path = scratch.file(), .busy_timeout = long_wait});
                if (!puts(*store, "k#1")) return 1;
                if (fork() == 0) {
                  alarm(alarm_s);
                  ::close(go[1]);
                  char byte = 0;
                  if (::read(go[0], &byte, 1) != 0) _exit(1);  // The test lets it go on, by closing the pipe.
                  byte = static_cast<char>('0' + meets(store, scratch));
                  _exit(::write(result[1], &byte, 1) == 1 ? 0 : 1);
                }
                if (in_order) store.reset();
                return 0;
              }),
              0);
    // Its daemon is alive. A program that knows nothing of `once` is alone at the file, and cleans up when it closes.
    {
      Shell stock(scratch.file(), Shell::Close::tidy);
      EXPECT_EQ(stock.run("SELECT count(*) FROM records"), "1");
    }
    const auto store = make_sqlite_store({.path = scratch.file()});
    EXPECT_TRUE(puts(*store, "k#2"));
    ::close(go[1]);
    ::close(go[0]);
    char byte = 0;
    ASSERT_EQ(::read(result[0], &byte, 1), 1);
    EXPECT_EQ(byte, '0');
    ::close(result[0]);
    ::close(result[1]);
    for (const char* key : {"k#1", "k#2"}) EXPECT_TRUE(blocking::get(*store, key).record) << key;
    EXPECT_FALSE(blocking::get(*store, "child#1").record);
    EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
  }
}

// Completions run inside the lock between processes when the log is copied after them: a child that is made there has
// the lock's descriptor too, and would keep the lock.
TEST(SqliteFork, AChildDoesNotKeepTheLockOfAParentThatDied) {
  const SoundScratch scratch;
  std::array<int, 2> alive{};
  ASSERT_EQ(pipe2(alive.data(), O_CLOEXEC), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    alarm(alarm_s);
    const auto store = make_sqlite_store({.path = scratch.file(), .checkpoint_pages = 100});
    Record record = plain_record("k#1");
    record.result = Result::inlined(std::string(std::size_t{1} << 20U, 'x'));  // More than the log may have.
    store->insert(share(std::move(record)), [&](const Answer& answer) {
      if (answer.status != AnswerStatus::done) _exit(1);
      if (fork() == 0) {
        ::close(alive[1]);
        char byte = 0;
        _exit(::read(alive[0], &byte, 1) == 0 ? 0 : 1);
      }
      kill(getpid(), SIGKILL);
    });
    for (;;) pause();
  }
  ::close(alive[0]);
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  {
    const auto store = make_sqlite_store({.path = scratch.file(), .busy_timeout = Millis{200}});
    EXPECT_TRUE(blocking::get(*store, "k#1").record);
    EXPECT_TRUE(puts(*store, "k#2"));
  }
  ::close(alive[1]);
}

// The child of the writer's own thread has no other one: it does what the completion does, and ends.
TEST(SqliteFork, ACompletionMayForkAndItsChildWritesNothing) {
  const SoundScratch scratch;
  auto store = make_sqlite_store({.path = scratch.file(), .checkpoint_pages = 100});
  std::array<int, 2> told{};
  ASSERT_EQ(pipe2(told.data(), O_CLOEXEC), 0);
  std::atomic<pid_t> child{-1};
  Record record = plain_record("k#1");
  record.result = Result::inlined(std::string(std::size_t{1} << 20U, 'x'));
  const pid_t parent = getpid();
  store->insert(share(std::move(record)), [&](const Answer& answer) {
    EXPECT_EQ(answer.status, AnswerStatus::done);
    const pid_t made = fork();
    if (made == 0) {
      alarm(alarm_s);
      // This thread ends, and the process with it: a leak checker would miss what the parent's other threads hold.
      std::atexit([] { _exit(0); });
      const char byte = is_told(blocking::get(*store, "k#1").error) ? 'y' : 'n';
      if (::write(told[1], &byte, 1) != 1) _exit(1);
      return;
    }
    child = made;
    child.notify_one();
  });
  child.wait(-1);
  ASSERT_EQ(getpid(), parent);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  char byte = 0;
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  ::close(told[0]);
  ::close(told[1]);
  EXPECT_TRUE(puts(*store, "k#2"));
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

// The loop of a thread that has ended.
class Ended final : public CompletionLoop {
 public:
  bool try_post(Callback<void()>&) override { return false; }
};

// Three completions that are due together: the first forks, and the other two, each with a loop of its own or none, are
// the parent's. `begin` starts one, `hinder` has them fail.
template <class Begin, class Hinder>
void expect_completed_once(const Scratch& scratch, Store& store, Begin&& begin, Hinder&& hinder) {
  std::array<int, 2> told{};
  ASSERT_EQ(pipe2(told.data(), O_CLOEXEC), 0);
  std::atomic<bool> held{false};
  std::atomic<bool> go{false};
  store.insert(share(plain_record("held#1")), [&](const Answer&) {
    held = true;
    held.notify_one();
    go.wait(false);
  });
  held.wait(false);
  std::atomic<pid_t> child{-1};
  std::atomic<int> completed{0};
  const auto tell = [&] {
    const char byte = 'c';
    if (::write(told[1], &byte, 1) != 1) std::abort();
    ++completed;
    completed.notify_one();
  };
  {
    const CompletionLoopScope scope(std::make_shared<Ended>());
    begin("first#1", [&] {
      child = fork();
      if (child != 0) return tell();
      alarm(alarm_s);
      std::atexit([] { _exit(0); });  // This thread ends, and the process with it.
    });
  }
  {
    const CompletionLoopScope scope(std::make_shared<Ended>());
    begin("second#1", tell);
  }
  begin("third#1", tell);
  hinder();
  go = true;
  go.notify_one();
  for (int now = completed; now != 3; now = completed) completed.wait(now);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::close(told[1]);
  std::array<char, 8> bytes{};
  EXPECT_EQ(::read(told[0], bytes.data(), bytes.size()), 3) << "by the parent and its child";
  ::close(told[0]);
  if (std::filesystem::exists(scratch.file("away.db"))) {
    std::filesystem::rename(scratch.file("away.db"), scratch.file());
  }
  const Answer answer = blocking::insert(store, plain_record("last#1"));
  EXPECT_NE(answer.status, AnswerStatus::failed) << answer.error.message;
}

TEST(SqliteFork, WhatIsWrittenTogetherIsCompletedByTheParentOnly) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  const auto begin = [&](const char* key, auto done) {
    store->insert(share(plain_record(key)), [done](const Answer& answer) {
      EXPECT_EQ(answer.status, AnswerStatus::done);
      done();
    });
  };
  expect_completed_once(scratch, *store, begin, [] {});
}

TEST(SqliteFork, WhatFailsTogetherIsCompletedByTheParentOnly) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  const auto move_away = [&] { std::filesystem::rename(scratch.file(), scratch.file("away.db")); };
  const auto insert = [&](const char* key, auto done) {
    store->insert(share(plain_record(key)), [done](const Answer& answer) {
      EXPECT_EQ(answer.status, AnswerStatus::failed);
      done();
    });
  };
  expect_completed_once(scratch, *store, insert, move_away);
  const auto sweep = [&](const char*, auto done) {
    store->sweep(Time{}, 1, [done](const SweepAnswer& answer) {
      EXPECT_TRUE(answer.error);
      done();
    });
  };
  expect_completed_once(scratch, *store, sweep, move_away);
}

// vfork() and posix_spawn() call no handlers, and need none.
TEST(SqliteFork, WhatIsExecutedInheritsNoDescriptorAndTheParentGoesOn) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  ASSERT_TRUE(puts(*store, "k#1"));
  ASSERT_TRUE(blocking::get(*store, "k#1").record);  // Opens a connection for reading.
  int ours = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (!target.starts_with(scratch.path())) continue;
    ++ours;
    EXPECT_NE(fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0) << target;
  }
  EXPECT_GE(ours, 4);
  const std::string look = "! ls -l /proc/self/fd | grep -q '" + scratch.path() + "'";
  EXPECT_EQ(std::system(look.c_str()), 0);
  EXPECT_TRUE(puts(*store, "k#2"));
}

}  // namespace
}  // namespace once::testing
