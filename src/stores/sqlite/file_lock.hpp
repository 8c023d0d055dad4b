// A lock between processes: fair, with a time limit, and released when its process dies.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <once/time.hpp>

#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/identity.hpp"

namespace once::stores::sqlite {

// The part of a log that is known to be on the disk. All zeros: none.
struct SyncedLog {
  std::uint64_t inode = 0;
  std::uint64_t salts = 0;  // This and the next two: see LogState.
  std::uint64_t frames = 0;
  std::uint64_t frames_sum = 0;
  friend bool operator==(const SyncedLog&, const SyncedLog&) = default;
};

// Notes in the lock file, for outside_writes.hpp, and for the next process to open the file.
struct LogNotes {
  std::uint64_t log_sum = 0;  // LogState::sum after the last commit of once.
  std::uint64_t writes = 0;   // A random number, new whenever once finds another log_sum.
  SyncedLog synced;
};
static_assert(sizeof(LogNotes) == 48, "several programs share it");

// The lock is flock(2) on a side file: the kernel releases it when its holder dies. flock has neither a time limit nor
// turns, so the file has hints: who waits, and a futex to wait on. Wrong hints (of a killed process, or in an emptied
// file) cost milliseconds, never exclusion. The file also has notes about the log.
//
// The hints are read and written by system calls. Only the kernel uses the page that is mapped for the futex: if the
// file was emptied, it returns EFAULT, where a program would die of SIGBUS.
//
// The file also shows who has the store open: each process holds a shared lock on a byte of it, by the open file
// description (fcntl(2), F_OFD_SETLK). It ends with the process, even if that is killed or has children, and is seen
// from every mount and PID namespace.
//
// Used by one thread. Two locks on one path exclude each other in one process too. In the child of a fork it holds and
// releases nothing.
class FileLock {
 public:
  // Creates the file if it is missing, with the permissions of `model`, and its owner if
  // this process is root's. Throws Exception(unavailable).
  FileLock(std::string path, std::string model);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Waits for at most `limit`, then throws Exception(unavailable), which names the holder's pid.
  void acquire(Millis limit);
  void release() noexcept;

  // Acquired for as long as this lives, or until release().
  class Guard {
   public:
    Guard(FileLock& lock, Millis limit) : lock_(&lock) { lock.acquire(limit); }
    ~Guard() { release(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    void release() noexcept {
      if (lock_ != nullptr) std::exchange(lock_, nullptr)->release();
    }

   private:
    FileLock* lock_;
  };

  // For the holder: from now on this process shows that it has the store open. Throws Exception(unavailable).
  void show_presence();
  // Whether nobody else does. Also false if it cannot be known. If the lock file was deleted, processes that have not
  // locked the new one yet are not seen.
  [[nodiscard]] bool is_alone() const noexcept;

  // For the holder. The notes outlive their writer. Zeros in a new or emptied file; anything if the file was damaged. A
  // failed write is not reported: the old notes will not match the log.
  [[nodiscard]] LogNotes notes() const noexcept { return notes_in(file_.get()); }
  static LogNotes notes_in(int lock_file) noexcept;  // For any process, at any time.
  void note(const LogNotes& notes) noexcept;

 private:
  struct Hints {
    std::uint32_t releases = 0;    // Futex. Changed after a release if others wait.
    std::uint32_t held_by = 0;     // The present or last holder: FileLock::id_.
    std::uint32_t holder_pid = 0;  // In the holder's own pid namespace.
    std::uint32_t wanted_by = 0;   // The last waiter.
    std::int64_t wanted_at = 0;    // When it waited: CLOCK_MONOTONIC, ns.
  };
  static_assert(sizeof(Hints) == 24, "several programs share it");

  void open();
  void close() noexcept;
  bool try_lock();
  [[nodiscard]] Hints read_hints() const noexcept;  // Zeros for missing bytes.
  // Only the bytes `from` to `to` of them. Other programs write the others.
  void write_hints(const Hints& hints, std::size_t from, std::size_t to) const noexcept;
  void want(std::int64_t now_ns) const noexcept;
  void wait(std::uint32_t releases, std::int64_t limit_ns) const noexcept;
  [[nodiscard]] bool is_wanted(const Hints& hints, std::int64_t now_ns) const noexcept;

  std::string path_;
  std::string model_;
  OwnDescriptor file_;
  Identity identity_;  // Of the open file.
  void* page_ = nullptr;
  std::uint32_t id_;
  bool others_waited_ = false;  // At our last release.
  bool is_present_ = false;     // show_presence() was called.
};

}  // namespace once::stores::sqlite
