// The memory store against the conformance suite.
#include <gtest/gtest.h>

#include <once/stores/memory.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/manual_time.hpp>

namespace {

class MemoryHarness final : public once::testing::StoreHarness {
 public:
  std::unique_ptr<once::Store> open() override { return once::stores::make_memory_store(); }
};

ONCE_CONFORMANCE(memory, once::testing::StoreTraits{}, [] { return std::make_unique<MemoryHarness>(); });

// Its time at a moment that was read already is what it would have told then; another's uptime says nothing to it.
TEST(MemoryStore, TimeAtAMomentOfItsClock) {
  const auto clock = std::make_shared<once::testing::ManualClock>();
  const auto other = std::make_shared<once::testing::ManualClock>();
  const auto store = once::stores::make_memory_store(clock);
  const once::Uptime before = clock->uptime();
  const auto told = store->time();
  clock->advance(once::Millis{1'500});
  EXPECT_EQ(store->time_at(*clock, before), told);
  EXPECT_EQ(store->time_at(*clock, clock->uptime()), store->time());
  EXPECT_EQ(store->time_at(*other, before), store->time());
  EXPECT_NE(store->time(), told);
}

}  // namespace
