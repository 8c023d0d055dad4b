// Reads the service's time and the error of an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

// "Sun, 06 Nov 1994 08:49:37 GMT", the only form that servers may send (RFC 9110, 5.6.7). Empty for others.
std::optional<Time> parse_http_date(std::string_view text) noexcept;

// The contents of the only element of that name without attributes, escaped. Empty: there is not exactly one.
std::optional<std::string_view> xml_element(std::string_view xml, const std::string& name);
// The same, unescaped. Empty also if it contains elements.
std::string xml_text(std::string_view xml, const std::string& name);

struct ServiceError {
  std::string code;     // "ResourceNotFoundException", without prefix and suffix. Empty: none.
  std::string message;  // The service's own words, or empty.
};

// What to do about an error.
enum class Remedy : std::uint8_t {
  none,  // Return it to the caller.
  slow_down,
  again,        // Another write was running, and this one was not executed.
  doubtful,     // The service failed, perhaps after the execution.
  clock,        // The signature's time is wrong.
  signature,    // The signature is wrong, perhaps because of its time: DynamoDB has no separate code for that.
  expired,      // The credentials have expired: there may be newer ones now or later.
  credentials,  // The credentials are unknown: there may be newer ones.
  permission,
};

// Services share their codes, in JSON or in XML.
Remedy remedy_for(std::string_view code, int status) noexcept;

struct Refusal {
  Remedy remedy = Remedy::none;
  std::string said;          // For people.
  std::optional<Time> time;  // The service's time, if it is not in the Date header.
};

// Reads an answer of a JSON protocol with status 400 and above:
// https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html#operation-error-serialization
ServiceError read_service_error(const HttpAnswer& answer);

}  // namespace once::aws
