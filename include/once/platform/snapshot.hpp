// For processes that are copied with their memory: AWS Lambda's SnapStart, snapshots of machines, CRIU. A program calls
// before_snapshot() when it is about to be copied, and after_restore() in each copy before it continues. The runtime of
// once/frontends/lambda/runtime.hpp does both. Example, for what the program keeps itself:
//
//   const once::SnapshotHook hook([&] { pool.close(); }, [&] { pool.open(); });
//
// The library renews what it keeps without a hook. After either call its connections (HTTP to AWS, PostgreSQL) are not
// used again but closed at their next use. AWS credentials that were found are searched for again. What was learnt
// about a store's clock, and corrections of the clock for AWS's signatures, are forgotten. Random bytes are never kept
// (once/platform/system.hpp).
//
// Finish each claim before the snapshot. Copies share a claim that was held, and its lease ends unnoticed while the
// snapshot lies on a disk: docs/guarantees.md, "When a process is copied".
#pragma once

#include <functional>

#include <once/compiler.hpp>

namespace once {

// Registers two functions for its lifetime. Either may be empty, and may throw. They are called one at a time, on the
// thread that calls before_snapshot() or after_restore(), and must not create or destroy hooks. Thread-safe: the
// destructor waits for a function that runs.
class SnapshotHook {
 public:
  // Registers both until its destructor.
  explicit SnapshotHook(std::function<void()> before, std::function<void()> after = {});
  SnapshotHook(const SnapshotHook&) = delete;
  SnapshotHook& operator=(const SnapshotHook&) = delete;
  ~SnapshotHook();

  const std::function<void()> before;  // For before_snapshot(): closes what a copy must not share.
  const std::function<void()> after;   // For after_restore(): opens it again.
};

// Calls the `before` functions, the last registered first. An exception of one is thrown on, and ends the round: then
// take no snapshot. No call of the library should be running in another thread.
void before_snapshot();
// Calls the `after` functions, the first registered first. An exception of one is thrown on, and ends the round.
void after_restore();

}  // namespace once
