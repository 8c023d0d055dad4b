// The log: an observer that writes a line for each event of an engine. docs/log.md has the fields and the levels.
//
//   once::Engine engine({.store = store, .observer = once::LogObserver()});
//
// A line never has a payload, a result or a key that is only known from a payload: it names the operation by its label
// (Record::label), by the digest that is its key, or else only by the key's hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <once/clock.hpp>
#include <once/engine/event.hpp>

namespace once {

// How a line looks.
enum class LogFormat : std::uint8_t {
  text,  // For people: 2026-05-17T09:30:00.250Z info claimed scope=payments key=order-17 …
  json,  // An object a line.
};

// The severities of syslog (RFC 5424, section 6.2.1) that are used: a smaller one is more severe.
enum class LogLevel : std::uint8_t {
  err = 3,      // A store failed, or work may have acted twice.
  warning = 4,  // Protection was missing or lost, or an operator must decide.
  notice = 5,   // Unusual, and taken care of: a takeover, a stored failure.
  info = 6,     // What happens to every operation.
  debug = 7,    // Renewals and steps.
};

std::string_view to_string(LogLevel level) noexcept;              // "err", "warning" …, as syslog's keywords.
std::optional<LogLevel> log_level_from_string(std::string_view);  // Empty for other words.
LogLevel level_of(EventKind kind) noexcept;                       // The level of an event's line.

// What is written, and where to.
struct LogOptions {
  LogFormat format = LogFormat::text;  // Of all lines.
  LogLevel level = LogLevel::info;     // The least severe that is written.
  // The descriptor to write to, standard error by default. It must stay open as long as the observer or a copy lives. A
  // file must have been opened for appending if others write to it.
  int descriptor = 2;
  std::shared_ptr<const Clock> clock = {};  // Empty: the host's.
};

// An Observer. Thread-safe. Copies share one log.
//
// - A line is written with one write(2) before the event's call returns, so it is there even if the process is killed
//   then. A line has at most 4096 bytes (PIPE_BUF), so lines of threads and processes never mix: longer texts are cut,
//   and end with "…".
// - It never waits for a reader: pipes, sockets and terminals are written without blocking, and files as the disk
//   allows. A line that cannot be written (a full pipe or disk, no reader) is lost. The next line that can be written
//   is then preceded by one that counts them: event lines_lost. SIGPIPE is not raised.
// - A store that fails does so with every call: of store_error, one line is written at once and then at most one each
//   30 s, with the number of those left out.
class LogObserver {
 public:
  static constexpr std::size_t max_line_bytes = 4096;  // PIPE_BUF of Linux: longer writes to a pipe may mix.

  explicit LogObserver(LogOptions options = {});       // Leaves the descriptor open when it is destroyed.
  void operator()(const Event& event) const noexcept;  // Writes the line of the event, if its level is to be written.
  [[nodiscard]] std::uint64_t lines_lost() const noexcept;  // Ever.

 private:
  class Log;
  std::shared_ptr<Log> log_;
};

}  // namespace once
