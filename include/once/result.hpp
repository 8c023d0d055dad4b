// The result of an operation: the bytes that every later caller gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <once/fingerprint.hpp>

namespace once {

// Where the bytes of a result are.
enum class Placement : std::uint8_t {
  inlined,     // In `bytes`.
  offloaded,   // At `location`, outside the store; `bytes` is empty until they are fetched.
  dropped,     // Too large to keep, and no offload: a replay gets an error, never a second run.
  compressed,  // In `bytes`, as one zstd frame. Only in a store: callers of the engine get it inlined.
  sealed,      // In `bytes`, encrypted, in a record of any state. Only in a store: see once/seal.hpp.
};

std::string_view to_string(Placement placement) noexcept;  // "inlined" …

// The bytes of a result, or where they are.
struct Result {
  std::string bytes = {};                    // Any bytes. Empty unless `placement` is inlined, compressed or sealed.
  std::string content_type = {};             // A MIME type, or empty for plain bytes. At most max_content_type_bytes.
  Placement placement = Placement::inlined;  // Says which of the other members are set.
  std::string location = {};  // offloaded: a URL that the offload port understands. At most max_location_bytes.
  std::uint64_t size = 0;     // Unless inlined: how many bytes the original has. Not used when inlined.
  Sha256 digest{};            // offloaded, dropped, compressed: the original's SHA-256. Zero when inlined.

  static constexpr std::size_t max_content_type_bytes = 255;  // Over this, check() throws.
  static constexpr std::size_t max_location_bytes = 2048;     // Over this, check() throws.

  // Moves the bytes in, whatever their size.
  static Result inlined(std::string bytes, std::string content_type = {}) {
    Result result;
    result.bytes = std::move(bytes);
    result.content_type = std::move(content_type);
    return result;
  }

  friend bool operator==(const Result&, const Result&) = default;
};

// Throws Exception(misuse) if the content type or the location is too long.
void check(const Result& result);

// A failure, stored for replay.
struct Failure {
  std::string code = {};     // Short and for programs: an exception's type, an exit code. At most 255 bytes, UTF-8.
  std::string message = {};  // For people. UTF-8, cut to 4096 bytes.

  static constexpr std::size_t max_code_bytes = 255;      // A longer code is cut.
  static constexpr std::size_t max_message_bytes = 4096;  // A longer message is cut.

  friend bool operator==(const Failure&, const Failure&) = default;
};

}  // namespace once
