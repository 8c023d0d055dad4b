#include <once/testing/records.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <once/key.hpp>

#include "text/hex.hpp"

namespace once::testing {

namespace {

constexpr std::uint64_t largest_number = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t largest_revision = (std::uint64_t{1} << 53U) - 1;

std::string text_of(Time time) {
  return time == never ? "never" : std::to_string(time.time_since_epoch().count()) + " ms";
}

std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string out;
  while (out.size() + piece.size() <= bytes) out += piece;
  out.append(bytes - out.size(), 'z');
  return out;
}

// Text at its edges; all of it is UTF-8.
std::string edge_text(SeededRandom& random, std::size_t most) {
  using namespace std::string_view_literals;
  static constexpr std::array<std::string_view, 10> edges = {""sv,
                                                             "a"sv,
                                                             "\0"sv,
                                                             "a\0b"sv,
                                                             "\0a"sv,
                                                             "a\0"sv,
                                                             " a "sv,
                                                             "'\"\\\n\r\t%_"sv,
                                                             "\xC3\xA9\xE2\x82\xAC"sv,
                                                             "\xF0\x9F\x98\x80"sv};
  const std::uint64_t draw = random.below(edges.size() + 1);
  return draw == edges.size() ? repeated("\xC3\xA9", most) : std::string(edges.at(draw));
}

std::string edge_bytes(SeededRandom& random, std::size_t most) {
  switch (random.below(5)) {
    case 0:
      return {};
    case 1:
      return std::string(1, '\xFF');
    case 2:
      return std::string("\xFF\0\xFE", 3);
    case 3:
      return edge_text(random, most);
    default: {
      std::vector<std::uint8_t> bytes(random.below(10) == 0 ? most : random.below(40));
      random.fill(bytes);
      return std::string(bytes.begin(), bytes.end());
    }
  }
}

Time edge_time(SeededRandom& random) {
  static const std::array<Time, 7> edges = {
      Time{}, Time{Millis{1}}, manual_start, manual_start + Millis{1}, manual_start + Millis{1000}, never - Millis{1},
      never};
  return random.pick(edges);
}

TraceParent trace_of(std::uint8_t byte) {
  TraceParent trace;
  trace.trace_id.fill(byte);
  trace.span_id.fill(byte);
  trace.sampled = byte % 2 == 1;
  return trace;
}

TraceParent edge_trace(SeededRandom& random) {
  return random.chance(500) ? TraceParent() : trace_of(static_cast<std::uint8_t>(1 + random.below(255)));
}

std::uint64_t edge_number(SeededRandom& random, std::uint64_t low, std::uint64_t high) {
  switch (random.below(4)) {
    case 0:
      return low;
    case 1:
      return high;
    case 2:
      return high - 1;
    default:
      return low + random.below(1000);
  }
}

Sha256 digest_of(std::uint8_t byte) {
  Sha256 digest;
  digest.fill(byte);
  return digest;
}

class Differences {
 public:
  void bytes(std::string_view field, std::string_view expected, std::string_view got) {
    if (expected != got) add(field, quote(expected), quote(got));
  }
  void number(std::string_view field, std::uint64_t expected, std::uint64_t got) {
    if (expected != got) add(field, std::to_string(expected), std::to_string(got));
  }
  void time(std::string_view field, Time expected, Time got) {
    if (expected != got) add(field, text_of(expected), text_of(got));
  }
  void add(std::string_view field, std::string_view expected, std::string_view got) {
    out_.append(field).append(": expected ").append(expected).append(", got ").append(got).append("\n");
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace

Owner owner_of(std::uint8_t byte) noexcept {
  Owner owner;
  owner.bytes.fill(byte);
  return owner;
}

std::uint64_t revision_of(std::uint64_t count) noexcept { return count << revision_random_bits; }

Record plain_record(std::string key) {
  Record record;
  record.key = std::move(key);
  record.owner = owner_of(1);
  record.token = static_cast<std::uint64_t>(manual_start.time_since_epoch().count());
  record.attempt = 1;
  record.revision = revision_of(1);
  record.lease_until = manual_start + std::chrono::seconds(30);
  record.expires_at = manual_start + std::chrono::hours(24);
  record.created_at = manual_start;
  return record;
}

Record full_record(std::string key, State state, Placement placement) {
  Record record;
  record.key = std::move(key);
  record.state = state;
  for (std::size_t i = 0; i < record.owner.bytes.size(); ++i)
    record.owner.bytes.at(i) = static_cast<std::uint8_t>(i * 17);
  record.token = 1'767'225'600'123;
  record.attempt = 3;
  record.revision = revision_of(7) + 0xA5A5A;
  record.lease_until = manual_start + Millis{30'001};
  record.expires_at = manual_start + Millis{86'400'002};
  record.created_at = manual_start - Millis{3};
  record.finished_at = manual_start + Millis{4};
  record.expected_until = manual_start + Millis{600'005};
  record.on_lapse = OnLapse::hold;
  record.fingerprint = Fingerprint(digest_of(0xA5));
  record.holder = "host-1:4711 charge request 9f";
  record.note = "half of it is done";
  record.label = "order-17";
  record.history = {
      .entries = {{.what = "lapsed",
                   .who = "host-2:12",
                   .why = "",
                   .attempt = 2,
                   .began_at = manual_start - Millis{9},
                   .at = manual_start - Millis{5},
                   .trace = trace_of(0x22)},
                  {.what = "extended", .who = "alice@host", .why = "the bank is slow", .at = manual_start}},
      .dropped = 4,
      .trace = trace_of(0x11)};
  record.input = std::string("{\"cents\":5}\0\xFF", 13);
  record.input_bytes = 70'000;
  record.steps = {{"reserve", "seat 12A"}, {"charge", std::string("\0\xFF\x01", 3)}, {"empty", ""}};
  record.result.content_type = "application/json";
  record.result.placement = placement;
  if (placement == Placement::inlined) {
    record.result.bytes = "{\"ok\":true}";
  } else {
    record.result.size = 5'000'000'000;
    record.result.digest = digest_of(0x5A);
    if (placement == Placement::offloaded) record.result.location = "s3://bucket/results/9f?part=1";
  }
  record.failure = {.code = "card_declined", .message = "The card was declined. Ask for another one."};
  return record;
}

Record edge_record(std::string key, SeededRandom& random, std::size_t largest_result_bytes) {
  Record record;
  record.key = std::move(key);
  record.state = static_cast<State>(random.below(4));
  record.owner = owner_of(static_cast<std::uint8_t>(random.chance(100) ? 0xFF : random.below(3)));
  record.token = edge_number(random, 0, largest_number);
  record.attempt = static_cast<std::uint32_t>(edge_number(random, 1, std::numeric_limits<std::uint32_t>::max()));
  record.revision = edge_number(random, revision_of(1), largest_revision);
  record.lease_until = edge_time(random);
  record.expires_at = edge_time(random);
  record.created_at = edge_time(random);
  record.finished_at = edge_time(random);
  record.expected_until = edge_time(random);
  record.on_lapse = random.chance(500) ? OnLapse::hold : OnLapse::takeover;
  static constexpr std::array<std::size_t, 5> lengths = {0, 1, 20, 32, Fingerprint::max_bytes};
  std::vector<std::uint8_t> print(random.pick(lengths));
  random.fill(print);
  if (!print.empty() && random.chance(300)) print.front() = 0;
  record.fingerprint = Fingerprint(std::string_view(reinterpret_cast<const char*>(print.data()), print.size()));
  record.holder = edge_text(random, Record::max_text_bytes);
  record.note = edge_text(random, Record::max_text_bytes);
  record.label = edge_text(random, Record::max_text_bytes);
  const std::uint64_t entries = random.chance(50) ? History::max_entries : random.below(3);
  for (std::uint64_t i = 0; i < entries; ++i) {
    record.history.entries.push_back(
        {.what = edge_text(random, HistoryEntry::max_text_bytes),
         .who = edge_text(random, HistoryEntry::max_text_bytes),
         .why = edge_text(random, HistoryEntry::max_text_bytes),
         .attempt = static_cast<std::uint32_t>(edge_number(random, 0, std::numeric_limits<std::uint32_t>::max())),
         .began_at = edge_time(random),
         .at = edge_time(random),
         .trace = edge_trace(random)});
    if (random.chance(300)) {
      record.history.entries.back().revision = edge_number(random, 1, largest_revision);
      record.history.entries.back().replaced = edge_number(random, 0, largest_revision);
    }
  }
  record.history.trace = edge_trace(random);
  record.history.dropped =
      static_cast<std::uint32_t>(edge_number(random, 0, std::numeric_limits<std::uint32_t>::max()));
  record.input = edge_bytes(random, 1000);
  record.input_bytes = edge_number(random, 0, largest_number);
  const std::uint64_t steps = random.chance(50) ? 50 : random.below(4);
  for (std::uint64_t i = 0; i < steps; ++i) {
    record.steps.push_back({std::to_string(i) + edge_bytes(random, 250), edge_bytes(random, 200)});
  }
  record.result.placement = static_cast<Placement>(random.below(3));
  record.result.content_type = random.chance(500) ? "" : repeated("x/", Result::max_content_type_bytes);
  if (record.result.placement == Placement::inlined) {
    record.result.bytes = edge_bytes(random, largest_result_bytes);
  } else {
    record.result.size = edge_number(random, 0, largest_number);
    random.fill(record.result.digest);
    if (record.result.placement == Placement::offloaded) {
      record.result.location = random.chance(500) ? "file:///x" : repeated("file:///", Result::max_location_bytes);
    }
  }
  record.failure.code = edge_text(random, Failure::max_code_bytes);
  record.failure.message = edge_text(random, Failure::max_message_bytes);
  return record;
}

Seen seen_of(const Record& record, std::uint64_t place) noexcept {
  return {.owner = record.owner, .revision = record.revision, .place = place};
}

std::string differences(const Record& expected, const Record& got) {
  Differences all;
  all.bytes("key", expected.key, got.key);
  all.bytes("state", once::to_string(expected.state), once::to_string(got.state));
  all.bytes("owner", expected.owner.hex(), got.owner.hex());
  all.number("token", expected.token, got.token);
  all.number("attempt", expected.attempt, got.attempt);
  all.number("revision", expected.revision, got.revision);
  all.time("lease_until", expected.lease_until, got.lease_until);
  all.time("expires_at", expected.expires_at, got.expires_at);
  all.time("created_at", expected.created_at, got.created_at);
  all.time("finished_at", expected.finished_at, got.finished_at);
  all.time("expected_until", expected.expected_until, got.expected_until);
  all.bytes("on_lapse", once::to_string(expected.on_lapse), once::to_string(got.on_lapse));
  all.bytes("label", expected.label, got.label);
  all.number("history dropped", expected.history.dropped, got.history.dropped);
  all.bytes("trace", expected.history.trace.text(), got.history.trace.text());
  all.number("history", expected.history.entries.size(), got.history.entries.size());
  for (std::size_t i = 0; i < std::min(expected.history.entries.size(), got.history.entries.size()); ++i) {
    const std::string name = "history " + std::to_string(i);
    const HistoryEntry& one = expected.history.entries[i];
    const HistoryEntry& other = got.history.entries[i];
    all.bytes(name + " what", one.what, other.what);
    all.bytes(name + " who", one.who, other.who);
    all.bytes(name + " why", one.why, other.why);
    all.number(name + " attempt", one.attempt, other.attempt);
    all.time(name + " began_at", one.began_at, other.began_at);
    all.time(name + " at", one.at, other.at);
    all.bytes(name + " trace", one.trace.text(), other.trace.text());
    all.number(name + " revision", one.revision, other.revision);
    all.number(name + " replaced", one.replaced, other.replaced);
  }
  all.bytes("input", expected.input, got.input);
  all.number("input_bytes", expected.input_bytes, got.input_bytes);
  all.bytes("fingerprint", expected.fingerprint.hex(), got.fingerprint.hex());
  all.bytes("holder", expected.holder, got.holder);
  all.bytes("note", expected.note, got.note);
  all.number("steps", expected.steps.size(), got.steps.size());
  for (std::size_t i = 0; i < std::min(expected.steps.size(), got.steps.size()); ++i) {
    const std::string name = "step " + std::to_string(i);
    all.bytes(name + " name", expected.steps[i].name, got.steps[i].name);
    all.bytes(name + " result", expected.steps[i].result, got.steps[i].result);
  }
  all.bytes("result bytes", expected.result.bytes, got.result.bytes);
  all.bytes("result content_type", expected.result.content_type, got.result.content_type);
  all.bytes("result placement", to_string(expected.result.placement), to_string(got.result.placement));
  all.bytes("result location", expected.result.location, got.result.location);
  all.number("result size", expected.result.size, got.result.size);
  all.bytes("result digest", to_hex(expected.result.digest), to_hex(got.result.digest));
  all.bytes("failure code", expected.failure.code, got.failure.code);
  all.bytes("failure message", expected.failure.message, got.failure.message);
  std::string out = all.take();
  if (out.empty() && !(expected == got)) out = "a field that this list does not know\n";
  return out;
}

std::string differences(const std::optional<Record>& expected, const std::optional<Record>& got) {
  if (expected && got) return differences(*expected, *got);
  if (!expected && !got) return {};
  return expected ? "expected " + describe(*expected) + ", got no record\n"
                  : "expected no record, got " + describe(*got) + "\n";
}

std::string describe(const Record& record) {
  std::ostringstream out;
  out << quote(record.key) << " " << once::to_string(record.state) << " owner " << record.owner.hex().substr(0, 8)
      << " revision " << record.revision << " attempt " << record.attempt << " lease_until "
      << text_of(record.lease_until) << " expires_at " << text_of(record.expires_at) << " " << record_bytes(record)
      << " bytes";
  return out.str();
}

std::string describe(const Answer& answer) {
  std::string out;
  switch (answer.status) {
    case AnswerStatus::done:
      out = "done";
      break;
    case AnswerStatus::refused:
      out = "refused";
      break;
    case AnswerStatus::failed:
      return "failed: " + std::string(once::to_string(answer.error.kind)) + ": " + answer.error.message;
  }
  return out + (answer.record ? ", record " + describe(*answer.record) : ", no record");
}

std::string quote(std::string_view bytes, std::size_t most) {
  std::string out = "\"";
  for (const char c : bytes.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      text::append_hex(out, c);
    }
  }
  out += '"';
  if (bytes.size() > most) out += " and so on, " + std::to_string(bytes.size()) + " bytes";
  return out;
}

}  // namespace once::testing
