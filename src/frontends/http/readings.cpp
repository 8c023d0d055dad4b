#include "frontends/http/readings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "text/percent.hpp"

namespace once::http {

namespace {

// Of all readings together: more is an attack.
constexpr std::size_t most_bytes = std::size_t{32} * 1024;
constexpr std::size_t most_readings = 64;

// change(segment) for each of them.
template <class Change>
std::string by_segment(std::string_view path, Change change) {
  std::string out;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    out += change(path.substr(at, slash - at));
    if (slash < path.size()) out += '/';
    at = slash + 1;
  }
  return out;
}

std::string decode(std::string_view path) {
  return text::percent_decoded(path, [](char) { return true; });
}
std::string decode_but_slashes(std::string_view path) {
  return text::percent_decoded(path, [](char c) { return c != '/' && c != '\\'; });
}
std::string decode_unreserved(std::string_view path) { return text::percent_decoded(path, text::is_unreserved); }

std::string turn_backslashes(std::string_view path) {
  std::string out(path);
  std::ranges::replace(out, '\\', '/');
  return out;
}

std::string blanks_for_plus(std::string_view path) {
  std::string out(path);
  std::ranges::replace(out, '+', ' ');
  return out;
}

std::string join_slashes(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  return out;
}

// RFC 3986, section 5.2.4. An empty segment is one.
std::string resolve_dots(std::string_view path) {
  std::vector<std::string_view> kept;
  bool at_folder = false;  // Then it ends with a slash.
  for (std::size_t at = path.starts_with('/') ? 1 : 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view segment = path.substr(at, slash - at);
    at_folder = segment == "." || segment == "..";
    if (segment == ".." && !kept.empty()) kept.pop_back();
    if (!at_folder) kept.push_back(segment);
    at = slash + 1;
  }
  std::string out;
  for (const std::string_view segment : kept) {
    out += '/';
    out += segment;
  }
  if (at_folder || out.empty()) out += '/';
  return out;
}

std::string drop_parameters(std::string_view path) {
  return by_segment(path, [](std::string_view segment) { return segment.substr(0, segment.find(';')); });
}
std::string cut_at_semicolon(std::string_view path) { return std::string(path.substr(0, path.find(';'))); }
std::string cut_at_query(std::string_view path) { return std::string(path.substr(0, path.find_first_of("?#"))); }

// Windows drops dots and blanks at the end, others blanks on both sides. resolve_dots() handles segments of only dots.
std::string trim_segments(std::string_view path) {
  return by_segment(path, [](std::string_view segment) {
    const auto first = segment.find_first_not_of(' ');
    if (first == std::string_view::npos) return std::string_view();
    std::string_view rest = segment.substr(first);
    const auto last = rest.find_last_not_of(". ");
    if (last == std::string_view::npos) return rest.substr(0, rest.find(' '));
    return rest.substr(0, last + 1);
  });
}

// "/charges.json" is "/charges" for frameworks where the extension selects a format.
std::string drop_extension(std::string_view path) {
  const auto last = path.find_last_of('/');
  const auto dot = path.find_last_of('.');
  if (dot == std::string_view::npos || (last != std::string_view::npos && dot <= last + 1)) return std::string(path);
  return std::string(path.substr(0, dot));
}

constexpr std::array steps{decode,           decode_but_slashes, decode_unreserved, turn_backslashes,
                           blanks_for_plus,  join_slashes,       resolve_dots,      drop_parameters,
                           cut_at_semicolon, cut_at_query,       trim_segments,     drop_extension};

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};
// Characters that normalisation (NFKC) or a best fit turns into one of / \ . ; ? # %.
constexpr std::array look_alikes{
    Range{0x037E, 0x037E},   Range{0x066A, 0x066A}, Range{0x2024, 0x2026}, Range{0x2044, 0x2044}, Range{0x2047, 0x2049},
    Range{0x2100, 0x2101},   Range{0x2105, 0x2106}, Range{0x2215, 0x2216}, Range{0x2488, 0x249B}, Range{0x29F5, 0x29F9},
    Range{0x33C2, 0x33C2},   Range{0x33C7, 0x33C7}, Range{0x33D8, 0x33D8}, Range{0xFE10, 0xFE19}, Range{0xFE30, 0xFE30},
    Range{0xFE52, 0xFE56},   Range{0xFE5F, 0xFE5F}, Range{0xFE68, 0xFE6A}, Range{0xFF03, 0xFF03}, Range{0xFF05, 0xFF05},
    Range{0xFF0E, 0xFF0F},   Range{0xFF1B, 0xFF1B}, Range{0xFF1F, 0xFF1F}, Range{0xFF3C, 0xFF3C}, Range{0xFF61, 0xFF61},
    Range{0x1F100, 0x1F100},
};

std::uint32_t byte_at(std::string_view text, std::size_t at) noexcept {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
}

// Characters that some servers read differently: control characters, three dots (once "up"), overlong UTF-8 (some
// decode it), look-alikes. Latin-1 and similar encodings have one reading.
bool is_doubtful(std::string_view path) noexcept {
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::uint32_t lead = byte_at(path, i);
    if (lead < 0x20 || lead == 0x7F || path.substr(i).starts_with("/...")) return true;
    if (lead < 0xC0) continue;
    const std::uint32_t second = byte_at(path, i + 1);
    if (lead <= 0xC1 || (lead == 0xE0 && second >= 0x80 && second < 0xA0) ||
        (lead == 0xF0 && second >= 0x80 && second < 0x90) || lead >= 0xF5) {
      return true;
    }
    std::uint32_t point = 0;
    if (lead < 0xE0) {
      point = (lead & 0x1FU) << 6U | (second & 0x3FU);
    } else if (lead < 0xF0) {
      point = (lead & 0x0FU) << 12U | (second & 0x3FU) << 6U | (byte_at(path, i + 2) & 0x3FU);
    } else {
      point = (lead & 0x07U) << 18U | (second & 0x3FU) << 12U | (byte_at(path, i + 2) & 0x3FU) << 6U |
              (byte_at(path, i + 3) & 0x3FU);
    }
    if (std::ranges::any_of(look_alikes, [&](Range range) { return point >= range.first && point <= range.last; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool has_one_reading(std::string_view path) noexcept {
  constexpr std::string_view plain = "!$&'()*,=:@";
  if (!path.starts_with('/')) return false;
  char before = 'x';
  for (const char c : path) {
    if (c == '/' ? before == '/' : c == '.' || (!text::is_unreserved(c) && plain.find(c) == std::string_view::npos)) {
      return false;
    }
    before = c;
  }
  return true;
}

std::optional<std::vector<std::string>> readings_of(std::string_view path) {
  std::vector<std::string> readings{std::string(path)};
  std::unordered_set<std::string> known{readings.front()};
  std::size_t bytes = path.size();
  if (!path.starts_with('/') || text::has_broken_percent(path) || is_doubtful(path)) return std::nullopt;
  for (std::size_t next = 0; next < readings.size(); ++next) {
    for (const auto& step : steps) {
      std::string other = step(readings[next]);
      if (known.contains(other)) continue;
      bytes += other.size();
      if (bytes > most_bytes || readings.size() == most_readings || is_doubtful(other)) return std::nullopt;
      known.insert(other);
      readings.push_back(std::move(other));
    }
  }
  return readings;
}

bool may_leave_folder(std::string_view path) {
  if (has_one_reading(path)) return false;
  // A path may know the folder's name, and come back: "/../folder/x". It cannot come back to both.
  return std::ranges::any_of(std::array<std::string_view, 2>{"/folder", "/parent"}, [&](std::string_view folder) {
    const auto readings = readings_of(std::string(folder).append(path));
    return !readings || !std::ranges::all_of(*readings, [&](std::string_view reading) {
      return reading.starts_with(folder) && reading.substr(folder.size(), 1).find_first_not_of('/') == reading.npos;
    });
  });
}

}  // namespace once::http
