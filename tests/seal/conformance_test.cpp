// A sealed store is a store: the conformance suite over memory, and over a file whose keys are rotated.
#include <algorithm>
#include <memory>

#include <once/seal.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/conformance.hpp>

#include "../sqlite/scratch.hpp"
#include "seal_keys.hpp"

namespace once::testing {
namespace {

class MemoryHarness final : public StoreHarness {
 public:
  std::unique_ptr<Store> open() override { return seal(stores::make_memory_store(), {seal_key("k1", 1)}); }
};

// Each store seals with another key, and opens what the others sealed.
class SqliteHarness final : public StoreHarness {
 public:
  std::unique_ptr<Store> open() override {
    std::rotate(keys_.begin(), keys_.begin() + 1, keys_.end());
    return seal(stores::make_sqlite_store({.path = scratch_.file()}), keys_);
  }

 private:
  const Scratch scratch_;
  SealKeys keys_ = {seal_key("k1", 1), seal_key("k2", 2), seal_key("k3", 3)};
};

ONCE_CONFORMANCE(sealed_memory, StoreTraits{}, [] { return std::make_unique<MemoryHarness>(); });
ONCE_CONFORMANCE(sealed_sqlite, (StoreTraits{.shared = true, .durable = true}),
                 [] { return std::make_unique<SqliteHarness>(); });

}  // namespace
}  // namespace once::testing
