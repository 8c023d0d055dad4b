// Entries of key_index whose rows were deleted. An entry without a row does no harm, as it only names a candidate; but
// to remove each with its row would change a random page for it. So a trigger notes them in the table dropped_keys,
// and when there are many, they are removed in the order of their hashes: then one changed page loses several.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

struct KeyEntry {
  std::int64_t hash = 0;
  std::int64_t id = 0;
};

// The removal of one lot after another, in steps of at most some milliseconds. Several processes may be at it: what one
// has removed is not there for the other. Call it inside write transactions. Throws SqlError.
class DroppedKeys {
 public:
  explicit DroppedKeys(Connection& connection);

  // Begins a lot, of at most 16 times as many, if `least` wait and none is under way.
  void begin_lot(std::size_t least);
  [[nodiscard]] bool is_under_way() const noexcept { return stage_ != Stage::none; }
  void go_on();  // One step.
  void
  give_up();  // Forgets what was read of the lot: call it if a step was rolled back, or the file's content changed.

 private:
  enum class Stage : std::uint8_t { none, reading, removing, forgetting };

  void read_some();
  void remove_some();
  void forget_some();

  Stage stage_ = Stage::none;
  std::int64_t first_ = 0;  // The numbers of the lot begin here …
  std::int64_t last_ = 0;   // … end here …
  std::int64_t done_ = 0;   // … and were read, or forgotten, up to here.
  // By the first byte of their hashes, in the order of the table: sorting all at once would hold up a writer.
  std::array<std::vector<KeyEntry>, 256> parts_;
  std::size_t part_ = 0;  // What was removed: the parts before this one …
  std::size_t at_ = 0;    // … and so many of this one.
  Statement ends_;
  Statement read_;
  Statement remove_;
  Statement forget_;
};

}  // namespace once::stores::sqlite
