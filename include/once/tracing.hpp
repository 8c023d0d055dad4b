// Sends spans to an OpenTelemetry collector: OTLP over HTTP, in JSON. docs/traces.md has the variables and the names.
//
//   const once::Tracing tracing;
//   once::Engine engine({.store = store, .tracer = tracing.tracer()});
//
// Spans wait in a bounded queue and are sent by one background thread. A collector that is down, slow or full never
// delays a call: its spans are sent again for a while, then dropped and counted.
//
// On AWS Lambda, spans are sent before the invocation's answer is given, because the platform freezes the process then:
// for invocations of once::lambda::run() and of handlers made by once. The answer waits for the collector for up to
// 500 ms, and at most half of the time that is left. After a wait in vain the next answers do not wait, until the
// collector has taken spans again.
//
// In the child of a fork an inherited one sends nothing: its spans are dropped and counted. Make another there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/engine/tracer.hpp>
#include <once/time.hpp>

namespace once {

// What Tracing needs besides the variables of its environment.
struct TracingOptions {
  // A variable's value; empty if it is not set. Empty: the process's environment.
  std::function<std::optional<std::string>(const std::string& name)> environment = {};
  std::string service_name = "once";  // Unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say another.
  // These are as in TracerOptions.
  SpanKind call_kind = SpanKind::internal;
  SpanKind work_kind = SpanKind::internal;
  std::string store = {};
  bool scopes = true;
  std::function<TracePtr()> current = {};

  // Told why spans were dropped, at most once a minute, from the background thread. Must not throw.
  std::function<void(std::string_view)> warn = {};
  Millis first_retry{1'000};  // Doubled with each try, up to 30 s. After five tries a batch is dropped.
};

// Copies share one queue. Thread-safe.
class Tracing {
 public:
  // Since the exporter was made. Both are 0 if it is off.
  struct Counts {
    std::uint64_t exported = 0;  // Spans that the collector has taken.
    std::uint64_t dropped = 0;   // Spans that were lost: the queue was full, or the collector failed or refused them.
  };

  // Off, unless the environment names a collector. Throws Exception(misuse), which names the variable, for a value that
  // cannot be.
  explicit Tracing(TracingOptions options = {});

  [[nodiscard]] std::shared_ptr<const Tracer> tracer() const noexcept;  // Null: off.
  // Whether spans are sent.
  [[nodiscard]] bool is_on() const noexcept { return exporter_ != nullptr; }
  // Waits until all spans so far are sent or dropped, up to `most`. The last copy's destructor flushes for a second.
  // Only one try is made then. False: some are still waiting.
  bool flush(Millis most) const;
  // Of all copies together.
  [[nodiscard]] Counts counts() const noexcept;
  [[nodiscard]] std::string metrics() const;  // once_spans_…, as in docs/metrics.md. Empty if off.

 private:
  class Exporter;
  std::shared_ptr<Exporter> exporter_;
};

}  // namespace once
