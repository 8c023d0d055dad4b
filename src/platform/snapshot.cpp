#include <once/platform/snapshot.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/snapshots.hpp"

namespace once {

namespace {

std::atomic<unsigned> snapshots_counted{0};

struct Hooks {
  std::mutex mutex;
  std::vector<const SnapshotHook*> all;
};

// Never destroyed, because hooks of static lifetime may be destroyed later.
Hooks& hooks() {
  static Hooks* const only = new Hooks;
  return *only;
}

}  // namespace

unsigned snapshots() noexcept { return snapshots_counted.load(std::memory_order_relaxed); }

SnapshotHook::SnapshotHook(std::function<void()> its_before, std::function<void()> its_after)
    : before(std::move(its_before)), after(std::move(its_after)) {
  const std::lock_guard lock(hooks().mutex);
  hooks().all.push_back(this);
}

SnapshotHook::~SnapshotHook() {
  const std::lock_guard lock(hooks().mutex);
  std::erase(hooks().all, this);
}

void before_snapshot() {
  const std::lock_guard lock(hooks().mutex);
  const auto& all = hooks().all;
  for (auto hook = all.rbegin(); hook != all.rend(); ++hook) {
    if ((*hook)->before) (*hook)->before();
  }
  ++snapshots_counted;  // Last: the hooks may have used connections.
}

void after_restore() {
  const std::lock_guard lock(hooks().mutex);
  ++snapshots_counted;  // First: the hooks may use connections.
  for (const SnapshotHook* hook : hooks().all) {
    if (hook->after) hook->after();
  }
}

}  // namespace once
