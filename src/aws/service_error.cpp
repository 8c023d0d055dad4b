#include "aws/service_error.hpp"

#include <simdjson.h>

#include <array>
#include <charconv>
#include <chrono>
#include <system_error>

namespace once::aws {

namespace {

// "com.amazonaws.dynamodb.v20120810#ThrottlingException", "ThrottlingException:http://internal…".
std::string_view plain(std::string_view code) noexcept {
  code = code.substr(0, code.find(':'));
  const auto hash = code.rfind('#');
  return hash == std::string_view::npos ? code : code.substr(hash + 1);
}

}  // namespace

std::optional<Time> parse_http_date(std::string_view text) noexcept {
  constexpr std::string_view months = "JanFebMarAprMayJunJulAugSepOctNovDec";
  if (text.size() != 29 || text.substr(3, 2) != ", " || text.substr(25) != " GMT" || text[7] != ' ' ||
      text[11] != ' ' || text[16] != ' ' || text[19] != ':' || text[22] != ':') {
    return std::nullopt;
  }
  bool good = true;
  const auto number = [&](std::size_t at, std::size_t size) {
    unsigned value = 0;
    const char* const end = text.data() + at + size;
    const auto result = std::from_chars(text.data() + at, end, value);
    good = good && result.ec == std::errc{} && result.ptr == end;
    return value;
  };
  const unsigned day = number(5, 2);
  const unsigned year = number(12, 4);
  const unsigned hour = number(17, 2);
  const unsigned minute = number(20, 2);
  const unsigned second = number(23, 2);
  const auto month = months.find(text.substr(8, 3));
  if (!good || month == std::string_view::npos || month % 3 != 0 || hour > 23 || minute > 59 || second > 60) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month) / 3 + 1),
                                         std::chrono::day(day)};
  if (!date.ok()) return std::nullopt;
  return Time(std::chrono::sys_days(date)) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::seconds(second);
}

ServiceError read_service_error(const HttpAnswer& answer) {
  ServiceError error;
  error.code = plain(answer.header("x-amzn-errortype"));
  static thread_local simdjson::ondemand::parser parser;
  const simdjson::padded_string body(answer.body);
  simdjson::ondemand::document document;
  simdjson::ondemand::object object;
  // A body that is no object (a proxy's page) leaves the rest empty.
  if (parser.iterate(body).get(document) != simdjson::SUCCESS ||
      document.get_object().get(object) != simdjson::SUCCESS) {
    return error;
  }
  for (auto field : object) {
    std::string_view name;
    if (field.unescaped_key().get(name) != simdjson::SUCCESS) break;
    const bool is_code = name == "__type" || name == "code";
    if (!is_code && name != "message" && name != "Message") continue;
    std::string_view text;
    if (field.value().get_string().get(text) != simdjson::SUCCESS) continue;
    if (!is_code) {
      error.message = text;
    } else if (error.code.empty()) {
      error.code = plain(text);
    }
  }
  return error;
}

}  // namespace once::aws
