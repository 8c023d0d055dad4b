#include <once/frontends/lambda/metrics.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/system.hpp>

#include "engine/event_metrics.hpp"
#include "engine/invocation_end.hpp"
#include "frontends/lambda/handler/function.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"
#include "platform/line_sink.hpp"
#include "text/json_write.hpp"

namespace once::lambda {

namespace {

constexpr std::size_t most_values = 100;  // Of one metric in a document.
constexpr std::size_t most_scopes = 100;
constexpr std::size_t most_text = 255;

bool fits_cloudwatch(std::string_view text) {
  return !text.empty() && text.size() <= most_text && text.front() != ':' &&
         text.find_first_not_of(' ') != std::string_view::npos &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void require_fit(const std::string& option, const std::string& text) {
  if (fits_cloudwatch(text)) return;
  throw Exception(ErrorKind::misuse, "lambda::EmbeddedMetricsOptions::" + option +
                                         " must be 1 to 255 characters of printable ASCII, and not begin with ':'");
}

EmbeddedMetricsOptions checked(EmbeddedMetricsOptions options) {
  if (options.function.empty()) options.function = Environment::of_process().function_name;
  if (options.function.empty()) {
    throw Exception(ErrorKind::misuse,
                    "lambda::EmbeddedMetricsOptions::function is empty, and AWS_LAMBDA_FUNCTION_NAME is not set: name "
                    "the function whose metrics these are");
  }
  require_fit("function", options.function);
  require_fit("cloudwatch_namespace", options.cloudwatch_namespace);
  if (options.cloudwatch_namespace.starts_with("AWS/")) {
    throw Exception(ErrorKind::misuse,
                    "lambda::EmbeddedMetricsOptions::cloudwatch_namespace must not begin with AWS/: those are AWS's");
  }
  if (!options.service.empty()) require_fit("service", options.service);
  if (options.max_scopes > most_scopes) {
    throw Exception(ErrorKind::misuse, "lambda::EmbeddedMetricsOptions::max_scopes must be at most 100");
  }
  if (!options.write) {
    auto sink = std::make_shared<LineSink>(STDOUT_FILENO);
    options.write = [sink](std::string_view line) { return sink->write(line); };
  }
  if (options.clock == nullptr) options.clock = system_clock();
  return options;
}

// The counter that the event is in; empty: only in durations. A line can have one value of a dimension, so outcomes are
// a part of the name.
std::string counter_of(const Event& event) {
  using namespace event_metrics;
  const auto with = [](std::string_view name, std::string_view value) {
    return std::string(name).append("_").append(value);
  };
  if (event.kind == EventKind::store_error) return std::string(store_errors);
  if (is_stored_failure(event)) return with(operations, stored_failure);
  if (is_one_of(claim_kinds, event.kind)) return std::string(claims);
  if (is_one_of(ends, event.kind)) return with(operations, to_string(event.kind));
  if (is_one_of(questions, event.kind)) return with(reconcile, to_string(event.kind));
  const auto* const single = std::ranges::find(singles, event.kind, &Single::kind);
  return single == singles.end() ? std::string() : std::string(single->name);
}

bool waits_for_another(EventKind kind) {
  return kind == EventKind::step_recorded || kind == EventKind::renewed || kind == EventKind::work_done;
}

using Durations = std::vector<std::chrono::nanoseconds>;

std::string seconds(std::chrono::nanoseconds took) {
  constexpr std::uint64_t second = 1'000'000'000;
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 0));
  std::string fraction = std::to_string(second + ns % second);
  fraction.front() = '.';
  return std::to_string(ns / second) + fraction;
}

std::string array_of(const Durations& durations) {
  std::string out;
  for (const std::chrono::nanoseconds took : durations) out.append(out.empty() ? "[" : ",").append(seconds(took));
  return out + "]";
}

// What happened since the last line, in one scope or in all that have none of their own.
struct Row {
  std::map<std::string, std::uint64_t> counters;
  std::map<std::string_view, Durations> durations;

  void count(const Event& event) {
    if (std::string name = counter_of(event); !name.empty()) ++counters[std::move(name)];
    if (event.kind == EventKind::work_done) add(event_metrics::work_duration, event.took);
    if (!event.coalesced && event_metrics::is_one_of(event_metrics::begins, event.kind)) {
      add(event_metrics::begin_duration, event.took);
    }
  }
  [[nodiscard]] bool is_full() const {
    return std::ranges::any_of(durations, [](const auto& one) { return one.second.size() == most_values; });
  }
  [[nodiscard]] bool is_empty() const { return counters.empty() && durations.empty(); }

 private:
  void add(std::string_view name, std::chrono::nanoseconds took) {
    Durations& values = durations[name];
    if (values.size() < most_values) values.push_back(took);  // Full, if the last line was not taken.
  }
};

// {"_aws":{"Timestamp":...,"CloudWatchMetrics":[{"Namespace":"once","Dimensions":[["FunctionName"]],
//   "Metrics":[{"Name":"once_claims_total","Unit":"Count"}]}]},"FunctionName":"pay","once_claims_total":1}
std::string document(const EmbeddedMetricsOptions& options, const std::string& scope, const Row& row) {
  std::string definitions;
  std::string targets;
  const auto add_metric = [&](std::string_view name, std::string_view unit, std::string_view value) {
    definitions.append(definitions.empty() ? "" : ",").append(R"({"Name":")").append(name);
    definitions.append(R"(","Unit":")").append(unit).append("\"}");
    targets.append(",\"").append(name).append("\":").append(value);
  };
  for (const auto& [name, count] : row.counters) add_metric(name, "Count", std::to_string(count));
  for (const auto& [name, values] : row.durations) add_metric(name, "Seconds", array_of(values));

  std::string out = R"({"_aws":{"Timestamp":)" + std::to_string(options.clock->now().time_since_epoch().count()) +
                    R"(,"CloudWatchMetrics":[{"Namespace":)";
  text::json::append_quoted(out, options.cloudwatch_namespace);
  out += R"(,"Dimensions":[["FunctionName"])";
  if (!options.service.empty()) out += R"(,["service"])";
  if (!scope.empty()) out += R"(,["FunctionName","scope"])";
  out.append(R"(],"Metrics":[)").append(definitions).append("]}]}");
  const auto add_dimension = [&](std::string_view name, const std::string& value) {
    if (value.empty()) return;
    out.append(",\"").append(name).append("\":");
    text::json::append_quoted(out, value);
  };
  add_dimension("FunctionName", options.function);
  add_dimension("service", options.service);
  add_dimension("scope", scope);
  return out.append(targets).append("}\n");
}

}  // namespace

class EmbeddedMetrics::Book final : public AtInvocationEnd {
 public:
  explicit Book(EmbeddedMetricsOptions options) : options_(checked(std::move(options))) { enter(); }
  Book(const Book&) = delete;
  Book& operator=(const Book&) = delete;
  ~Book() override {
    remove();
    flush();
  }

  void observe(const Event& event) {
    const bool in_invocation = InvocationSpan::any_runs();
    const std::lock_guard lock(mutex_);
    Row& row = rows_[scope_of(event.key)];
    row.count(event);
    const bool begins_work = event_metrics::is_one_of(event_metrics::claim_kinds, event.kind);
    if (begins_work || row.is_full() || (!in_invocation && !waits_for_another(event.kind))) write_rows();
  }

  void flush() noexcept {
    try {
      const std::lock_guard lock(mutex_);
      write_rows();
    } catch (...) {  // Out of memory: the counts are still there, for the next line.
    }
  }

 private:
  void invocation_ended(Time /*deadline*/) noexcept override { flush(); }

  // Of the row; empty: that of the function alone.
  std::string scope_of(std::string_view key) {
    const std::size_t end = key.find('#');
    if (options_.max_scopes == 0 || end == std::string_view::npos || end == 0) return {};
    std::string scope = Key::from_stored(key).scope();
    if (!fits_cloudwatch(scope)) return {};
    if (!scopes_.contains(scope)) {
      if (scopes_.size() == options_.max_scopes) return {};
      scopes_.insert(scope);
    }
    return scope;
  }

  void write_rows() {
    std::erase_if(rows_, [&](const auto& row) {
      return row.second.is_empty() || options_.write(document(options_, row.first, row.second));
    });
  }

  const EmbeddedMetricsOptions options_;
  std::mutex mutex_;  // Of what follows.
  std::map<std::string, Row> rows_;
  std::set<std::string> scopes_;  // Those with a dimension of their own.
};

EmbeddedMetrics::EmbeddedMetrics(EmbeddedMetricsOptions options) : book_(std::make_shared<Book>(std::move(options))) {}

void EmbeddedMetrics::operator()(const Event& event) const noexcept {
  try {
    book_->observe(event);
  } catch (...) {  // Out of memory: an observer must not throw.
  }
}

void EmbeddedMetrics::flush() const noexcept { book_->flush(); }

Observer metrics_from_environment(const std::function<void(std::string_view)>& tell) {
  const char* const value = std::getenv("ONCE_METRICS");  // NOLINT(concurrency-mt-unsafe): the header says so.
  const std::string_view word = value == nullptr ? "" : value;
  if (word.empty() || word == "off") return {};
  if (word != "emf") {
    throw Exception(ErrorKind::misuse, "ONCE_METRICS=" + std::string(word) +
                                           " is not known: emf writes metrics for CloudWatch, off (or leaving it out) "
                                           "writes none");
  }
  EmbeddedMetrics metrics;
  tell("ONCE_METRICS=emf");
  return metrics;
}

}  // namespace once::lambda
