// Records for tests: plain, full, at the edges; and descriptions of their differences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <once/record.hpp>
#include <once/store.hpp>
#include <once/testing/manual_time.hpp>

namespace once::testing {

// The owner whose bytes are all `byte`.
Owner owner_of(std::uint8_t byte) noexcept;

// The revision of a record that was written `count` times, with random bits of 0.
std::uint64_t revision_of(std::uint64_t count) noexcept;

// In progress since manual_start: owner_of(1), attempt 1, revision_of(1), lease 30 s, retention one day. The rest is
// empty.
Record plain_record(std::string key);

// Every field has a different value that is not its default. Fields that Result forbids for the placement are empty.
Record full_record(std::string key, State state = State::failed, Placement placement = Placement::inlined);

// Every field drawn from its edges: empty, longest, NUL, 0xFF, largest, the epoch, never. `largest_result_bytes` limits
// the longest ones.
Record edge_record(std::string key, SeededRandom& random, std::size_t largest_result_bytes = 4096);

// What the next conditional write over the record must name.
Seen seen_of(const Record& record, std::uint64_t place = 0) noexcept;

// The fields that differ, one per line, with both values. Empty if the records are equal. Long values are cut.
std::string differences(const Record& expected, const Record& got);
// The same where one of them may be missing.
std::string differences(const std::optional<Record>& expected, const std::optional<Record>& got);

std::string describe(const Record& record);  // One line: key, state, owner, revision and the like.
std::string describe(const Answer& answer);  // One line.

// Bytes for people: printable ASCII unchanged, other bytes as \x01. Cut after `most` bytes, with the length added.
std::string quote(std::string_view bytes, std::size_t most = 48);

}  // namespace once::testing
