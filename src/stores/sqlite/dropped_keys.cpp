#include "stores/sqlite/dropped_keys.hpp"

#include <algorithm>

namespace once::stores::sqlite {

namespace {

constexpr std::int64_t most_for_least = 16;  // Limits memory.
constexpr std::int64_t step_rows = 4096;     // Neighbours, of dropped_keys.
constexpr std::size_t step_entries = 1024;   // Of key_index.

// Of signed hashes, the lowest first.
std::size_t part_of(std::int64_t hash) noexcept {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63U;
  return static_cast<std::size_t>((static_cast<std::uint64_t>(hash) ^ sign) >> 56U);
}

}  // namespace

DroppedKeys::DroppedKeys(Connection& connection)
    : ends_(connection, "SELECT (SELECT min(n) FROM dropped_keys), (SELECT max(n) FROM dropped_keys)"),
      read_(connection, "SELECT n, hash, id FROM dropped_keys WHERE n > ?1 AND n <= ?2 ORDER BY n LIMIT ?3"),
      remove_(connection, "DELETE FROM key_index WHERE hash = ?1 AND id = ?2"),
      forget_(connection, "DELETE FROM dropped_keys WHERE n <= ?1") {}

void DroppedKeys::begin_lot(std::size_t least) {
  if (is_under_way()) return;
  const Resetting resetting(ends_);
  ends_.step();
  const std::int64_t first = ends_.integer(0);
  // The newest stays, so that no number is given twice: another process may be about to forget those of its own lot.
  const std::int64_t last = ends_.integer(1) - 1;
  if (last - first < static_cast<std::int64_t>(least)) return;
  first_ = first;
  last_ = std::min(last, first + most_for_least * static_cast<std::int64_t>(least));
  done_ = first - 1;
  part_ = at_ = 0;
  stage_ = Stage::reading;
}

void DroppedKeys::go_on() {
  switch (stage_) {
    case Stage::none:
      return;
    case Stage::reading:
      return read_some();
    case Stage::removing:
      return remove_some();
    case Stage::forgetting:
      return forget_some();
  }
}

void DroppedKeys::give_up() {
  stage_ = Stage::none;
  for (std::vector<KeyEntry>& part : parts_) part = {};
}

void DroppedKeys::read_some() {
  const Resetting resetting(read_);
  read_.bind(1, done_);
  read_.bind(2, last_);
  read_.bind(3, step_rows);
  std::int64_t count = 0;
  for (; read_.step(); ++count) {
    done_ = read_.integer(0);
    const KeyEntry entry{.hash = read_.integer(1), .id = read_.integer(2)};
    parts_.at(part_of(entry.hash)).push_back(entry);
  }
  if (count == step_rows) return;
  stage_ = Stage::removing;
}

void DroppedKeys::remove_some() {
  for (std::size_t count = 0; part_ < parts_.size(); ++part_, at_ = 0) {
    std::vector<KeyEntry>& part = parts_.at(part_);
    if (at_ == 0) std::ranges::sort(part, {}, &KeyEntry::hash);
    for (; at_ < part.size(); ++at_, ++count) {
      if (count == step_entries) return;
      const Resetting resetting(remove_);
      remove_.bind(1, part[at_].hash);
      remove_.bind(2, part[at_].id);
      remove_.step();
    }
    part = {};
  }
  done_ = first_ - 1;
  stage_ = Stage::forgetting;
}

void DroppedKeys::forget_some() {
  const Resetting resetting(forget_);
  done_ = std::min(done_ + step_rows, last_);
  forget_.bind(1, done_);
  forget_.step();
  if (done_ == last_) stage_ = Stage::none;
}

}  // namespace once::stores::sqlite
