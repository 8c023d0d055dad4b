// The report of `once lambda invoke` about its invocations.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <once/frontends/lambda/local_api.hpp>
#include <once/time.hpp>

namespace once::cli {

// One ended invocation. `word`: response, error, timed_out, died or killed.
struct LambdaEnd {
  std::string_view word;
  const std::string& event;  // The file's name.
  std::size_t environment;   // From 0.
  bool cold;                 // The first one of its process.
  const lambda::InvocationOutcome& outcome;
};

class LambdaReport {
 public:
  LambdaReport(bool json, Millis timeout) : json_(json), timeout_(timeout) {}

  int show(const LambdaEnd& end);  // exit_ok, or the exit code of a failed write.

  // To standard error, if there was more than one invocation.
  void sum_up(std::size_t starts, Millis took) const;
  [[nodiscard]] int exit_code() const;

 private:
  [[nodiscard]] int show_json(const LambdaEnd& end) const;

  const bool json_;
  const Millis timeout_;
  std::size_t responses_ = 0;
  std::size_t errors_ = 0;
  std::size_t deaths_ = 0;
  std::size_t timeouts_ = 0;
  std::size_t kills_ = 0;
};

}  // namespace once::cli
