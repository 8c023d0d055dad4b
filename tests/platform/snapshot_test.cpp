// What is made before a snapshot, or by a hook before it, is of another copy of the process afterwards.
#include <once/platform/snapshot.hpp>

#include <gtest/gtest.h>

#include "platform/snapshots.hpp"

namespace once {
namespace snapshot_test {

TEST(Snapshot, CountsBetweenTheHooks) {
  unsigned before = 0;
  unsigned after = 0;
  const SnapshotHook hook([&] { before = snapshots(); }, [&] { after = snapshots(); });
  const unsigned first = snapshots();
  before_snapshot();
  EXPECT_EQ(before, first) << "what a hook opens is not used again";
  const unsigned second = snapshots();
  EXPECT_NE(second, first);
  after_restore();
  EXPECT_NE(after, second) << "a hook uses nothing of before";
  EXPECT_EQ(snapshots(), after);
}

}  // namespace snapshot_test
}  // namespace once
