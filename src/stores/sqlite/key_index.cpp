#include "stores/sqlite/key_index.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace once::stores::sqlite {

bool Ends::continue_from(const Known& known) const noexcept {
  if (last() < known.covered || last_deleted < known.last_deleted || indexed_to < known.indexed_to) return false;
  if (known.newest.id == 0) return true;
  return hash_of_known ? *hash_of_known == known.newest.hash : known.newest.id <= last_deleted;
}

// --- RecentKeys ---

RecentKeys::Found RecentKeys::find(std::int64_t hash) const {
  Found found;
  const std::lock_guard lock(mutex_);
  found.known = known_;
  for (const Entries* entries : {&newer_, &apart_}) {
    const auto [begin, end] = entries->equal_range(hash);
    for (auto at = begin; at != end; ++at) found.ids.push_back(at->second);
  }
  return found;
}

RecentKeys::All RecentKeys::all() const {
  All all;
  const std::lock_guard lock(mutex_);
  all.known = known_;
  all.entries.reserve(size());
  for (const Entries* entries : {&newer_, &apart_}) {
    for (const auto& [hash, id] : *entries) all.entries.push_back({hash, id});
  }
  return all;
}

void RecentKeys::add(const KeyEntry& entry) {
  const std::lock_guard lock(mutex_);
  newer_.emplace(entry.hash, entry.id);
}

void RecentKeys::take_back(std::span<const KeyEntry> added) {
  const std::lock_guard lock(mutex_);
  for (const KeyEntry& entry : added) {
    const auto [begin, end] = newer_.equal_range(entry.hash);
    const auto at = std::find_if(begin, end, [&](const auto& known) { return known.second == entry.id; });
    if (at != end) newer_.erase(at);
  }
}

void RecentKeys::extend(std::span<const KeyEntry> entries, const Ends& ends) {
  const std::lock_guard lock(mutex_);
  for (const KeyEntry& entry : entries) newer_.emplace(entry.hash, entry.id);
  known_.covered = ends.last();
  known_.last_deleted = ends.last_deleted;
  if (!entries.empty()) known_.newest = entries.back();
}

void RecentKeys::assign(std::span<const KeyEntry> entries, const Ends& ends, std::uint64_t writes) {
  Entries before;
  Entries apart_before;  // Freed without the lock.
  const std::lock_guard lock(mutex_);
  before.swap(newer_);
  apart_before.swap(apart_);
  for (const KeyEntry& entry : entries) newer_.emplace(entry.hash, entry.id);
  known_ = {.covered = ends.last(),
            .indexed_to = ends.indexed_to,
            .last_deleted = ends.last_deleted,
            .newest = entries.empty() ? KeyEntry{} : entries.back(),
            .writes = writes};
}

void RecentKeys::distrust() {
  const std::lock_guard lock(mutex_);
  known_.writes = 0;
}

void RecentKeys::committed(std::span<const KeyEntry> added) {
  const std::lock_guard lock(mutex_);
  known_.newest = added.back();
  known_.covered = known_.newest.id;
}

void RecentKeys::drop_to(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  known_.indexed_to = id;
  newer_.merge(apart_);
  std::erase_if(newer_, [&](const auto& entry) { return entry.second <= id; });
}

std::vector<KeyEntry> RecentKeys::set_apart() {
  {
    const std::lock_guard lock(mutex_);
    apart_.swap(newer_);  // It was empty: one move at a time.
    newer_.reserve(apart_.size() * 2);
  }
  std::vector<KeyEntry> all;
  all.reserve(apart_.size());
  for (const auto& [hash, id] : apart_) all.push_back({hash, id});
  std::ranges::sort(all, {}, &KeyEntry::hash);
  return all;
}

void RecentKeys::drop_apart(std::int64_t indexed_to) {
  Entries before;  // Freed without the lock.
  const std::lock_guard lock(mutex_);
  before.swap(apart_);
  known_.indexed_to = indexed_to;
}

// --- KeyIndex ---

KeyIndex::KeyIndex(Connection& connection)
    : ends_(connection,
            "SELECT (SELECT max(id) FROM records), (SELECT value FROM once_meta WHERE name = 'last_deleted'), "
            "(SELECT value FROM once_meta WHERE name = 'indexed_to'), (SELECT hash FROM records WHERE id = ?1)"),
      after_(connection, "SELECT hash, id FROM records WHERE id > ?1 ORDER BY id"),
      find_(connection, "SELECT id FROM key_index WHERE hash = ?1") {}

Ends KeyIndex::ends(const Known& known) {
  const Resetting resetting(ends_);
  ends_.bind(1, known.newest.id);
  ends_.step();
  // NULL is 0.
  Ends ends{.newest = ends_.integer(0),
            .last_deleted = ends_.integer(1),
            .indexed_to = ends_.integer(2),
            .hash_of_known = std::nullopt};
  if (ends_.type(3) != SQLITE_NULL) ends.hash_of_known = ends_.integer(3);
  return ends;
}

std::vector<KeyEntry> KeyIndex::entries_after(std::int64_t id) {
  const Resetting resetting(after_);
  after_.bind(1, id);
  std::vector<KeyEntry> entries;
  while (after_.step()) entries.push_back({.hash = after_.integer(0), .id = after_.integer(1)});
  return entries;
}

void KeyIndex::find(std::int64_t hash, std::vector<std::int64_t>& ids) {
  const Resetting resetting(find_);
  find_.bind(1, hash);
  while (find_.step()) ids.push_back(find_.integer(0));
}

// --- KeyIndexer ---

KeyIndexer::KeyIndexer(Connection& connection, RecentKeys& recent, std::size_t least)
    : index_(connection),
      dropped_(connection),
      recent_(recent),
      least_(least),
      // Other processes may have moved the same entries.
      move_(connection, "INSERT OR IGNORE INTO key_index (hash, id) VALUES (?1, ?2)"),
      move_if_there_(connection,
                     "INSERT OR IGNORE INTO key_index (hash, id) SELECT hash, id FROM records WHERE id = ?2"),
      oldest_(connection, "SELECT min(id) FROM records"),
      // The largest number to sort in memory at once.
      million_(connection, "SELECT id FROM records WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET 999999"),
      index_rows_(connection,
                  "INSERT OR IGNORE INTO key_index (hash, id) "
                  "SELECT hash, id FROM records WHERE id > ?1 AND id <= ?2 ORDER BY hash"),
      set_indexed_to_(connection, "INSERT OR REPLACE INTO once_meta (name, value) VALUES ('indexed_to', ?1)") {}

bool KeyIndexer::begin(std::uint64_t writes) {
  added_.clear();
  const Ends ends = index_.ends(recent_.known());
  const std::int64_t last = ends.last();
  constexpr std::int64_t highest =
      std::numeric_limits<std::int64_t>::max() - 1'000'000;  // Leaves room for more than a group.
  if (last > highest) {
    throw SqlError(ErrorKind::corrupt,
                   "sqlite store: a row was given the id " + std::to_string(last) + ": too few ids are left after it",
                   SQLITE_CORRUPT);
  }
  next_id_ = last + 1;
  const bool anew = !is_current_ || recent_.known().writes != writes || !ends.continue_from(recent_.known());
  if (anew) {
    is_current_ = false;
    recent_.assign(index_.entries_after(ends.indexed_to), ends, writes);
    is_current_ = true;
    moving_.clear();
    dropped_.give_up();  // An older copy put back may have the same rows again.
  } else {
    if (ends.indexed_to > recent_.known().indexed_to) {  // Another process has moved them.
      recent_.drop_to(ends.indexed_to);
      moving_.clear();
    }
    if (last > recent_.known().covered) {
      recent_.extend(index_.entries_after(std::max(recent_.known().covered, ends.indexed_to)), ends);
    }
  }
  const bool due = moving_.empty() && recent_.size() >= lot_;
  if (due) lot_ = lot();  // It may have grown.
  if (due && recent_.size() >= lot_) {
    moving_ = recent_.set_apart();
    moving_to_ = last;
    moved_ = 0;
    dropped_.begin_lot(lot_);
  }
  moved_now_ = moved_;
  return anew;
}

std::vector<std::int64_t> KeyIndexer::find(std::int64_t hash) {
  std::vector<std::int64_t> ids = recent_.find(hash).ids;
  index_.find(hash, ids);
  return ids;
}

void KeyIndexer::added(const KeyEntry& entry) {
  added_.push_back(entry);
  recent_.add(entry);
  next_id_ = entry.id + 1;
}

void KeyIndexer::move_some() {
  dropped_.go_on();
  if (moving_.empty() || added_.empty()) return;
  // Twice as fast as all processes add rows, so that this lot is moved before the next one is full. Not a few at a
  // time, because neighbours share a page. Not too many, because others wait.
  constexpr std::size_t for_each_row = 2;
  constexpr std::size_t at_least = 256;
  constexpr std::size_t at_most = 1024;
  const std::size_t left = moving_.size() - moved_;
  const auto rows = static_cast<std::size_t>(next_id_ - 1 - moving_to_);
  const std::size_t due = for_each_row * rows - std::min(moved_, for_each_row * rows);
  if (due < std::min(at_least, left)) return;
  const std::size_t now = std::min({due, at_most, left});
  const std::int64_t last_deleted = index_.ends({}).last_deleted;
  for (; moved_now_ < moved_ + now; ++moved_now_) {
    const KeyEntry& entry = moving_[moved_now_];
    // Checking that the row exists would read a random page.
    Statement& statement = entry.id > last_deleted ? move_ : move_if_there_;
    const Resetting resetting(statement);
    statement.bind(1, entry.hash);
    statement.bind(2, entry.id);
    statement.step();
  }
  if (moved_now_ == moving_.size()) set_indexed_to(moving_to_);
}

bool KeyIndexer::removes_more() {
  dropped_.begin_lot(std::max(lot_, rows() / 8));
  return dropped_.is_under_way();
}

void KeyIndexer::committed() {
  if (added_.empty()) return;
  recent_.committed(added_);
  all_added_ += added_.size();
  added_.clear();  // They are committed, so a later failure must not take them back.
  moved_ = moved_now_;
  if (moving_.empty() || moved_ < moving_.size()) return;
  recent_.drop_apart(moving_to_);
  moving_.clear();
}

void KeyIndexer::rolled_back() {
  dropped_.give_up();
  recent_.take_back(added_);
  added_.clear();
}

std::size_t KeyIndexer::lot() {
  constexpr std::size_t part = 40;    // A fortieth of the rows: about five entries for each page of the table.
  constexpr std::size_t at_most = 8;  // Times `least_`. Limits memory, and the rows to read after a kill.
  return std::clamp(rows() / part, least_, at_most * least_);
}

// Sweeps remove the oldest.
std::size_t KeyIndexer::rows() {
  const Resetting resetting(oldest_);
  oldest_.step();
  return static_cast<std::size_t>(std::max<std::int64_t>(index_.ends({}).newest - oldest_.integer(0), 0));
}

std::size_t KeyIndexer::missing() {
  const Ends ends = index_.ends({});
  return static_cast<std::size_t>(std::max<std::int64_t>(ends.newest - ends.indexed_to, 0));
}

void KeyIndexer::index_rows() {
  const Ends ends = index_.ends({});
  std::int64_t to = ends.last();
  {
    const Resetting resetting(million_);
    million_.bind(1, ends.indexed_to);
    if (million_.step()) to = million_.integer(0);
  }
  const Resetting resetting(index_rows_);
  index_rows_.bind(1, ends.indexed_to);
  index_rows_.bind(2, to);
  index_rows_.step();
  set_indexed_to(to);
}

void KeyIndexer::set_indexed_to(std::int64_t id) {
  const Resetting resetting(set_indexed_to_);
  set_indexed_to_.bind(1, id);
  set_indexed_to_.step();
}

// Hashes are spread evenly over all integers of 64 bits, so the lowest thousand tell how dense they are:
// 1. The 1024th lowest hash is at 1/500 of the way from the lowest integer to the highest.
// 2. So there are about 1023 * 500 entries.
std::uint64_t estimate_rows(Connection& connection) {
  constexpr std::int64_t sample = 1024;
  constexpr double all_hashes = 18'446'744'073'709'551'616.0;  // 2^64
  Statement hashes(connection, "SELECT hash FROM key_index ORDER BY hash LIMIT ?1");
  hashes.bind(1, sample);
  std::int64_t found = 0;
  std::int64_t highest = 0;
  for (; hashes.step(); ++found) highest = hashes.integer(0);
  auto entries = static_cast<double>(found);
  if (found == sample) {
    const auto passed = static_cast<double>(highest) - static_cast<double>(std::numeric_limits<std::int64_t>::min());
    entries = static_cast<double>(sample - 1) * (all_hashes / std::max(passed, 1.0));
  }
  // Entries without a row.
  Statement dropped(connection, "SELECT (SELECT max(n) FROM dropped_keys) - (SELECT min(n) FROM dropped_keys)");
  dropped.step();
  entries = std::max(entries - static_cast<double>(dropped.integer(0)), 0.0);
  // Rows without an entry yet are the newest. They are few, and rarely has one in their midst been removed.
  Statement newest(
      connection,
      "SELECT max(0, ifnull((SELECT max(id) FROM records), 0) - max((SELECT value FROM once_meta WHERE name "
      "= 'indexed_to'), ifnull((SELECT min(id) FROM records), 1) - 1))");
  newest.step();
  const std::uint64_t without_entry = static_cast<std::uint64_t>(newest.integer(0));
  return static_cast<std::uint64_t>(std::min(entries, all_hashes / 4)) + without_entry;
}

}  // namespace once::stores::sqlite
