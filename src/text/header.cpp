#include "text/header.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "text/ascii.hpp"

namespace once::text {

namespace {

// Tables, because each line of each message is checked.
constexpr std::array<bool, 256> token_characters = [] {
  std::array<bool, 256> table{};
  for (unsigned c = 0; c < table.size(); ++c) {
    const auto character = static_cast<char>(c);
    table[c] = is_letter_or_digit(character) ||
               (c != 0 && std::string_view("!#$%&'*+-.^_`|~").find(character) != std::string_view::npos);
  }
  return table;
}();

bool is_token_character(char c) noexcept { return token_characters[static_cast<unsigned char>(c)]; }

bool is_field_character(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= 0x20 && byte != 0x7F);
}

// Whether all eight bytes are visible or blank: none below 0x20, none 0x7F. A tab is tested alone.
bool is_plain(const char* bytes) noexcept {
  const text::EightBytes eight(bytes);
  return !eight.any_below_blank() && !eight.any('\x7f');
}

// Any order in which names that differ only in case are equal.
bool is_before(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return a.size() < b.size();
  return std::ranges::lexicographical_compare(a, b, [](char x, char y) { return text::lower(x) < text::lower(y); });
}

}  // namespace

bool is_token(std::string_view text) noexcept { return !text.empty() && std::ranges::all_of(text, is_token_character); }

bool is_field_text(std::string_view text) noexcept {
  while (text.size() >= EightBytes::size && is_plain(text.data())) text.remove_prefix(EightBytes::size);
  return std::ranges::all_of(text, is_field_character);
}

std::vector<std::string_view> list_members(std::string_view value) {
  std::vector<std::string_view> members;
  for (;;) {
    const auto comma = value.find(',');
    const std::string_view member = trim(value.substr(0, comma));
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

}  // namespace once::text
