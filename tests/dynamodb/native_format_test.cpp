// Records as items of the project's own format: what the docs say of each attribute, and what is no record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include <once/testing/records.hpp>

#include "stores/dynamodb/item_format.hpp"

namespace once::stores::dynamodb {
namespace native_format_test {

using testing::full_record;
using ::testing::HasSubstr;
using testing::plain_record;
using Value = AttributeValue;

DynamoDbOptions simple() { return {.table = "t"}; }
DynamoDbOptions composite() { return {.table = "t", .sort_key = "sk", .partition_value = "idempotency#f"}; }

template <class T>
T good(std::variant<T, Error> result) {
  if (const Error* error = std::get_if<Error>(&result)) throw Exception(*error);
  return std::get<T>(std::move(result));
}

// A copy of the item with one attribute replaced, or left out.
Item with(const Item& item, std::string_view name, const std::optional<Value>& value) {
  Item out;
  for (const Attribute& attribute : item) {
    if (attribute.name != name) out.add(attribute.name, attribute.value);
  }
  if (value) out.add(std::string(name), *value);
  return out;
}

TEST(NativeFormat, AnItemIsWhatTheDocsSay) {
  const auto format = make_native_format(simple());
  Record record = plain_record("payments/charge#order-17");
  record.owner = testing::owner_of(0xAB);
  record.token = 1'795'174'838'040;
  record.lease_until = Time{Millis{1'795'174'868'040}};
  record.expires_at = Time{Millis{1'795'178'438'001}};
  record.created_at = Time{Millis{1'795'174'838'040}};
  record.holder = "host 7";
  record.steps = {{"reserve", "r-1"}, {"bytes", std::string("\0\xFF", 2)}};
  record.fingerprint = Fingerprint(std::string_view("\x01\x02"));
  std::string json;
  append_json(json, good(format->encode(record)));
  EXPECT_EQ(json,
            R"({"id":{"S":"payments/charge#order-17"},"status":{"S":"in_progress"},)"
            R"("owner":{"S":"abababababababababababababababab"},"token":{"N":"1795174838040"},"attempt":{"N":"1"},)"
            R"("revision":{"N":"1048576"},"lease_until":{"N":"1795174868040"},"expires_at":{"N":"1795178438001"},)"
            R"("expiration":{"N":"1795178439"},"created_at":{"N":"1795174838040"},"fingerprint":{"B":"AQI="},)"
            R"("holder":{"S":"host 7"},"steps":{"L":[{"M":{"name":{"S":"reserve"},"result":{"S":"r-1"}}},)"
            R"({"M":{"name":{"S":"bytes"},"result":{"B":"AP8="}}}]},"open":{"S":"2"}})");
}

TEST(NativeFormat, CompletedRecordsLeaveTheIndexAndOpenOnesStayInOnePartition) {
  const auto format = make_native_format(simple());
  std::set<std::string> partitions;
  for (const State state : {State::in_progress, State::failed, State::unknown}) {
    const Item item = good(format->encode(full_record("one key", state)));
    ASSERT_NE(item.find("open"), nullptr) << to_string(state);
    partitions.insert(item.find("open")->text);
  }
  EXPECT_EQ(partitions.size(), 1U);
  EXPECT_EQ(good(format->encode(full_record("one key", State::completed))).find("open"), nullptr);
  // Different keys are spread.
  for (int i = 0; i < 200; ++i) {
    partitions.insert(good(format->encode(plain_record("key " + std::to_string(i)))).find("open")->text);
  }
  EXPECT_EQ(partitions.size(), 8U);
  for (const std::string& partition : partitions) {
    EXPECT_EQ(partition, format->open_partition(static_cast<std::uint32_t>(std::stoul(partition))));
  }
}

TEST(NativeFormat, TimeToLiveIsNeverEarly) {
  const auto format = make_native_format(simple());
  Record record = plain_record("k");
  for (const auto& [expires_ms, seconds] :
       {std::pair<std::int64_t, std::string>{0, "0"}, {1, "1"}, {999, "1"}, {1000, "1"}, {1001, "2"}}) {
    record.expires_at = Time{Millis{expires_ms}};
    EXPECT_EQ(good(format->encode(record)).find("expiration")->text, seconds) << expires_ms;
  }
  record.expires_at = never;
  EXPECT_EQ(good(format->encode(record)).find("expiration"), nullptr);
}

TEST(NativeFormat, KeysOfAnyBytesAreReadableTextAndAllDifferent) {
  using namespace std::string_literals;
  const auto format = make_native_format(simple());
  const auto id = [&](const std::string& key) { return good(format->primary_key(key)).find("id")->text; };
  EXPECT_EQ(id("payments/charge#order-17"), "payments/charge#order-17");
  EXPECT_EQ(id("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(id("50%"), "50%25");
  EXPECT_EQ(id("a\0b"s), "a%00b");
  EXPECT_EQ(id("a%00b"), "a%2500b");
  EXPECT_EQ(id("\xC3"), "%C3");
  EXPECT_EQ(id("a\tb\nc\x7F"), "a%09b%0Ac%7F");
  std::set<std::string> ids;
  std::size_t keys = 0;
  for (int a = 0; a < 256; ++a) {
    for (const char b : {'\0', '%', '0', 'a', '\xC3', '\xA9', '\xFF'}) {
      const std::string key = {static_cast<char>(a), b};
      const std::string text = id(key);
      EXPECT_TRUE(is_readable_text(text));
      ids.insert(text);
      ++keys;
      Record record = plain_record(key);
      EXPECT_EQ(good(format->decode(good(format->encode(record)))).key, key);
    }
  }
  EXPECT_EQ(ids.size(), keys);
}

TEST(NativeFormat, LongKeysAreDigestedAndKeptBeside) {
  for (const DynamoDbOptions& options : {simple(), composite()}) {
    const auto format = make_native_format(options);
    const std::string& name = options.sort_key.empty() ? options.partition_key : options.sort_key;
    const std::size_t limit = options.sort_key.empty() ? 2048 : 1024;
    std::set<std::string> ids;
    std::set<std::string> keys;
    for (const std::string& unit : {std::string("k"), std::string("\xFF"), std::string("%"), std::string("\xC3\xA9"),
                                    std::string("a%"), std::string("\xF0\x9F\x98\x80")}) {
      for (const std::size_t bytes : {limit / 4, limit / 3, limit - 1, limit, limit + 1, limit * 3}) {
        std::string key;
        while (key.size() < bytes) key += unit;
        const Item item = good(format->encode(plain_record(key)));
        const std::string& id = item.find(name)->text;
        EXPECT_LE(id.size(), limit);
        EXPECT_TRUE(is_readable_text(id));
        EXPECT_EQ(item.find("key") != nullptr, id.find("%sha256:") != std::string::npos);
        EXPECT_EQ(good(format->decode(item)).key, key);
        ids.insert(id);
        keys.insert(key);
      }
    }
    EXPECT_EQ(ids.size(), keys.size());
  }
}

TEST(NativeFormat, SeveralStoresShareACompositeTable) {
  const auto format = make_native_format(composite());
  const Item item = good(format->encode(plain_record("k")));
  EXPECT_EQ(item.find("id")->text, "idempotency#f");
  EXPECT_EQ(item.find("sk")->text, "k");
  EXPECT_THAT(item.find("open")->text, ::testing::StartsWith("idempotency#f#"));
}

TEST(NativeFormat, EveryNameCanBeAnother) {
  DynamoDbOptions options = simple();
  options.partition_key = "PK";
  std::set<std::string> renamed{"PK"};
  // Every member in turn, without naming them: the list of pointers is checked against the struct below.
  const auto names = attribute_names(options.attributes);
  static_assert(sizeof(DynamoDbAttributes) % sizeof(std::string) == 0);
  ASSERT_EQ(names.size(), sizeof(DynamoDbAttributes) / sizeof(std::string));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const_cast<std::string&>(*names[i]) = "x" + std::to_string(i);
    renamed.insert("x" + std::to_string(i));
  }
  const auto format = make_native_format(options);
  for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
    for (const Placement placement :
         {Placement::inlined, Placement::offloaded, Placement::dropped, Placement::compressed}) {
      const Record record = full_record(std::string(1024, '\xFF'), state, placement);
      const Item item = good(format->encode(record));
      for (const Attribute& attribute : item) EXPECT_TRUE(renamed.contains(attribute.name)) << attribute.name;
      EXPECT_EQ(testing::differences(record, good(format->decode(item))), "");
    }
  }
  EXPECT_EQ(format->unchanged({}).names[0].second, "x1");
}

TEST(NativeFormat, WhatIsNoRecordIsRefusedByNameOfKeyAndAttribute) {
  const auto format = make_native_format(simple());
  const Item item = good(format->encode(full_record("the key", State::failed, Placement::offloaded)));
  ASSERT_TRUE(std::holds_alternative<Record>(format->decode(item)));
  const auto text = [](const char* s) { return std::optional(Value::s(s)); };
  const auto number = [](const char* n) { return std::optional(Value::n(std::string(n))); };
  const std::pair<std::string, std::optional<Value>> spoils[] = {
      {"status", text("COMPLETED")},
      {"status", number("1")},
      {"status", std::nullopt},
      {"owner", std::nullopt},
      {"owner", text("abc")},
      {"owner", Value::b("0123456789abcdef")},
      {"token", std::nullopt},
      {"token", text("1")},
      {"token", number("-1")},
      {"attempt", number("4294967296")},
      {"revision", number("1.5")},
      {"revision", std::nullopt},
      {"revision", number("")},
      {"revision", number("1048575")},  // As once wrote it before its first format.
      {"revision", number("9007199254740992")},
      {"on_lapse", text("never")},
      {"on_lapse", number("1")},
      {"expected_until", text("soon")},
      {"label", number("1")},
      {"history", text("5:short")},
      {"input_bytes", number("-1")},
      {"revision", number("99999999999999999999")},
      {"lease_until", text("soon")},
      {"expires_at", number("1e400")},
      {"created_at", Value{}},
      {"finished_at", Value::l({})},
      {"fingerprint", Value::b(std::string(65, 'x'))},
      {"fingerprint", text("x")},
      {"holder", number("1")},
      {"note", Value::boolean(true)},
      {"steps", text("a")},
      {"steps", Value::l({Value::s("a")})},
      {"steps", Value::l({Value::m({})})},
      {"data", number("1")},
      {"placement", text("away")},
      {"placement", number("1")},
      {"data_bytes", number("-1")},
      {"data_sha256", Value::b("short")},
      {"error_code", Value::m({})},
  };
  for (const auto& [name, value] : spoils) {
    const auto read = format->decode(with(item, name, value));
    const Error* error = std::get_if<Error>(&read);
    ASSERT_NE(error, nullptr) << name;
    EXPECT_EQ(error->kind, ErrorKind::corrupt);
    EXPECT_THAT(error->message, HasSubstr("'the key'"));
    EXPECT_THAT(error->message, HasSubstr("attribute '" + name + "'"));
  }
  for (const auto& id :
       {number("1"), std::optional<Value>(), text(""), text("a%"), text("a%0g"), text("a%41"), text("a%sha256:00")}) {
    const auto read = format->decode(with(item, "id", id));
    ASSERT_TRUE(std::holds_alternative<Error>(read));
    EXPECT_THAT(std::get<Error>(read).message, HasSubstr("primary key 'id'"));
  }
  // A whole key that is not the digested one.
  const Item digested = good(format->encode(plain_record(std::string(1024, '\xFF'))));
  EXPECT_TRUE(std::holds_alternative<Error>(format->decode(with(digested, "key", Value::s("another")))));
  EXPECT_TRUE(std::holds_alternative<Error>(format->decode(with(digested, "key", std::nullopt))));
}

TEST(NativeFormat, TheLargestRecordFitsIntoAnItem) {
  for (const DynamoDbOptions& options : {simple(), composite()}) {
    const auto format = make_native_format(options);
    for (const char fill : {'k', '\xFF'}) {
      Record record = full_record(std::string(1024, fill), State::failed);
      record.fingerprint = Fingerprint(std::string(64, '\xFF'));
      record.steps.clear();
      for (int i = 0; i < 256; ++i) record.steps.push_back({std::to_string(i), ""});
      record.result.bytes.clear();
      record.result.bytes = std::string(format->max_record_bytes() - record_bytes(record), fill);
      EXPECT_EQ(record_bytes(record), format->max_record_bytes());
      EXPECT_LE(item_bytes(good(format->encode(record))), max_item_bytes);
    }
  }
}

}  // namespace native_format_test
}  // namespace once::stores::dynamodb
