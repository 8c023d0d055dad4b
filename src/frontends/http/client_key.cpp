#include "frontends/http/client_key.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <once/frontends/http/rules.hpp>

#include "text/missing_value.hpp"

namespace once::http {

namespace {

ClientKey invalid(std::string_view why) { return {.kind = ClientKey::Kind::invalid, .key = {}, .why = why}; }

constexpr std::string_view why_empty = "The idempotency key is empty.";
constexpr std::string_view why_long = "The idempotency key is longer than 255 characters.";
constexpr std::string_view why_character = "The idempotency key has characters that are not printable ASCII.";
constexpr std::string_view why_quotes =
    "The quotation marks of the idempotency key are wrong. Put one at each end, and a backslash before each quotation "
    "mark and backslash inside; or send no quotation marks.";
constexpr std::string_view why_json = "The idempotency key in the body is neither a string nor a number.";

constexpr std::string_view why_bug =
    "The idempotency key is the text of a missing value, as a program with a bug sends it. Send a new key for each "
    "operation.";

bool is_printable(char c) noexcept { return c >= 0x20 && c <= 0x7E; }

ClientKey checked(std::string key) {
  if (key.empty()) return invalid(why_empty);
  if (!std::ranges::all_of(key, is_printable)) return invalid(why_character);
  if (key.size() > max_client_key_bytes) return invalid(why_long);
  if (text::is_missing_value(key)) return invalid(why_bug);
  return {.kind = ClientKey::Kind::found, .key = std::move(key), .why = {}};
}

// One line, read from the front.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }
  [[nodiscard]] bool at(char c) const noexcept { return !rest_.empty() && rest_.front() == c; }
  bool skip(char c) noexcept {
    if (!at(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void skip_blanks() noexcept {
    while (skip(' ') || skip('\t')) {
    }
  }
  template <class Wanted>
  std::string_view take_while(Wanted wanted) noexcept {
    const auto end = std::ranges::find_if_not(rest_, wanted);
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  // RFC 9651, section 4.2.5, from the opening quotation mark. checked() tests the characters, for a better error.
  std::optional<std::string> string() {
    std::string out;
    rest_.remove_prefix(1);
    while (!rest_.empty()) {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return out;
      if (c == '\\') {
        if (!at('"') && !at('\\')) return std::nullopt;
        c = rest_.front();
        rest_.remove_prefix(1);
      }
      out += c;
    }
    return std::nullopt;
  }

  // RFC 9651, section 4.2.3.2, lenient about parameters' values.
  bool skip_parameters() {
    while (skip(';')) {
      while (skip(' ')) {
      }
      if (!at('*') && (at_end() || rest_.front() < 'a' || rest_.front() > 'z')) return false;
      take_while([](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '*';
      });
      if (!skip('=')) continue;
      if (at('"')) {
        if (!string()) return false;
      } else if (take_while([](char c) {
                   return c > 0x20 && is_printable(c) && c != ',' && c != ';' && c != '"';
                 }).empty()) {
        return false;
      }
    }
    return true;
  }

  // One key, with the blanks around it.
  ClientKey key() {
    skip_blanks();
    if (at('"')) {
      std::optional<std::string> quoted = string();
      if (!quoted || !skip_parameters()) return invalid(why_quotes);
      skip_blanks();
      if (!at_end() && !at(',')) return invalid(why_quotes);
      return checked(std::move(*quoted));
    }
    std::string bare(take_while([](char c) { return c != ','; }));
    while (bare.ends_with(' ') || bare.ends_with('\t')) bare.pop_back();
    if (bare.find('"') != std::string::npos) return invalid(why_quotes);
    return checked(std::move(bare));
  }

 private:
  std::string_view rest_;
};

}  // namespace

ClientKey key_from_text(std::string text) { return checked(std::move(text)); }

ClientKey key_from_values(std::vector<std::string> values) {
  if (values.empty()) return {};
  for (const std::string& value : values) {
    ClientKey key = checked(value);
    if (key.kind == ClientKey::Kind::invalid) return key;
  }
  if (std::ranges::any_of(values, [&](const std::string& value) { return value != values.front(); })) {
    return {.kind = ClientKey::Kind::differ, .key = {}, .why = {}};
  }
  return checked(std::move(values.front()));
}

ClientKey key_from_lines(std::span<const std::string_view> lines) {
  ClientKey first;
  bool differ = false;
  for (const std::string_view text : lines) {
    Line line(text);
    do {
      ClientKey next = line.key();
      if (next.kind == ClientKey::Kind::invalid) return next;
      if (first.kind == ClientKey::Kind::missing) {
        first = std::move(next);
      } else {
        differ = differ || next.key != first.key;
      }
    } while (line.skip(','));
  }
  if (differ) return {.kind = ClientKey::Kind::differ, .key = {}, .why = {}};
  return first;
}

ClientKey key_from_json(std::string_view json) {
  if (json.empty()) return invalid(why_json);
  if (json.front() == '-' || (json.front() >= '0' && json.front() <= '9')) return checked(std::string(json));
  if (json.front() != '"') return invalid(why_json);
  // Canonical JSON escapes quotation marks, backslashes and control characters, which a key must not have.
  json = json.substr(1, json.size() - 2);
  std::string key;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '\\') {
      ++i;
      if (json[i] != '"' && json[i] != '\\') return invalid(why_character);
    }
    key += json[i];
  }
  return checked(std::move(key));
}

}  // namespace once::http
