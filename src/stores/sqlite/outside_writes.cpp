#include "stores/sqlite/outside_writes.hpp"

#include <fcntl.h>
#include <sched.h>

#include <utility>

namespace once::stores::sqlite {

std::uint64_t OutsideWrites::begin(Connection& connection, FileLock& lock) {
  begun_ = log_state(connection);
  others_wrote_ = begun_.sum == 0 || begun_.sum != seen_;
  seen_ = begun_.sum;
  LogNotes notes = lock.notes();
  if (begun_.sum == 0 || begun_.sum != notes.log_sum) {
    sqlite3_randomness(sizeof notes.writes, &notes.writes);
    notes.writes |= 1U;  // Never 0, as in a new file.
    notes.log_sum = begun_.sum;
    lock.note(notes);
  }
  writes_ = notes.writes;
  return writes_;
}

void OutsideWrites::committed(Connection& connection, FileLock& lock, std::uint64_t log, bool wrote) {
  if (!wrote) return;
  const LogState now = log_state(connection);
  seen_ = 0;
  // A foreign write may have come after ours, or instead of it: the next begin() or opener will find it.
  if (now.commits != begun_.commits + 1) return;
  seen_ = now.sum;
  lock.note({.log_sum = now.sum, .writes = writes_, .synced = synced_log(log, now)});
}

SyncedLog synced_log(std::uint64_t inode, const LogState& state) noexcept {
  if (state.salts == 0) return {};  // An empty log may have no name on the disk.
  return {.inode = inode, .salts = state.salts, .frames = state.frames, .frames_sum = state.frames_sum};
}

OutsideWatch::OutsideWatch(std::string lock_path) noexcept : path_(std::move(lock_path)) { open(); }

void OutsideWatch::open() noexcept {
  file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  identity_ = Identity::of(file_.get());
}

bool OutsideWatch::follow() noexcept {
  if (Identity::of(path_) == identity_) return false;
  open();
  return true;
}

bool OutsideWatch::none_since(std::uint64_t writes, Connection& connection) noexcept {
  constexpr int tries = 3;  // A commit and its note are some microseconds apart.
  for (int i = 0; i < tries; ++i) {
    const LogState state = log_state(connection);
    const LogNotes notes = FileLock::notes_in(file_.get());
    if (state.sum == 0) return false;
    if (notes.writes != writes) {
      if (!follow()) return false;
      continue;
    }
    if (notes.log_sum == state.sum) return true;
    sched_yield();
  }
  return false;
}

}  // namespace once::stores::sqlite
