#include "stores/sqlite/outside_writes.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstddef>

namespace once::stores::sqlite {

LogState log_state(Connection& connection) {
  constexpr int page_bytes = 32 * 1024;
  constexpr std::uint32_t version = 3'007'000;
  sqlite3_file* file = nullptr;
  void volatile* header = nullptr;
  if (sqlite3_file_control(connection.raw(), "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
      file->pMethods == nullptr || file->pMethods->iVersion < 2 ||
      file->pMethods->xShmMap(file, 0, page_bytes, 0, &header) != SQLITE_OK || header == nullptr) {
    return {};
  }
  const auto number = [&](std::size_t at) {
    return *reinterpret_cast<const volatile std::uint32_t*>(static_cast<const volatile char*>(header) + at);
  };
  if (number(0) != version) return {};
  return {.commits = number(8), .sum = (std::uint64_t{number(40)} << 32U) | number(44)};
}

std::uint64_t OutsideWrites::begin(Connection& connection, FileLock& lock) {
  begun_ = log_state(connection);
  OutsideNotes notes = lock.notes();
  if (begun_.sum == 0 || begun_.sum != notes.log_sum) {
    sqlite3_randomness(sizeof notes.writes, &notes.writes);
    notes.writes |= 1U;  // Not what a new file has.
    notes.log_sum = begun_.sum;
    lock.note(notes);
  }
  writes_ = notes.writes;
  return writes_;
}

void OutsideWrites::committed(Connection& connection, FileLock& lock, bool wrote) {
  const LogState now = log_state(connection);
  // Somebody may have written since, or in our place: that is left for the next begin() to find.
  if (!wrote || now.commits != begun_.commits + 1) return;
  lock.note({.log_sum = now.sum, .writes = writes_});
}

OutsideWatch::OutsideWatch(const std::string& lock_path) noexcept
    : fd_(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)) {}

OutsideWatch::~OutsideWatch() {
  if (fd_ >= 0) ::close(fd_);
}

bool OutsideWatch::none_since(std::uint64_t writes, Connection& connection) const noexcept {
  constexpr int tries = 3;  // A commit and its note are some microseconds apart.
  for (int i = 0; i < tries; ++i) {
    const LogState state = log_state(connection);
    const OutsideNotes notes = FileLock::notes_in(fd_);
    if (notes.writes != writes || state.sum == 0) return false;
    if (notes.log_sum == state.sum) return true;
    sched_yield();
  }
  return false;
}

}  // namespace once::stores::sqlite
