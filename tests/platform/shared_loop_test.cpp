// Who runs a loop, and when: against a loop whose network is the test.
#include "platform/shared_loop.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <once/callback.hpp>

namespace once {
namespace shared_loop_test {

using Id = std::thread::id;
using Told = Callback<void(int)>;

constexpr int shut_down = -1;  // The answer to what was under way when the loop was closed.

// Questions are given to it by number, and answered when the test says so.
class TestLoop final : public SharedLoop {
 public:
  // From any thread.
  void ask(int number, Told done) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = arrivals_.empty();
      arrivals_.emplace_back(number, std::move(done));
    }
    if (want() && first) nudge();
  }
  void answer(int number) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(number);
    changed_.notify_all();
  }
  void nudge() noexcept override {
    const std::lock_guard lock(mutex_);
    nudged_ = true;
    changed_.notify_all();
  }
  int ask_and_wait(int number) {
    return wait_for<int>([&](Told done) { ask(number, std::move(done)); });
  }
  // What happens to somebody else in the middle of a turn, and not by a question.
  void set_due(std::optional<Steady::time_point> at) {
    const std::lock_guard lock(mutex_);
    due_ = at;
  }

  // Waits until the question was taken in, and its thread waits for the network.
  Id runner_of(int number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waits_ && pending_.contains(number); });
    return runner_;
  }
  Id wait_for_runner(const std::set<Id>& not_these = {}) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waits_ && !not_these.contains(runner_); });
    return runner_;
  }
  // Threads that ever had the turn.
  std::set<Id> ran() {
    const std::lock_guard lock(mutex_);
    return ran_;
  }
  std::size_t looks() {
    std::unique_lock lock(mutex_);
    return looks_;
  }
  void wait_for_looks(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return looks_ >= count; });
  }
  void wait_for_sleepers(std::size_t count) {
    while (sleepers() != count) std::this_thread::yield();
  }

 protected:
  void arrive() noexcept override {
    const std::lock_guard lock(mutex_);
    ran_.insert(std::this_thread::get_id());
    for (auto& [number, done] : arrivals_) pending_.emplace(number, std::move(done));
    arrivals_.clear();
  }

  bool run_one() noexcept override {
    std::unique_lock lock(mutex_);
    waits_ = true;
    runner_ = std::this_thread::get_id();
    changed_.notify_all();
    changed_.wait(lock, [&] { return ended_ || nudged_ || ready() != answers_.end(); });
    waits_ = false;
    if (nudged_) {
      nudged_ = false;
      lock.unlock();
      arrive();
      return true;
    }
    if (ended_) return false;
    deliver(lock);
    return true;
  }

  void run_ready() noexcept override {
    std::unique_lock lock(mutex_);
    ++looks_;
    due_.reset();
    changed_.notify_all();
    while (ready() != answers_.end()) deliver(lock);
  }

  void shut() noexcept override {
    arrive();
    std::unique_lock lock(mutex_);
    ended_ = true;
    answers_.clear();
    while (!pending_.empty()) {
      auto node = pending_.extract(pending_.begin());
      lock.unlock();
      node.mapped()(shut_down);
      lock.lock();
    }
  }

  bool busy() noexcept override {
    const std::lock_guard lock(mutex_);
    return !arrivals_.empty() || !pending_.empty();
  }

  std::optional<Steady::time_point> due() noexcept override {
    const std::lock_guard lock(mutex_);
    return due_;
  }

 private:
  // An answer may be there before its question.
  std::deque<int>::iterator ready() {
    return std::find_if(answers_.begin(), answers_.end(), [&](int number) { return pending_.contains(number); });
  }
  void deliver(std::unique_lock<std::mutex>& lock) {
    const auto at = ready();
    const int number = *at;
    answers_.erase(at);
    auto node = pending_.extract(pending_.find(number));
    lock.unlock();
    node.mapped()(number * 10);
    lock.lock();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int, Told>> arrivals_;
  std::multimap<int, Told> pending_;
  std::deque<int> answers_;
  std::set<Id> ran_;
  std::optional<Steady::time_point> due_;
  std::size_t looks_ = 0;
  Id runner_;
  bool waits_ = false;
  bool nudged_ = false;
  bool ended_ = false;
};

class SharedLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { loop->start(); }
  void TearDown() override {
    if (loop != nullptr) loop->close();
  }

  // A thread that asks and waits. Its answer, and who called it back.
  struct Caller {
    std::future<int> answer;
    std::future<Id> told_by;
    Id id;
    std::jthread thread;
  };
  Caller call(int number) {
    Caller caller;
    std::promise<int> answer;
    std::promise<Id> told_by;
    caller.answer = answer.get_future();
    caller.told_by = told_by.get_future();
    caller.thread =
        std::jthread([kept = loop, number, answer = std::move(answer), told_by = std::move(told_by)]() mutable {
          answer.set_value(wait_for<int>([&](Told done) {
            kept->ask(number, [done = std::move(done), &told_by](int got) mutable {
              told_by.set_value(std::this_thread::get_id());
              done(got);
            });
          }));
        });
    caller.id = caller.thread.get_id();
    return caller;
  }

  // A thread that asks, and runs the loop until its own answer comes from elsewhere: by `done`.
  struct Driver {
    Told done;
    std::future<int> answer;
    std::jthread thread;
  };
  Driver drive(int number) {
    std::promise<Told> elsewhere;
    std::promise<int> answer;
    std::future<Told> begun = elsewhere.get_future();
    std::future<int> answered = answer.get_future();
    std::jthread thread([kept = loop, number, answer = std::move(answer), elsewhere = std::move(elsewhere)]() mutable {
      answer.set_value(wait_for<int>([&](Told done) {
        kept->ask(number, [](int) {});
        elsewhere.set_value(std::move(done));
      }));
    });
    return {begun.get(), std::move(answered), std::move(thread)};
  }

  std::shared_ptr<TestLoop> loop = std::make_shared<TestLoop>();
};

TEST_F(SharedLoopTest, WhoWaitsRunsItAndNobodyElseIsWoken) {
  for (int i = 0; i < 100; ++i) {
    loop->answer(1);
    EXPECT_EQ(loop->ask_and_wait(1), 10);
  }
  EXPECT_EQ(loop->ran(), std::set<Id>{std::this_thread::get_id()});
  EXPECT_EQ(loop->looks(), 0U);
}

// A loop must not be unwound, because others wait for it. The second thread is cancelled before it asks.
TEST_F(SharedLoopTest, CancelledThreadGetsItsAnswerFirst) {
  for (const bool before : {false, true}) {
    struct Call {
      TestLoop* loop;
      bool before;
      std::atomic<int> got = 0;
    } call{loop.get(), before, {}};
    pthread_t thread{};
    ASSERT_EQ(pthread_create(
                  &thread, nullptr,
                  [](void* data) -> void* {
                    Call& its_call = *static_cast<Call*>(data);
                    if (its_call.before) pthread_cancel(pthread_self());
                    its_call.got = its_call.loop->ask_and_wait(1);
                    pthread_testcancel();
                    its_call.got = 0;
                    return nullptr;
                  },
                  &call),
              0);
    loop->runner_of(1);
    if (!before) {
      EXPECT_EQ(pthread_cancel(thread), 0);
    }
    loop->answer(1);
    void* ended = nullptr;
    ASSERT_EQ(pthread_join(thread, &ended), 0);
    EXPECT_EQ(ended, PTHREAD_CANCELED);
    EXPECT_EQ(call.got, 10);
  }
}

TEST_F(SharedLoopTest, ItsOwnThreadRunsItForThoseWhoDoNotWait) {
  std::promise<Id> told;
  loop->ask(1, [&](int) { told.set_value(std::this_thread::get_id()); });
  const Id own = loop->runner_of(1);
  EXPECT_NE(own, std::this_thread::get_id());
  loop->answer(1);
  EXPECT_EQ(told.get_future().get(), own);
}

TEST_F(SharedLoopTest, WhoWaitsDoesWhatOthersWantMeanwhile) {
  Caller driver = call(1);
  ASSERT_EQ(loop->runner_of(1), driver.id);
  std::promise<Id> told;
  loop->ask(2, [&](int) { told.set_value(std::this_thread::get_id()); });
  EXPECT_EQ(loop->runner_of(2), driver.id);
  loop->answer(2);
  EXPECT_EQ(told.get_future().get(), driver.id);
  loop->answer(1);
  EXPECT_EQ(driver.answer.get(), 10);
}

TEST_F(SharedLoopTest, TheTurnGoesToAnotherWhoWaits) {
  Caller first = call(1);
  ASSERT_EQ(loop->runner_of(1), first.id);
  Caller second = call(2);
  ASSERT_EQ(loop->runner_of(2), first.id);
  loop->wait_for_sleepers(1);
  loop->answer(1);
  EXPECT_EQ(first.answer.get(), 10);
  EXPECT_EQ(loop->wait_for_runner({first.id}), second.id);
  loop->answer(2);
  EXPECT_EQ(second.answer.get(), 20);
  EXPECT_EQ(second.told_by.get(), second.id);
  EXPECT_EQ(loop->ran(), (std::set<Id>{first.id, second.id}));
}

TEST_F(SharedLoopTest, AnAnswerWakesWhoSleepsAndTheTurnStays) {
  Caller first = call(1);
  ASSERT_EQ(loop->runner_of(1), first.id);
  Caller second = call(2);
  ASSERT_EQ(loop->runner_of(2), first.id);
  loop->wait_for_sleepers(1);
  loop->answer(2);
  EXPECT_EQ(second.answer.get(), 20);
  EXPECT_EQ(second.told_by.get(), first.id);
  EXPECT_EQ(loop->runner_of(1), first.id);
  loop->answer(1);
  EXPECT_EQ(first.answer.get(), 10);
}

TEST_F(SharedLoopTest, TheTurnGoesToItsOwnThreadWhenNobodyWaits) {
  Caller driver = call(1);
  ASSERT_EQ(loop->runner_of(1), driver.id);
  std::promise<Id> told;
  loop->ask(2, [&](int) { told.set_value(std::this_thread::get_id()); });
  ASSERT_EQ(loop->runner_of(2), driver.id);
  loop->answer(1);
  EXPECT_EQ(driver.answer.get(), 10);
  const Id own = loop->wait_for_runner({driver.id});
  loop->answer(2);
  EXPECT_EQ(told.get_future().get(), own);
  // And the next who waits finds it free.
  loop->answer(3);
  EXPECT_EQ(loop->ask_and_wait(3), 30);
}

TEST_F(SharedLoopTest, OneWhoSleepsIsCalledForThoseWhoDoNotWait) {
  Caller driver = call(1);
  ASSERT_EQ(loop->runner_of(1), driver.id);
  // Its answer comes from elsewhere: when the driver has gone, nothing is under way.
  std::promise<Told> elsewhere;
  std::promise<int> got;
  std::jthread sleeper([&] {
    got.set_value(wait_for<int>([&](Told done) {
      std::promise<void> answered;
      loop->ask(2, [&](int) { answered.set_value(); });
      loop->answer(2);
      answered.get_future().wait();
      elsewhere.set_value(std::move(done));
    }));
  });
  Told done = elsewhere.get_future().get();
  loop->wait_for_sleepers(1);
  loop->answer(1);
  EXPECT_EQ(driver.answer.get(), 10);
  std::promise<Id> told;
  loop->ask(3, [&](int) { told.set_value(std::this_thread::get_id()); });
  loop->answer(3);
  EXPECT_EQ(told.get_future().get(), sleeper.get_id());
  done(7);
  EXPECT_EQ(got.get_future().get(), 7);
  EXPECT_EQ(loop->ran(), (std::set<Id>{driver.id, sleeper.get_id()}));
}

TEST_F(SharedLoopTest, AnAnswerFromElsewhereEndsTheTurn) {
  Driver driver = drive(1);
  const Id id = driver.thread.get_id();
  ASSERT_EQ(loop->runner_of(1), id);
  driver.done(7);
  EXPECT_EQ(driver.answer.get(), 7);
  // What it had begun goes on.
  EXPECT_NE(loop->wait_for_runner({id}), std::this_thread::get_id());
  loop->answer(1);
}

TEST_F(SharedLoopTest, AnAnswerBeforeTheWaitGivesTheTurnOn) {
  std::promise<int> other;
  const int got = wait_for<int>([&](Told done) {
    loop->ask(1, [&](int answer) { other.set_value(answer); });
    EXPECT_TRUE(loop->has_turn());
    done(7);
  });
  EXPECT_EQ(got, 7);
  EXPECT_FALSE(loop->has_turn());
  EXPECT_NE(loop->runner_of(1), std::this_thread::get_id());
  loop->answer(1);
  EXPECT_EQ(other.get_future().get(), 10);
}

TEST_F(SharedLoopTest, ABeginningThatThrowsGivesTheTurnOn) {
  std::promise<int> other;
  const auto begin = [&](const Told&) {
    loop->ask(1, [&](int answer) { other.set_value(answer); });
    throw std::runtime_error("no");
  };
  EXPECT_THROW(wait_for<int>(begin), std::runtime_error);
  loop->answer(1);
  EXPECT_EQ(other.get_future().get(), 10);
}

TEST_F(SharedLoopTest, ACompletionThatBlocksRunsItFromWithin) {
  Caller other = call(9);
  ASSERT_EQ(loop->runner_of(9), other.id);
  // On the thread that waits, on one that does not, and three deep.
  for (const bool waits : {true, false}) {
    std::promise<int> sum;
    const auto nested = [&](int one) {
      const int two = wait_for<int>([&](Told done) {
        loop->ask(2, [this, done = std::move(done)](int got) mutable {
          EXPECT_TRUE(loop->has_turn());
          loop->answer(3);
          done(got + loop->ask_and_wait(3));
        });
        loop->answer(2);
      });
      sum.set_value(one + two);
    };
    loop->answer(1);
    if (waits) {
      wait_for<int>([&](Told done) {
        loop->ask(1, [&, done = std::move(done)](int got) mutable {
          nested(got);
          done(0);
        });
      });
    } else {
      loop->ask(1, nested);
    }
    EXPECT_EQ(sum.get_future().get(), 60);
  }
  loop->answer(9);
  EXPECT_EQ(other.answer.get(), 90);
}

TEST_F(SharedLoopTest, ACompletionMayWaitForAnAnswerFromElsewhere) {
  std::promise<Told> elsewhere;
  std::promise<int> got;
  loop->ask(1, [&](int) { got.set_value(wait_for<int>([&](Told done) { elsewhere.set_value(std::move(done)); })); });
  loop->answer(1);
  Told done = elsewhere.get_future().get();
  // The loop is run all the while.
  std::promise<int> other;
  loop->ask(2, [&](int answer) { other.set_value(answer); });
  loop->answer(2);
  EXPECT_EQ(other.get_future().get(), 20);
  done(7);
  EXPECT_EQ(got.get_future().get(), 7);
}

TEST_F(SharedLoopTest, AThreadHasOneTurn) {
  const auto second = std::make_shared<TestLoop>();
  second->start();
  std::promise<Id> told;
  Caller unrelated = call(5);
  loop->runner_of(5);
  loop->answer(5);
  unrelated.answer.get();
  const int got = wait_for<int>([&](Told done) {
    loop->ask(1, std::move(done));
    second->ask(2, [&](int) {
      told.set_value(std::this_thread::get_id());
      loop->answer(1);
    });
    second->answer(2);
  });
  EXPECT_EQ(got, 10);
  EXPECT_NE(told.get_future().get(), std::this_thread::get_id());
  EXPECT_FALSE(second->ran().contains(std::this_thread::get_id()));
  second->close();
}

TEST_F(SharedLoopTest, WhatIsIdleIsLookedAfter) {
  loop->set_due(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  loop->answer(1);
  EXPECT_EQ(loop->ask_and_wait(1), 10);
  loop->wait_for_looks(1);  // Of the loop's own thread: nobody else does it.
  EXPECT_EQ(loop->ran().size(), 2U);
}

TEST_F(SharedLoopTest, ClosingFailsThoseWhoWait) {
  Caller first = call(1);
  ASSERT_EQ(loop->runner_of(1), first.id);
  Caller second = call(2);
  ASSERT_EQ(loop->runner_of(2), first.id);
  std::promise<int> other;
  loop->ask(3, [&](int got) { other.set_value(got); });
  loop->close();
  EXPECT_EQ(first.answer.get(), shut_down);
  EXPECT_EQ(second.answer.get(), shut_down);
  EXPECT_EQ(other.get_future().get(), shut_down);
  loop.reset();
}

TEST_F(SharedLoopTest, ACompletionMayCloseIt) {
  std::promise<int> other;
  loop->ask(3, [&](int got) { other.set_value(got); });
  loop->answer(1);
  const int got = wait_for<int>([&](Told done) {
    loop->ask(1, [&, done = std::move(done)](int answer) mutable {
      loop->close();
      loop.reset();
      done(answer);
    });
  });
  EXPECT_EQ(got, 10);
  EXPECT_EQ(other.get_future().get(), shut_down);
}

TEST_F(SharedLoopTest, WhoHasPromisedToRunItMayCloseIt) {
  const int got = wait_for<int>([&](Told done) {
    loop->ask(1, std::move(done));
    loop->close();
    loop.reset();
  });
  EXPECT_EQ(got, shut_down);
}

TEST_F(SharedLoopTest, AnAnswerFromElsewhereComesAfterTheEnd) {
  Driver driver = drive(1);
  ASSERT_EQ(loop->runner_of(1), driver.thread.get_id());
  loop->close();
  driver.done(7);
  EXPECT_EQ(driver.answer.get(), 7);
  loop.reset();
}

// All of it at once, answered in any order by a thread that knows nothing of turns.
TEST_F(SharedLoopTest, ManyCallersOfAllKinds) {
  constexpr int callers = 6;
  constexpr int each = 300;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> asked;
  bool over = false;
  const auto note = [&](int number) {
    const std::lock_guard lock(mutex);
    asked.push_back(number);
    changed.notify_one();
  };
  std::jthread network([&] {
    std::mt19937 dice(17);  // NOLINT(cert-msc51-cpp,cert-msc32-c): the same in each run.
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return over || !asked.empty(); });
      if (asked.empty()) return;
      std::swap(asked[dice() % asked.size()], asked.back());
      const int number = asked.back();
      asked.pop_back();
      lock.unlock();
      loop->answer(number);
      lock.lock();
    }
  });
  std::atomic<int> wrong{0};
  std::atomic<int> right{0};
  std::latch all(static_cast<std::ptrdiff_t>(callers) * each);
  {
    std::vector<std::jthread> threads;
    threads.reserve(callers);
    for (int t = 0; t < callers; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < each; ++i) {
          const int number = t * each + i + 1;
          const auto count = [&, number](int got) {
            ++(got == number * 10 ? right : wrong);
            all.count_down();
          };
          if (t % 3 == 0) {
            loop->ask(number, count);
            note(number);
          } else {
            count(wait_for<int>([&](Told done) {
              loop->ask(number, std::move(done));
              note(number);
            }));
          }
        }
      });
    }
  }
  all.wait();
  {
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_one();
  }
  EXPECT_EQ(right, callers * each);
  EXPECT_EQ(wrong, 0);
}

}  // namespace shared_loop_test
}  // namespace once
