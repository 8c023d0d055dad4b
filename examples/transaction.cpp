// An order takes a piece out of the stock, once: the piece, the order and the result commit together or not at all.
// The tests' fake plays DynamoDB, so that answers can be lost; with a real one nothing else would change.
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/system.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>

#include "fake_aws/fake_dynamodb.hpp"

using nlohmann::json;
using once::stores::TransactItems;

// [transaction]
static std::string sell(once::Context& context, const std::string& order, const std::string& sku) {
  auto items = std::make_shared<TransactItems>();
  items->put(json{{"TableName", "orders"}, {"Item", {{"id", {{"S", order}}}, {"sku", {{"S", sku}}}}}}.dump());
  items->update(json{{"TableName", "stock"},
                     {"Key", {{"sku", {{"S", sku}}}}},
                     {"UpdateExpression", "ADD pieces :less"},
                     {"ConditionExpression", "pieces >= :one"},
                     {"ExpressionAttributeValues", {{":less", {{"N", "-1"}}}, {":one", {{"N", "1"}}}}}}
                    .dump());
  context.commit_with(items);  // Commits with the returned result: all of it is written, or nothing.
  return "sold one " + sku;
}
// [/transaction]

static json must(once::testing::FakeDynamoDb& fake, const char* operation, const json& body) {
  const once::testing::FakeAnswer answer = fake.call(operation, body.dump());
  if (answer.status != 200) throw std::runtime_error(answer.body);
  return json::parse(answer.body);
}

int main() {
  const auto fake = std::make_shared<once::testing::FakeDynamoDb>(once::system_clock());
  fake->create_table("records", "id");
  fake->create_table("orders", "id");
  fake->create_table("stock", "sku");
  must(*fake, "PutItem", {{"TableName", "stock"}, {"Item", {{"sku", {{"S", "tea"}}}, {"pieces", {{"N", "2"}}}}}});
  const auto pieces = [&] {
    const json stock = must(*fake, "GetItem", {{"TableName", "stock"}, {"Key", {{"sku", {{"S", "tea"}}}}}});
    return stock["Item"]["pieces"]["N"].get<std::string>();
  };

  // The answers to the first two transactions get lost: to the first after it was carried out, to the second one
  // before.
  int sent = 0;
  fake->set_faults([&sent](const once::testing::FakeCall& call) {
    once::testing::FakeFault fault;
    if (call.operation != "TransactWriteItems") return fault;
    ++sent;
    if (sent == 1) fault.kind = once::testing::FakeFault::Kind::lost_after;
    if (sent == 2) fault.kind = once::testing::FakeFault::Kind::lost_before;
    return fault;
  });

  // [engine]
  once::EngineOptions options;
  options.store =
      once::stores::make_dynamodb_store({.table = "records", .transport = once::testing::make_fake_transport(fake)});
  options.scope = "shop";
  // Sold out stays sold out: stored as a failure, and replayed. Without the rule the next call would try again.
  options.throw_rule = once::on_exception<once::Declined>(once::OnThrow::store);
  once::Engine engine(options);
  // [/engine]

  for (const std::string order : {"order-1", "order-1", "order-2", "order-3", "order-3"}) {
    try {
      const once::Outcome outcome =
          engine.run(order, {}, [&](once::Context& context) { return sell(context, order, "tea"); });
      std::printf("%s %s: %s\n", order.c_str(), std::string(to_string(outcome.kind)).c_str(), outcome.value().c_str());
    } catch (const once::Declined& declined) {
      std::printf("%s declined, %s\n", order.c_str(), std::string(to_string(declined.kind())).c_str());
    } catch (const once::StoredFailure& failure) {
      std::printf("%s failed before: %s\n", order.c_str(), failure.code().c_str());
    }
    std::printf("  transactions sent so far: %d, pieces left: %s\n", sent, pieces().c_str());
  }
  std::printf("orders written: %zu\n", must(*fake, "Scan", {{"TableName", "orders"}})["Items"].size());
}
