#include "fake_aws/http.hpp"

#include <array>
#include <chrono>
#include <cstdio>

namespace once::testing::fake {

std::string date_header(Time time) {
  static constexpr std::array days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto second = std::chrono::floor<std::chrono::seconds>(time);
  const auto day = std::chrono::floor<std::chrono::days>(second);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(second - day);
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), "%s, %02u %s %04d %02d:%02d:%02d GMT",
                days[std::chrono::weekday(day).c_encoding()], static_cast<unsigned>(date.day()),
                months[static_cast<unsigned>(date.month()) - 1], static_cast<int>(date.year()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return out.data();
}

FakeAnswer refusal_answer(const Refusal& refusal) {
  const nlohmann::json body = {{"__type", refusal.type}, {"message", refusal.message}};
  return {.status = refusal.status, .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

}  // namespace once::testing::fake
