#include "tracing/otlp_json.hpp"

#include <algorithm>
#include <memory_resource>

#include <once/decide.hpp>
#include <once/fingerprint.hpp>

#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"

namespace once::tracing {

namespace {

namespace json = text::json;

constexpr std::size_t most_text_bytes = 1024;

void add_text(std::string& out, std::string_view text) { json::append_quoted(out, clean_text(text, most_text_bytes)); }

// {"stringValue":"x"}. 64-bit numbers are strings.
void add_value(std::string& out, const SpanValue& value) {
  if (const auto* const text = std::get_if<std::string>(&value)) {
    out += R"({"stringValue":)";
    add_text(out, *text);
  } else if (const auto* const number = std::get_if<std::int64_t>(&value)) {
    out.append(R"({"intValue":")").append(std::to_string(*number)).append("\"");
  } else {
    out.append(R"({"boolValue":)").append(std::get<bool>(value) ? "true" : "false");
  }
  out += '}';
}

template <class List>
void add_attributes(std::string& out, const List& attributes) {
  out += R"("attributes":[)";
  const char* comma = "";
  for (const auto& [name, value] : attributes) {
    out.append(comma).append(R"({"key":)");
    add_text(out, name);
    out += R"(,"value":)";
    add_value(out, value);
    out += '}';
    comma = ",";
  }
  out += ']';
}

void add_ids(std::string& out, const TraceParent& span) {
  out.append(R"("traceId":")").append(span.trace_id_hex());
  out.append(R"(","spanId":")").append(span.span_id_hex()).append("\"");
}

void add_span(std::string& out, const Span& span) {
  out += '{';
  add_ids(out, span.self);
  if (span.parent_id != decltype(span.parent_id){}) {
    const TraceParent parent{.span_id = span.parent_id};
    out.append(R"(,"parentSpanId":")").append(parent.span_id_hex()).append("\"");
  }
  if (!span.state.empty()) out.append(R"(,"traceState":)").append(json::quoted(span.state));
  out += R"(,"name":)";
  add_text(out, span.name);
  out.append(R"(,"kind":)").append(std::to_string(static_cast<int>(span.kind)));
  out.append(R"(,"startTimeUnixNano":")").append(std::to_string(span.start.count()));
  out.append(R"(","endTimeUnixNano":")").append(std::to_string(span.end.count())).append("\",");
  add_attributes(out, span.attributes);
  if (!span.links.empty()) {
    out += R"(,"links":[)";
    const char* comma = "";
    for (const auto& [to, why] : span.links) {
      out.append(comma).append("{");
      add_ids(out, to);
      out += ',';
      add_attributes(out, SpanAttributes{{"once.link", why}});
      out += '}';
      comma = ",";
    }
    out += ']';
  }
  if (span.is_error) {
    out += R"(,"status":{"code":2,"message":)";
    add_text(out, span.message);
    out += '}';
  }
  out += '}';
}

}  // namespace

std::string otlp_json(std::span<const Span> spans, const Pairs& resource) {
  std::string out = R"({"resourceSpans":[{"resource":{)";
  add_attributes(out, SpanAttributes(resource.begin(), resource.end()));
  out += R"(},"scopeSpans":[{"scope":{"name":"once","version":)";
  add_text(out, ONCE_VERSION);
  out += R"(},"spans":[)";
  const char* comma = "";
  for (const Span& span : spans) {
    out += comma;
    add_span(out, span);
    comma = ",";
  }
  return out + "]}]}]}";
}

std::uint64_t rejected_spans(std::string_view answer) {
  std::pmr::monotonic_buffer_resource arena;
  json::Value tree;
  if (!json::try_parse(answer, {.unique_names = false, .exact_numbers = false}, arena, tree)) return 0;
  const json::Value rejected = tree.member("partialSuccess").member("rejectedSpans");
  const bool has_text = rejected.kind() == json::Kind::string || rejected.kind() == json::Kind::number;
  return has_text ? text::parse_whole<std::uint64_t>(rejected.text()).value_or(0) : 0;
}

}  // namespace once::tracing
