// Writes lines to a descriptor without waiting for a reader, and without SIGPIPE.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "platform/file.hpp"

namespace once {

// Thread-safe. The descriptor must stay open as long as the sink lives.
class LineSink {
 public:
  explicit LineSink(int descriptor);

  // False: no part of it, or only a part, was written. A line of at most PIPE_BUF bytes never mixes with others' in a
  // pipe. After a part of a line, the next one begins with a newline.
  bool write(std::string_view line) noexcept;

 private:
  enum class Kind : std::uint8_t { file, pipe, socket };

  ssize_t write_some(std::string_view line) noexcept;
  ssize_t write_to_pipe(std::string_view line) noexcept;

  const int descriptor_;
  Kind kind_ = Kind::file;
  Fd own_;                         // pipe: opened again, unless that failed.
  std::atomic<bool> torn_{false};  // The last line has no end.
};

}  // namespace once
