// The access log of `once proxy`: one JSON object a line. docs/proxy.md has the fields.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <once/frontends/proxy.hpp>

#include "platform/file.hpp"

namespace once::cli {

// The line for a request, with a newline at its end. Never a key, a query or a body.
std::string access_line(const proxy::Served& served);

// Written by its own thread, so that a full pipe or a slow disk blocks no request. If it cannot keep up, lines are
// dropped, and a line says how many: {"time":…,"level":"warning","event":"lines_lost","lines":3}.
class AccessLog {
 public:
  // `name`: "none", "-" for standard error, or a file to append to. Throws Exception(unavailable).
  explicit AccessLog(const std::string& name);
  ~AccessLog();  // Writes the remaining lines.
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void write(const proxy::Served& served);  // From any thread. Does not block.

  // Later lines go to `name`. The same name again creates a new file if the old one was moved away. Throws as the
  // constructor does, and then changes nothing.
  void reopen(const std::string& name);

 private:
  static Fd open(const std::string& name);
  void run();

  std::atomic<bool> on_;
  std::mutex mutex_;        // Of what follows.
  Fd sink_;                 // None if there is no log.
  std::optional<Fd> next_;  // Replaces the present one before the next write.
  std::condition_variable news_;
  std::string waiting_;
  std::uint64_t lost_ = 0;
  bool ending_ = false;
  std::jthread thread_;
};

}  // namespace once::cli
