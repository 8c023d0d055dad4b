// One process at a time: a lock that is fair, has a time limit, and ends with the process that holds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <once/time.hpp>

namespace once::stores::sqlite {

// What the file keeps for outside_writes.hpp.
struct OutsideNotes {
  std::uint64_t log_sum = 0;  // LogState::sum after the last commit of a program of ours.
  std::uint64_t writes = 0;   // A new random number each time that a program of ours finds it to be another.
};

// flock(2) on a side file is the lock: the kernel lets go of it when its holder dies. flock knows neither a time limit
// nor turns, so a page of the file, mapped by everybody, holds hints: who waits, and a futex to wait on. Wrong hints
// (left by a process that was killed) cost milliseconds, never exclusion. Beside them is a note for whoever comes when
// all others have died (note_synced).
//
// Used by one thread. Two of them on one path exclude each other in one process too.
class FileLock {
 public:
  // Makes the file, with the permissions of `model`, if it is not there. Throws Exception(unavailable).
  FileLock(std::string path, std::string model);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Waits for at most `limit`, then throws Exception(unavailable) that names the holder's pid.
  void acquire(Millis limit);
  void release() noexcept;

  // For the holder. Zeros in a new file; anything after somebody has spoiled it.
  [[nodiscard]] OutsideNotes notes() const noexcept { return notes_in(fd_); }
  static OutsideNotes notes_in(int lock_file) noexcept;  // For anybody, at any time.
  void note(const OutsideNotes& notes) noexcept;

  // What holders tell each other: that whatever can be read of this log (its inode) is known to be on the disk. 0: of
  // none, which is also what a new lock file says, and one that was cut off. Outlives its writer. For the holder only.
  // False: it could not be noted.
  [[nodiscard]] bool note_synced(std::uint64_t log) noexcept;
  [[nodiscard]] bool is_synced(std::uint64_t log) const noexcept;

 private:
  struct Hints {
    std::atomic<std::uint32_t> releases;   // Futex.
    std::atomic<std::uint32_t> turn;       // Counts acquisitions.
    std::atomic<std::uint32_t> holder;     // Its pid, as it sees it.
    std::atomic<std::uint32_t> wanted_by;  // Who waited last: FileLock::id_.
    std::atomic<std::int64_t> wanted_at;   // When: CLOCK_MONOTONIC, ns.
  };
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  void open();
  void close() noexcept;
  bool try_lock();
  [[nodiscard]] bool is_wanted(std::int64_t now_ns) const noexcept;

  std::string path_;
  std::string model_;
  int fd_ = -1;
  Hints* hints_ = nullptr;
  std::uint32_t id_;
  std::uint32_t my_turn_ = 0;
};

}  // namespace once::stores::sqlite
