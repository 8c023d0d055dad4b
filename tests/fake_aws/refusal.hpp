// How the inside of the fake says no: an exception that FakeDynamoDb::call() turns into an answer.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace once::testing::fake {

inline constexpr std::string_view service_namespace = "com.amazonaws.dynamodb.v20120810#";
inline constexpr std::string_view validation_namespace = "com.amazon.coral.validate#";
inline constexpr std::string_view coral_namespace = "com.amazon.coral.service#";

struct Refusal {
  int status = 400;
  std::string type = {};  // With its namespace, as in `__type`.
  std::string message = {};
  nlohmann::json more = nlohmann::json::object();  // Members beside __type and message.
};

[[noreturn]] inline void refuse(std::string_view type, std::string message) {
  throw Refusal{.type = std::string(service_namespace).append(type), .message = std::move(message)};
}

[[noreturn]] inline void invalid(std::string message) {
  throw Refusal{.type = std::string(validation_namespace) + "ValidationException", .message = std::move(message)};
}

// A value of the request has the wrong JSON type.
[[noreturn]] inline void malformed(std::string message) {
  throw Refusal{.type = std::string(coral_namespace) + "SerializationException", .message = std::move(message)};
}

}  // namespace once::testing::fake
