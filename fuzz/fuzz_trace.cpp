// Any bytes as a trace: traceparent and tracestate, split by the first line feed, and X-Ray's header.
//
// Checks, besides no crash: what is accepted is written so that it is read again as the same, and is no longer than
// told.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <once/trace.hpp>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const std::optional<once::TraceParent>& trace) {
  if (!trace) return;
  require(!trace->empty());
  require(trace->text().size() == once::TraceParent::text_bytes);
  require(once::TraceParent::from_text(trace->text()) == trace);
  require(once::TraceParent::from_xray(trace->xray_text()) == trace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(once::TraceParent::from_text(text));
  check(once::TraceParent::from_xray(text));
  const std::size_t line = text.find('\n');
  const auto trace =
      once::trace_from(text.substr(0, line), line == std::string_view::npos ? "" : text.substr(line + 1));
  if (trace != nullptr) {
    require(trace->state.size() <= once::TraceContext::max_state_bytes);
    require(trace->state.find_first_of("\r\n") == std::string::npos);
  }
  return 0;
}
