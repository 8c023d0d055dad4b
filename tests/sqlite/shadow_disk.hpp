// What a power cut would leave of a directory, kept beside what programs see of it.
//
// This program has pwrite(), fdatasync(), fsync(), syncfs(), ftruncate(), unlink() and pread() of its own, which SQLite
// and the store get as well (shadow_disk.cpp). For each file of the directory they keep a platter: what the disk itself
// has. A write makes pages dirty, a sync brings the file's dirty pages to the platter, and a directory's sync the names
// in it.
//
// A sync that fails does as Linux does: some of the pages have reached the platter, the others are clean all the same.
// No later sync writes them, unless they are written again. Programs go on seeing what was written (ext4, XFS), or see
// again what the platter has (Btrfs). See "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
//
// A power cut takes any of the dirty sectors of 512 bytes to the platter, and any of the names. All of it lies in
// memory that is shared with forked children, which may die at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "scratch.hpp"

namespace once::testing {

// What is done in the place of a sync.
enum class Fate : std::uint8_t {
  works,
  fails,           // EIO.
  fails_and_dies,  // And SIGKILL meets the process before it hears of it.
  dies,            // SIGKILL before anything is synced.
  cut,             // The power fails: the process ends with cut_status.
};
enum class Synced : std::uint8_t { anything, log, file, directory };

constexpr int cut_status = 77;

class ShadowDisk {
 public:
  ShadowDisk();  // One at a time, with a directory of its own.
  ~ShadowDisk();
  ShadowDisk(const ShadowDisk&) = delete;
  ShadowDisk& operator=(const ShadowDisk&) = delete;

  [[nodiscard]] std::string file(const std::string& name = "once.db") const { return scratch_.file(name); }

  void seed(std::uint64_t seed);
  std::uint64_t below(std::uint64_t bound);  // Drawn from the seed, for all processes.

  // The sync after `skip` others of this kind, and `times` altogether, meet this fate. One that fails loses all pages.
  void script(Synced what, Fate fate, std::uint64_t skip = 0, std::uint64_t times = 1);
  // So many syncs in a thousand meet it. 0 for all: heal().
  void chance(Fate fate, std::uint32_t in_a_thousand);
  void shows_the_platter_after_a_failure(bool reverts);  // As Btrfs. Else programs see what was written.
  void fail_reads(bool failing);                         // EIO, of all files of the directory.
  // Before so many more reads of a log its clean pages leave the memory: programs see what the platter has of them.
  void evict_before_read(std::uint64_t number);
  void heal();  // No more faults.

  // Replaces what programs see by the platter's contents. No process may use the directory.
  void cut_power();

  // Runs `work` in another process. Its exit status: 0 if `work` came to its end, cut_status, 128 + a signal.
  int in_a_process(const std::function<void()>& work);

  [[nodiscard]] bool has_name(const std::string& name) const;         // The platter's directory has it.
  [[nodiscard]] bool was_synced(const std::string& directory) const;  // Any directory, below the scratch one or above.

 private:
  const Scratch scratch_;
};

}  // namespace once::testing
