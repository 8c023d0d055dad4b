#include "frontends/http/headers.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <once/frontends/http/rules.hpp>

#include "text/ascii.hpp"

namespace once::http {

namespace {

// Idempotent-Replayed says how this answer came about, not what it is: a service behind several layers may send it.
constexpr std::array<std::string_view, 13> never_stored{
    "Connection",   "Keep-Alive", "Proxy-Connection", "TE",         "Trailer",          "Transfer-Encoding",
    "Upgrade",      "Date",       "Server",           "Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate",
    replayed_header};

// Each line of each message is looked at through these.
constexpr std::array<bool, 256> token_characters = [] {
  std::array<bool, 256> table{};
  for (unsigned c = 0; c < table.size(); ++c) {
    table[c] = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               (c != 0 && std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos);
  }
  return table;
}();

bool is_token_character(char c) noexcept { return token_characters[static_cast<unsigned char>(c)]; }

bool is_field_character(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= 0x20 && byte != 0x7F);
}

// Whether all eight bytes are visible or blanks: none is below 0x20, none is 0x7F. A tab is not, and looked at alone.
bool is_plain(const char* bytes) noexcept {
  const text::EightBytes eight(bytes);
  return !eight.any_below_blank() && !eight.any('\x7f');
}

// In what order is all the same, as long as names that differ in case only are equal.
bool is_before(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return a.size() < b.size();
  return std::ranges::lexicographical_compare(a, b, [](char x, char y) { return text::lower(x) < text::lower(y); });
}

bool is_blank(char c) noexcept { return c == ' ' || c == '\t'; }

}  // namespace

bool same_letters(std::string_view a, std::string_view b) noexcept {
  if (a == b) return true;  // Nearly everybody writes the names that are asked for here as they are written here.
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return x == y || text::lower(x) == text::lower(y); });
}

const std::string* find_header(const Headers& headers, std::string_view name) noexcept {
  const auto found = std::ranges::find_if(headers, [&](const Header& h) { return same_name(h.name, name); });
  return found == headers.end() ? nullptr : &found->value;
}

bool is_token(std::string_view text) noexcept { return !text.empty() && std::ranges::all_of(text, is_token_character); }

bool is_field_text(std::string_view text) noexcept {
  while (text.size() >= text::EightBytes::size && is_plain(text.data())) text.remove_prefix(text::EightBytes::size);
  return std::ranges::all_of(text, is_field_character);
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> list_members(std::string_view value) {
  std::vector<std::string_view> members;
  for (;;) {
    const auto comma = value.find(',');
    const std::string_view member = trimmed(value.substr(0, comma));
    if (!member.empty()) members.push_back(member);
    if (comma == std::string_view::npos) return members;
    value.remove_prefix(comma + 1);
  }
}

NameSet::NameSet(std::vector<std::string_view> names) : names_(std::move(names)) {
  std::ranges::sort(names_, is_before);
}

bool NameSet::contains(std::string_view name) const noexcept {
  return std::ranges::binary_search(names_, name, is_before);
}

bool names_contain(std::span<const std::string> names, std::string_view name) noexcept {
  return std::ranges::any_of(names, [&](const std::string& other) { return same_name(other, name); });
}

Storable storable(const Headers& headers, std::span<const std::string> never) {
  std::vector<std::string_view> named_by_connection;
  for (const Header& header : headers) {
    if (!same_name(header.name, "Connection")) continue;
    const std::vector<std::string_view> named = list_members(header.value);
    named_by_connection.insert(named_by_connection.end(), named.begin(), named.end());
  }
  const NameSet of_this_hop(std::move(named_by_connection));
  const auto is_never_stored = [](std::string_view name) {
    return std::ranges::any_of(never_stored, [&](std::string_view other) { return same_name(other, name); });
  };
  Storable out;
  out.headers.reserve(headers.size());
  for (const Header& header : headers) {
    if (same_name(header.name, "Content-Length")) continue;
    const bool valid = is_token(header.name) && is_field_text(header.value);
    if (valid && !is_never_stored(header.name) && !of_this_hop.contains(header.name) &&
        !names_contain(never, header.name)) {
      out.headers.push_back({header.name, trimmed(header.value)});
      continue;
    }
    if (!out.not_stored.empty()) out.not_stored += ", ";
    out.not_stored += is_token(header.name) ? header.name : "?";
  }
  return out;
}

void mark_replayed(Headers& headers) {
  headers.push_back({std::string(replayed_header), "true"});
  constexpr std::string_view expose = "Access-Control-Expose-Headers";
  if (find_header(headers, "Access-Control-Allow-Origin") == nullptr) return;
  Header* last = nullptr;
  for (Header& header : headers) {
    if (!same_name(header.name, expose)) continue;
    last = &header;
    for (const std::string_view name : list_members(header.value)) {
      if (same_name(name, replayed_header)) return;
    }
  }
  // "*" stands for all only where no credentials are sent, so the name is added to it as well.
  if (last == nullptr) {
    headers.push_back({std::string(expose), std::string(replayed_header)});
  } else {
    last->value += (trimmed(last->value).empty() ? "" : ", ") + std::string(replayed_header);
  }
}

}  // namespace once::http
