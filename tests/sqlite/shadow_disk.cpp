#include "shadow_disk.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace once::testing {

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t sector_bytes = 512;
constexpr std::size_t most_pages = 4096;
constexpr std::size_t most_files = 24;

struct File {
  std::uint64_t inode = 0;  // 0: not in use, or deleted.
  std::uint64_t size = 0;   // Of the platter's.
  std::uint64_t used = 0;   // No byte of the platter beyond this was ever written.
  bool is_cut_off = false;  // To `cut_off_at`, of which the platter does not know yet.
  std::uint64_t cut_off_at = 0;
  std::bitset<most_pages> dirty;
  std::array<unsigned char, most_pages * page_bytes> platter;  // Zeros beyond what was ever written.
};

struct Name {
  std::array<char, 64> text;
  int file;  // -1: no such name.
};

struct Script {
  Synced what = Synced::anything;
  Fate fate = Fate::works;
  std::uint64_t skip = 0;
  std::uint64_t times = 0;
};

struct Disk {
  std::atomic<bool> is_on{false};
  std::array<char, 256> directory{};
  std::uint64_t directory_inode = 0;
  std::uint64_t random = 0;
  std::array<std::uint32_t, 5> chances{};  // In a thousand, by Fate.
  Script script;
  bool reverts = false;
  std::atomic<bool> read_fails{false};
  std::atomic<std::uint64_t> reads_to_eviction{0};  // Of logs; 0: none comes.
  std::array<Name, most_files> names{};             // What the platter's directory has.
  std::array<std::array<char, 256>, 64> synced_directories{};
  std::size_t synced = 0;
  std::array<File, most_files> files;
};

Disk* disk = nullptr;
std::mutex mutex;  // Of this process's threads. Processes take turns by the store's lock.

std::uint64_t draw(std::uint64_t bound) {
  std::uint64_t x = disk->random += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return bound == 0 ? 0 : (x ^ (x >> 31U)) % bound;
}

long raw_pwrite(int fd, const void* data, std::size_t size, std::uint64_t at) {
  return syscall(SYS_pwrite64, fd, data, size, at);
}

// -shm is memory, -lock holds hints that a power cut may keep or lose.
bool is_kept(std::string_view name) { return !name.ends_with("-shm") && !name.ends_with("-lock"); }

// By which name a descriptor was opened, below the directory; empty for all others.
std::string name_of(int fd) {
  std::array<char, 512> path{};
  const ssize_t got = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size() - 1);
  const std::string_view all(path.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::string_view directory(disk->directory.data());
  if (all.size() <= directory.size() + 1 || !all.starts_with(directory) || all[directory.size()] != '/') return {};
  return std::string(all.substr(directory.size() + 1));
}

int file_of(std::uint64_t inode) {
  const auto found = std::ranges::find(disk->files, inode, &File::inode);
  return found == disk->files.end() ? -1 : static_cast<int>(found - disk->files.begin());
}

int new_file(std::uint64_t inode) {
  for (std::size_t i = 0; i < most_files; ++i) {
    File& file = disk->files.at(i);
    const auto named = [&](const Name& name) { return name.file == static_cast<int>(i); };
    if (file.inode != 0 || std::ranges::any_of(disk->names, named)) continue;
    std::memset(file.platter.data(), 0, file.used);
    file.inode = inode;
    file.size = file.used = 0;
    file.is_cut_off = false;
    file.dirty.reset();
    return static_cast<int>(i);
  }
  std::abort();
}

// Null for what is none of ours.
File* kept_file(int fd) {
  struct stat found {};
  if (disk == nullptr || !disk->is_on || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return nullptr;
  int at = file_of(found.st_ino);
  if (at < 0) {
    const std::string name = name_of(fd);
    if (name.empty() || !is_kept(name)) return nullptr;
    at = new_file(found.st_ino);
  }
  return &disk->files.at(static_cast<std::size_t>(at));
}

void mark(File& file, std::uint64_t from, std::uint64_t to) {
  if (to > most_pages * page_bytes) std::abort();
  for (std::uint64_t page = from / page_bytes; page * page_bytes < to; ++page) file.dirty.set(page);
}

std::uint64_t size_now(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

// Brings sectors of a page to the platter, from what programs see.
void bring(File& file, int fd, std::size_t page, bool all_sectors) {
  std::array<unsigned char, page_bytes> seen{};
  if (syscall(SYS_pread64, fd, seen.data(), page_bytes, page * page_bytes) < 0) std::abort();
  file.used = std::max<std::uint64_t>(file.used, (page + 1) * page_bytes);
  for (std::size_t at = 0; at < page_bytes; at += sector_bytes) {
    if (all_sectors || draw(2) == 0) std::memcpy(&file.platter.at(page * page_bytes + at), &seen.at(at), sector_bytes);
  }
}

// File systems do not show what is beyond a file's end when it grows again.
void set_size(File& file, std::uint64_t size) {
  if (size < file.used) std::memset(&file.platter.at(size), 0, file.used - size);
  file.size = size;
}

void cut_off(File& file) {
  if (std::exchange(file.is_cut_off, false)) set_size(file, std::min(file.size, file.cut_off_at));
}

// A file is cut off on the platter, or not. If not, nothing that was written beyond that since can be found there: it
// lies in new blocks, and the old ones are still the file's. False: such a page.
bool may_have(const File& file, std::size_t page) {
  return !file.is_cut_off || (page + 1) * page_bytes <= file.cut_off_at;
}

void works(File& file, int fd) {
  cut_off(file);
  set_size(file, size_now(fd));
  for (std::size_t page = 0; page < most_pages; ++page) {
    if (file.dirty.test(page)) bring(file, fd, page, true);
  }
  file.dirty.reset();
}

// Programs see what the platter has of this page.
void show_platter(const File& file, int fd, std::size_t page) {
  const std::uint64_t begin = page * page_bytes;
  const std::uint64_t end = std::min<std::uint64_t>(begin + page_bytes, size_now(fd));
  if (begin < end) raw_pwrite(fd, &file.platter.at(begin), end - begin, begin);
}

void evict(const File& file, int fd) {
  for (std::size_t page = 0; page < most_pages; ++page) {
    if (!file.dirty.test(page)) show_platter(file, fd, page);
  }
}

void fails(File& file, int fd, bool loses_all) {
  if (disk->reverts || draw(2) == 0) cut_off(file);
  if (!loses_all && !file.is_cut_off && draw(2) == 0) set_size(file, std::max(file.size, size_now(fd)));
  const std::uint64_t which = loses_all ? 0 : draw(3);  // All, few or half of the pages are lost.
  for (std::size_t page = 0; page < most_pages; ++page) {
    if (!file.dirty.test(page)) continue;
    if (may_have(file, page) && ((which == 1 && draw(8) != 0) || (which == 2 && draw(2) == 0))) {
      bring(file, fd, page, true);
    } else if (disk->reverts) {
      show_platter(file, fd, page);
    }
  }
  file.dirty.reset();
}

void sync_names() {
  std::array<Name, most_files> names{};
  for (Name& name : names) name.file = -1;
  std::size_t next = 0;
  for (const auto& entry : std::filesystem::directory_iterator(disk->directory.data())) {
    const std::string text = entry.path().filename().string();
    struct stat found {};
    if (!is_kept(text) || stat(entry.path().c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    int at = file_of(found.st_ino);
    if (at < 0) at = new_file(found.st_ino);
    Name& name = names.at(next++);
    std::snprintf(name.text.data(), name.text.size(), "%s", text.c_str());
    name.file = at;
  }
  disk->names = names;
}

// What the power cut takes along of what was not synced.
void cut() {
  const std::array<Name, most_files> before = disk->names;
  sync_names();
  // A name that is new is there or not, one that has gone has gone or not.
  for (Name& name : disk->names) {
    const bool was = std::ranges::any_of(before, [&](const Name& old) {
      return old.file == name.file && std::strcmp(old.text.data(), name.text.data()) == 0;
    });
    if (!was && name.file >= 0 && draw(2) == 0) name.file = -1;
  }
  for (const Name& old : before) {
    const auto same = [&](const Name& name) { return std::strcmp(old.text.data(), name.text.data()) == 0; };
    const auto free = std::ranges::find_if(disk->names, [](const Name& name) { return name.file < 0; });
    if (old.file >= 0 && std::ranges::none_of(disk->names, same) && draw(2) == 0 && free != disk->names.end()) {
      *free = old;
    }
  }
  for (const Name& name : disk->names) {
    if (name.file < 0) continue;
    File& file = disk->files.at(static_cast<std::size_t>(name.file));
    const int fd = ::open((std::string(disk->directory.data()) + "/" + name.text.data()).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;  // Deleted: it stays as it was.
    if (draw(2) == 0) cut_off(file);
    if (!file.is_cut_off && draw(2) == 0) set_size(file, size_now(fd));
    const std::uint64_t which = draw(4);  // None, any or all of the dirty sectors.
    for (std::size_t page = 0; page < most_pages && which != 0; ++page) {
      if (file.dirty.test(page) && may_have(file, page)) bring(file, fd, page, which == 1);
    }
    file.dirty.reset();
    file.is_cut_off = false;
    set_size(file, file.size);
    ::close(fd);
  }
  disk->is_on = false;
}

Fate fate_of(Synced what, bool& is_scripted) {
  Script& script = disk->script;
  if (script.times > 0 && (script.what == what || script.what == Synced::anything)) {
    if (script.skip > 0) {
      --script.skip;
    } else {
      --script.times;
      is_scripted = true;
      return script.fate;
    }
  }
  std::uint64_t number = draw(1000);
  for (std::size_t i = 0; i < disk->chances.size(); ++i) {
    if (number < disk->chances.at(i)) return static_cast<Fate>(i);
    number -= disk->chances.at(i);
  }
  return Fate::works;
}

[[noreturn]] void die() {
  raise(SIGKILL);
  for (;;) pause();
}

int sync_file(File& file, int fd) {
  bool is_scripted = false;
  const Fate fate = fate_of(name_of(fd).ends_with("-wal") ? Synced::log : Synced::file, is_scripted);
  if (fate == Fate::dies) die();
  if (fate == Fate::cut) {
    cut();
    _exit(cut_status);
  }
  if (fate == Fate::works) {
    works(file, fd);
    return 0;
  }
  fails(file, fd, is_scripted);
  if (fate == Fate::fails_and_dies) die();
  errno = EIO;
  return -1;
}

int sync_directory(int fd, bool ours) {
  if (ours) {
    bool is_scripted = false;
    const Fate fate = fate_of(Synced::directory, is_scripted);
    if (fate == Fate::dies || fate == Fate::fails_and_dies) die();
    if (fate == Fate::cut) {
      cut();
      _exit(cut_status);
    }
    if (fate == Fate::fails) {  // The names stay to be written: a journal that cannot be written ends the file system.
      errno = EIO;
      return -1;
    }
    sync_names();
  }
  std::array<char, 256>& path = disk->synced_directories.at(disk->synced++ % disk->synced_directories.size());
  path = {};
  if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size() - 1) < 0) return -1;
  return 0;
}

// Of a whole file system: tests look only whether it is asked for, and what becomes of its failure.
int sync_file_system(int fd) {
  if (disk == nullptr || !disk->is_on) return static_cast<int>(syscall(SYS_syncfs, fd));
  const std::lock_guard lock(mutex);
  bool is_scripted = false;
  if (fate_of(Synced::directory, is_scripted) == Fate::works) return static_cast<int>(syscall(SYS_syncfs, fd));
  errno = EIO;
  return -1;
}

int sync(int fd, long number) {
  struct stat found {};
  if (disk == nullptr || !disk->is_on || fstat(fd, &found) != 0) return static_cast<int>(syscall(number, fd));
  const std::lock_guard lock(mutex);
  if (S_ISDIR(found.st_mode)) return sync_directory(fd, found.st_ino == disk->directory_inode);
  File* const file = kept_file(fd);
  return file == nullptr ? static_cast<int>(syscall(number, fd)) : sync_file(*file, fd);
}

}  // namespace

ShadowDisk::ShadowDisk() {
  void* const memory =
      mmap(nullptr, sizeof(Disk), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || disk != nullptr) throw std::runtime_error("shadow disk");
  // Not by Disk's constructor, which would touch all of it: it is all zeros.
  disk = std::launder(static_cast<Disk*>(memory));
  for (Name& name : disk->names) name.file = -1;
  std::snprintf(disk->directory.data(), disk->directory.size(), "%s", scratch_.path().c_str());
  struct stat found {};
  if (stat(scratch_.path().c_str(), &found) != 0) throw std::runtime_error("shadow disk");
  disk->directory_inode = found.st_ino;
  disk->is_on = true;
}

ShadowDisk::~ShadowDisk() { munmap(std::exchange(disk, nullptr), sizeof(Disk)); }

void ShadowDisk::seed(std::uint64_t seed) { disk->random = seed; }
std::uint64_t ShadowDisk::below(std::uint64_t bound) {
  const std::lock_guard lock(mutex);
  return draw(bound);
}
void ShadowDisk::script(Synced what, Fate fate, std::uint64_t skip, std::uint64_t times) {
  const std::lock_guard lock(mutex);
  disk->script = {.what = what, .fate = fate, .skip = skip, .times = times};
}
void ShadowDisk::chance(Fate fate, std::uint32_t in_a_thousand) {
  const std::lock_guard lock(mutex);
  disk->chances.at(static_cast<std::size_t>(fate)) = in_a_thousand;
}
void ShadowDisk::shows_the_platter_after_a_failure(bool reverts) { disk->reverts = reverts; }
void ShadowDisk::fail_reads(bool failing) { disk->read_fails = failing; }
void ShadowDisk::evict_before_read(std::uint64_t number) { disk->reads_to_eviction = number; }
void ShadowDisk::heal() {
  const std::lock_guard lock(mutex);
  disk->chances = {};
  disk->script = {};
  disk->read_fails = false;
  disk->reads_to_eviction = 0;
}

void ShadowDisk::cut_power() {
  if (disk->is_on) cut();
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.path())) {
    if (entry.path().string().ends_with("-lock") && draw(2) == 0) continue;
    std::filesystem::remove_all(entry.path());
  }
  const std::array<Name, most_files> names = disk->names;
  for (File& file : disk->files) file.inode = 0;
  for (const Name& name : names) {
    if (name.file < 0) continue;
    File& file = disk->files.at(static_cast<std::size_t>(name.file));
    const int fd = ::open(this->file(name.text.data()).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat made {};
    if (fd < 0 || raw_pwrite(fd, file.platter.data(), file.size, 0) != static_cast<long>(file.size) ||
        fstat(fd, &made) != 0) {
      throw std::runtime_error("shadow disk: cannot write");
    }
    ::close(fd);
    file.inode = made.st_ino;
  }
  disk->is_on = true;
}

int ShadowDisk::in_a_process(const std::function<void()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool ShadowDisk::has_name(const std::string& name) const {
  return std::ranges::any_of(disk->names,
                             [&](const Name& known) { return known.file >= 0 && name == known.text.data(); });
}

bool ShadowDisk::was_synced(const std::string& directory) const {
  return std::ranges::any_of(disk->synced_directories, [&](const auto& path) { return directory == path.data(); });
}

}  // namespace once::testing

// --- What SQLite and the store call in the place of the C library's ---

using once::testing::disk;
using once::testing::kept_file;
using once::testing::mutex;

extern "C" {

[[gnu::visibility("default")]] ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  const ssize_t written = syscall(SYS_pwrite64, fd, data, size, at);
  if (written <= 0 || disk == nullptr || !disk->is_on) return written;
  const std::lock_guard lock(mutex);
  if (auto* const file = kept_file(fd)) {
    once::testing::mark(*file, static_cast<std::uint64_t>(at), static_cast<std::uint64_t>(at + written));
  }
  return written;
}

[[gnu::visibility("default")]] ssize_t pread64(int fd, void* data, size_t size, off64_t at) {
  if (disk != nullptr && disk->read_fails) {
    const std::lock_guard lock(mutex);
    if (kept_file(fd) != nullptr) {
      errno = EIO;
      return -1;
    }
  }
  if (disk != nullptr && disk->reads_to_eviction > 0 && once::testing::name_of(fd).ends_with("-wal") &&
      --disk->reads_to_eviction == 0) {
    const std::lock_guard lock(mutex);
    if (const auto* const file = kept_file(fd)) once::testing::evict(*file, fd);
  }
  return syscall(SYS_pread64, fd, data, size, at);
}

[[gnu::visibility("default")]] int ftruncate64(int fd, off64_t size) noexcept {
  const std::uint64_t before = once::testing::size_now(fd);
  const int code = static_cast<int>(syscall(SYS_ftruncate, fd, size));
  if (code != 0 || disk == nullptr || !disk->is_on) return code;
  const std::lock_guard lock(mutex);
  auto* const file = kept_file(fd);
  const auto end = static_cast<std::uint64_t>(size);
  if (file != nullptr && end < before) {
    file->cut_off_at = file->is_cut_off ? std::min(file->cut_off_at, end) : end;
    file->is_cut_off = true;
  }
  return code;
}

[[gnu::visibility("default")]] int unlink(const char* path) noexcept {
  struct stat found {};
  const bool ours = disk != nullptr && disk->is_on && stat(path, &found) == 0;
  const int code = static_cast<int>(syscall(SYS_unlink, path));
  if (code == 0 && ours) {
    const std::lock_guard lock(mutex);
    const int at = once::testing::file_of(found.st_ino);
    if (at >= 0) disk->files.at(static_cast<std::size_t>(at)).inode = 0;  // Another file may get that number.
  }
  return code;
}

[[gnu::visibility("default")]] int fdatasync(int fd) { return once::testing::sync(fd, SYS_fdatasync); }
[[gnu::visibility("default")]] int fsync(int fd) { return once::testing::sync(fd, SYS_fsync); }
[[gnu::visibility("default")]] int syncfs(int fd) noexcept { return once::testing::sync_file_system(fd); }

}  // extern "C"
