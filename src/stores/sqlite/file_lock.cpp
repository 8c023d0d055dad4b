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
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <once/error.hpp>

#include "platform/file.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t look_again_ns = 20 * ms;  // A killed holder wakes no waiter.
constexpr off_t notes_at = 256;                  // Offset of the notes in the file; the hints are before.
constexpr std::int64_t polite_ns = 2 * ms;       // How long a busy process lets others go first.

std::int64_t now_ns() noexcept {
  timespec spec{};
  clock_gettime(CLOCK_MONOTONIC, &spec);
  return std::int64_t{spec.tv_sec} * 1'000'000'000 + spec.tv_nsec;
}

// The byte that shows who has the store open: after the file's contents, as a lock needs no bytes.
struct flock presence_as(short type) noexcept {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = 512;
  range.l_len = 1;
  return range;
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
      // Distinguishes two locks of one process, and two processes. A clash only costs fairness.
      id_(static_cast<std::uint32_t>(getpid()) ^ static_cast<std::uint32_t>(now_ns()) ^
          static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(this) >> 4U)) {
  open();
}

FileLock::~FileLock() { close(); }

void FileLock::open() {
  file_.open([this] {
    struct stat model {};
    const bool has_model = stat(model_.c_str(), &model) == 0;
    const mode_t mode = has_model ? model.st_mode & 0666U : mode_t{0600};
    int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    // A failure leaves a stricter file, which others report.
    if (fd >= 0 && !(has_model ? set_mode_and_owner(fd, mode, model) : fchmod(fd, mode) == 0)) {
      const int number = errno;
      ::close(fd);
      fail(path_, "set the mode and owner of", number);
    }
    if (fd < 0 && errno == EEXIST) fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) fail(path_, "open", errno);
    return fd;
  });
  identity_ = Identity::of(file_.get());
  void* const page = mmap(nullptr, sizeof(Hints), PROT_READ, MAP_SHARED, file_.get(), 0);
  if (page != MAP_FAILED) page_ = page;
  // In the child of a fork it would keep the lock, like a descriptor.
  if (page_ == nullptr || madvise(page_, sizeof(Hints), MADV_DONTFORK) != 0) {
    const int number = errno;
    close();
    fail(path_, "map", number);
  }
  if (!is_present_) return;
  try {
    show_presence();  // The last file was deleted.
  } catch (const Exception&) {
    close();
    throw;
  }
}

void FileLock::close() noexcept {
  if (page_ != nullptr) munmap(std::exchange(page_, nullptr), sizeof(Hints));
  file_.close();
}

bool FileLock::try_lock() {
  if (file_.get() < 0) open();
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail(path_, "lock", errno);
  }
  // If the file was deleted, others lock a new one with this name.
  if (identity_.there && identity_ == Identity::of(path_)) return true;
  close();
  return false;
}

FileLock::Hints FileLock::read_hints() const noexcept {
  Hints hints;
  if (pread(file_.get(), &hints, sizeof hints, 0) < 0) return {};
  return hints;
}

void FileLock::write_hints(const Hints& hints, std::size_t from, std::size_t to) const noexcept {
  const auto bytes = std::as_bytes(std::span(&hints, 1)).subspan(from, to - from);
  // Without it a waiter waits longer than necessary.
  static_cast<void>(pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(from)) ==
                    static_cast<ssize_t>(bytes.size()));
}

bool FileLock::is_wanted(const Hints& hints, std::int64_t now) const noexcept {
  const std::int64_t age = now - hints.wanted_at;
  return hints.wanted_by != id_ && age >= 0 && age < 2 * look_again_ns;
}

void FileLock::want(std::int64_t now) const noexcept {
  write_hints({.wanted_by = id_, .wanted_at = now}, offsetof(Hints, wanted_by), sizeof(Hints));
}

// Not FUTEX_PRIVATE: the word is shared by processes.
void FileLock::wait(std::uint32_t releases, std::int64_t limit_ns) const noexcept {
  const timespec limit{.tv_sec = limit_ns / 1'000'000'000, .tv_nsec = limit_ns % 1'000'000'000};
  if (syscall(SYS_futex, page_, FUTEX_WAIT, releases, &limit, nullptr, 0) == 0) return;
  if (errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR) return;
  // The file has no hints.
  const timespec little{.tv_sec = 0, .tv_nsec = std::min(limit_ns, ms)};
  nanosleep(&little, nullptr);
}

void FileLock::acquire(Millis limit) {
  const std::int64_t start = now_ns();
  const std::int64_t end = start + std::chrono::nanoseconds(limit).count();
  if (std::exchange(others_waited_, false) && file_.get() >= 0) {
    const Hints hints = read_hints();
    if (hints.held_by == id_ && is_wanted(hints, start)) {
      // We had it last and another waits: it goes first. Its release wakes us.
      want(start);
      wait(hints.releases, polite_ns);
    }
  }
  while (!try_lock()) {
    if (file_.get() < 0) continue;
    const std::int64_t now = now_ns();
    const Hints hints = read_hints();
    if (now >= end) {
      const std::string pid = hints.holder_pid == 0 ? "" : ", last by pid " + std::to_string(hints.holder_pid);
      throw Exception(ErrorKind::unavailable,
                      "sqlite store: the lock file " + path_ + " was held by another process for " +
                          std::to_string(limit.count()) + " ms" + pid +
                          ": check whether that process is stopped or starved, or raise busy_timeout");
    }
    want(now);
    // Try again: every holder that releases from now on sees that we wait.
    if (try_lock()) break;
    if (file_.get() >= 0) wait(hints.releases, std::min(look_again_ns, end - now));
  }
  const Hints hints = read_hints();
  if (hints.held_by == id_) return;
  write_hints({.held_by = id_, .holder_pid = static_cast<std::uint32_t>(getpid())}, offsetof(Hints, held_by),
              offsetof(Hints, wanted_by));
}

void FileLock::release() noexcept {
  if (file_.get() < 0) return;  // The child of a fork.
  flock(file_.get(), LOCK_UN);
  const Hints hints = read_hints();
  others_waited_ = is_wanted(hints, now_ns());
  if (!others_waited_) return;
  write_hints({.releases = hints.releases + 1}, offsetof(Hints, releases), offsetof(Hints, held_by));
  syscall(SYS_futex, page_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void FileLock::show_presence() {
  struct flock ours = presence_as(F_RDLCK);
  if (fcntl(file_.get(), F_OFD_SETLK, &ours) != 0) fail(path_, "hold a lock on", errno);
  is_present_ = true;
}

bool FileLock::is_alone() const noexcept {
  struct flock all = presence_as(F_WRLCK);
  return file_.get() >= 0 && fcntl(file_.get(), F_OFD_GETLK, &all) == 0 && all.l_type == F_UNLCK;
}

LogNotes FileLock::notes_in(int lock_file) noexcept {
  LogNotes notes;
  return pread(lock_file, &notes, sizeof notes, notes_at) == ssize_t{sizeof notes} ? notes : LogNotes{};
}

void FileLock::note(const LogNotes& notes) noexcept {
  static_cast<void>(pwrite(file_.get(), &notes, sizeof notes, notes_at) == ssize_t{sizeof notes});
}

}  // namespace once::stores::sqlite
