// What an answer says beside its body: the service's time, and the error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

// "Sun, 06 Nov 1994 08:49:37 GMT", the one form that servers may send (RFC 9110, 5.6.7), or nothing.
std::optional<Time> parse_http_date(std::string_view text) noexcept;

struct ServiceError {
  std::string code;     // "ResourceNotFoundException", without what may stand around it. Empty: none is told.
  std::string message;  // The service's own words, or empty.
};

// Of an answer of a JSON protocol with status 400 and above:
// https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html#operation-error-serialization
ServiceError read_service_error(const HttpAnswer& answer);

}  // namespace once::aws
