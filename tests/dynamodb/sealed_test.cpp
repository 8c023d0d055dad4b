// Sealed items against somebody who may write to the table, and has no key.
#include <memory>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/seal.hpp>
#include <once/stores/dynamodb.hpp>

#include "../seal/attacks.hpp"
#include "../seal/seal_keys.hpp"
#include "fake_aws/fake_dynamodb.hpp"
#include "stores/dynamodb/item_format.hpp"

namespace once::testing {
namespace {

using nlohmann::json;

TEST(DynamoDbSealed, EachAttributeIsAttacked) {
  const auto fake = std::make_shared<FakeDynamoDb>(system_clock());
  stores::DynamoDbOptions options;
  options.table = "records";
  options.transport = make_fake_transport(fake, 0);
  fake->create_table(options.table, options.partition_key, options.sort_key);
  const auto clear = stores::make_dynamodb_store(options);
  const auto sealed = seal(stores::make_dynamodb_store(options), {seal_key("k1", 1)});
  const auto strict =
      seal(stores::make_dynamodb_store(options), {seal_key("k1", 1)}, SealWrites::sealed, SealReads::sealed);
  Attacked attacked{.sealed = *sealed,
                    .strict = *strict,
                    .clear = *clear,
                    .fields = {},
                    .not_believed = {options.attributes.expiration, options.attributes.open},
                    .placement = options.attributes.placement,
                    .read = {},
                    .write = {}};
  for (const std::string* const name : stores::dynamodb::attribute_names(options.attributes)) {
    attacked.fields.insert(*name);
  }
  // The whole key of a digested one, and what only tables of Powertools have.
  for (const std::string& name : {options.attributes.key, options.attributes.in_progress_expiration,
                                  options.attributes.validation, options.attributes.result}) {
    attacked.fields.erase(name);
  }
  EXPECT_GE(attacked.fields.size(), 28U);
  const auto call = [&](const char* operation, json body) {
    body["TableName"] = options.table;
    const FakeAnswer answer = fake->call(operation, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  };
  attacked.read = [&](const std::string& key) {
    RawRecord out;
    const json answer = call("GetItem", {{"Key", {{options.partition_key, {{"S", key}}}}}});
    for (const auto& [name, value] : answer.at("Item").items()) {
      if (name != options.partition_key) out.emplace(name, value.dump());
    }
    return out;
  };
  attacked.write = [&](const std::string& key, const RawRecord& record) {
    json item = {{options.partition_key, {{"S", key}}}};
    for (const auto& [name, value] : record) item[name] = json::parse(value);
    call("PutItem", {{"Item", item}});
    return true;
  };
  attack_each_field(attacked);
}

}  // namespace
}  // namespace once::testing
