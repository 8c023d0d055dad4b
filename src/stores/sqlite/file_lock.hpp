// One process at a time: a lock that is fair, has a time limit, and ends with the process that holds it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <once/time.hpp>

#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/identity.hpp"

namespace once::stores::sqlite {

// Up to where everything that can be read of a log is known to be on the disk. All zeros: of none.
struct SyncedLog {
  std::uint64_t inode = 0;
  std::uint64_t salts = 0;  // These and the others: LogState.
  std::uint64_t frames = 0;
  std::uint64_t frames_sum = 0;
  friend bool operator==(const SyncedLog&, const SyncedLog&) = default;
};

// What the file keeps for outside_writes.hpp, and for whoever comes when all others have died.
struct LogNotes {
  std::uint64_t log_sum = 0;  // LogState::sum after the last commit of a program of ours.
  std::uint64_t writes = 0;   // A new random number each time that a program of ours finds it to be another.
  SyncedLog synced;
};
static_assert(sizeof(LogNotes) == 48, "several programs share it");

// flock(2) on a side file is the lock: the kernel lets go of it when its holder dies. flock knows neither a time limit
// nor turns, so the file holds hints: who waits, and a futex to wait on. Wrong hints (left by a process that was
// killed, or none, because somebody has emptied the file) cost milliseconds, never exclusion. Beside them are notes on
// the log.
//
// The hints are read and written by system calls, and only the kernel touches the page that is mapped for the futex: it
// answers EFAULT where the file is too short by now, and a program would die of SIGBUS.
//
// Used by one thread. Two of them on one path exclude each other in one process too. In the child of a fork nothing is
// held or let go by it.
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

  // Acquired for as long as this lives, or until release().
  class Turn {
   public:
    Turn(FileLock& lock, Millis limit) : lock_(&lock) { lock.acquire(limit); }
    ~Turn() { release(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void release() noexcept {
      if (lock_ != nullptr) std::exchange(lock_, nullptr)->release();
    }

   private:
    FileLock* lock_;
  };

  // For the holder. They outlive their writer. Zeros in a new file and in one that was cut off; anything after somebody
  // has spoiled it. What cannot be written is not told: what stays does not fit what is found next.
  [[nodiscard]] LogNotes notes() const noexcept { return notes_in(file_.get()); }
  static LogNotes notes_in(int lock_file) noexcept;  // For anybody, at any time.
  void note(const LogNotes& notes) noexcept;

 private:
  struct Hints {
    std::uint32_t releases = 0;    // Futex. Changed after a release that others wait for.
    std::uint32_t held_by = 0;     // Who has or had it: FileLock::id_.
    std::uint32_t holder_pid = 0;  // As that one sees it.
    std::uint32_t wanted_by = 0;   // Who waited last.
    std::int64_t wanted_at = 0;    // When: CLOCK_MONOTONIC, ns.
  };
  static_assert(sizeof(Hints) == 24, "several programs share it");

  void open();
  void close() noexcept;
  bool try_lock();
  [[nodiscard]] Hints read_hints() const noexcept;  // Zeros for what is not there.
  void write_hint(std::size_t offset, const void* bytes, std::size_t size) const noexcept;
  void want(std::int64_t now_ns) const noexcept;
  void wait(std::uint32_t releases, std::int64_t limit_ns) const noexcept;
  [[nodiscard]] bool is_wanted(const Hints& hints, std::int64_t now_ns) const noexcept;

  std::string path_;
  std::string model_;
  OwnDescriptor file_;
  Identity identity_;  // Of the file that is open.
  void* page_ = nullptr;
  std::uint32_t id_;
  bool others_waited_ = false;  // At our last release.
};

}  // namespace once::stores::sqlite
