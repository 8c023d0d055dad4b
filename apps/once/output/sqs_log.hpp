// The lines of `once sqs`.
#pragma once

#include <optional>
#include <string_view>

#include <once/engine/log.hpp>
#include <once/frontends/sqs/poller.hpp>
#include <once/time.hpp>

namespace once::cli {

// What became of messages: everything as JSON, or only what needs attention as text.
class SqsLog {
 public:
  // No options: no log.
  SqsLog(const std::optional<LogOptions>& options, bool verbose, Millis visibility);

  void operator()(const sqs::PollEvent& event) const;
  void note(std::string_view text) const;

 private:
  const bool on_;
  const bool json_;
  const LogLevel level_;
  const bool verbose_;
  const Millis visibility_;
};

}  // namespace once::cli
