// The store's time through its answers: the truth must always lie within what StoreClock says.
#include <algorithm>

#include <gtest/gtest.h>

#include <once/clock.hpp>
#include <once/testing/manual_time.hpp>

namespace once {
namespace store_clock_test {

using std::chrono::nanoseconds;

// A store and a client whose quartzes deviate by up to 100 ppm each, in nanoseconds of true time.
struct World {
  std::int64_t store_ppm = 0;
  std::int64_t client_ppm = 0;
  std::int64_t store_epoch_ns = 0;
  std::int64_t truth_ns = 0;

  static std::int64_t drifted(std::int64_t ns, std::int64_t ppm) { return ns + ns * ppm / 1'000'000; }
  [[nodiscard]] std::int64_t store_ns() const { return store_epoch_ns + drifted(truth_ns, store_ppm); }
  [[nodiscard]] Uptime client() const { return Uptime{3'600'000'000'000 + drifted(truth_ns, client_ppm)}; }
  [[nodiscard]] Time store_time() const { return Time(std::chrono::floor<Millis>(nanoseconds{store_ns()})); }
};

constexpr std::int64_t ms = 1'000'000;

void expect_within(const World& world, const StoreClock& clock, int step) {
  const auto told = clock.at(world.client());
  ASSERT_TRUE(told.has_value());
  ASSERT_GE(told->error, Millis{0});
  ASSERT_LE(told->now - told->error, world.store_time()) << "step " << step;
  ASSERT_GE(told->now + told->error, world.store_time()) << "step " << step;
}

TEST(StoreClock, knows_nothing_at_first) { EXPECT_FALSE(StoreClock().at(Uptime{5}).has_value()); }

TEST(StoreClock, the_truth_is_always_within_its_error) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    testing::SeededRandom random(seed);
    World world;
    world.store_ppm = static_cast<std::int64_t>(random.below(201)) - 100;
    world.client_ppm = static_cast<std::int64_t>(random.below(201)) - 100;
    if (random.chance(300)) world.store_ppm = -(world.client_ppm = random.chance(500) ? 100 : -100);
    world.store_epoch_ns =
        testing::manual_start.time_since_epoch().count() * ms + static_cast<std::int64_t>(random.below(10 * ms));
    StoreClock clock;
    for (int step = 0; step < 60; ++step) {
      // From microseconds to hours between requests, from nothing to a minute on the way, either way.
      const auto span = [&] { return static_cast<std::int64_t>(random.below(std::uint64_t{1} << random.below(43))); };
      const auto delay = [&] { return static_cast<std::int64_t>(random.below(std::uint64_t{1} << random.below(36))); };
      world.truth_ns += span();
      const Uptime sent = world.client();
      world.truth_ns += delay();
      // The store tells a time that is off by no more than it admits.
      const Millis error{static_cast<Millis::rep>(random.chance(500) ? 0 : random.below(50))};
      const std::int64_t off =
          error.count() == 0
              ? 0
              : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 * error.count() * ms))) -
                    error.count() * ms;
      const StoreTime told{Time(std::chrono::floor<Millis>(nanoseconds{world.store_ns() + off})), error};
      world.truth_ns += delay();
      clock.learn(told, sent, world.client());
      ASSERT_NO_FATAL_FAILURE(expect_within(world, clock, step)) << "seed " << seed;
      world.truth_ns += span();
      ASSERT_NO_FATAL_FAILURE(expect_within(world, clock, step)) << "seed " << seed;
    }
  }
}

TEST(StoreClock, a_quick_answer_after_slow_ones_narrows_the_error) {
  World world;
  world.store_epoch_ns = testing::manual_start.time_since_epoch().count() * ms;
  StoreClock clock;
  const auto ask = [&](std::int64_t there_ns, std::int64_t back_ns) {
    const Uptime sent = world.client();
    world.truth_ns += there_ns;
    const StoreTime told{world.store_time(), Millis{0}};
    world.truth_ns += back_ns;
    clock.learn(told, sent, world.client());
  };
  ask(1000 * ms, 1000 * ms);
  EXPECT_LE(clock.at(world.client())->error, Millis{1002});
  EXPECT_GE(clock.at(world.client())->error, Millis{1000});
  ask(ms, ms);
  EXPECT_LE(clock.at(world.client())->error, Millis{3});
  ask(1000 * ms, 1000 * ms);  // Does not make it worse again.
  EXPECT_LE(clock.at(world.client())->error, Millis{4});
  // What went there slowly and what came back slowly bound it from both sides.
  StoreClock both;
  world.truth_ns += 1;
  const Uptime sent = world.client();
  const StoreTime at_once{world.store_time(), Millis{0}};
  world.truth_ns += 500 * ms;
  both.learn(at_once, sent, world.client());
  const Uptime sent_again = world.client();
  world.truth_ns += 500 * ms;
  both.learn({world.store_time(), Millis{0}}, sent_again, world.client());
  EXPECT_LE(both.at(world.client())->error, Millis{2});
}

TEST(StoreClock, the_error_grows_with_age) {
  StoreClock clock;
  clock.learn({testing::manual_start, Millis{0}}, Uptime{0}, Uptime{0});
  EXPECT_LE(clock.at(Uptime{0})->error, Millis{1});
  EXPECT_EQ(clock.at(Uptime{0})->now, testing::manual_start);
  // 201 ppm of an hour are 723.6 ms.
  EXPECT_GE(clock.at(std::chrono::hours(1))->error, Millis{724});
  EXPECT_LE(clock.at(std::chrono::hours(1))->error, Millis{725});
}

TEST(StoreClock, a_store_that_was_set_is_learnt_anew) {
  for (const auto by : {std::chrono::hours(1), std::chrono::hours(-1)}) {
    StoreClock clock;
    clock.learn({testing::manual_start, Millis{1}}, Uptime{0}, Uptime{ms});
    for (int i = 0; i < StoreClock::outweighing; ++i) {
      const auto told = clock.at(Uptime{2 * ms});
      EXPECT_LE(std::chrono::abs(told->now - testing::manual_start), Millis{3})
          << "after " << i << " that say otherwise";
      clock.learn({testing::manual_start + by, Millis{1}}, Uptime{2 * ms}, Uptime{3 * ms});
    }
    const auto told = clock.at(Uptime{3 * ms});
    EXPECT_LE(told->now - told->error, testing::manual_start + by);
    EXPECT_GE(told->now + told->error, testing::manual_start + by);
    EXPECT_LE(told->error, Millis{3});
  }
}

// Whoever decides meanwhile must not be surer of the time than the clock is.
TEST(StoreClock, covers_both_times_while_two_answers_contradict_each_other) {
  for (const auto by : {std::chrono::hours(1), std::chrono::hours(-1)}) {
    StoreClock clock;
    clock.learn({testing::manual_start, Millis{1}}, Uptime{0}, Uptime{ms});
    clock.learn({testing::manual_start + by, Millis{1}}, Uptime{2 * ms}, Uptime{3 * ms});
    for (const Uptime later : {Uptime{3 * ms}, Uptime{std::chrono::hours(2)}}) {
      const Millis since = std::chrono::floor<Millis>(later);
      const auto told = clock.at(later);
      EXPECT_LE(told->now - told->error, testing::manual_start + since + std::min<Millis>(by, Millis{0}));
      EXPECT_GE(told->now + told->error, testing::manual_start + since + std::max<Millis>(by, Millis{0}));
    }
    clock.learn({testing::manual_start, Millis{1}}, Uptime{4 * ms}, Uptime{5 * ms});
    EXPECT_LE(clock.at(Uptime{5 * ms})->error, Millis{3}) << "the other one was false";
  }
}

TEST(StoreClock, false_answers_among_true_ones_change_nothing) {
  StoreClock clock;
  const auto learn = [&](Millis off) {
    clock.learn({testing::manual_start + off, Millis{1}}, Uptime{0}, Uptime{ms});
    EXPECT_LE(std::chrono::abs(clock.at(Uptime{ms})->now - testing::manual_start), Millis{3}) << off.count();
  };
  learn(Millis{0});
  constexpr Millis minute = std::chrono::minutes(1);
  for (const Millis off : {minute, minute, Millis{0}, minute, minute, 2 * minute, 3 * minute, -minute, minute})
    learn(off);
}

// For every reported time the arithmetic stays defined (the sanitizers check).
TEST(StoreClock, takes_any_numbers) {
  for (const Time told : {Time::min(), Time{}, Time{Millis{-1}}, never}) {
    for (const Millis error : {Millis::min(), Millis{0}, Millis::max()}) {
      StoreClock clock;
      clock.learn({told, error}, Uptime{0}, Uptime{ms});
      clock.learn({testing::manual_start, Millis{0}}, Uptime{ms}, Uptime{2 * ms});
      ASSERT_TRUE(clock.at(Uptime{3 * ms}).has_value());
      clock.learn({told, error}, Uptime{4 * ms}, Uptime{5 * ms});
      ASSERT_TRUE(clock.at(std::chrono::hours(24 * 365)).has_value());
    }
  }
}

}  // namespace store_clock_test
}  // namespace once
