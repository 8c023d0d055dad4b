#include "settings/lambda_options.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include <once/frontends/lambda/invocation.hpp>

#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/read_input.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

constexpr std::size_t max_environments = 256;
constexpr std::size_t max_lambda_threads = 1600;
constexpr std::size_t max_invocations = 1'000'000;

std::size_t parse_count(std::string_view text, std::string_view what) {
  const std::size_t count = text::parse_whole<std::size_t>(text).value_or(0);
  if (count == 0) {
    misuse(std::string(what) + " must be a whole number of at least 1, not '" + escaped(text) + "'");
  }
  return count;
}

// AWS Lambda API reference, TenantId.
bool is_tenant_id(std::string_view id) {
  return !id.empty() && id.size() <= 256 && std::ranges::all_of(id, [](char c) {
    return text::is_letter_or_digit(c) || std::string_view("._:/=+-@ ").find(c) != std::string_view::npos;
  });
}

}  // namespace

KillPlan parse_kill_plan(const std::string& text) {
  KillPlan plan;
  if (text.empty()) return plan;
  const auto at = text.find('@');
  const std::string point = text.substr(0, at);
  if (at != std::string::npos) plan.invocation = parse_count(text.substr(at + 1), "--kill-at: what follows @");
  if (point == "given") {
    plan.point = KillPlan::Point::given;
  } else if (point == "answering") {
    plan.point = KillPlan::Point::answering;
  } else if (point == "answered") {
    plan.point = KillPlan::Point::answered;
  } else if (!point.empty() && point[0] >= '0' && point[0] <= '9') {
    plan.point = KillPlan::Point::later;
    plan.later = parse_duration(point, "--kill-at");
  } else {
    misuse("--kill-at must be given, answering, answered or a duration, not '" + escaped(point) + "'");
  }
  return plan;
}

std::string store_of_function(const InvokeOptions& options) {
  constexpr std::string_view name = "ONCE_STORE=";
  const char* const inherited = std::getenv("ONCE_STORE");  // NOLINT(concurrency-mt-unsafe): nothing sets it.
  std::string_view store = inherited == nullptr ? "" : inherited;
  for (const std::string_view variable : options.environment) {
    if (variable.starts_with(name)) store = variable.substr(name.size());
  }
  return std::string(store);
}

bool store_ends_with_function(const InvokeOptions& options) {
  return store_of_function(options).starts_with("memory:");
}

void check_invoke_options(const InvokeOptions& options) {
  const auto in_range = [](std::string_view what, std::size_t value, std::size_t most) {
    if (value < 1 || value > most) misuse(std::string(what) + " must be from 1 to " + std::to_string(most));
  };
  in_range("--concurrency", options.concurrency, max_environments);
  in_range("--threads", options.threads, max_lambda_threads);
  in_range("--repeat", options.repeat, max_invocations / std::max<std::size_t>(options.events.size(), 1));
  const Millis timeout = parse_duration(options.timeout, "--timeout");
  if (timeout < Millis{1} || timeout > std::chrono::hours(24)) misuse("--timeout must be from 1ms to 24h");
  if (parse_duration(options.init_timeout, "--init-timeout") < Millis{1}) misuse("--init-timeout must be at least 1ms");
  if (options.tenant_id && !is_tenant_id(*options.tenant_id)) {
    misuse("--tenant-id must have 1 to 256 letters, digits, blanks and ._:/=+-@, and is '" +
           escaped(*options.tenant_id) + "'");
  }
  if (!options.freeze.empty() && options.threads > 1) {
    misuse("--freeze needs one invocation at a time, so it does not work with --threads");
  }
  if (std::count(options.events.begin(), options.events.end(), "-") > 1)
    misuse("only one event can come from standard input");
  for (const std::string& variable : options.environment) {
    const auto equals = variable.find('=');
    if (equals == 0 || equals == std::string::npos) {
      misuse("--env must be NAME=VALUE, not '" + escaped(variable) + "'");
    }
  }
}

std::vector<std::string> read_events(const InvokeOptions& options) {
  std::vector<std::string> events;
  for (const std::string& name : options.events) {
    std::string event = read_input(name, lambda::max_event_bytes);
    if (event.size() > lambda::max_event_bytes) {
      misuse("'" + escaped(name) + "' is larger than 6 MiB, Lambda's limit for an event");
    }
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace once::cli
