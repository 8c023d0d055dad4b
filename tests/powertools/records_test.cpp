// Every recorded DynamoDB item of Powertools for Python and TypeScript, read and written again.
//
// data/powertools_records.json: whole items as the libraries wrote them, with the events, settings and results they
// belong to. Its cache_* lists are values of the libraries' Redis and Valkey layers, which are no items.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>

#include "stores/dynamodb/item_format.hpp"
#include "stores/dynamodb/powertools_result.hpp"

namespace once::stores::dynamodb {
namespace {

using keys::Dialect;
using nlohmann::json;

json load() {
  std::ifstream file(ONCE_POWERTOOLS_RECORDS);
  EXPECT_TRUE(file);
  return json::parse(file);
}

std::string text(const json& object, const char* python, const char* typescript, const std::string& otherwise = {}) {
  for (const char* name : {python, typescript}) {
    if (const auto found = object.find(name); found != object.end() && !found->is_null()) {
      return found->get<std::string>();
    }
  }
  return otherwise;
}

bool is_python(const json& vector) { return vector.at("lang") == "python"; }
Dialect dialect_of(const json& vector) {
  return is_python(vector) ? Dialect::powertools_python : Dialect::powertools_typescript;
}

DynamoDbOptions options_of(const json& vector) {
  const json& store = vector.at("store");
  DynamoDbOptions options;
  options.dialect = is_python(vector) ? DynamoDbDialect::powertools_python : DynamoDbDialect::powertools_typescript;
  options.partition_key = text(store, "key_attr", "keyAttr", "id");
  options.sort_key = text(store, "sort_key_attr", "sortKeyAttr");
  options.partition_value = text(store, "static_pk_value", "staticPkValue", "idempotency#my-func");
  DynamoDbAttributes& names = options.attributes;
  names.expiration = text(store, "expiry_attr", "expiryAttr", names.expiration);
  names.in_progress_expiration =
      text(store, "in_progress_expiry_attr", "inProgressExpiryAttr", names.in_progress_expiration);
  names.status = text(store, "status_attr", "statusAttr", names.status);
  names.data = text(store, "data_attr", "dataAttr", names.data);
  names.validation = text(store, "validation_key_attr", "validationKeyAttr", names.validation);
  return options;
}

// The ids and validation hashes of the vector's events.
std::vector<keys::Derived> derived_from(const json& vector) {
  const json& config = vector.at("config");
  const std::string prefix = vector.contains("key_prefix") ? text(vector, "key_prefix", "key_prefix") : "";
  const std::string function = is_python(vector) ? "app.handler" : "";
  const keys::KeyDeriver deriver(
      {.scope = keys::powertools_scope(dialect_of(vector), "my-func", function, prefix),
       .expression = text(config, "event_key_jmespath", "eventKeyJmesPath"),
       .fingerprint = text(config, "payload_validation_jmespath", "payloadValidationJmesPath"),
       .hash = text(config, "hash_function", "hashFunction"),
       .dialect = dialect_of(vector)});
  std::vector<keys::Derived> out;
  const json& event = vector.at("event");
  for (const json& one : event.is_array() ? event : json::array({event})) out.push_back(deriver.derive(one.dump()));
  return out;
}

// The recording shows bytes as {"B": {"0": 1, "1": 2}}.
json repaired(json value) {
  if (value.is_object() && value.size() == 1 && value.contains("B")) return {{"B", "AQI="}};
  for (json& part : value) {
    if (part.is_structured()) part = repaired(part);
  }
  return value;
}

// An attribute value with its numbers in one form.
json normal(json value) {
  if (value.is_object() && value.size() == 1 && value.contains("N")) {
    return {{"N", std::stod(value.at("N").get<std::string>())}};
  }
  for (json& part : value) {
    if (part.is_structured()) part = normal(part);
  }
  return value;
}

json to_json(const Item& item) {
  std::string out;
  append_json(out, item);
  return json::parse(out);
}

// What the function returned, as JSON can say it.
json returned(const json& vector, const json& item) {
  const std::string data = text(vector.at("store"), "data_attr", "dataAttr", "data");
  if (is_python(vector)) {
    const std::string text = item.at(data).at("S");
    return text == "NaN" ? json(text) : json::parse(text);
  }
  if (!item.contains(data)) return nullptr;
  const std::string scenario = vector.at("scenario");
  if (scenario == "result-with-bigint") return json::parse(R"({"n": 12345678901234567890})");
  if (scenario == "result-uint8array-and-set") return json::parse(R"({"b": "AQI=", "s": ["a", "b"]})");
  return vector.at("results").at(0).at("returned");
}

// An item that the library itself cannot read.
bool is_unreadable(const json& vector) {
  static const std::set<std::string> python{"seed-completed-ts-map", "seed-unknown-status", "seed-no-expiration"};
  const std::string scenario = vector.at("scenario");
  return is_python(vector) ? python.contains(scenario) : scenario == "seed-unknown-status";
}

Item parsed(const json& item) { return std::get<Item>(item_from_json(repaired(item).dump())); }

Record ours(Record record) {
  record.owner = *Owner::from_hex("00112233445566778899aabbccddeeff");
  record.token = 1795174838041;
  record.attempt = 3;
  record.revision = next_revision(0, 7);
  record.created_at = Time(Millis(1795174838000));
  if (record.state == State::completed) record.finished_at = Time(Millis(1795174838900));
  record.holder = "host:17";
  return record;
}

void check_item(const json& vector, const json& item) {
  const DynamoDbOptions options = options_of(vector);
  const DynamoDbAttributes& names = options.attributes;
  const auto format = make_powertools_format(options);
  const auto decoded = format->decode(parsed(item));
  if (is_unreadable(vector)) {
    ASSERT_TRUE(std::holds_alternative<Error>(decoded));
    EXPECT_EQ(std::get<Error>(decoded).kind, ErrorKind::corrupt);
    return;
  }
  ASSERT_TRUE(std::holds_alternative<Record>(decoded)) << std::get<Error>(decoded).message;
  Record record = std::get<Record>(decoded);

  const bool done = item.at(names.status).at("S") == "COMPLETED";
  EXPECT_EQ(record.key,
            item.at(options.sort_key.empty() ? options.partition_key : options.sort_key).at("S").get<std::string>());
  EXPECT_EQ(record.state, done ? State::completed : State::in_progress);
  Time expires = never;
  if (item.contains(names.expiration)) {
    expires = Time(Millis(1000 * std::stoll(item.at(names.expiration).at("N").get<std::string>())));
  }
  Time lease = expires;
  if (item.contains(names.in_progress_expiration)) {
    lease = Time(Millis(std::stoll(item.at(names.in_progress_expiration).at("N").get<std::string>())));
  }
  const bool outlived = !done && lease > expires;  // The library would break its own live claim: here it stays.
  EXPECT_EQ(record.expires_at, outlived ? lease : expires);
  if (!done) {
    EXPECT_EQ(record.lease_until, lease);
  }
  const bool hashed = item.contains(names.validation);
  EXPECT_EQ(record.fingerprint.empty(), !hashed);

  // Its key and hash are those of one of the events.
  const auto events = derived_from(vector);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [&](const keys::Derived& event) {
    return event.key && event.key->stored() == record.key && (!hashed || event.fingerprint == record.fingerprint);
  })) << record.key;

  if (done) {
    EXPECT_EQ(record.result.content_type, "application/json");
    const json expected = returned(vector, item);
    EXPECT_EQ(expected == "NaN" ? json(record.result.bytes) : json::parse(record.result.bytes), expected);
  }

  // The same as a record of ours is the same item, but for what the library ignores. Not written are an item without
  // `expiration` and results that are no JSON. A lease is not left behind in a finished record.
  static const std::set<std::string> unwritten{"result-nan", "result-with-bigint", "result-uint8array-and-set"};
  if (expires == never || unwritten.contains(vector.at("scenario"))) return;
  record = ours(record);
  const auto encoded = format->encode(record);
  ASSERT_TRUE(std::holds_alternative<Item>(encoded)) << std::get<Error>(encoded).message;
  json written = to_json(std::get<Item>(encoded));
  json wanted = repaired(item);
  if (done) wanted.erase(names.in_progress_expiration);
  if (vector.at("scenario") == "result-undefined") written.erase(names.data);  // JSON has null for it.
  if (outlived) wanted.erase(names.expiration);
  for (const auto& [name, value] : wanted.items()) {
    EXPECT_EQ(normal(written.value(name, json())), normal(value)) << name;
    written.erase(name);
  }
  written.erase(names.in_progress_expiration);
  written.erase(names.expiration);
  for (const auto& [name, value] : written.items()) EXPECT_TRUE(value.contains("S")) << name;

  const auto again = format->decode(std::get<Item>(encoded));
  ASSERT_TRUE(std::holds_alternative<Record>(again)) << std::get<Error>(again).message;
  const auto& read = std::get<Record>(again);
  if (done) {
    EXPECT_EQ(json::parse(read.result.bytes), json::parse(record.result.bytes));
    record.result = read.result;
    record.lease_until = read.lease_until;
  }
  EXPECT_EQ(read, record);
}

void check_list(const char* name, std::size_t count) {
  const json vectors = load().at(name);
  ASSERT_EQ(vectors.size(), count) << "the file has changed: change the count too";
  std::size_t items = 0;
  for (const json& vector : vectors) {
    SCOPED_TRACE(std::string(name) + " " + vector.at("scenario").get<std::string>());
    for (const char* list : {"in_progress_items", "final_items"}) {
      if (vector.at(list).is_null()) continue;
      for (const json& item : vector.at(list)) {
        check_item(vector, item);
        ++items;
      }
    }
  }
  EXPECT_GE(items, count);
}

TEST(PowertoolsRecords, Python) { check_list("python_dynamodb", 39); }
TEST(PowertoolsRecords, Typescript) { check_list("typescript_dynamodb", 38); }

}  // namespace
}  // namespace once::stores::dynamodb
