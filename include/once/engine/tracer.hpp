// Spans of an engine's calls, for distributed tracing. docs/traces.md has their names and attributes.
//
// Two for each call: `once.call`, from begin() to the answer or the durable finish, and under it `once.work`, while the
// work runs. A replay has no work: it links to the span of the attempt that ran. once/tracing.hpp sends them to a
// collector. A sink of your own can hand them to another library.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <once/clock.hpp>
#include <once/engine/event.hpp>
#include <once/trace.hpp>

namespace once {

// What a span is to its parent and its children, with OTLP's numbers.
enum class SpanKind : std::uint8_t {
  internal = 1,  // Work within a process.
  server = 2,    // Handles a request of a client.
  client = 3,    // Sends a request to a server.
  producer = 4,  // Sends a message that is handled later.
  consumer = 5,  // Handles a message.
};

using SpanValue = std::variant<std::string, std::int64_t, bool>;        // Of an attribute.
using SpanAttributes = std::vector<std::pair<std::string, SpanValue>>;  // By name; each name once.

// A span that has ended.
struct Span {
  std::string name = {};                                        // One of a few, as it is no place for a key.
  SpanKind kind = SpanKind::internal;                           // The tracer's call_kind or work_kind.
  TraceParent self = {};                                        // Its own ids.
  std::array<std::uint8_t, 8> parent_id{};                      // Zero: the first span of its trace.
  std::string state = {};                                       // tracestate.
  std::chrono::nanoseconds start{0};                            // Since 1970, UTC.
  std::chrono::nanoseconds end{0};                              // Not before start.
  SpanAttributes attributes = {};                               // docs/traces.md lists them.
  std::vector<std::pair<TraceParent, std::string>> links = {};  // To a span, and `once.link`: why.
  bool is_error = false;                                        // The status is Error; otherwise it is unset.
  std::string message = {};                                     // With is_error: why.
};

// Called on the thread that ends a span, by several threads at once. Must not block and must not throw.
using SpanSink = std::function<void(Span&&)>;

// Which traces are recorded.
struct Sampler {
  bool asks_parent = true;  // A call with a caller's context is sampled if its caller is.
  double ratio = 1;         // The part of the other calls that is sampled, 0 to 1. By trace id, as in OpenTelemetry.
};

// What a tracer makes of calls, and where spans go.
struct TracerOptions {
  SpanSink sink = {};                       // Required.
  Sampler sampler = {};                     // The default records every trace, unless its caller does not.
  SpanKind call_kind = SpanKind::internal;  // Of `once.call`.
  SpanKind work_kind = SpanKind::internal;  // Of `once.work`.
  std::string store = {};                   // once.store: for people, without secrets. Empty: none.
  bool scopes = true;                       // once.scope. Not for scopes that tell who a client is.

  // The context of calls whose request has none, for example of another library's current span. Must not block or
  // throw.
  std::function<TracePtr()> current = {};

  std::shared_ptr<const Clock> clock = {};              // The engine's. Empty: the host's.
  std::shared_ptr<Random> random = {};                  // For ids. Empty: the host's.
  std::function<std::chrono::nanoseconds()> wall = {};  // UTC since 1970. Empty: the host's.
};

// Thread-safe. One may serve several engines.
class Tracer {
 public:
  explicit Tracer(TracerOptions options);  // Throws Exception(misuse) without a sink.

  // For engines: the spans of a call that begins now. `given`: Request::trace.
  [[nodiscard]] std::shared_ptr<const CallTrace> begin(const TracePtr& given) const;
  void observe(const Event& event) const noexcept;  // For engines: ends the spans that the event ends.
  // The call ends with an error of its store.
  void failed(const CallTrace& trace, std::string_view key, const Error& error) const noexcept;

 private:
  Span span_of(const CallTrace& trace, bool is_work) const;
  void end_call(Span span, std::string_view outcome, std::string_view key) const;
  [[nodiscard]] bool samples(const TracePtr& caller, const TraceParent& call) const noexcept;

  const TracerOptions options_;
};

}  // namespace once
