#include "disk.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

namespace once::simulation {

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t sector_bytes = 512;
constexpr const char* vfs_name = "simulated";

Disk* disk = nullptr;

}  // namespace

struct Disk::Open {
  sqlite3_file base;  // First: what SQLite has of it.
  Disk* disk;
  ProgramPtr program;
  ContentPtr content;
  bool is_log;

  [[nodiscard]] bool is_dead() const { return program->is_dead || !disk->has_power_; }
};

// --- What a disk does ---

// Whether it is this trouble's turn.
bool Disk::comes(Trouble what) {
  if (trouble_ != what) return false;
  if (skip_ > 0) {
    --skip_;
    return false;
  }
  if (what != Trouble::full && what != Trouble::reads_fail) trouble_ = Trouble::none;
  return true;
}

void Disk::fall(Program& program) {
  if (on_death_) on_death_();
  program.is_dead = true;
}

void Disk::cut_power() {
  if (on_death_) on_death_();
  has_power_ = false;
}

bool Disk::ends(Program& program) {
  if (comes(Trouble::killed)) {
    fall(program);
    return true;
  }
  if (comes(Trouble::power_fails)) {
    cut_power();
    return true;
  }
  return false;
}

void Disk::put(Content& content, const char* data, std::size_t size, std::size_t at) {
  if (size == 0) return;
  if (content.seen.size() < at + size) content.seen.resize(at + size);
  std::memcpy(&content.seen[at], data, size);
  for (std::size_t page = at / page_bytes; page * page_bytes < at + size; ++page) content.dirty.insert(page);
}

int Disk::write(Open& file, const char* data, std::size_t size, std::size_t at) {
  Content& content = *file.content;
  if (std::exchange(content.syncs_late, false)) sync_whole(content);
  if (comes(Trouble::full)) return SQLITE_FULL;
  const bool fails = file.is_log ? comes(Trouble::log_write_fails) : world_.chance(file_trouble_ / 20);
  if (fails || ends(*file.program)) {
    put(content, data, world_.below(size + 1), at);
    return SQLITE_IOERR_WRITE;
  }
  const std::size_t lost = at + page_bytes * world_.below(1 + size / page_bytes);
  if (lie_ == Lie::log_loses_pages && file.is_log && lost + page_bytes <= at + size && world_.chance(50)) {
    put(content, data, lost - at, at);
    put(content, data + (lost + page_bytes - at), size - (lost + page_bytes - at), lost + page_bytes);
    return SQLITE_OK;
  }
  put(content, data, size, at);
  return SQLITE_OK;
}

void Disk::cut_off(Content& content) {
  if (!content.cut_off) return;
  content.platter.resize(std::min(content.platter.size(), *content.cut_off));
  content.cut_off.reset();
}

void Disk::sync_whole(Content& content) {
  cut_off(content);
  content.platter.resize(content.seen.size());
  for (const std::size_t page : content.dirty) bring(content, page, true);
  content.dirty.clear();
  content.has_name = true;
}

// If the platter's file was not cut off, what was written since beyond that lies in blocks that are not the file's.
bool Disk::may_have(const Content& content, std::size_t page) {
  return !content.cut_off || (page + 1) * page_bytes <= *content.cut_off;
}

void Disk::bring(Content& content, std::size_t page, bool all_sectors) {
  const std::size_t end = std::min({(page + 1) * page_bytes, content.seen.size(), content.platter.size()});
  for (std::size_t at = page * page_bytes; at < end; at += sector_bytes) {
    if (!all_sectors && world_.chance(500)) continue;
    std::memcpy(&content.platter[at], &content.seen[at], std::min(sector_bytes, end - at));
  }
}

int Disk::failed_sync(Content& content) {
  if (reverts_ || world_.chance(500)) cut_off(content);
  if (!content.cut_off && world_.chance(500)) {
    content.platter.resize(std::max(content.platter.size(), content.seen.size()));
  }
  const std::uint64_t which = world_.below(3);  // All, few or half of the pages are lost.
  for (const std::size_t page : content.dirty) {
    if (may_have(content, page) && !(which == 0 || world_.chance(which == 1 ? 125 : 500))) {
      bring(content, page, true);
    } else if (reverts_) {
      const std::size_t begin = page * page_bytes;
      const std::size_t end = std::min(begin + page_bytes, content.seen.size());
      for (std::size_t at = begin; at < end; ++at) {
        content.seen[at] = at < content.platter.size() ? content.platter[at] : '\0';
      }
    }
  }
  content.dirty.clear();
  return SQLITE_IOERR_FSYNC;
}

int Disk::sync(Open& file) {
  Content& content = *file.content;
  if (file.is_log && lie_ == Lie::log_is_never_synced) return SQLITE_OK;
  if (!file.is_log && lie_ == Lie::file_is_never_synced) return SQLITE_OK;
  if (file.is_log ? comes(Trouble::log_sync_fails) : world_.chance(file_trouble_)) {
    const int code = failed_sync(content);
    return lie_ == Lie::failed_syncs_worked ? SQLITE_OK : code;
  }
  const bool is_done = world_.chance(500);
  if (!ends(*file.program)) {
    if (file.is_log && lie_ == Lie::log_is_synced_late) {
      content.syncs_late = true;
    } else {
      sync_whole(content);
    }
    return SQLITE_OK;
  }
  if (!is_done) return SQLITE_IOERR_FSYNC;
  sync_whole(content);  // It is just not told, or the commit is still shown to others.
  return world_.chance(500) ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

int Disk::truncate(Open& file, std::size_t size) {
  Content& content = *file.content;
  if (size < content.seen.size()) content.cut_off = std::min(size, content.cut_off.value_or(size));
  content.seen.resize(size);
  content.dirty.erase(content.dirty.lower_bound((size + page_bytes - 1) / page_bytes), content.dirty.end());
  return SQLITE_OK;
}

void Disk::boot() {
  for (auto at = files_.begin(); at != files_.end();) {
    Content& content = *at->second;
    if (!content.maps.empty() || !content.locks.empty()) throw std::logic_error("a file is open at a power cut");
    if (!content.has_name && world_.chance(500)) {
      at = files_.erase(at);
      continue;
    }
    if (world_.chance(500)) cut_off(content);
    if (!content.cut_off && world_.chance(500)) {
      content.platter.resize(std::max(content.platter.size(), content.seen.size()));
    }
    const std::uint64_t which = world_.below(4);  // None, any or all of the dirty sectors.
    for (const std::size_t page : content.dirty) {
      if (which != 0 && may_have(content, page)) bring(content, page, which == 1);
    }
    content.dirty.clear();
    content.cut_off.reset();
    content.syncs_late = false;
    content.has_name = true;
    content.seen = content.platter;
    ++at;
  }
  has_power_ = true;
}

// --- What SQLite calls ---

struct Methods {
  using Open = Disk::Open;
  static Open& of(sqlite3_file* file) { return *std::launder(reinterpret_cast<Open*>(file)); }

  static int close(sqlite3_file* file) {
    Open& open = of(file);
    unmap(file, 0);
    open.content->locks.erase(&open);
    open.~Open();
    return SQLITE_OK;
  }
  static int read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) {
    Open& open = of(file);
    if (open.is_dead() || open.disk->comes(Disk::Trouble::reads_fail)) return SQLITE_IOERR_READ;
    const std::string& seen = open.content->seen;
    const auto at = std::min(static_cast<std::size_t>(offset), seen.size());
    const std::size_t got = std::min(static_cast<std::size_t>(size), seen.size() - at);
    std::memcpy(data, seen.data() + at, got);
    if (got == static_cast<std::size_t>(size)) return SQLITE_OK;
    std::memset(static_cast<char*>(data) + got, 0, static_cast<std::size_t>(size) - got);
    return SQLITE_IOERR_SHORT_READ;
  }
  static int write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
    Open& open = of(file);
    if (open.is_dead()) return SQLITE_IOERR_WRITE;
    return open.disk->write(open, static_cast<const char*>(data), static_cast<std::size_t>(size),
                            static_cast<std::size_t>(offset));
  }
  static int truncate(sqlite3_file* file, sqlite3_int64 size) {
    Open& open = of(file);
    return open.is_dead() ? SQLITE_IOERR_TRUNCATE : open.disk->truncate(open, static_cast<std::size_t>(size));
  }
  static int sync(sqlite3_file* file, int) {
    Open& open = of(file);
    return open.is_dead() ? SQLITE_IOERR_FSYNC : open.disk->sync(open);
  }
  static int size(sqlite3_file* file, sqlite3_int64* out) {
    *out = static_cast<sqlite3_int64>(of(file).content->seen.size());
    return SQLITE_OK;
  }

  // The locks of the file: NONE, SHARED, RESERVED, PENDING, EXCLUSIVE.
  static int lock(sqlite3_file* file, int level) {
    Open& open = of(file);
    if (open.is_dead()) return SQLITE_IOERR_LOCK;
    auto& locks = open.content->locks;
    int others = SQLITE_LOCK_NONE;
    for (const auto& [who, held] : locks) {
      if (who != &open) others = std::max(others, held);
    }
    const int most = level == SQLITE_LOCK_SHARED     ? SQLITE_LOCK_RESERVED
                     : level == SQLITE_LOCK_RESERVED ? SQLITE_LOCK_SHARED
                                                     : SQLITE_LOCK_NONE;
    if (others > most) return SQLITE_BUSY;
    locks[&open] = std::max(locks[&open], level);
    return SQLITE_OK;
  }
  static int unlock(sqlite3_file* file, int level) {
    Open& open = of(file);
    if (level == SQLITE_LOCK_NONE) {
      open.content->locks.erase(&open);
    } else {
      open.content->locks[&open] = level;
    }
    return SQLITE_OK;
  }
  static int check_reserved(sqlite3_file* file, int* out) {
    const auto& locks = of(file).content->locks;
    *out = std::ranges::any_of(locks, [](const auto& held) { return held.second >= SQLITE_LOCK_RESERVED; }) ? 1 : 0;
    return SQLITE_OK;
  }
  static int control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int sector_size(sqlite3_file*) { return static_cast<int>(page_bytes); }
  static int characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

  // The index of the log, which is memory.
  static int map(sqlite3_file* file, int region, int size, int extend, void volatile** out) {
    Open& open = of(file);
    *out = nullptr;
    if (open.is_dead()) return SQLITE_IOERR_SHMMAP;
    open.content->maps.insert(&open);
    auto& index = open.content->index;
    while (index.size() <= static_cast<std::size_t>(region)) {
      if (extend == 0) return SQLITE_OK;
      index.push_back(std::make_unique<char[]>(static_cast<std::size_t>(size)));
    }
    *out = index[static_cast<std::size_t>(region)].get();
    return SQLITE_OK;
  }
  static int lock_index(sqlite3_file* file, int first, int count, int flags) {
    Open& open = of(file);
    Disk::Content& content = *open.content;
    const unsigned bits = ((1U << static_cast<unsigned>(count)) - 1U) << static_cast<unsigned>(first);
    if ((flags & SQLITE_SHM_UNLOCK) != 0) {
      content.shared[&open] &= ~bits;
      content.exclusive[&open] &= ~bits;
      return SQLITE_OK;
    }
    if (open.is_dead()) return SQLITE_IOERR_SHMLOCK;
    const auto held_by_others = [&](const std::map<const Open*, unsigned>& held) {
      return std::ranges::any_of(held, [&](const auto& of) { return of.first != &open && (of.second & bits) != 0; });
    };
    const bool shares = (flags & SQLITE_SHM_SHARED) != 0;
    if (held_by_others(content.exclusive) || (!shares && held_by_others(content.shared))) return SQLITE_BUSY;
    (shares ? content.shared : content.exclusive)[&open] |= bits;
    return SQLITE_OK;
  }
  static void barrier(sqlite3_file*) {}
  static int unmap(sqlite3_file* file, int) {
    Open& open = of(file);
    Disk::Content& content = *open.content;
    content.shared.erase(&open);
    content.exclusive.erase(&open);
    content.maps.erase(&open);
    if (content.maps.empty()) content.index.clear();  // As SQLite does with its -shm file, at the next opening.
    return SQLITE_OK;
  }

  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
    file->pMethods = nullptr;
    if (disk == nullptr || disk->runs_ == nullptr) return SQLITE_CANTOPEN;
    if (disk->runs_->is_dead || !disk->has_power_) return SQLITE_IOERR;
    const bool is_temporary = name == nullptr;
    const std::string text = is_temporary ? std::string() : name;
    Disk::ContentPtr content;
    if (const auto found = disk->files_.find(text); !is_temporary && found != disk->files_.end()) {
      content = found->second;
    } else if (is_temporary || (flags & (SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_DB)) != 0) {
      content = std::make_shared<Disk::Content>();
      if (!is_temporary) disk->files_.emplace(text, content);
    } else {
      return SQLITE_CANTOPEN;
    }
    auto* const made = ::new (static_cast<void*>(file))
        Open{{}, disk, disk->runs_, std::move(content), (flags & SQLITE_OPEN_WAL) != 0};
    made->base.pMethods = &methods();
    if (out != nullptr) *out = flags;
    return SQLITE_OK;
  }
  static int remove(sqlite3_vfs*, const char* name, int) {
    if (disk->runs_ != nullptr && (disk->runs_->is_dead || !disk->has_power_)) return SQLITE_IOERR_DELETE;
    return disk->files_.erase(name) > 0 ? SQLITE_OK : SQLITE_IOERR_DELETE_NOENT;
  }
  static int access(sqlite3_vfs*, const char* name, int, int* out) {
    const auto found = disk->files_.find(name);
    *out = found != disk->files_.end() && !found->second->seen.empty() ? 1 : 0;
    return SQLITE_OK;
  }
  static int full_path(sqlite3_vfs*, const char* name, int size, char* out) {
    return std::snprintf(out, static_cast<std::size_t>(size), "%s", name) < size ? SQLITE_OK : SQLITE_CANTOPEN;
  }
  static int randomness(sqlite3_vfs*, int size, char* out) {
    std::memset(out, 0, static_cast<std::size_t>(size));
    return size;
  }
  static int sleep(sqlite3_vfs*, int us) { return us; }
  static int time(sqlite3_vfs*, double* out) {
    *out = 2'460'000.5;
    return SQLITE_OK;
  }
  static int precise_time(sqlite3_vfs*, sqlite3_int64* out) {
    *out = 212'544'043'200'000;
    return SQLITE_OK;
  }
  static int last_error(sqlite3_vfs*, int, char*) { return 0; }

  static const sqlite3_io_methods& methods() {
    static const sqlite3_io_methods all{.iVersion = 2,
                                        .xClose = close,
                                        .xRead = read,
                                        .xWrite = write,
                                        .xTruncate = truncate,
                                        .xSync = sync,
                                        .xFileSize = size,
                                        .xLock = lock,
                                        .xUnlock = unlock,
                                        .xCheckReservedLock = check_reserved,
                                        .xFileControl = control,
                                        .xSectorSize = sector_size,
                                        .xDeviceCharacteristics = characteristics,
                                        .xShmMap = map,
                                        .xShmLock = lock_index,
                                        .xShmBarrier = barrier,
                                        .xShmUnmap = unmap,
                                        .xFetch = nullptr,
                                        .xUnfetch = nullptr};
    return all;
  }
  static sqlite3_vfs& vfs() {
    static sqlite3_vfs made{.iVersion = 2,
                            .szOsFile = static_cast<int>(sizeof(Open)),
                            .mxPathname = 512,
                            .pNext = nullptr,
                            .zName = vfs_name,
                            .pAppData = nullptr,
                            .xOpen = open,
                            .xDelete = remove,
                            .xAccess = access,
                            .xFullPathname = full_path,
                            .xDlOpen = nullptr,
                            .xDlError = nullptr,
                            .xDlSym = nullptr,
                            .xDlClose = nullptr,
                            .xRandomness = randomness,
                            .xSleep = sleep,
                            .xCurrentTime = time,
                            .xGetLastError = last_error,
                            .xCurrentTimeInt64 = precise_time,
                            .xSetSystemCall = nullptr,
                            .xGetSystemCall = nullptr,
                            .xNextSystemCall = nullptr};
    return made;
  }
};

Disk::Disk(World& world) : world_(world) {
  if (disk != nullptr) throw std::logic_error("there is a disk already");
  static const int registered = sqlite3_vfs_register(&Methods::vfs(), 0);
  // Any but 0, from which SQLite makes what it draws (sqlite.org/c3ref/c_testctrl_always.html).
  const int seed = 1 + static_cast<int>(world_.below(1'000'000'000));
  if (registered != SQLITE_OK || sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, seed, nullptr) != SQLITE_OK) {
    throw std::runtime_error("SQLite cannot be given a disk and a seed");
  }
  disk = this;
}

Disk::~Disk() { disk = nullptr; }

std::string Disk::vfs() { return vfs_name; }

}  // namespace once::simulation
