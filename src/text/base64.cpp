#include "text/base64.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace once::text {

namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t none = 64;
constexpr auto values = [] {
  std::array<std::uint8_t, 256> table{};
  table.fill(none);
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    table[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return table;
}();

std::uint32_t value_of(char c) noexcept { return values[static_cast<unsigned char>(c)]; }

}  // namespace

bool is_base64_character(char c) noexcept { return value_of(c) != none; }

void append_base64(std::string& out, std::string_view bytes) {
  const std::size_t before = out.size();
  out.resize(before + (bytes.size() + 2) / 3 * 4, '=');
  char* next = out.data() + before;
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(bytes[i])}; };
  const auto put = [&](std::uint32_t group, int characters) {
    for (int i = 0; i < characters; ++i) *next++ = alphabet[group >> (18 - 6 * i) & 63U];
  };
  for (; bytes.size() >= 3; bytes.remove_prefix(3)) put(byte(0) << 16U | byte(1) << 8U | byte(2), 4);
  if (bytes.size() == 2) put(byte(0) << 16U | byte(1) << 8U, 3);
  if (bytes.size() == 1) put(byte(0) << 16U, 2);
}

std::string encode_base64(std::string_view bytes) {
  std::string out;
  append_base64(out, bytes);
  return out;
}

std::optional<std::string> decode_base64(std::string_view text, Base64Rules rules, std::string* problem) {
  const auto refused = [&](std::string why) -> std::optional<std::string> {
    if (problem != nullptr) *problem = std::move(why);
    return std::nullopt;
  };
  const std::string_view data = text.substr(0, text.find('='));
  const std::string_view padding = text.substr(data.size());
  const auto* const wrong = std::ranges::find_if_not(data, is_base64_character);
  if (wrong != data.end()) {
    return refused("byte " + std::to_string(wrong - data.begin() + 1) + " is no character of it");
  }
  const std::size_t odd = data.size() % 4;
  const bool padded = padding.size() == (odd == 0 ? 0 : 4 - odd) || (padding.empty() && !rules.padding);
  if (odd == 1 || !padded || padding.find_first_not_of('=') != std::string_view::npos) {
    return refused("wrong length or padding");
  }
  std::string out(data.size() * 3 / 4, '\0');
  char* next = out.data();
  std::uint32_t bits = 0;
  unsigned count = 0;  // Number of bits that are not in a byte yet.
  for (const char c : data) {
    bits = bits << 6U | value_of(c);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    *next++ = static_cast<char>(bits >> count & 0xFFU);
  }
  if (rules.zero_rest && (bits & ((1U << count) - 1)) != 0) {
    return refused("the last character has bits that belong to no byte");
  }
  return out;
}

}  // namespace once::text
