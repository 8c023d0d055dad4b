#include "frontends/http/stored_answer.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <once/error.hpp>

#include "frontends/http/headers.hpp"

namespace once::http {

namespace {

constexpr std::string_view magic = "once-http/1 ";
constexpr std::string_view not_stored_begins = "(not stored: ";
constexpr std::string_view not_stored_ends = ")";

[[noreturn]] void fail(const char* why) {
  throw Exception(ErrorKind::corrupt,
                  std::string("the stored result is no HTTP answer that this version wrote: ") + why);
}

// Reads the head line by line and word by word.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view line() {
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) fail("it ends within its head");
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }
  [[nodiscard]] std::string_view rest() const noexcept { return rest_; }

 private:
  std::string_view rest_;
};

std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

// A decimal number as std::to_string writes it.
std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || (text.size() > 1 && text.front() == '0')) {
    fail("a number that is none");
  }
  return value;
}

bool is_stored_value(std::string_view value) noexcept { return is_field_text(value) && trimmed(value) == value; }

// "Date, ?, Set-Cookie": one or more names, each a token or '?'.
bool is_name_list(std::string_view text) noexcept {
  for (;;) {
    const auto comma = text.find(", ");
    const std::string_view name = text.substr(0, comma);
    if (name != "?" && !is_token(name)) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 2);
  }
}

StoredAnswer prepared(const Answer& answer, std::span<const std::string> never) {
  if (answer.status < 100 || answer.status > 599) {
    throw Exception(ErrorKind::misuse, "an answer's status is 100 to 599, not " + std::to_string(answer.status));
  }
  Storable lines = storable(answer.headers, never);
  StoredAnswer stored;
  stored.answer.status = answer.status;
  if (is_field_text(answer.reason)) stored.answer.reason = trimmed(answer.reason);
  stored.answer.headers = std::move(lines.headers);
  stored.not_stored = std::move(lines.not_stored);
  return stored;
}

// The head alone; the body follows it.
std::string head_bytes(const StoredAnswer& stored, std::uint64_t body_bytes, std::size_t room) {
  std::string out;
  out.reserve(256 + room);
  out += magic;
  out += std::to_string(stored.answer.status);
  out += stored.dropped_bytes ? " dropped " : " body ";
  out += std::to_string(body_bytes);
  if (!stored.answer.reason.empty()) out += " " + stored.answer.reason;
  out += '\n';
  for (const Header& header : stored.answer.headers) {
    out += header.name;
    out += ": ";
    out += header.value;
    out += '\n';
  }
  if (!stored.not_stored.empty()) {
    out += not_stored_begins;
    out += stored.not_stored;
    out += not_stored_ends;
    out += '\n';
  }
  out += '\n';
  return out;
}

Result to_result(std::string bytes) { return Result::inlined(std::move(bytes), std::string(answer_content_type)); }

}  // namespace

std::string to_bytes(const StoredAnswer& stored) {
  const std::string& body = stored.answer.body;
  std::string out = head_bytes(stored, stored.dropped_bytes.value_or(body.size()), body.size());
  if (!stored.dropped_bytes) out += body;
  return out;
}

Result encode_answer(const Answer& answer, std::size_t max_bytes, std::span<const std::string> never) {
  StoredAnswer stored = prepared(answer, never);
  std::string out = head_bytes(stored, answer.body.size(), std::min(answer.body.size(), max_bytes));
  if (out.size() <= max_bytes && answer.body.size() <= max_bytes - out.size()) {
    out += answer.body;
    return to_result(std::move(out));
  }
  stored.dropped_bytes = answer.body.size();
  return to_result(to_bytes(stored));
}

Result encode_tombstone(const Answer& head, std::uint64_t body_bytes, std::span<const std::string> never) {
  StoredAnswer stored = prepared(head, never);
  stored.dropped_bytes = body_bytes;
  return to_result(to_bytes(stored));
}

StoredAnswer decode_answer(std::string_view bytes) {
  Reader reader(bytes);
  std::string_view first = reader.line();
  if (!first.starts_with(magic)) fail("it begins otherwise");
  first.remove_prefix(magic.size());
  StoredAnswer stored;
  const std::string_view status = take_word(first);
  if (status.size() != 3 || status.front() < '1' || status.front() > '5') fail("its status is none");
  stored.answer.status = static_cast<unsigned>(number(status));
  const std::string_view kind = take_word(first);
  if (kind != "body" && kind != "dropped") fail("neither a body nor a dropped one");
  const auto space = first.find(' ');
  const std::uint64_t size = number(first.substr(0, space));
  if (space != std::string_view::npos) {
    stored.answer.reason = first.substr(space + 1);
    if (stored.answer.reason.empty() || !is_stored_value(stored.answer.reason)) fail("its reason is none");
  }
  for (;;) {
    std::string_view line = reader.line();
    if (line.empty()) break;
    if (!stored.not_stored.empty()) fail("a header after the list of those that are not stored");
    if (line.starts_with(not_stored_begins) && line.ends_with(not_stored_ends)) {
      line.remove_prefix(not_stored_begins.size());
      line.remove_suffix(not_stored_ends.size());
      if (!is_name_list(line)) fail("a list of names that is none");
      stored.not_stored = line;
      continue;
    }
    const auto colon = line.find(": ");
    if (colon == std::string_view::npos) fail("a header without a value");
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = line.substr(colon + 2);
    if (!is_token(name) || !is_stored_value(value)) fail("a header that is none");
    stored.answer.headers.push_back({std::string(name), std::string(value)});
  }
  if (kind == "dropped") {
    if (!reader.rest().empty()) fail("a body that was dropped, and is there");
    stored.dropped_bytes = size;
  } else {
    if (reader.rest().size() != size) fail("its body has another length");
    stored.answer.body = reader.rest();
  }
  return stored;
}

}  // namespace once::http
