// The tools that other tests rest upon.
#include <gtest/gtest.h>

#include <vector>

#include <once/testing/manual_time.hpp>

namespace once::testing {
namespace manual_time_test {

using namespace std::chrono_literals;

TEST(ManualClock, moves_only_when_told) {
  ManualClock clock;
  EXPECT_EQ(clock.now(), manual_start);
  const Uptime start = clock.uptime();
  clock.advance(1500us);
  EXPECT_EQ(clock.now(), manual_start + Millis{1});
  EXPECT_EQ(clock.uptime(), start + 1500us);
  clock.advance(500us);
  EXPECT_EQ(clock.now(), manual_start + Millis{2}) << "parts of milliseconds add up";
  clock.advance(-1h);
  EXPECT_EQ(clock.uptime(), start + 2ms) << "never back";
  clock.jump(-1h);
  EXPECT_EQ(clock.now(), manual_start + Millis{2} - 1h);
  EXPECT_EQ(clock.uptime(), start + 2ms) << "a jump moves UTC alone";
}

TEST(DriftingClock, goes_faster_or_slower_than_its_base) {
  const auto base = std::make_shared<ManualClock>();
  const DriftingClock fast(base, 100, Millis{500});
  const DriftingClock slow(base, -100'000);
  base->advance(1000s);
  EXPECT_EQ(fast.uptime() - 1h, 1000s + 100ms);
  EXPECT_EQ(fast.now(), manual_start + 1000s + Millis{600});
  EXPECT_EQ(slow.uptime() - 1h, 900s);
  SeededRandom random(1);
  for (const DriftingClock* const clock : {&fast, &slow}) {
    for (int i = 0; i < 1000; ++i) {
      const Uptime wanted = 1h + std::chrono::nanoseconds(random.below(10'000'000'000'000));
      const Uptime there = clock->base_uptime(wanted);
      const auto shared = std::make_shared<ManualClock>(manual_start, 1h);
      const DriftingClock same(shared, clock == &fast ? 100 : -100'000);
      shared->advance(there - 1h);
      ASSERT_GE(same.uptime(), wanted);
      ASSERT_LT(same.uptime(), wanted + 2ns);
    }
  }
}

TEST(ManualTimers, fire_in_order_with_the_clock_at_their_moment) {
  const auto clock = std::make_shared<ManualClock>();
  ManualTimers timers(clock);
  const Uptime start = clock->uptime();
  std::vector<std::pair<int, Uptime>> fired;
  const auto add = [&](int name, Uptime after) {
    return timers.at(start + after, [&, name] { fired.emplace_back(name, clock->uptime() - start); });
  };
  add(2, 20ms);
  add(1, 10ms);
  add(3, 20ms);
  const Timers::Id gone = add(9, 15ms);
  timers.at(start + 10ms, [&] { add(4, 25ms); });
  EXPECT_TRUE(timers.cancel(gone));
  EXPECT_FALSE(timers.cancel(gone));
  EXPECT_EQ(timers.pending(), 4U);
  EXPECT_EQ(timers.next(), start + 10ms);
  EXPECT_EQ(timers.run_due(), 0U);
  timers.advance(24ms);
  EXPECT_EQ(fired, (std::vector<std::pair<int, Uptime>>{{1, 10ms}, {2, 20ms}, {3, 20ms}}));
  EXPECT_EQ(clock->uptime(), start + 24ms);
  EXPECT_TRUE(timers.run_next());
  EXPECT_EQ(fired.back(), (std::pair<int, Uptime>(4, 25ms)));
  EXPECT_FALSE(timers.run_next());
  EXPECT_EQ(timers.next(), std::nullopt);
  add(5, 0ms);  // Due already: not inside at(), and without moving the clock back.
  EXPECT_EQ(timers.run_due(), 1U);
  EXPECT_EQ(fired.back(), (std::pair<int, Uptime>(5, 25ms)));
}

TEST(DriftingTimers, fire_by_the_drifting_clock) {
  const auto base = std::make_shared<ManualClock>();
  const auto timers = std::make_shared<ManualTimers>(base);
  const auto slow = std::make_shared<DriftingClock>(base, -100'000);
  DriftingTimers own(slow, timers);
  Uptime fired{};
  own.at(slow->uptime() + 900ms, [&] { fired = base->uptime(); });
  const auto id = own.at(slow->uptime() + 1s, [] { ADD_FAILURE() << "was cancelled"; });
  EXPECT_TRUE(own.cancel(id));
  timers->advance(10s);
  EXPECT_EQ(fired, 1h + 1s);
}

TEST(SeededRandom, repeats_itself) {
  SeededRandom one(7);
  SeededRandom two(7);
  SeededRandom other(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = one.next();
    EXPECT_EQ(value, two.next());
    differs = differs || value != other.next();
  }
  EXPECT_TRUE(differs);
  // The first value for seed 0, as published with the algorithm: the same on every machine.
  EXPECT_EQ(SeededRandom(0).next(), 0xE220A8397B1DCDAFU);
  std::vector<std::uint8_t> bytes(9);
  SeededRandom(0).fill(bytes);
  EXPECT_EQ(bytes[0], 0xAF);
  EXPECT_EQ(bytes[7], 0xE2);
  EXPECT_EQ(one.below(0), 0U);
  EXPECT_EQ(one.below(1), 0U);
  EXPECT_FALSE(one.chance(0));
  EXPECT_TRUE(one.chance(1000));
}

}  // namespace manual_time_test
}  // namespace once::testing
