#include <utility>

#include <once/record.hpp>

#include "text/netstring.hpp"
#include "text/number.hpp"

namespace once {

namespace {

template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const auto digits = text::take_netstring(text);
  const auto read = digits ? text::parse_whole<Number>(*digits) : std::nullopt;
  if (read) number = *read;
  return read.has_value();
}

bool take_text(std::string_view& text, std::string& out) {
  const auto bytes = text::take_netstring(text);
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

std::string history_text(const History& history) {
  std::string out;
  if (history == History{}) return out;
  text::append_netstring(out, std::to_string(history.dropped));
  for (const HistoryEntry& entry : history.entries) {
    text::append_netstring(out, entry.what);
    text::append_netstring(out, entry.who);
    text::append_netstring(out, entry.why);
    text::append_netstring(out, std::to_string(entry.attempt));
    text::append_netstring(out, std::to_string(unix_ms(entry.began_at)));
    text::append_netstring(out, std::to_string(unix_ms(entry.at)));
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
