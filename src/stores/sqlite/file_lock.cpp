#include "stores/sqlite/file_lock.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <once/error.hpp>

#include "stores/sqlite/identity.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t look_again_ns = 20 * ms;  // A holder that was killed wakes nobody.
constexpr off_t notes_at = 256;                  // Where in the file they are. Before are the hints.
constexpr std::int64_t polite_ns = 2 * ms;       // How long a busy process lets others go first.
constexpr off_t note_at = 64;                    // Where in the file note_synced() writes: behind the hints.

std::int64_t now_ns() noexcept {
  timespec spec{};
  clock_gettime(CLOCK_MONOTONIC, &spec);
  return std::int64_t{spec.tv_sec} * 1'000'000'000 + spec.tv_nsec;
}

// Not FUTEX_PRIVATE: the word is shared by processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t limit_ns) noexcept {
  const timespec limit{.tv_sec = limit_ns / 1'000'000'000, .tv_nsec = limit_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

[[noreturn]] void fail(const std::string& path, const char* what, int number) {
  throw Exception(ErrorKind::unavailable, "sqlite store: cannot " + std::string(what) + " the lock file " + path +
                                              ": " + std::strerror(number) +
                                              ": check its permissions and its directory's");
}

}  // namespace

FileLock::FileLock(std::string path, std::string model)
    : path_(std::move(path)),
      model_(std::move(model)),
      // Tells two locks of one process apart and two processes; a clash costs fairness only.
      id_(static_cast<std::uint32_t>(getpid()) ^ static_cast<std::uint32_t>(now_ns()) ^
          static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(this) >> 4U)) {
  open();
}

FileLock::~FileLock() { close(); }

void FileLock::open() {
  struct stat model {};
  const mode_t mode = stat(model_.c_str(), &model) == 0 ? model.st_mode & 0666U : mode_t{0600};
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd_ >= 0) {
    // umask may have taken away what the model grants. Failing leaves a stricter file, which others report.
    if (fchmod(fd_, mode) != 0) fail(path_, "set the mode of", errno);
  } else if (errno == EEXIST) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  }
  if (fd_ < 0) fail(path_, "open", errno);
  // Of this size from the start for everyone: a mapping beyond the end of a file is a SIGBUS.
  const int number = posix_fallocate(fd_, 0, static_cast<off_t>(sizeof(Hints)));
  void* page = number == 0 ? mmap(nullptr, sizeof(Hints), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0) : MAP_FAILED;
  if (page == MAP_FAILED) {
    const int reason = number == 0 ? errno : number;
    ::close(fd_);
    fd_ = -1;
    fail(path_, "map", reason);
  }
  hints_ = static_cast<Hints*>(page);
}

void FileLock::close() noexcept {
  if (hints_ != nullptr) munmap(std::exchange(hints_, nullptr), sizeof(Hints));
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool FileLock::try_lock() {
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail(path_, "lock", errno);
  }
  // Somebody may have deleted the file: then others lock another one by this name.
  const Identity held = Identity::of(fd_);
  if (held.there && held == Identity::of(path_)) return true;
  close();
  open();
  return false;
}

bool FileLock::is_wanted(std::int64_t now) const noexcept {
  const std::int64_t age = now - hints_->wanted_at.load(std::memory_order_relaxed);
  return hints_->wanted_by.load(std::memory_order_relaxed) != id_ && age >= 0 && age < 2 * look_again_ns;
}

void FileLock::acquire(Millis limit) {
  const std::int64_t start = now_ns();
  const std::int64_t end = start + std::chrono::nanoseconds(limit).count();
  if (hints_ != nullptr && hints_->turn.load() == my_turn_ && is_wanted(start)) {
    // We had it last and somebody waits: they go first. Their release wakes us.
    const std::uint32_t seen = hints_->releases.load();
    if (hints_->turn.load() == my_turn_) futex_wait(hints_->releases, seen, polite_ns);
  }
  for (;;) {
    if (fd_ < 0) open();
    const std::uint32_t seen = hints_->releases.load();
    if (try_lock()) break;
    if (fd_ < 0 || hints_->releases.load() != seen) continue;
    const std::int64_t now = now_ns();
    if (now >= end) {
      const std::uint32_t pid = hints_->holder.load();
      throw Exception(ErrorKind::unavailable, "sqlite store: the lock file " + path_ +
                                                  " was held by another process for " + std::to_string(limit.count()) +
                                                  " ms, last by pid " + std::to_string(pid) +
                                                  ": see whether it is stopped or starved, or raise busy_timeout");
    }
    hints_->wanted_by.store(id_, std::memory_order_relaxed);
    hints_->wanted_at.store(now, std::memory_order_relaxed);
    futex_wait(hints_->releases, seen, std::min(look_again_ns, end - now));
  }
  my_turn_ = hints_->turn.fetch_add(1) + 1;
  hints_->holder.store(static_cast<std::uint32_t>(getpid()), std::memory_order_relaxed);
}

void FileLock::release() noexcept {
  flock(fd_, LOCK_UN);
  hints_->releases.fetch_add(1);
  if (is_wanted(now_ns())) syscall(SYS_futex, &hints_->releases, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

OutsideNotes FileLock::notes_in(int lock_file) noexcept {
  OutsideNotes notes;
  return pread(lock_file, &notes, sizeof notes, notes_at) == ssize_t{sizeof notes} ? notes : OutsideNotes{};
}

void FileLock::note(const OutsideNotes& notes) noexcept {
  // If it fails, what is there does not fit what is found next.
  static_cast<void>(pwrite(fd_, &notes, sizeof notes, notes_at) == ssize_t{sizeof notes});
}

bool FileLock::note_synced(std::uint64_t log) noexcept {
  return pwrite(fd_, &log, sizeof log, note_at) == static_cast<ssize_t>(sizeof log);
}

bool FileLock::is_synced(std::uint64_t log) const noexcept {
  std::uint64_t noted = 0;
  return pread(fd_, &noted, sizeof noted, note_at) == static_cast<ssize_t>(sizeof noted) && noted != 0 && noted == log;
}

}  // namespace once::stores::sqlite
