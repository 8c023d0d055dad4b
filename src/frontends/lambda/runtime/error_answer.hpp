// The error answer of an invocation.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace once::lambda::runtime {

inline constexpr std::size_t max_type_bytes = 256;
inline constexpr std::size_t max_message_bytes = 32'768;
inline constexpr std::size_t max_trailer_message_bytes = 4'096;  // Trailers are headers, which servers limit.

// For a header or a log line: ASCII, with '?' for other characters.
std::string printable(std::string_view text, std::size_t limit);

struct ErrorAnswer {
  std::string type;
  std::string message;

  [[nodiscard]] std::string header() const { return printable(type, max_type_bytes); }
  [[nodiscard]] std::string body(std::size_t limit = max_message_bytes) const;  // JSON.
};

// Describes the current exception.
ErrorAnswer describe_exception();

}  // namespace once::lambda::runtime
