#include "frontends/http/stored_answer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <once/error.hpp>

#include "frontends/http/headers.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/number.hpp"

namespace once::http {

namespace {

constexpr std::string_view magic = "once-http/1 ";
constexpr std::string_view not_stored_begins = "(not stored: ";
constexpr std::string_view not_stored_ends = ")";

[[noreturn]] void fail(const char* why) {
  throw Exception(ErrorKind::corrupt,
                  std::string("the stored result is not an HTTP answer that this version wrote: ") + why);
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
  const auto value = text::parse_whole<std::uint64_t>(text);
  if (!value || (text.size() > 1 && text.front() == '0')) fail("an invalid number");
  return *value;
}

bool is_stored_value(std::string_view value) noexcept {
  return text::is_field_text(value) && text::trim(value) == value;
}

// "Date, ?, Set-Cookie": one or more names, each a token or '?'.
bool is_name_list(std::string_view text) noexcept {
  for (;;) {
    const auto comma = text.find(", ");
    const std::string_view name = text.substr(0, comma);
    if (name != "?" && !text::is_token(name)) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 2);
  }
}

// The written answer without its body.
struct Head {
  unsigned status = 200;
  std::string_view reason;
  std::vector<HeaderView> headers;
  std::string_view not_stored;
};

void append_number(std::string& out, std::uint64_t number) {
  std::array<char, 20> digits{};
  out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

// The head, with room for `room` bytes after it, and little more, because it is kept.
std::string head_bytes(const Head& head, bool dropped, std::uint64_t body_bytes, std::size_t room) {
  constexpr std::size_t first_line = 64;  // Without its reason, and with the empty line at the end.
  std::size_t bytes = first_line + head.reason.size() + room;
  for (const HeaderView& header : head.headers) bytes += header.name.size() + header.value.size() + 3;
  if (!head.not_stored.empty()) bytes += not_stored_begins.size() + head.not_stored.size() + not_stored_ends.size() + 1;
  std::string out;
  out.reserve(bytes);
  const auto add = [&out](std::string_view text) { out.append(text); };
  add(magic);
  append_number(out, head.status);
  add(dropped ? " dropped " : " body ");
  append_number(out, body_bytes);
  if (!head.reason.empty()) {
    out += ' ';
    add(head.reason);
  }
  out += '\n';
  for (const HeaderView& header : head.headers) {
    add(header.name);
    add(": ");
    add(header.value);
    out += '\n';
  }
  if (!head.not_stored.empty()) {
    add(not_stored_begins);
    add(head.not_stored);
    add(not_stored_ends);
    out += '\n';
  }
  out += '\n';
  return out;
}

// With views of `lines`.
Head head_of(const Answer& answer, Storable& lines) {
  if (answer.status < 100 || answer.status > 599) {
    throw Exception(ErrorKind::misuse, "an answer's status must be 100 to 599, not " + std::to_string(answer.status));
  }
  return {.status = answer.status,
          .reason = text::is_field_text(answer.reason) ? text::trim(answer.reason) : std::string_view(),
          .headers = std::move(lines.headers),
          .not_stored = lines.not_stored};
}

Result to_result(std::string bytes) { return Result::inlined(std::move(bytes), std::string(answer_content_type)); }

}  // namespace

std::string to_bytes(const StoredAnswer& stored) {
  const std::string& body = stored.answer.body;
  Head head{
      .status = stored.answer.status, .reason = stored.answer.reason, .headers = {}, .not_stored = stored.not_stored};
  for (const Header& header : stored.answer.headers) head.headers.push_back({header.name, header.value});
  std::string out =
      head_bytes(head, stored.dropped_bytes.has_value(), stored.dropped_bytes.value_or(body.size()), body.size());
  if (!stored.dropped_bytes) out += body;
  return out;
}

Result encode_answer(const Answer& answer, std::size_t max_body_bytes, std::span<const std::string> never) {
  Storable lines = storable(answer.headers, never);
  const Head head = head_of(answer, lines);
  const std::string& body = answer.body;
  if (body.size() > max_body_bytes) return to_result(head_bytes(head, true, body.size(), 0));
  std::string out = head_bytes(head, false, body.size(), body.size());
  out += body;
  return to_result(std::move(out));
}

Result encode_tombstone(const Answer& head, std::uint64_t body_bytes, std::span<const std::string> never) {
  Storable lines = storable(head.headers, never);
  return to_result(head_bytes(head_of(head, lines), true, body_bytes, 0));
}

StoredAnswer decode_answer(std::string_view bytes) {
  Reader reader(bytes);
  std::string_view first = reader.line();
  if (!first.starts_with(magic)) fail("it begins with other bytes");
  first.remove_prefix(magic.size());
  StoredAnswer stored;
  const std::string_view status = take_word(first);
  if (status.size() != 3 || status.front() < '1' || status.front() > '5') fail("an invalid status");
  stored.answer.status = static_cast<unsigned>(number(status));
  const std::string_view kind = take_word(first);
  if (kind != "body" && kind != "dropped") fail("neither a body nor a dropped one");
  const auto space = first.find(' ');
  const std::uint64_t size = number(first.substr(0, space));
  if (space != std::string_view::npos) {
    stored.answer.reason = first.substr(space + 1);
    if (stored.answer.reason.empty() || !is_stored_value(stored.answer.reason)) fail("an invalid reason");
  }
  for (;;) {
    std::string_view line = reader.line();
    if (line.empty()) break;
    if (!stored.not_stored.empty()) fail("a header after the list of those that are not stored");
    if (line.starts_with(not_stored_begins) && line.ends_with(not_stored_ends)) {
      line.remove_prefix(not_stored_begins.size());
      line.remove_suffix(not_stored_ends.size());
      if (!is_name_list(line)) fail("an invalid list of names");
      stored.not_stored = line;
      continue;
    }
    const auto colon = line.find(": ");
    if (colon == std::string_view::npos) fail("a header without a value");
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = line.substr(colon + 2);
    if (!text::is_token(name) || !is_stored_value(value)) fail("an invalid header");
    stored.answer.headers.push_back({std::string(name), std::string(value)});
  }
  if (kind == "dropped") {
    if (!reader.rest().empty()) fail("a body after a mark that it was dropped");
    stored.dropped_bytes = size;
  } else {
    if (reader.rest().size() != size) fail("its body has another length");
    stored.answer.body = reader.rest();
  }
  return stored;
}

}  // namespace once::http
