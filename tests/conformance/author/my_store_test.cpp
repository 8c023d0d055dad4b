#include <once/stores/memory.hpp>
#include <once/testing/conformance.hpp>

namespace {

// One set of records, empty at first. Yours makes a database and drops it in the destructor.
class MyHarness final : public once::testing::StoreHarness {
 public:
  std::unique_ptr<once::Store> open() override { return once::stores::make_memory_store(); }
};

ONCE_CONFORMANCE(my_store, once::testing::StoreTraits{}, [] { return std::make_unique<MyHarness>(); });

}  // namespace
