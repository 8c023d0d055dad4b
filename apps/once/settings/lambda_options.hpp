// The options of `once lambda invoke`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <once/time.hpp>

namespace once::cli {

struct InvokeOptions {
  std::string program;
  std::vector<std::string> events;
  std::size_t repeat = 1;
  std::size_t concurrency = 1;
  std::size_t threads = 1;
  std::string timeout = "3s";
  std::string init_timeout = "10s";
  std::string kill_at;
  std::string freeze;
  std::vector<std::string> environment;
  std::string name = "function";
  std::string handler = "function.handler";
  std::size_t memory = 128;
  std::optional<std::string> tenant_id;
  bool json = false;
};

struct KillPlan {
  enum class Point : std::uint8_t { never, given, answering, answered, later };
  Point point = Point::never;
  Millis later{0};
  std::size_t invocation = 1;  // Which one, from 1 in the order of submission.
};

KillPlan parse_kill_plan(const std::string& text);

// The URL of the function's store in its environment. Empty: it names none.
std::string store_of_function(const InvokeOptions& options);

// Whether the function's store, if its environment names one, ends with its process.
bool store_ends_with_function(const InvokeOptions& options);

// Throw Exception(misuse).
void check_invoke_options(const InvokeOptions& options);
std::vector<std::string> read_events(const InvokeOptions& options);  // The files, and standard input.

}  // namespace once::cli
