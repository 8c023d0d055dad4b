#include <once/trace.hpp>

#include <span>

#include <once/fingerprint.hpp>

#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/hex.hpp"

namespace once {

namespace {

template <std::size_t Size>
std::string hex_of(const std::array<std::uint8_t, Size>& bytes) {
  return to_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Exactly its digits, and not all of them zero.
bool read_id(std::string_view digits, std::span<std::uint8_t> id) noexcept {
  bool is_zero = true;
  if (digits.size() != 2 * id.size()) return false;
  for (std::size_t i = 0; i < id.size(); ++i) {
    const int byte = text::hex_byte_at(digits, 2 * i);
    if (byte < 0) return false;
    id[i] = static_cast<std::uint8_t>(byte);
    is_zero = is_zero && byte == 0;
  }
  return !is_zero;
}

// tracestate: "vendor=value,tenant@vendor=value". Empty members and blanks around them are allowed.
bool is_state(std::string_view text) noexcept {
  if (text.size() > TraceContext::max_state_bytes || !text::is_field_text(text)) return false;
  std::size_t members = 0;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view member = text::trim(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    if (member.empty()) continue;
    const std::size_t equals = member.find('=');
    if (equals == 0 || equals == std::string_view::npos || ++members > TraceContext::max_state_members) return false;
  }
  return true;
}

TracePtr trace_of(const std::optional<TraceParent>& parent, std::string_view state) {
  if (!parent) return nullptr;
  return std::make_shared<const TraceContext>(TraceContext{*parent, std::string(is_state(state) ? state : "")});
}

}  // namespace

std::string TraceParent::trace_id_hex() const { return hex_of(trace_id); }
std::string TraceParent::span_id_hex() const { return hex_of(span_id); }

std::string TraceParent::text() const {
  return empty() ? std::string() : "00-" + trace_id_hex() + "-" + span_id_hex() + (sampled ? "-01" : "-00");
}

std::string TraceParent::xray_text() const {
  constexpr std::size_t time_digits = 8;
  const std::string id = trace_id_hex();
  return "Root=1-" + id.substr(0, time_digits) + "-" + id.substr(time_digits) + ";Parent=" + span_id_hex() +
         (sampled ? ";Sampled=1" : ";Sampled=0");
}

std::optional<TraceParent> TraceParent::from_text(std::string_view text) noexcept {
  // version '-' trace id '-' span id '-' flags
  constexpr std::size_t trace_at = 3;
  constexpr std::size_t span_at = 36;
  constexpr std::size_t flags_at = 53;
  if (text.size() < text_bytes || text[trace_at - 1] != '-' || text[span_at - 1] != '-' || text[flags_at - 1] != '-') {
    return std::nullopt;
  }
  for (const char c : text.substr(0, text_bytes)) {
    if (c != '-' && text::lower_digits.find(c) == std::string_view::npos) return std::nullopt;
  }
  const int version = text::hex_byte_at(text, 0);
  const int flags = text::hex_byte_at(text, flags_at);
  const bool is_longer = text.size() > text_bytes;
  if (version < 0 || version == 0xFF || flags < 0) return std::nullopt;
  if (is_longer && (version == 0 || text[text_bytes] != '-')) return std::nullopt;
  TraceParent out;
  out.sampled = (flags & 1) != 0;
  if (!read_id(text.substr(trace_at, 2 * out.trace_id.size()), out.trace_id)) return std::nullopt;
  if (!read_id(text.substr(span_at, 2 * out.span_id.size()), out.span_id)) return std::nullopt;
  return out;
}

std::optional<TraceParent> TraceParent::from_xray(std::string_view text) noexcept {
  constexpr std::string_view version = "1-";
  constexpr std::size_t time_digits = 8;
  TraceParent out;
  bool has_root = false;
  bool has_parent = false;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const std::string_view field = text::trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = field.substr(0, equals);
    const std::string_view value = field.substr(equals + 1);
    if (name == "Root") {
      std::array<char, 32> digits{};
      const std::size_t dash = version.size() + time_digits;
      if (value.size() != dash + 1 + digits.size() - time_digits || !value.starts_with(version) || value[dash] != '-') {
        return std::nullopt;
      }
      const std::string_view time = value.substr(version.size(), time_digits);
      const std::string_view rest = value.substr(dash + 1);
      std::copy(rest.begin(), rest.end(), std::copy(time.begin(), time.end(), digits.begin()));
      has_root = read_id({digits.data(), digits.size()}, out.trace_id);
    } else if (name == "Parent") {
      has_parent = read_id(value, out.span_id);
    } else if (name == "Sampled") {
      out.sampled = value == "1";
    }
  }
  return has_root && has_parent ? std::optional(out) : std::nullopt;
}

TracePtr trace_from(std::string_view traceparent, std::string_view tracestate) {
  return trace_of(TraceParent::from_text(text::trim(traceparent)), text::trim(tracestate));
}

TracePtr trace_from_xray(std::string_view header) { return trace_of(TraceParent::from_xray(header), {}); }

}  // namespace once
