#include "aws/service_error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <memory_resource>
#include <system_error>
#include <utility>

#include "text/json.hpp"

namespace once::aws {

namespace {

// "com.amazonaws.dynamodb.v20120810#ThrottlingException", "ThrottlingException:http://internal…".
std::string_view plain(std::string_view code) noexcept {
  code = code.substr(0, code.find(':'));
  const auto hash = code.rfind('#');
  return hash == std::string_view::npos ? code : code.substr(hash + 1);
}

// The five entities of every XML; others do not occur here.
std::optional<std::string> unescaped(std::string_view text) {
  constexpr std::pair<std::string_view, char> entities[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string out;
  while (!text.empty()) {
    if (text.front() == '<') return {};
    if (text.front() != '&') {
      out += text.front();
      text.remove_prefix(1);
      continue;
    }
    const auto* const found = std::find_if(std::begin(entities), std::end(entities),
                                           [&](const auto& each) { return text.starts_with(each.first); });
    if (found == std::end(entities)) return {};
    out += found->second;
    text.remove_prefix(found->first.size());
  }
  return out;
}

struct KnownCode {
  std::string_view code;
  Remedy remedy;
};

// https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html,
// https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
constexpr std::array known_codes = std::to_array<KnownCode>({
    {"ProvisionedThroughputExceededException", Remedy::slow_down},
    {"ThrottlingException", Remedy::slow_down},
    {"Throttling", Remedy::slow_down},
    {"ThrottledException", Remedy::slow_down},
    {"RequestThrottled", Remedy::slow_down},
    {"RequestThrottledException", Remedy::slow_down},
    {"RequestLimitExceeded", Remedy::slow_down},
    {"TooManyRequestsException", Remedy::slow_down},
    {"SlowDown", Remedy::slow_down},
    {"TransactionConflictException", Remedy::again},
    {"ReplicatedWriteConflictException", Remedy::again},
    {"RequestTimeTooSkewed", Remedy::clock},
    {"RequestExpired", Remedy::clock},
    {"RequestInTheFuture", Remedy::clock},
    {"InvalidSignatureException", Remedy::signature},
    {"SignatureDoesNotMatch", Remedy::signature},
    {"AuthFailure", Remedy::signature},
    {"ExpiredTokenException", Remedy::expired},
    {"ExpiredToken", Remedy::expired},
    {"UnrecognizedClientException", Remedy::credentials},
    {"InvalidClientTokenId", Remedy::credentials},
    {"InvalidAccessKeyId", Remedy::credentials},
    {"InvalidToken", Remedy::credentials},
    {"AccessDeniedException", Remedy::permission},
    {"AccessDenied", Remedy::permission},
    {"IncompleteSignature", Remedy::permission},
    {"IncompleteSignatureException", Remedy::permission},
    {"MissingAuthenticationToken", Remedy::permission},
    {"MissingAuthenticationTokenException", Remedy::permission},
    {"OptInRequired", Remedy::permission},
});

}  // namespace

Remedy remedy_for(std::string_view code, int status) noexcept {
  const auto* const found =
      std::find_if(known_codes.begin(), known_codes.end(), [&](const KnownCode& known) { return known.code == code; });
  if (found != known_codes.end()) return found->remedy;
  if (status == 429) return Remedy::slow_down;
  return status >= 500 ? Remedy::doubtful : Remedy::none;
}

namespace {

// DynamoDB's, since 2025: "[TableWriteKeyRangeThroughputExceeded arn:aws:dynamodb:…:table/once]".
void append_throttling_reasons(const text::json::Value& body, std::string& message) {
  constexpr std::size_t most_reasons = 8;
  for (const std::string_view name : {"ThrottlingReasons", "throttlingReasons"}) {
    const text::json::Value reasons = body.member(name);
    if (reasons.kind() != text::json::Kind::array) continue;
    std::size_t count = 0;
    for (const text::json::Value& each : reasons.elements()) {
      const std::string_view reason = each.member("reason").string_or_empty();
      if (reason.empty()) continue;
      if (++count > most_reasons) break;
      message.append(message.empty() ? "[" : " [").append(reason);
      const std::string_view resource = each.member("resource").string_or_empty();
      if (!resource.empty()) message.append(" ").append(resource);
      message += ']';
    }
  }
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

std::optional<std::string_view> xml_element(std::string_view xml, const std::string& name) {
  const std::string open = "<" + name + ">";
  const std::string close = "</" + name + ">";
  const std::size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const std::size_t end = xml.find(close, begin);
  if (end == std::string_view::npos || xml.find(open, begin + 1) != std::string_view::npos ||
      xml.find(close, end + 1) != std::string_view::npos) {
    return {};
  }
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::string xml_text(std::string_view xml, const std::string& name) {
  const auto found = xml_element(xml, name);
  return found ? unescaped(*found).value_or("") : std::string{};
}

ServiceError read_service_error(const HttpAnswer& answer) {
  ServiceError error;
  error.code = plain(answer.header("x-amzn-errortype"));
  std::array<std::byte, 4 * 1024> room;  // NOLINT(*-member-init): written before it is read.
  std::pmr::monotonic_buffer_resource arena(room.data(), room.size());
  text::json::Value body;
  // A body that is not an object (a proxy's page) leaves the rest empty.
  if (!text::json::try_parse(answer.body, {.unique_names = false, .exact_numbers = false}, arena, body)) return error;
  const auto text = [&](std::string_view name) {
    const text::json::Value found = body.member(name);
    return found.kind() == text::json::Kind::string ? found.text() : std::string_view();
  };
  for (const std::string_view name : {"__type", "code"}) {
    if (error.code.empty()) error.code = plain(text(name));
  }
  for (const std::string_view name : {"message", "Message"}) {
    if (error.message.empty()) error.message = text(name);
  }
  append_throttling_reasons(body, error.message);
  return error;
}

}  // namespace once::aws
