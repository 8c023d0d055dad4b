#include "text/rfc3339.hpp"

#include <algorithm>

#include "text/ascii.hpp"

namespace once::text {

namespace {

// Takes a number of `digits` digits from the front of `text`.
std::optional<int> take_number(std::string_view& text, std::size_t digits) noexcept {
  int value = 0;
  if (text.size() < digits) return {};
  for (const char c : text.substr(0, digits)) {
    if (!is_digit(c)) return {};
    value = 10 * value + (c - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, std::string_view any_of) noexcept {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

Rfc3339 rfc3339_chars(Time time) noexcept {
  using namespace std::chrono;
  constexpr Time first = sys_days{year{0} / 1 / 1};
  constexpr Time last = Time{sys_days{year{9999} / 12 / 31}} + days{1} - Millis{1};
  time = std::clamp(time, first, last);
  const auto day = floor<days>(time);
  const year_month_day date{day};
  const hh_mm_ss<Millis> clock{time - day};
  Rfc3339 out{};
  std::size_t end = 0;
  const auto put = [&](auto number, std::size_t digits, char next) {
    end += digits;
    for (std::size_t at = end; digits-- > 0; number /= 10) out[--at] = static_cast<char>('0' + number % 10);
    out[end++] = next;
  };
  put(static_cast<int>(date.year()), 4, '-');
  put(static_cast<unsigned>(date.month()), 2, '-');
  put(static_cast<unsigned>(date.day()), 2, 'T');
  put(clock.hours().count(), 2, ':');
  put(clock.minutes().count(), 2, ':');
  put(clock.seconds().count(), 2, '.');
  put(clock.subseconds().count(), 3, 'Z');
  return out;
}

std::string rfc3339(Time time) {
  const Rfc3339 chars = rfc3339_chars(time);
  return {chars.data(), chars.size()};
}

std::optional<Time> from_rfc3339(std::string_view text) {
  const auto year = take_number(text, 4);
  if (!year || !take(text, "-")) return {};
  const auto month = take_number(text, 2);
  if (!month || !take(text, "-")) return {};
  const auto day = take_number(text, 2);
  if (!day || !take(text, "Tt ")) return {};
  const auto hour = take_number(text, 2);
  if (!hour || !take(text, ":")) return {};
  const auto minute = take_number(text, 2);
  if (!minute || !take(text, ":")) return {};
  const auto second = take_number(text, 2);
  if (!second) return {};
  const std::chrono::year_month_day date(std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day)));
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return {};
  if (take(text, ".,")) {
    constexpr std::string_view digits = "0123456789";
    if (!take(text, digits)) return {};
    while (take(text, digits)) {
    }
  }
  Time time = std::chrono::sys_days(date) + std::chrono::hours(*hour) + std::chrono::minutes(*minute) +
              std::chrono::seconds(*second);
  if (take(text, "Zz")) return text.empty() ? std::optional(time) : std::nullopt;
  const bool east = text.starts_with('+');
  if (!take(text, "+-")) return {};
  const auto hours = take_number(text, 2);
  take(text, ":");
  const auto minutes = take_number(text, 2);
  if (!hours || !minutes || *hours > 23 || *minutes > 59 || !text.empty()) return {};
  const Millis offset = std::chrono::hours(*hours) + std::chrono::minutes(*minutes);
  return east ? time - offset : time + offset;
}

}  // namespace once::text
