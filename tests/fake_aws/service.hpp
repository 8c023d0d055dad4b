// The fake with a clock of its own, spoken to in JSON.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <once/testing/manual_time.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {

using nlohmann::json;

struct Service {
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(clock);

  Service() { fake->create_table("things", "id"); }

  // The answer to a call that must go well.
  json good(std::string_view operation, const json& request) const {
    const FakeAnswer answer = fake->call(operation, request.dump());
    EXPECT_EQ(answer.status, 200) << operation << ' ' << request << '\n' << answer.body;
    return json::parse(answer.body);
  }
  // The body of a call that must be refused.
  json bad(std::string_view operation, const json& request) const {
    const FakeAnswer answer = fake->call(operation, request.dump());
    EXPECT_EQ(answer.status, 400) << operation << ' ' << request << '\n' << answer.body;
    return json::parse(answer.body);
  }
  // "ValidationException: The text".
  std::string refusal(std::string_view operation, const json& request) const {
    const json body = bad(operation, request);
    const std::string type = body.value("__type", "");
    return type.substr(type.find('#') + 1) + ": " + body.value("message", body.value("Message", ""));
  }

  void put(const json& item) const { good("PutItem", {{"TableName", "things"}, {"Item", item}}); }
  [[nodiscard]] json get(std::string_view id) const {
    return good("GetItem", {{"TableName", "things"}, {"Key", {{"id", {{"S", id}}}}}}).value("Item", json());
  }
};

}  // namespace once::testing
