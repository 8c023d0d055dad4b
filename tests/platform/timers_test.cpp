// The host's timers. Tests wait for events, never for a span to pass; where a span matters, only its lower bound is
// checked. What timers use is declared before them: they are destroyed, and so waited for, first.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include <once/platform/system.hpp>

namespace once {
namespace timers_test {

using namespace std::chrono_literals;

TEST(Clock, uptime_never_goes_back_and_utc_is_after_2020) {
  const auto clock = system_clock();
  Uptime before = clock->uptime();
  for (int i = 0; i < 10'000; ++i) {
    const Uptime now = clock->uptime();
    ASSERT_GE(now, before);
    before = now;
  }
  EXPECT_GT(clock->now(), Time(Millis{1'577'836'800'000}));
  EXPECT_EQ(clock.get(), system_clock().get()) << "one for the process";
}

TEST(Timers, fire_in_the_order_of_their_moments_and_not_early) {
  const auto clock = system_clock();
  std::mutex mutex;
  std::vector<int> order;
  std::atomic<bool> early = false;
  std::promise<void> all;
  const auto timers = make_system_timers();
  const Uptime start = clock->uptime();
  for (const int i : {5, 3, 1, 4, 2}) {
    const Uptime due = start + i * 5ms;
    timers->at(due, [&, i, due] {
      if (clock->uptime() < due) early = true;
      const std::lock_guard lock(mutex);
      order.push_back(i);
      if (order.size() == 5) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_FALSE(early);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
}

TEST(Timers, fire_on_their_own_thread_even_when_due_already) {
  std::promise<std::thread::id> fired;
  const auto timers = make_system_timers();
  timers->at(Uptime{0}, [&] { fired.set_value(std::this_thread::get_id()); });
  EXPECT_NE(fired.get_future().get(), std::this_thread::get_id());
}

TEST(Timers, an_earlier_timer_overtakes_a_later_one) {
  std::promise<void> fired;
  const auto timers = make_system_timers();
  timers->at(system_clock()->uptime() + 1h, [] { ADD_FAILURE() << "fired an hour early"; });
  timers->at(system_clock()->uptime(), [&] { fired.set_value(); });
  fired.get_future().wait();
}

TEST(Timers, a_timer_may_set_and_cancel_others) {
  std::promise<bool> cancelled;
  const auto timers = make_system_timers();
  timers->at(Uptime{0}, [&] {
    const Timers::Id other = timers->at(system_clock()->uptime() + 1h, [] {});
    timers->at(Uptime{0}, [&, other] { cancelled.set_value(timers->cancel(other)); });
  });
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST(Timers, what_was_cancelled_does_not_fire) {
  std::promise<void> last;
  std::atomic<int> fired = 0;
  int cancelled = 0;
  const auto timers = make_system_timers();
  for (int i = 0; i < 200; ++i) {
    const Timers::Id id = timers->at(system_clock()->uptime() + std::chrono::microseconds(i), [&] { ++fired; });
    if (i % 2 == 0 && timers->cancel(id)) ++cancelled;
    if (i % 2 == 0) {
      EXPECT_FALSE(timers->cancel(id)) << "cancelled or fired already";
    }
  }
  // Everything that is due has fired when a later one has.
  timers->at(system_clock()->uptime() + 1ms, [&] { last.set_value(); });
  last.get_future().wait();
  EXPECT_EQ(fired, 200 - cancelled);
  EXPECT_FALSE(timers->cancel(0));
  EXPECT_FALSE(timers->cancel(1'000'000));
}

TEST(Timers, cancel_says_false_while_firing_and_does_not_wait) {
  std::promise<void> firing;
  std::promise<void> go_on;
  const auto timers = make_system_timers();
  const Timers::Id id = timers->at(Uptime{0}, [&] {
    firing.set_value();
    go_on.get_future().wait();
  });
  firing.get_future().wait();
  EXPECT_FALSE(timers->cancel(id));
  go_on.set_value();
}

TEST(Timers, destruction_waits_for_what_fires_and_drops_the_rest) {
  auto kept = std::make_shared<int>(0);
  std::promise<void> firing;
  std::atomic<bool> finished = false;
  {
    const auto timers = make_system_timers();
    timers->at(system_clock()->uptime() + 1h, [kept] { ADD_FAILURE() << "fired"; });
    timers->at(Uptime{0}, [&] {
      firing.set_value();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      finished = true;
    });
    firing.get_future().wait();
  }
  EXPECT_TRUE(finished);
  EXPECT_EQ(kept.use_count(), 1) << "what a dropped timer holds is let go";
}

TEST(Timers, may_be_destroyed_on_their_own_thread) {
  for (int i = 0; i < 20; ++i) {
    auto timers = make_system_timers();
    Timers* const raw = timers.get();
    std::promise<void> destroyed;
    auto future = destroyed.get_future();
    raw->at(Uptime{0}, [timers = std::move(timers), destroyed = std::move(destroyed)]() mutable {
      timers.reset();
      destroyed.set_value();
    });
    future.wait();
  }
}

TEST(Timers, what_a_cancelled_timer_holds_may_call_back) {
  const auto timers = make_system_timers();
  struct CallsBack {
    std::shared_ptr<Timers> timers;
    ~CallsBack() { timers->cancel(1'000'000); }
  };
  const Timers::Id id =
      timers->at(system_clock()->uptime() + 1h, [held = std::make_shared<CallsBack>(CallsBack{timers})] {});
  EXPECT_TRUE(timers->cancel(id));
}

TEST(Timers, many_threads) {
  std::promise<void> last;
  std::atomic<int> fired = 0;
  std::atomic<int> cancelled = 0;
  const auto timers = make_system_timers();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 250; ++i) {
        const auto id =
            timers->at(system_clock()->uptime() + std::chrono::microseconds((i * 37 + t) % 500), [&] { ++fired; });
        if (i % 3 == 0 && timers->cancel(id)) ++cancelled;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  timers->at(system_clock()->uptime() + 1ms, [&] { last.set_value(); });
  last.get_future().wait();
  EXPECT_EQ(fired + cancelled, 1000);
}

TEST(ProcessName, is_host_and_pid) {
  const std::string name = process_name();
  EXPECT_TRUE(name.ends_with(":" + std::to_string(getpid()))) << name;
  EXPECT_GT(name.size(), std::to_string(getpid()).size() + 1) << name;
}

}  // namespace timers_test
}  // namespace once
