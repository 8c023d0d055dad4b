// What docs/lambda.md shows, run.
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/frontends/lambda/batch.hpp>
#include <once/frontends/lambda/http.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/stores/memory.hpp>

namespace guide_test {

// A bank that charges as often as it is asked, and a mail server.
struct Bank {
  std::string charge(const std::string& key, std::string_view /*order*/) {
    const std::lock_guard lock(mutex);
    keys.push_back(key);
    return "ch_" + std::to_string(keys.size());
  }
  std::mutex mutex;
  std::vector<std::string> keys;
};
struct Mail {
  void send(const std::string& charge, const std::string& request_id) { sent.push_back(charge + " " + request_id); }
  std::vector<std::string> sent;
};

class Guide : public ::testing::Test {
 protected:
  once::Engine engine{{.store = once::stores::make_memory_store(), .scope = "shop"}};
  once::lambda::Invocation asked{.request_id = "req-1"};
  Bank bank;
  Mail mail;
};

TEST_F(Guide, Handler) {
  // [handler]
  const once::lambda::Handler handler = once::lambda::idempotent(
      engine, {.key = "order_id", .fingerprint = "cents", .name = "pay"},
      [&](std::string_view event, const once::lambda::Invocation& invocation, once::Context& context) {
        // Runs once, also if the invocation ends right after it: what a finished step returned is in the record.
        const std::string charge =
            context.step("charge", [&] { return bank.charge(context.derived_key("card"), event); });
        context.step("mail", [&] { mail.send(charge, invocation.request_id); });
        return "{\"charge\":\"" + charge + "\"}";
      });
  // [/handler]
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(handler(R"({"order_id":"order-17","cents":500})", asked), R"({"charge":"ch_1"})");
  }
  EXPECT_EQ(bank.keys.size(), 1U);
  EXPECT_EQ(mail.sent, std::vector<std::string>{"ch_1 req-1"});
  EXPECT_THROW(static_cast<void>(handler(R"({"order_id":"order-17","cents":900})", asked)),
               once::lambda::FunctionError);
}

TEST_F(Guide, HoldAndHook) {
  // [hold]
  once::lambda::IdempotentOptions options{.key = "order_id", .name = "pay"};
  options.policy = once::Policy{.retention = std::chrono::hours(72), .on_lapse = once::OnLapse::hold};
  // [/hold]
  // [hook]
  options.on_replay = [](const std::string& response, const once::Record&) {
    auto answer = nlohmann::json::parse(response);  // A response for API Gateway.
    answer["headers"]["Idempotent-Replayed"] = "true";
    return answer.dump();
  };
  // [/hook]
  const once::lambda::Handler handler =
      once::lambda::idempotent(engine, options, [](std::string_view) { return R"({"statusCode":200})"; });
  EXPECT_EQ(handler(R"({"order_id":1})", asked), R"({"statusCode":200})");
  EXPECT_EQ(handler(R"({"order_id":1})", asked), R"({"headers":{"Idempotent-Replayed":"true"},"statusCode":200})");
}

TEST_F(Guide, Http) {
  // [http]
  once::http::Options rules{.principal = once::http::Principal::header("X-Api-Key")};
  const once::lambda::Handler handler = once::lambda::http(
      engine, {.routes = rules}, [&](const once::http::Request& request, once::http::Execution& execution) {
        const std::string charge = bank.charge(execution.derived_key("card"), request.body);
        return once::http::Answer{
            .status = 201, .headers = {{"Location", "/charges/" + charge}}, .body = "{\"charge\":\"" + charge + "\"}"};
      });
  // [/http]
  const std::string event =
      R"({"version":"2.0","rawPath":"/charges","headers":{"idempotency-key":"order-17","x-api-key":"alice"},
      "requestContext":{"http":{"method":"POST"}},"body":"{}"})";
  EXPECT_EQ(handler(event, asked),
            R"({"statusCode":201,"headers":{"Location":"/charges/ch_1"},"body":"{\"charge\":\"ch_1\"}",)"
            R"("isBase64Encoded":false})");
  EXPECT_EQ(handler(event, asked),
            R"({"statusCode":201,"headers":{"Location":"/charges/ch_1","Idempotent-Replayed":"true"},)"
            R"("body":"{\"charge\":\"ch_1\"}","isBase64Encoded":false})");
  EXPECT_EQ(bank.keys.size(), 1U);
}

TEST_F(Guide, Batch) {
  // [batch]
  const once::lambda::Handler handler = once::sqs::batch(
      engine,
      {.name = "orders", .key_source = once::sqs::KeySource::payload, .key = "order_id", .fingerprint = "cents"},
      [&](const once::sqs::Message& message, once::Context& context) {
        bank.charge(context.derived_key("card"), message.body);
      });
  // [/batch]
  const auto record = [](const std::string& id, const nlohmann::json& order) {
    return nlohmann::json{{"messageId", id}, {"eventSource", "aws:sqs"}, {"body", order.dump()}};
  };
  const nlohmann::json order{{"order_id", 17}, {"cents", 500}};
  const nlohmann::json event{
      {"Records", {record("a", order), record("b", order), record("c", {{"order_id", "no"}, {"cents", 1}})}}};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(handler(event.dump(), asked), R"({"batchItemFailures":[]})");
  EXPECT_EQ(bank.keys.size(), 2U);
}

}  // namespace guide_test
