// Moves the records of a store that is in use to another store, of any kinds that have a gate (once/gate.hpp), so that
// no key can run in both. `once copy` uses it. docs/decisions/moving.md argues why it is safe.
//
// 1. The target, which must be empty, is marked `filling`: it takes no claim.
// 2. The source is marked `draining`: no operation begins there now; those that run renew their claims and finish.
// 3. When no live claim is left, the source is `closed`: nothing changes there from then on. It goes on replaying.
// 4. Every record is copied as it is, then read back and compared.
// 5. The target is marked `filled`, and takes claims.
//
// Both marks name the move by 128 random bits, and each step depends on the mark that it found. So the process may die
// at any point, or several may do it at once: the next call of move_records() goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <once/clock.hpp>
#include <once/gate.hpp>
#include <once/record.hpp>
#include <once/store.hpp>

namespace once {

// What move_records() is doing, for people.
enum class MoveStep : std::uint8_t {
  counting,   // Reads the source, as plan_move() does.
  draining,   // Waits until no claim is live in the source.
  copying,    // Writes the records into the target.
  comparing,  // Reads the target again.
};

// For plan_move() and move_records().
struct MoveOptions {
  // How long to wait for live claims to end. The move stays as it is then: call it again, or undo_move().
  Millis wait{600'000};
  // Waits so long, outside any transaction. Not null.
  std::function<void(Millis)> pause = {};
  // Called often. `done`: records; draining: live claims that are left. May be null.
  std::function<void(MoveStep step, std::uint64_t done)> progress = {};
  std::shared_ptr<Clock> clock = {};    // This host's, for a store that does not tell its time. Not null.
  std::shared_ptr<Random> random = {};  // Names the move. Not null.
};

// What is in the source, and whether it can be moved.
struct MovePlan {
  GateMark from = {};         // The source's mark.
  GateMark to = {};           // The target's mark.
  std::uint64_t records = 0;  // In the source. 0 for a move that is over.
  std::uint64_t bytes = 0;    // record_bytes() of all.
  std::uint64_t live = 0;     // Claims with a live lease, for which a move waits.
  Millis clocks_apart{0};     // How far the target's time is ahead of the source's. Negative: behind.
};

// What move_records() has done.
struct Moved {
  // Whether the move is over.
  enum class Kind : std::uint8_t {
    moved,    // The source is closed, the target takes claims.
    was,      // This move was over before: nothing was done.
    running,  // Live claims are left after MoveOptions::wait. The source is draining.
  };
  Kind kind = Kind::moved;        // Only `running` needs another call.
  std::uint64_t records = 0;      // moved: copied and compared. running: in the source. was: 0.
  std::uint64_t bytes = 0;        // record_bytes() of these.
  std::vector<Record> live = {};  // running: some of them.
  std::uint64_t live_count = 0;   // running: how many claims are live.
};

// Two stores whose clocks are further apart are not moved.
inline constexpr Millis most_clocks_apart{60'000};

// Reads all of the source, and changes nothing. Blocks. Throws Exception as move_records() does.
MovePlan plan_move(Store& from, Store& to, const MoveOptions& options);

// Blocks, perhaps for hours. Throws Exception: misuse if a store has no gate, is in another move, or if the target is
// not empty or cannot keep a record; corrupt if a record cannot be read, or is another one in the target; otherwise as
// the stores do. Nothing of it lets a key run twice: call it again.
Moved move_records(Store& from, Store& to, const MoveOptions& options);

// Ends a move before it is over: the source takes claims again. If it was closed already, the target is closed for
// good, as it may hold records. Blocks. Throws Exception: misuse if the move is over, or there is none.
void undo_move(Store& from, Store& to);

}  // namespace once
