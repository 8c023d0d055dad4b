// The record: everything a store keeps about one operation. A store writes and reads it whole and decides nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/result.hpp>
#include <once/time.hpp>

namespace once {

// Expired is derived from expires_at and never stored. The numbers are stored; never renumber them.
enum class State : std::uint8_t {
  in_progress = 0,  // Claimed: somebody runs it, or did and lapsed.
  completed = 1,    // Has a result, which is replayed.
  failed = 2,       // Has a failure, which is replayed.
  unknown = 3,      // Was started, outcome not known: only a decision by a person or a callback ends it.
};

std::string_view to_string(State state) noexcept;               // "in_progress" …
std::optional<State> state_from_string(std::string_view name);  // Empty for other words.

// 128 random bits, new for every claim. All zero means nobody.
struct Owner {
  std::array<std::uint8_t, 16> bytes{};

  [[nodiscard]] std::string hex() const;                       // 32 lower-case digits.
  static std::optional<Owner> from_hex(std::string_view hex);  // Empty unless 32 hexadecimal digits.

  friend bool operator==(const Owner&, const Owner&) = default;
};

// A finished part of an operation. Kept in the record, so that a takeover resumes after it.
struct Step {
  std::string name;    // 1 to max_name_bytes bytes, unique in its record.
  std::string result;  // Any bytes.

  static constexpr std::size_t max_name_bytes = 255;

  friend bool operator==(const Step&, const Step&) = default;
};

struct Record {
  std::string key;  // Key::stored(): 1 to max_key_bytes bytes, any values.
  State state = State::in_progress;

  Owner owner;                 // Who holds it, or held it last.
  std::uint64_t token = 0;     // Fencing token: only grows for a key, across deletion and expiry too. At most 2^63 - 1.
  std::uint32_t attempt = 0;   // How often the operation was claimed, from 1.
  std::uint64_t revision = 0;  // Grows by one with every write. No two writes by one owner have the same. From 1, at
                               // most 2^63 - 1.

  Time
      lease_until{};  // in_progress: until when the claim is respected. The epoch itself: released, anyone may take it.
  Time expires_at = never;
  Time created_at{};   // When the first claim of this record was made.
  Time finished_at{};  // completed, failed, unknown: when. Otherwise the epoch.

  Fingerprint fingerprint;

  std::string holder;  // Free text for people: host, pid, function, request id. At most max_text_bytes, UTF-8.
  std::string note;    // Free text for people: the last heartbeat's note, or an operator's reason for the last change.

  std::vector<Step> steps;  // In the order they finished.

  Result result;    // completed: what is replayed. failed: bytes that belong to the failure, often none.
  Failure failure;  // failed: what is replayed. unknown: why it is not known.

  static constexpr std::size_t max_text_bytes = 1024;

  friend bool operator==(const Record&, const Record&) = default;
};

// An in_progress record that was given up: the next attempt takes it over, whatever its policy for lapsed leases.
inline bool is_released(const Record& record) noexcept {
  return record.state == State::in_progress && record.lease_until == Time{};
}

// A record as it is handed around: shared between whoever needs it, and changed by nobody. Null: there is none.
using RecordPtr = std::shared_ptr<const Record>;

inline RecordPtr share(Record record) { return std::make_shared<const Record>(std::move(record)); }

// To keep and change.
inline std::optional<Record> copy_of(const RecordPtr& record) {
  return record == nullptr ? std::nullopt : std::optional(*record);
}

}  // namespace once
