#include <algorithm>
#include <limits>
#include <utility>

#include <once/decide.hpp>
#include <once/record.hpp>
#include <once/store.hpp>

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

void drop_oldest(History& history) {
  history.entries.erase(history.entries.begin());
  if (history.dropped < std::numeric_limits<std::uint32_t>::max()) ++history.dropped;
}

// A claim's token is the time when it was made, unless the token before it was higher.
Time began_at(const Record& seen, Time ended) noexcept {
  if (seen.attempt <= 1) return seen.created_at;
  const Time claimed{Millis(static_cast<Millis::rep>(seen.token))};
  return seen.created_at <= claimed && claimed <= ended ? claimed : Time{};
}

// What the holder wrote last. After an operator's act the note tells of that, which the history does too.
std::string holders_note(const Record& seen) {
  const auto& entries = seen.history.entries;
  const bool is_act = !entries.empty() && entries.back().attempt == 0 &&
                      seen.note.find(" by " + entries.back().who + ": ") != std::string::npos;
  return is_act ? std::string() : seen.note;
}

// How an attempt ended, as its record tells. A record that is released does not tell when.
HistoryEntry end_of(const Record& seen, Time now) {
  const auto ended = [&](std::string what, std::string why, Time at) {
    return HistoryEntry{.what = std::move(what),
                        .who = seen.holder,
                        .why = std::move(why),
                        .attempt = seen.attempt,
                        .began_at = began_at(seen, at),
                        .at = at,
                        .trace = seen.history.trace};
  };
  switch (seen.state) {
    case State::completed:
      return ended("completed", {}, seen.finished_at);
    case State::failed: {
      const bool both = !seen.failure.code.empty() && !seen.failure.message.empty();
      return ended("failed", seen.failure.code + (both ? ": " : "") + seen.failure.message, seen.finished_at);
    }
    case State::unknown:
      return ended("unknown", seen.failure.message, seen.finished_at);
    case State::in_progress:
      break;
  }
  if (is_released(seen)) return ended("released", holders_note(seen), now);
  if (seen.lease_until > now) return ended("displaced", holders_note(seen), now);
  return ended("lapsed", holders_note(seen), seen.lease_until);
}

}  // namespace

void append(History& history, HistoryEntry entry, std::size_t keep) {
  for (std::string* text : {&entry.what, &entry.who, &entry.why}) {
    *text = clean_text(*text, HistoryEntry::max_text_bytes);
  }
  history.entries.push_back(std::move(entry));
  while (history.entries.size() > std::max(History::max_entries, keep)) drop_oldest(history);
}

bool leads_back(const Record& record, std::uint64_t revision) noexcept {
  std::uint64_t at = record.revision;
  const auto& entries = record.history.entries;
  for (auto act = entries.rbegin(); at != revision; ++act) {
    if (act == entries.rend() || act->revision != at || act->replaced >= at) return false;
    at = act->replaced;
  }
  return true;
}

std::size_t unseen_acts(const Record& record) noexcept {
  if (record.state != State::in_progress || is_released(record)) return 0;
  std::uint64_t at = record.revision;
  std::size_t count = 0;
  const auto& entries = record.history.entries;
  for (auto act = entries.rbegin(); act != entries.rend() && act->revision == at; ++act, ++count) at = act->replaced;
  return count;
}

void append_attempt(History& history, const Record& seen, Time now) {
  const auto last = std::find_if(history.entries.rbegin(), history.entries.rend(),
                                 [](const HistoryEntry& entry) { return entry.attempt != 0; });
  if (last == history.entries.rend() || last->attempt < seen.attempt) append(history, end_of(seen, now));
}

void shorten(Record& record, std::size_t max_record_bytes) {
  History& history = record.history;
  const auto needs = [&] {
    return record_bytes(record) + (record.state == State::in_progress ? room_to_end(record) : 0);
  };
  if (!record.input.empty()) {
    const std::size_t all = needs();
    const std::size_t over = std::min(all - std::min(all, max_record_bytes), record.input.size());
    record.input.resize(input_beginning(record.input, record.input.size() - over).size());
  }
  const std::size_t keep = unseen_acts(record);
  while (history.entries.size() > keep && needs() > max_record_bytes) drop_oldest(history);
}

namespace {

constexpr std::string_view trace_entry = "trace";
constexpr std::string_view revision_entry = "revision";

void append_entry(std::string& out, const HistoryEntry& entry) {
  text::append_netstring(out, entry.what);
  text::append_netstring(out, entry.who);
  text::append_netstring(out, entry.why);
  text::append_netstring(out, std::to_string(entry.attempt));
  text::append_netstring(out, std::to_string(unix_ms(entry.began_at)));
  text::append_netstring(out, std::to_string(unix_ms(entry.at)));
}

// Programs that do not know of traces read it as an entry.
void append_trace(std::string& out, const TraceParent& trace) {
  if (!trace.empty()) append_entry(out, {.what = std::string(trace_entry), .who = trace.text()});
}

// So are the revisions of an act.
void append_revisions(std::string& out, const HistoryEntry& act) {
  if (act.revision == 0) return;
  append_entry(
      out,
      {.what = std::string(revision_entry), .who = std::to_string(act.revision), .why = std::to_string(act.replaced)});
}

// False: it is an entry of its own.
bool take_revisions(HistoryEntry& act, const HistoryEntry& from) {
  if (from.what != revision_entry || from.attempt != 0 || from.at != Time{}) return false;
  const auto revision = text::parse_whole<std::uint64_t>(from.who);
  const auto replaced = text::parse_whole<std::uint64_t>(from.why);
  if (!revision || !replaced) return false;
  act.revision = *revision;
  act.replaced = *replaced;
  return true;
}

// An act of an operator has a time.
std::optional<TraceParent> trace_of(const HistoryEntry& entry) {
  if (entry.what != trace_entry || entry.attempt != 0 || entry.at != Time{}) return std::nullopt;
  return TraceParent::from_text(entry.who);
}

}  // namespace

std::string history_text(const History& history) {
  std::string out;
  if (history == History{}) return out;
  text::append_netstring(out, std::to_string(history.dropped));
  append_trace(out, history.trace);
  for (const HistoryEntry& entry : history.entries) {
    append_entry(out, entry);
    append_revisions(out, entry);
    append_trace(out, entry.trace);
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
    if (const auto trace = trace_of(entry)) {
      (history.entries.empty() ? history.trace : history.entries.back().trace) = *trace;
    } else if (history.entries.empty() || !take_revisions(history.entries.back(), entry)) {
      history.entries.push_back(std::move(entry));
    }
  }
  return history;
}

}  // namespace once
