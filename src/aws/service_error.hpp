// What an answer says beside its body: the service's time, and the error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

// "Sun, 06 Nov 1994 08:49:37 GMT", the one form that servers may send (RFC 9110, 5.6.7), or nothing.
std::optional<Time> parse_http_date(std::string_view text) noexcept;

// What stands in the one element of that name without attributes. Empty: there is not exactly one. Not unescaped.
std::optional<std::string_view> xml_element(std::string_view xml, const std::string& name);
// The same as text. Empty also if there are other elements in it.
std::string xml_text(std::string_view xml, const std::string& name);

struct ServiceError {
  std::string code;     // "ResourceNotFoundException", without what may stand around it. Empty: none is told.
  std::string message;  // The service's own words, or empty.
};

// What is to be done about an error.
enum class Remedy : std::uint8_t {
  none,  // It is for the caller.
  slow_down,
  again,        // Another write was under way, and this one was not carried out.
  doubtful,     // The service failed, perhaps after it was carried out.
  clock,        // The signature's time is off.
  signature,    // It is wrong. Its time may be the reason, as DynamoDB has no code of its own for that.
  expired,      // The credentials: there may be newer ones, if not now then later.
  credentials,  // They are unknown: there may be newer ones.
  permission,
};

// Services share their codes, in JSON or in XML.
Remedy remedy_for(std::string_view code, int status) noexcept;

struct Refusal {
  Remedy remedy = Remedy::none;
  std::string said;          // For people.
  std::optional<Time> time;  // The service's, if it tells that elsewhere than in the Date header.
};

// Of an answer of a JSON protocol with status 400 and above:
// https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html#operation-error-serialization
ServiceError read_service_error(const HttpAnswer& answer);

}  // namespace once::aws
