// A server of the Model Context Protocol, as a process below a guard: process/guard.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/time.hpp>

#include "platform/file.hpp"
#include "process/signals.hpp"

namespace once::cli {

// Its standard input and output are pipes, and do not block. Its standard error is ours. If `once` is killed, so are
// the server and what it has started.
class McpServer {
 public:
  // Throws Exception: unavailable, if the system has no process or pipe for it.
  McpServer(const std::vector<std::string>& command, const Signals& signals);
  McpServer(const McpServer&) = delete;
  McpServer& operator=(const McpServer&) = delete;
  ~McpServer();  // Kills it, if it runs.

  [[nodiscard]] int input() const noexcept { return input_.get(); }    // To write to; -1: closed.
  [[nodiscard]] int output() const noexcept { return output_.get(); }  // To read from; -1: closed.
  [[nodiscard]] int reports() const noexcept {
    return has_ended_ ? -1 : guard_.get();
  }  // Readable: call read_report().

  void read_report();
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_; }
  [[nodiscard]] int start_error() const noexcept { return start_error_; }  // errno, if it could not be executed.
  [[nodiscard]] std::string how() const;                                   // "the server ended with exit code 1".
  [[nodiscard]] int exit_code() const noexcept;                            // As shells have it.

  void close_input() { input_.reset(); }
  void close_output() { output_.reset(); }
  void end(Millis within);  // SIGTERM, and SIGKILL after this time.

 private:
  Fd input_;
  Fd output_;
  Fd guard_;
  pid_t guard_process_ = -1;
  bool has_ended_ = false;
  int start_error_ = 0;
  std::optional<int> status_;  // As of wait(2). Empty: its guard was killed.
};

}  // namespace once::cli
