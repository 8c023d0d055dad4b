// A world of tests: one clock that they move, one store, and engines in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

namespace once::testing {

class VirtualTimeTest : public ::testing::Test {
 protected:
  // A timer that waits keeps its engine, which keeps the timers: without claims and calls everything comes to rest.
  void TearDown() override {
    for (int i = 0; i < 1'000 && timers->run_next(); ++i) {
    }
    EXPECT_EQ(timers->pending(), 0U);
  }

  EngineOptions engine_options(std::shared_ptr<Store> with) {
    EngineOptions o;
    o.store = std::move(with);
    o.holder = "host:1";
    o.clock = clock;
    o.timers = timers;
    o.random = std::make_shared<SeededRandom>(++seed);
    return o;
  }

  // A claim that `engine` begins by hand.
  static Claim claimed(Engine& engine, std::string_view scope, std::string_view name) {
    Begin begin = engine.begin(Request{.key = Key(scope, name), .fingerprint = {}, .policy = {}, .holder = {}});
    EXPECT_EQ(begin.kind, Begin::Kind::claimed) << scope << ' ' << name;
    return std::move(begin.claim);
  }

  // A result that another program's engine has put where these engines, which have no offload, cannot fetch it.
  static Result out_of_reach() {
    Result result;
    result.placement = Placement::offloaded;
    result.location = "memory:1";
    result.size = 5;
    return result;
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::uint64_t seed = 0;
  std::shared_ptr<Store> store = stores::make_memory_store(clock);
  Engine engine{engine_options(store)};
};

}  // namespace once::testing
