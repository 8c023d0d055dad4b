// The suite that says whether a store is one: round trip, laws, model, race, faults. For authors of stores; how to use
// it step by step is in docs/writing-a-store.md.
//
//   class MyHarness : public once::testing::StoreHarness { … };
//
//   ONCE_CONFORMANCE(my_store, (once::testing::StoreTraits{.durable = true}),
//                    [] { return std::make_unique<MyHarness>(); })
//
// in a source file of a GoogleTest program that links once::testing and GTest::gtest_main. The tests are named
// my_store_laws.… and so on. They are registered by a call, not by objects that a linker may leave out of a static
// library.
//
// No test waits for a clock or depends on luck to pass. Environment variables:
//   ONCE_TEST_SEED      where random programs begin; a failure prints the seed that repeats it. Default: a fixed one.
//   ONCE_TEST_PROGRAMS  how many random programs the model layer runs. Default 60.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <once/store.hpp>
#include <once/time.hpp>

namespace once::testing {

// What a store and its harness can do. It decides which tests there are: the suite skips none.
struct StoreTraits {
  bool shared = false;   // Must equal Capabilities::shared. Two stores open at once have the same records.
  bool durable = false;  // Must equal Capabilities::durable. A store opened after another was closed has its records.
  std::size_t foreign_records = 0;   // StoreHarness::plant knows this many kinds.
  std::vector<std::string> outages;  // What StoreHarness::begin_outage knows, as words of letters, digits and '_'.
  bool companions = false;           // The store commits what StoreHarness::companion() makes with a record.
  Millis patience{60'000};           // An answer that takes longer counts as none.
};

// One set of records, empty when it is made, gone when it is destroyed. A test makes one, uses it from one thread (its
// stores from many) and destroys it after all of its stores.
class StoreHarness {
 public:
  virtual ~StoreHarness() = default;

  // A store over this harness's records. Called again while another is open if traits.shared (another connection), and
  // after the last was closed if traits.durable.
  virtual std::unique_ptr<Store> open() = 0;

  // Puts something under `key` that the store cannot read as a record: kind `which` of traits.foreign_records. A store
  // is open meanwhile. Throws if it cannot.
  virtual void plant(std::size_t which, const std::string& key);

  // Makes the store unusable in the named way until what is returned is destroyed: its server gone, its file locked,
  // its disk full. A store is open meanwhile, and must work again afterwards. Throws if it cannot.
  virtual std::shared_ptr<void> begin_outage(const std::string& name);

  // If traits.companions: what commits with a record, see Store::replace_with(). Written, it adds one to a number in
  // the store's database; `declined`, it has a condition that does not hold. A store is open meanwhile.
  virtual std::shared_ptr<const Companion> companion(bool declined);

  // That number, from 0. No write is under way meanwhile.
  virtual std::size_t companions_written();
};

using HarnessFactory = std::function<std::unique_ptr<StoreHarness>()>;

// Adds the tests to GoogleTest's; before RUN_ALL_TESTS(). `name` is of letters, digits and '_'. Returns how many.
std::size_t register_conformance(const std::string& name, const StoreTraits& traits, const HarnessFactory& factory,
                                 const char* file, int line);

}  // namespace once::testing

#define ONCE_CONFORMANCE(name, traits, ...)                                \
  [[maybe_unused]] static const ::std::size_t once_conformance_of_##name = \
      ::once::testing::register_conformance(#name, traits, __VA_ARGS__, __FILE__, __LINE__)
