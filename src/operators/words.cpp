#include "operators/words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdarg>
#include <cstdio>

#include <once/decide.hpp>
#include <once/error.hpp>

#include "text/base64.hpp"
#include "text/hex.hpp"
#include "text/utf8.hpp"

namespace once::operators {

namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

// The number that `text` begins with and its unit, multiplied. Empty if it is anything else.
template <std::size_t N>
std::optional<std::uint64_t> measured(std::string_view text, const std::array<Unit, N>& units) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  const std::string_view name(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == units.end()) return std::nullopt;
  if (number > UINT64_MAX / unit->factor) return std::nullopt;
  return number * unit->factor;
}

[[gnu::format(printf, 1, 2)]] std::string number(const char* format, ...) {
  std::array<char, 64> buffer{};
  va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(buffer.data(), buffer.size(), format, values);
  va_end(values);
  return {buffer.data(), static_cast<std::size_t>(std::clamp(length, 0, 63))};
}

Millis duration_of(std::string_view text, std::string_view what, std::string_view other) {
  static constexpr std::array<Unit, 5> units = {
      {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}}};
  constexpr std::uint64_t most = std::uint64_t{3653} * 86'400'000;
  const auto value = measured(text, units);
  if (value && *value <= most) return Millis{static_cast<Millis::rep>(*value)};
  throw Exception(ErrorKind::misuse, std::string(what) + " is '" + escaped(text) +
                                         "'; write a whole number and a unit, as in 500ms, 30s, 5m, 24h or 7d" +
                                         std::string(value ? ", at most 3653d" : "") + std::string(other));
}

}  // namespace

Millis parse_duration(std::string_view text, std::string_view what) { return duration_of(text, what, ""); }

Millis parse_retention(std::string_view text, std::string_view what) {
  return text == "never" ? keep_forever : duration_of(text, what, ", or never");
}

std::uint64_t parse_size(std::string_view text, std::string_view what) {
  static constexpr std::array<Unit, 9> units = {{{"", 1},
                                                 {"B", 1},
                                                 {"KiB", std::uint64_t{1} << 10},
                                                 {"MiB", std::uint64_t{1} << 20},
                                                 {"GiB", std::uint64_t{1} << 30},
                                                 {"TiB", std::uint64_t{1} << 40},
                                                 {"KB", 1'000},
                                                 {"MB", 1'000'000},
                                                 {"GB", 1'000'000'000}}};
  if (const auto value = measured(text, units)) return *value;
  throw Exception(ErrorKind::misuse, std::string(what) + " is '" + escaped(text) +
                                         "'; write a whole number of bytes, as in 65536, 64KiB, 1MiB or 2GiB");
}

std::string parse_hex(std::string_view text, std::string_view what) {
  if (auto bytes = text::from_hex(text)) return *std::move(bytes);
  throw Exception(ErrorKind::misuse, std::string(what) + " must be pairs of hexadecimal digits, as in 6f72646572");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string show_duration(Millis span) {
  const bool negative = span < Millis{0};
  const auto ms = static_cast<std::uint64_t>(negative ? -span.count() : span.count());
  static constexpr std::array<Unit, 4> units = {{{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1'000}}};
  std::string out = negative ? "-" : "";
  if (ms < 1'000) return out + std::to_string(ms) + "ms";
  std::uint64_t rest = ms;
  int parts = 0;
  for (const Unit& unit : units) {
    const std::uint64_t count = rest / unit.factor;
    rest %= unit.factor;
    if (count == 0) {
      if (parts > 0) break;
      continue;
    }
    out += std::to_string(count) + std::string(unit.name);
    if (++parts == 2) break;
  }
  return out;
}

std::string show_size(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return number("%.1f %s", value, units.at(unit));
}

std::string escaped(std::string_view bytes) {
  const bool text = text::valid_utf8(bytes);
  std::string out;
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  while (p != end) {
    const char* const begin = p;
    const char32_t c = text ? text::next_code_point(p) : static_cast<unsigned char>(*p++);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\') {
      out += "\\\\";
    } else if (text ? text::is_invisible(c) : c < 0x20 || c >= 0x7F) {
      for (const char* byte = begin; byte != p; ++byte) out += number("\\x%02X", static_cast<unsigned char>(*byte));
    } else {
      out.append(begin, p);
    }
  }
  return out;
}

std::string parse_base64(std::string_view text, std::string_view what) {
  if (auto bytes = text::decode_base64(text)) return *std::move(bytes);
  throw Exception(ErrorKind::misuse, std::string(what) + " must be base64 with its padding");
}

}  // namespace once::operators
