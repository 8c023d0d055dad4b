// Failures have a kind. The text says what went wrong; the kind says what the caller can do about it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <once/compiler.hpp>

namespace once {

// What the caller can do about a failure.
enum class ErrorKind : std::uint8_t {
  unavailable,  // Nothing was written. Trying again later may work.
  in_doubt,     // The write may have happened. Write again under the same condition, or read.
  corrupt,      // The stored bytes cannot be read. An operator must look; trying again does not help.
  misuse,       // The call itself is wrong (too large, malformed, unknown option). Change the call.
};

// "unavailable", "in_doubt", "corrupt", "misuse".
std::string_view to_string(ErrorKind kind) noexcept;

// A failure as a value: stores and the asynchronous interface return these.
struct Error {
  ErrorKind kind = ErrorKind::unavailable;  // What the caller can do about it.
  std::string message = {};                 // For people: what failed and what to do next. UTF-8, no trailing newline.

  friend bool operator==(const Error&, const Error&) = default;
};

// A failure as an exception: the blocking interface throws these, and every exception of the library derives from it.
class Exception : public std::runtime_error {
 public:
  // what() is the error's message.
  explicit Exception(Error error) : std::runtime_error(error.message), kind_(error.kind) {}
  // The same from its parts.
  Exception(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }  // What the caller can do about it.
  [[nodiscard]] Error error() const { return {kind_, what()}; }    // A copy, as a value.

 private:
  ErrorKind kind_;
};

}  // namespace once
