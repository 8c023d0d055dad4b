// Trace contexts: where a call stands in a distributed trace, as its caller says and as it is passed on. W3C Trace
// Context (https://www.w3.org/TR/trace-context/) and AWS X-Ray's header
// (https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html#xray-concepts-tracingheader). Pure.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

namespace once {

// One span: the ids of its trace and its own. All zero: none.
struct TraceParent {
  std::array<std::uint8_t, 16> trace_id{};  // Shared by all spans of the trace.
  std::array<std::uint8_t, 8> span_id{};    // The span's own.
  bool sampled = false;                     // Whether the trace is recorded.

  static constexpr std::size_t text_bytes = 55;  // What text() has, unless it is empty.

  // Whether there is no span: looks only at the span's id.
  [[nodiscard]] bool empty() const noexcept { return std::bit_cast<std::uint64_t>(span_id) == 0; }
  [[nodiscard]] std::string trace_id_hex() const;  // 32 lower-case digits.
  [[nodiscard]] std::string span_id_hex() const;   // 16 lower-case digits.
  // As traceparent of version 00: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01". Empty if it is empty().
  [[nodiscard]] std::string text() const;
  // As X-Ray's header: "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1".
  [[nodiscard]] std::string xray_text() const;

  // Empty unless it is a valid traceparent: lower-case digits, no id of zeros. Of a version after 00, the part that 00
  // defines. Flags other than `sampled` are not kept.
  static std::optional<TraceParent> from_text(std::string_view text) noexcept;
  // Empty unless it has a Root of version 1 and a Parent. Other fields are skipped.
  static std::optional<TraceParent> from_xray(std::string_view text) noexcept;

  friend bool operator==(const TraceParent&, const TraceParent&) = default;
};

// What a caller passes on.
struct TraceContext {
  TraceParent parent = {};  // The caller's span.
  std::string state = {};   // tracestate, unchanged. Other systems' data, which is passed on.

  // These are limits of trace_from(): of a tracestate's bytes, and of its comma-separated members.
  static constexpr std::size_t max_state_bytes = 512;
  static constexpr std::size_t max_state_members = 32;
};

// A call's context, shared as its requests are copied. Null: the caller gave none.
using TracePtr = std::shared_ptr<const TraceContext>;

// Null unless the traceparent is valid. A tracestate that is malformed or longer than the limits is left out as a
// whole, and the trace goes on without it. Several headers are one list: join them by ','.
TracePtr trace_from(std::string_view traceparent, std::string_view tracestate = {});
// Null unless TraceParent::from_xray() accepts the header. It has no tracestate.
TracePtr trace_from_xray(std::string_view header);

// The spans of one call of an engine.
struct CallTrace {
  TraceParent caller = {};  // Its caller's. Empty: the call begins a trace.
  TraceParent call = {};    // The call's own. Without a tracer, the caller's.
  TraceParent work = {};    // That of the work that it may run: kept in the record. Without a tracer, the caller's.
  std::string state = {};   // The caller's tracestate.
  // With a tracer: when the call began. All times of its spans count from here.
  std::chrono::nanoseconds began{0};              // Since 1970, UTC.
  Uptime began_up{};                              // On Clock::uptime().
  mutable std::atomic<bool> is_call_told{false};  // The span of the call has ended.
  mutable std::atomic<bool> is_work_told{false};  // The span of the work has ended.
};

}  // namespace once
