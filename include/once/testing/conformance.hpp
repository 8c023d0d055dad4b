// The conformance suite of stores: round trip, laws, model, race, faults. For authors of stores.
// docs/writing-a-store.md explains it step by step.
//
//   class MyHarness : public once::testing::StoreHarness { … };
//
//   ONCE_CONFORMANCE(my_store, (once::testing::StoreTraits{.durable = true}),
//                    [] { return std::make_unique<MyHarness>(); })
//
// in a source file of a GoogleTest program that links once::testing and GTest::gtest_main. The tests are named
// my_store_laws.… and so on. A call registers them, because a linker may drop registering objects from a static
// library.
//
// No test waits for a clock or passes by chance. Environment variables:
//   ONCE_TEST_SEED      the seed of random programs; a failure prints its seed. Default: a fixed one.
//   ONCE_TEST_PROGRAMS  how many random programs the model layer runs. Default 60.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <once/store.hpp>
#include <once/stores/sql.hpp>
#include <once/time.hpp>

namespace once::testing {

// What a store and its harness can do. The suite registers only the matching tests, and skips none.
struct StoreTraits {
  bool shared = false;   // Must equal Capabilities::shared. Two open stores see the same records.
  bool durable = false;  // Must equal Capabilities::durable. A store sees the records of an earlier, closed one.
  std::size_t foreign_records = 0;        // How many kinds StoreHarness::plant knows.
  std::vector<std::string> outages = {};  // The names that StoreHarness::begin_outage knows: letters, digits and '_'.
  bool companions = false;                // The store commits StoreHarness::companion() together with a record.
  bool hands_out = false;   // Must equal Capabilities::hands_out. StoreHarness::begin_transaction() is there.
  Millis patience{60'000};  // An answer that takes longer counts as lost.
};

// A transaction of a user's own in the store's database. Destroyed before commit(): rolled back. One thread.
class OwnTransaction {
 public:
  virtual ~OwnTransaction() = default;
  virtual void add() = 0;  // Adds one to StoreHarness::companions_written().
  // Executes Store::finish_statement(). Throws if the statement raises an error.
  virtual void finish(const stores::SqlStatement& statement) = 0;
  virtual void commit() = 0;  // Throws if the transaction cannot commit.
};

// One set of records, empty at first, removed by the destructor. A test makes one, uses it from one thread (its stores
// from many), and destroys it after all of its stores.
class StoreHarness {
 public:
  virtual ~StoreHarness() = default;

  // Opens a store of this harness's records. Called while another is open if traits.shared, and after the last was
  // closed if traits.durable.
  virtual std::unique_ptr<Store> open() = 0;

  // Writes something under `key` that the store cannot read as a record: kind `which`, below traits.foreign_records. A
  // store is open during the call. Throws if it fails.
  virtual void plant(std::size_t which, const std::string& key);

  // Makes the store unusable in the named way, until the returned object is destroyed: server stopped, file locked,
  // disk full. A store is open during the call, and must work again afterwards. Throws if it fails.
  virtual std::shared_ptr<void> begin_outage(const std::string& name);

  // If traits.companions: writes to commit with a record, see Store::replace_with(). They add one to a number in the
  // store's database. `declined`: they have a condition that does not hold. A store is open during the call.
  virtual std::shared_ptr<const Companion> companion(bool declined);

  // That number, from 0. No write runs during the call.
  virtual std::size_t companions_written();

  // If traits.hands_out. From any thread; `store` was made by open(). It may wait for another transaction to end.
  virtual std::unique_ptr<OwnTransaction> begin_transaction(Store& store);
};

// Makes the harness of one test. Throws if it cannot: the test fails.
using HarnessFactory = std::function<std::unique_ptr<StoreHarness>()>;

// Adds the tests to GoogleTest. Call it before RUN_ALL_TESTS(). `name`: letters, digits and '_'. Returns how many
// tests.
std::size_t register_conformance(const std::string& name, const StoreTraits& traits, const HarnessFactory& factory,
                                 const char* file, int line);

}  // namespace once::testing

#define ONCE_CONFORMANCE(name, traits, ...)                                \
  [[maybe_unused]] static const ::std::size_t once_conformance_of_##name = \
      ::once::testing::register_conformance(#name, traits, __VA_ARGS__, __FILE__, __LINE__)
