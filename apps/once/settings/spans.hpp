// Spans of the program's engine, if the environment names a collector: docs/traces.md.
#pragma once

#include <once/tracing.hpp>

#include "output/report.hpp"

namespace once::cli {

#if ONCE_AWS
using Spans = Tracing;
#else  // Without its HTTP client.
class Spans {
 public:
  explicit Spans(const TracingOptions& /*options*/) {}
  [[nodiscard]] static std::shared_ptr<const Tracer> tracer() noexcept { return nullptr; }
};
#endif

inline TracingOptions span_options(SpanKind call_kind, SpanKind work_kind) {
  return {.call_kind = call_kind, .work_kind = work_kind, .warn = [](std::string_view text) {
            say(text, LogLevel::warning);
          }};
}

}  // namespace once::cli
