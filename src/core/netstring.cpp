#include "core/netstring.hpp"

#include <utility>

#include "text/number.hpp"

namespace once {

namespace {

template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const auto digits = take_netstring(text);
  const auto read = digits ? text::parse_whole<Number>(*digits) : std::nullopt;
  if (read) number = *read;
  return read.has_value();
}

bool take_text(std::string_view& text, std::string& out) {
  const auto bytes = take_netstring(text);
  if (bytes) out = *bytes;
  return bytes.has_value();
}

bool take_time(std::string_view& text, Time& out) {
  Millis::rep ms = 0;
  if (!take_number(text, ms)) return false;
  out = Time(Millis(ms));
  return true;
}

}  // namespace

void append_netstring(std::string& out, std::string_view bytes) {
  out += std::to_string(bytes.size());
  out += ':';
  out += bytes;
  out += ',';
}

std::optional<std::string_view> take_netstring(std::string_view& text) {
  std::size_t size = 0;
  std::size_t digits = 0;
  while (digits < text.size() && digits < 10 && text[digits] >= '0' && text[digits] <= '9') {
    size = size * 10 + static_cast<std::size_t>(text[digits] - '0');
    ++digits;
  }
  if (digits == 0 || digits + 1 + size + 1 > text.size() || text[digits] != ':' || text[digits + 1 + size] != ',') {
    return std::nullopt;
  }
  const std::string_view found = text.substr(digits + 1, size);
  text.remove_prefix(digits + 1 + size + 1);
  return found;
}

std::string history_text(const History& history) {
  std::string out;
  if (history == History{}) return out;
  append_netstring(out, std::to_string(history.dropped));
  for (const HistoryEntry& entry : history.entries) {
    append_netstring(out, entry.what);
    append_netstring(out, entry.who);
    append_netstring(out, entry.why);
    append_netstring(out, std::to_string(entry.attempt));
    append_netstring(out, std::to_string(unix_ms(entry.began_at)));
    append_netstring(out, std::to_string(unix_ms(entry.at)));
  }
  return out;
}

std::optional<History> history_from_text(std::string_view text) {
  History history;
  if (text.empty()) return history;
  if (!take_number(text, history.dropped)) return std::nullopt;
  while (!text.empty()) {
    HistoryEntry entry;
    if (!take_text(text, entry.what) || !take_text(text, entry.who) || !take_text(text, entry.why) ||
        !take_number(text, entry.attempt) || !take_time(text, entry.began_at) || !take_time(text, entry.at)) {
      return std::nullopt;
    }
    history.entries.push_back(std::move(entry));
  }
  return history;
}

}  // namespace once
