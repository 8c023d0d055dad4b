// The memory store against the conformance suite.
#include <once/stores/memory.hpp>
#include <once/testing/conformance.hpp>

namespace {

class MemoryHarness final : public once::testing::StoreHarness {
 public:
  std::unique_ptr<once::Store> open() override { return once::stores::make_memory_store(); }
};

ONCE_CONFORMANCE(memory, once::testing::StoreTraits{}, [] { return std::make_unique<MemoryHarness>(); });

}  // namespace
