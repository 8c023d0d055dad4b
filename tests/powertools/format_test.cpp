// The rules of the Powertools formats: writing, reading, refusals, and that a condition holds only for the item that
// was seen. The libraries' own requests are carried out by a fake DynamoDB.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "fake_aws/fake_dynamodb.hpp"
#include "stores/dynamodb/item_format.hpp"
#include "stores/dynamodb/powertools_result.hpp"

namespace once::stores::dynamodb {
namespace {

using nlohmann::json;

constexpr std::int64_t now_ms = 1'795'174'838'040;
const std::string id = "my-func.app.handler#2ee9d66c6563f63c11efa4e009b52a97";
constexpr std::array all_dialects{DynamoDbDialect::powertools_python, DynamoDbDialect::powertools_typescript,
                                  DynamoDbDialect::powertools_java, DynamoDbDialect::powertools_dotnet};

Time at(std::int64_t ms) { return Time(Millis(ms)); }

std::unique_ptr<ItemFormat> format_of(DynamoDbDialect dialect) {
  DynamoDbOptions options;
  options.dialect = dialect;
  return make_powertools_format(options);
}

Record claim() {
  Record record;
  record.key = id;
  record.owner = *Owner::from_hex("00112233445566778899aabbccddeeff");
  record.token = now_ms;
  record.attempt = 1;
  record.revision = next_revision(0, 0);
  record.lease_until = at(now_ms + 30'000);
  record.expires_at = at(now_ms + 3'600'000);
  record.created_at = at(now_ms);
  return record;
}

Record finished(std::string result, std::string type = "application/json") {
  Record record = claim();
  record.state = State::completed;
  record.revision = next_revision(record.revision, 5);
  record.lease_until = Time{};
  record.finished_at = at(now_ms + 100);
  record.result = Result::inlined(std::move(result), std::move(type));
  return record;
}

Item written(const ItemFormat& format, const Record& record) {
  auto item = format.encode(record);
  if (const Error* error = std::get_if<Error>(&item)) throw Exception(*error);
  return std::get<Item>(std::move(item));
}

Record read(const ItemFormat& format, const Item& item) {
  auto record = format.decode(item);
  if (const Error* error = std::get_if<Error>(&record)) throw Exception(*error);
  return std::get<Record>(std::move(record));
}

Record read(const ItemFormat& format, const json& item) {
  return read(format, std::get<Item>(item_from_json(item.dump())));
}

json to_json(const Item& item) {
  std::string out;
  append_json(out, item);
  return json::parse(out);
}

// What is written for a result, and what comes back from that and from the same without anything of ours.
struct Held {
  json data;
  std::string ours;
  std::string theirs;
};

Held held(DynamoDbDialect dialect, const std::string& result) {
  const auto format = format_of(dialect);
  const Item item = written(*format, finished(result));
  json bare = to_json(item);
  const json data = bare.value("data", json());
  for (const char* name : {"owner", "result", "content_type", "finished_at"}) bare.erase(name);
  return {data, read(*format, item).result.bytes, read(*format, bare).result.bytes};
}

json s(const std::string& text) { return {{"S", text}}; }

std::string refusal(DynamoDbDialect dialect, const Record& record) {
  const auto item = format_of(dialect)->encode(record);
  const Error* error = std::get_if<Error>(&item);
  if (error == nullptr) return "";
  EXPECT_EQ(error->kind, ErrorKind::misuse);
  return error->message;
}

TEST(PowertoolsResult, PythonWritesWhatJsonDumpsDoes) {
  const auto python = DynamoDbDialect::powertools_python;
  EXPECT_EQ(held(python, R"({"b":1,"a":"é😀"})").data, s(R"({"a": "\u00e9\ud83d\ude00", "b": 1})"));
  EXPECT_EQ(held(python, "[1.0,1e21,-0.0,12345678901234567890123,1.5e-7]").data,
            s("[1.0, 1e+21, -0.0, 12345678901234567890123, 1.5e-07]"));
  EXPECT_EQ(held(python, R"("\ud800")").theirs, R"("\ud800")");
}

TEST(PowertoolsResult, PythonLosesWhatIsFalseButWeDoNot) {
  for (const std::string result : {"0", "0.0", "-0", "false", R"("")", "[]", "{}"}) {
    const Held is = held(DynamoDbDialect::powertools_python, result);
    EXPECT_EQ(is.data, s("null")) << result;
    EXPECT_EQ(is.theirs, "null") << result;
    EXPECT_EQ(is.ours, result);
  }
  const Item item = written(*format_of(DynamoDbDialect::powertools_python), finished("null"));
  EXPECT_EQ(item.find("result"), nullptr);
}

TEST(PowertoolsResult, TypescriptWritesNativeValues) {
  const auto typescript = DynamoDbDialect::powertools_typescript;
  const Held is = held(typescript, R"({"a":[1,1.50,null,true,""],"b":{},"c":-9007199254740991,"d":1e-7,"é":"ü"})");
  EXPECT_EQ(is.data, json::parse(R"({"M":{"a":{"L":[{"N":"1"},{"N":"1.5"},{"NULL":true},{"BOOL":true},{"S":""}]},
      "b":{"M":{}},"c":{"N":"-9007199254740991"},"d":{"N":"1e-7"},"é":{"S":"ü"}}})"));
  EXPECT_EQ(json::parse(is.theirs),
            json::parse(R"({"a":[1,1.5,null,true,""],"b":{},"c":-9007199254740991,"d":1e-7,"é":"ü"})"));
  EXPECT_EQ(is.theirs, is.ours);
  EXPECT_EQ(held(typescript, R"({"a":1,"a":2})").data, json::parse(R"({"M":{"a":{"N":"2"}}})"));
}

TEST(PowertoolsResult, TypescriptReadsWhatOnlyTheLibraryWrites) {
  const auto format = format_of(DynamoDbDialect::powertools_typescript);
  const auto reads = [&](const char* data) {
    return read(*format, {{"id", s(id)}, {"status", s("COMPLETED")}, {"data", json::parse(data)}}).result.bytes;
  };
  EXPECT_EQ(reads(R"({"N":"12345678901234567890"})"), "12345678901234567890");
  EXPECT_EQ(reads(R"({"L":[{"B":"AQI="},{"SS":["a","b"]},{"NS":["1","2.5"]},{"BS":["AQI="]}]})"),
            R"(["AQI=",["a","b"],[1,2.5],["AQI="]])");
  EXPECT_EQ(read(*format, {{"id", s(id)}, {"status", s("COMPLETED")}}).result.bytes, "null");
}

TEST(PowertoolsResult, JavaWritesStringsUnquoted) {
  const auto java = DynamoDbDialect::powertools_java;
  EXPECT_EQ(held(java, R"({"b":1,"a":"é"})").data, s(R"({"b":1,"a":"é"})"));
  const Held plain = held(java, R"("say \"hi\"")");
  EXPECT_EQ(plain.data, s(R"(say "hi")"));
  EXPECT_EQ(plain.theirs, R"("say \"hi\"")");
  // Without our attributes the string 123 and the number are the same; with them they differ.
  const Held number = held(java, R"("123")");
  EXPECT_EQ(number.data, s("123"));
  EXPECT_EQ(number.theirs, "123");
  EXPECT_EQ(number.ours, R"("123")");
}

TEST(PowertoolsResult, DotnetWritesJson) {
  EXPECT_EQ(held(DynamoDbDialect::powertools_dotnet, R"("abc")").data, s(R"("abc")"));
  EXPECT_EQ(held(DynamoDbDialect::powertools_dotnet, "null").theirs, "null");
}

TEST(PowertoolsResult, RefusesWhatTheReadersCannotTake) {
  for (const std::string result : {"1e21", "9007199254740992", "-9007199254740992", "1e-131", R"({"__proto__":1})"}) {
    EXPECT_NE(refusal(DynamoDbDialect::powertools_typescript, finished(result)), "") << result;
  }
  for (const auto dialect : all_dialects) {
    for (const std::string result : {"1e400", "[1e-400]", "{", "nope", "NaN", "\"\xFF\"", "1 2"}) {
      EXPECT_NE(refusal(dialect, finished(result)), "") << result;
    }
    if (dialect != DynamoDbDialect::powertools_python) {
      EXPECT_NE(refusal(dialect, finished(R"("\ud800")")), "");
    }
    EXPECT_NE(refusal(dialect, finished("hello", "text/plain")).find("codec_json.hpp"), std::string::npos);
    EXPECT_NE(refusal(dialect, finished("{}", "")), "");
    Record compressed = finished("bytes of zstd");
    compressed.result.placement = Placement::compressed;
    EXPECT_NE(refusal(dialect, compressed), "");
  }
  const auto nested = [](std::size_t levels) {
    return finished(std::string(levels, '[') + "1" + std::string(levels, ']'));
  };
  EXPECT_EQ(refusal(DynamoDbDialect::powertools_typescript, nested(31)), "");
  EXPECT_NE(refusal(DynamoDbDialect::powertools_typescript, nested(32)), "");
  EXPECT_EQ(refusal(DynamoDbDialect::powertools_python, nested(100)), "");
}

TEST(PowertoolsResult, AResultElsewhereOrDroppedIsNoResultForALibrary) {
  for (const auto dialect : all_dialects) {
    const auto format = format_of(dialect);
    for (const Placement placement : {Placement::dropped, Placement::offloaded}) {
      Record record = finished("");
      record.result.placement = placement;
      record.result.size = 500'000;
      record.result.digest = sha256("x");
      if (placement == Placement::offloaded) record.result.location = "s3://bucket/key";
      const Item item = written(*format, record);
      EXPECT_EQ(read(*format, item), record);
      const json data = to_json(item).at("data");
      if (data.contains("S")) {
        EXPECT_FALSE(json::accept(data.at("S").get<std::string>()));
      } else {
        EXPECT_EQ(data, (json{{"N", "123456789012345678901234.5"}}));
      }
    }
  }
}

TEST(PowertoolsFormat, ARecordOfOursComesBackWhole) {
  for (const auto dialect : all_dialects) {
    const auto format = format_of(dialect);
    Record record = claim();
    record.fingerprint = Fingerprint(std::string_view("0123456789abcdef"));
    record.holder = "host:17";
    record.note = "half way";
    record.steps = {{"reserve", std::string("\0\xFF", 2)}, {"ch:a rge", ""}};
    EXPECT_EQ(read(*format, written(*format, record)), record);
    record.expires_at = never;
    EXPECT_EQ(read(*format, written(*format, record)), record);
    record.lease_until = Time{};  // Released.
    EXPECT_EQ(read(*format, written(*format, record)), record);
    Record nothing = finished("", "");
    EXPECT_EQ(read(*format, written(*format, nothing)), nothing);
    nothing.expires_at = never;
    EXPECT_EQ(read(*format, written(*format, nothing)), nothing);
  }
}

TEST(PowertoolsFormat, RefusesStatesTheLibrariesDoNotKnow) {
  for (const auto dialect : all_dialects) {
    Record record = finished("1");
    record.state = State::failed;
    EXPECT_NE(refusal(dialect, record).find("release"), std::string::npos);
    record.state = State::unknown;
    EXPECT_NE(refusal(dialect, record).find("taken over"), std::string::npos);
    Record held_back = claim();
    held_back.on_lapse = OnLapse::hold;
    EXPECT_NE(refusal(dialect, held_back).find("cannot hold"), std::string::npos);
  }
}

TEST(PowertoolsFormat, RefusesKeysThatAreNoText) {
  const auto format = format_of(DynamoDbDialect::powertools_python);
  for (const std::string& key : {std::string("\xFF#x"), std::string(), std::string(2049, 'k')}) {
    EXPECT_TRUE(std::holds_alternative<Error>(format->primary_key(key)));
  }
}

TEST(PowertoolsFormat, ExpirationNeverComesBeforeTheLease) {
  for (const auto dialect : all_dialects) {
    Record record = claim();
    record.lease_until = at(now_ms + 30'000);
    record.expires_at = record.lease_until;
    const json item = to_json(written(*format_of(dialect), record));
    EXPECT_GE(1000 * std::stoll(item.at("expiration").at("N").get<std::string>()), now_ms + 30'000);
    EXPECT_EQ(item.at("in_progress_expiration").at("N"), std::to_string(now_ms + 30'000));
  }
}

TEST(PowertoolsFormat, RoundsAsTheLibrariesDo) {
  Record record = finished("1");
  record.expires_at = at(1'795'178'438'500);
  const auto expiration = [&](DynamoDbDialect dialect) {
    return to_json(written(*format_of(dialect), record)).at("expiration").at("N").get<std::string>();
  };
  EXPECT_EQ(expiration(DynamoDbDialect::powertools_python), "1795178438");
  EXPECT_EQ(expiration(DynamoDbDialect::powertools_java), "1795178438");
  EXPECT_EQ(expiration(DynamoDbDialect::powertools_typescript), "1795178439");
}

json foreign_claim() { return {{"id", s(id)}, {"status", s("INPROGRESS")}, {"expiration", {{"N", "1795178438"}}}}; }

TEST(PowertoolsFormat, ReadsClaimsOfALibrary) {
  const auto format = format_of(DynamoDbDialect::powertools_python);
  json item = foreign_claim();
  Record record = read(*format, item);  // No context, no lease: live until it expires.
  EXPECT_EQ(record.lease_until, at(1'795'178'438'000));
  EXPECT_EQ(record.expires_at, at(1'795'178'438'000));
  EXPECT_EQ(record.attempt, 1U);
  const Attempt attempt{.key = id, .owner = *Owner::from_hex("ffeeddccbbaa99887766554433221100")};
  EXPECT_EQ(decide(&record, attempt, {}, at(1'795'178'437'999)).verdict, Verdict::conflict);
  EXPECT_EQ(decide(&record, attempt, {}, at(1'795'178'438'000)).verdict, Verdict::execute);

  item["in_progress_expiration"] = {{"N", "1795174868041"}};
  record = read(*format, item);
  EXPECT_EQ(record.lease_until, at(1'795'174'868'041));
  EXPECT_EQ(decide(&record, attempt, {}, at(1'795'174'868'041)).verdict, Verdict::take_over);

  item["in_progress_expiration"] = {{"N", "0"}};  // No time was left: lapsed from the beginning.
  EXPECT_TRUE(is_released(read(*format, item)));

  item["in_progress_expiration"] = {{"N", "1795179999000"}};  // Its record would expire before its lease.
  EXPECT_EQ(read(*format, item).expires_at, at(1'795'179'999'000));
}

TEST(PowertoolsFormat, AValidationThatIsNoDigestMatchesNothing) {
  const auto format = format_of(DynamoDbDialect::powertools_python);
  json item = foreign_claim();
  item["validation"] = s("not a digest");
  EXPECT_FALSE(read(*format, item).fingerprint.empty());
  item["validation"] = s("");
  EXPECT_TRUE(read(*format, item).fingerprint.empty());
  item["validation"] = s("c4ca4238a0b923820dcc509a6f75849b");
  EXPECT_EQ(read(*format, item).fingerprint.hex(), "c4ca4238a0b923820dcc509a6f75849b");
}

TEST(PowertoolsFormat, SaysWhichAttributeIsMalformed) {
  const auto format = format_of(DynamoDbDialect::powertools_python);
  const auto complaint = [&](const char* name, const json& value) {
    json item = foreign_claim();
    item["status"] = s("COMPLETED");
    item["data"] = s("1");
    if (value.is_null()) {
      item.erase(name);
    } else {
      item[name] = value;
    }
    const auto record = format->decode(std::get<Item>(item_from_json(item.dump())));
    const Error* error = std::get_if<Error>(&record);
    if (error == nullptr) return std::string();
    EXPECT_EQ(error->kind, ErrorKind::corrupt);
    EXPECT_NE(error->message.find(id), std::string::npos);
    EXPECT_NE(error->message.find(std::string("'") + name + "'"), std::string::npos) << error->message;
    return error->message;
  };
  EXPECT_NE(complaint("status", s("FAILED")), "");
  EXPECT_NE(complaint("status", s("EXPIRED")), "");
  EXPECT_NE(complaint("status", nullptr), "");
  EXPECT_NE(complaint("status", {{"N", "1"}}), "");
  EXPECT_NE(complaint("expiration", nullptr), "");
  EXPECT_NE(complaint("expiration", s("1795178438")), "");
  EXPECT_NE(complaint("expiration", {{"N", "-1"}}), "");
  EXPECT_NE(complaint("expiration", {{"N", "1.234567890123456789"}}), "");
  EXPECT_NE(complaint("in_progress_expiration", {{"N", "1e99"}}), "");
  EXPECT_NE(complaint("validation", {{"N", "1"}}), "");
  EXPECT_NE(complaint("data", {{"M", json::object()}}), "");
  EXPECT_NE(complaint("data", s("{")), "");
  EXPECT_NE(complaint("token", s("1")), "x") << "ignored without an owner";
  EXPECT_NE(complaint("owner", {{"N", "1"}}), "");
  EXPECT_EQ(complaint("data", s("NaN")), "");
  EXPECT_EQ(complaint("data", nullptr), "");
}

// One table with the one item that all of this is about.
class PowertoolsConditions : public ::testing::TestWithParam<DynamoDbDialect> {
 protected:
  PowertoolsConditions() {
    fake_.create_table("records", "id");
    format_ = format_of(GetParam());
  }

  bool call(const std::string& operation, json body) {
    body["TableName"] = "records";
    const auto answer = fake_.call(operation, body.dump());
    if (answer.status == 200) return true;
    EXPECT_NE(answer.body.find("ConditionalCheckFailedException"), std::string::npos) << answer.body;
    return false;
  }

  json get() {
    const auto answer = fake_.call("GetItem", json{{"TableName", "records"}, {"Key", {{"id", s(id)}}}}.dump());
    return json::parse(answer.body).value("Item", json());
  }
  Record look() { return read(*format_, get()); }

  bool put(const json& item, const Seen* seen = nullptr) {
    json body{{"Item", item}};
    if (seen != nullptr) {
      const Condition condition = format_->unchanged(*seen);
      body["ConditionExpression"] = condition.expression;
      for (const auto& [name, attribute] : condition.names) body["ExpressionAttributeNames"][name] = attribute;
      if (!condition.values.empty()) body["ExpressionAttributeValues"] = to_json(condition.values);
    }
    return call("PutItem", body);
  }
  bool replace(const Record& record, const Record& seen_record) {
    const Seen seen{seen_record.owner, seen_record.revision};
    return put(to_json(written(*format_, record)), &seen);
  }
  // Leaves what is there as it is.
  bool still(const Record& record) {
    const Seen seen{record.owner, record.revision};
    return put(get(), &seen);
  }

  // The requests of the libraries, in their own words.
  bool library_locks(std::int64_t at_ms, std::int64_t lease_ms) {
    return call("PutItem", {{"Item",
                             {{"id", s(id)},
                              {"expiration", {{"N", std::to_string(at_ms / 1000 + 3600)}}},
                              {"status", s("INPROGRESS")},
                              {"in_progress_expiration", {{"N", std::to_string(at_ms + lease_ms)}}}}},
                            {"ConditionExpression",
                             "attribute_not_exists(#id) OR #expiry < :now OR (#status = :inprogress AND "
                             "attribute_exists(#in_progress_expiry) AND #in_progress_expiry < :now_in_millis)"},
                            {"ExpressionAttributeNames",
                             {{"#id", "id"},
                              {"#expiry", "expiration"},
                              {"#in_progress_expiry", "in_progress_expiration"},
                              {"#status", "status"}}},
                            {"ExpressionAttributeValues",
                             {{":now", {{"N", std::to_string(at_ms / 1000)}}},
                              {":now_in_millis", {{"N", std::to_string(at_ms)}}},
                              {":inprogress", s("INPROGRESS")}}},
                            {"ReturnValuesOnConditionCheckFailure", "ALL_OLD"}});
  }
  void library_completes(std::int64_t expiration, const json& data) {
    ASSERT_TRUE(call(
        "UpdateItem",
        {{"Key", {{"id", s(id)}}},
         {"UpdateExpression",
          "SET #response_data = :response_data, #expiry = :expiry, "
          "#status = :status"},
         {"ExpressionAttributeNames", {{"#expiry", "expiration"}, {"#response_data", "data"}, {"#status", "status"}}},
         {"ExpressionAttributeValues",
          {{":expiry", {{"N", std::to_string(expiration)}}}, {":response_data", data}, {":status", s("COMPLETED")}}}}));
  }

  testing::FakeDynamoDb fake_{system_clock()};
  std::unique_ptr<ItemFormat> format_;
};

TEST_P(PowertoolsConditions, AForeignClaimIsTakenOverAsSeenOnly) {
  ASSERT_TRUE(library_locks(now_ms, 30'000));
  const Record seen = look();
  EXPECT_TRUE(still(seen));

  // Taken over by a library meanwhile: an item like the first but for its times.
  ASSERT_TRUE(library_locks(now_ms + 30'001, 30'000));
  EXPECT_FALSE(replace(claim(), seen));
  const Record newer = look();
  EXPECT_TRUE(still(newer));

  // Completed meanwhile.
  library_completes(now_ms / 1000 + 3600 + 30, s("1"));
  EXPECT_FALSE(replace(claim(), newer));
}

TEST_P(PowertoolsConditions, EachAttributeThatIdentifiesCounts) {
  const json item{{"id", s(id)},
                  {"status", s("INPROGRESS")},
                  {"expiration", {{"N", "1711981471.8340001"}}},  // As older versions for TypeScript wrote it.
                  {"in_progress_expiration", {{"N", "1711981470000"}}}};
  ASSERT_TRUE(put(item));
  const Record seen = look();
  EXPECT_EQ(seen.expires_at, at(1'711'981'471'834));
  EXPECT_TRUE(still(seen));
  const std::vector<std::pair<const char*, json>> changes{
      {"status", s("COMPLETED")},
      {"expiration", {{"N", "1711981471.834"}}},
      {"in_progress_expiration", {{"N", "1711981470001"}}},
      {"in_progress_expiration", nullptr},
      {"owner", s("00112233445566778899aabbccddeeff")},
  };
  for (const auto& [name, value] : changes) {
    json changed = item;
    if (value.is_null()) {
      changed.erase(name);
    } else {
      changed[name] = value;
    }
    ASSERT_TRUE(put(changed));
    EXPECT_FALSE(still(seen)) << name;
  }
}

TEST_P(PowertoolsConditions, OurClaimOverAForeignOneIsOurs) {
  ASSERT_TRUE(library_locks(now_ms, 30'000));
  const Record seen = look();
  const Attempt attempt{.key = id, .owner = *Owner::from_hex("ffeeddccbbaa99887766554433221100")};
  const Record mine = claimed(attempt, {}, Stamp(at(now_ms + 40'000), 0xF1F1F), &seen, Verdict::take_over);
  ASSERT_TRUE(replace(mine, seen));
  EXPECT_EQ(look(), mine);
  EXPECT_FALSE(still(seen));
  Record more = mine;
  renew(more, {}, Stamp(at(now_ms + 50'000), 0));
  ASSERT_TRUE(replace(more, mine));
  EXPECT_EQ(look(), more);
  EXPECT_FALSE(still(mine));
  Record done = more;
  complete(done, Result::inlined("[1]", "application/json"), {}, Stamp(at(now_ms + 60'000), 7));
  ASSERT_TRUE(replace(done, more));
  EXPECT_TRUE(still(done));
  EXPECT_EQ(look().result, done.result);
}

TEST_P(PowertoolsConditions, ALibraryRespectsOurClaimUntilItLapses) {
  ASSERT_TRUE(put(to_json(written(*format_, claim()))));
  EXPECT_FALSE(library_locks(now_ms + 30'000, 30'000));
  EXPECT_TRUE(still(claim()));
  EXPECT_TRUE(library_locks(now_ms + 30'001, 30'000));
  EXPECT_FALSE(replace(finished("1"), claim()));
  EXPECT_FALSE(get().contains("owner"));
}

TEST_P(PowertoolsConditions, ALibraryTakesAReleasedClaimAtOnce) {
  Record released_claim = claim();
  released_claim.lease_until = Time{};
  ASSERT_TRUE(put(to_json(written(*format_, released_claim))));
  EXPECT_TRUE(library_locks(now_ms, 30'000));
}

TEST_P(PowertoolsConditions, ALibraryRespectsOurResultUntilItExpires) {
  ASSERT_TRUE(put(to_json(written(*format_, finished("1")))));
  EXPECT_FALSE(library_locks(now_ms + 3'600'000, 30'000));
  EXPECT_TRUE(library_locks(now_ms + 3'602'000, 30'000));
}

TEST_P(PowertoolsConditions, AZombieThatCompletesOverOurClaimWinsAndIsSeen) {
  const json data = GetParam() == DynamoDbDialect::powertools_typescript ? json{{"N", "7"}} : s("7");
  ASSERT_TRUE(put(to_json(written(*format_, claim()))));
  library_completes(now_ms / 1000 + 3600, data);
  ASSERT_TRUE(get().contains("owner"));  // Their update leaves it there.
  EXPECT_FALSE(replace(finished("1"), claim()));
  const Record record = look();
  EXPECT_EQ(record.state, State::completed);
  EXPECT_EQ(record.result, Result::inlined("7", "application/json"));
  EXPECT_NE(record.owner, claim().owner);
  EXPECT_EQ(record.token, claim().token);  // Which must go on growing.
  EXPECT_TRUE(still(record));

  // Over a finished record of ours: the same, as soon as the times differ.
  ASSERT_TRUE(put(to_json(written(*format_, finished("1")))));
  EXPECT_FALSE(still(record));
  library_completes(now_ms / 1000 + 3605, data);
  const Record after = look();
  EXPECT_EQ(after.result.bytes, "7");
  EXPECT_EQ(after.expires_at, at((now_ms / 1000 + 3605) * 1000));
  EXPECT_TRUE(still(after));
  library_completes(now_ms / 1000 + 3606, data);
  EXPECT_FALSE(still(after));
}

TEST_P(PowertoolsConditions, AZombieThatDeletesOurClaimMakesTheFinishBeRefused) {
  ASSERT_TRUE(put(to_json(written(*format_, claim()))));
  ASSERT_TRUE(call("DeleteItem", {{"Key", {{"id", s(id)}}}}));
  EXPECT_FALSE(replace(finished("1"), claim()));
  EXPECT_TRUE(get().is_null());
}

std::string name_of(const ::testing::TestParamInfo<DynamoDbDialect>& dialect) {
  constexpr std::array names{"native", "python", "typescript", "java", "dotnet"};
  return names.at(static_cast<std::size_t>(dialect.param));
}
INSTANTIATE_TEST_SUITE_P(All, PowertoolsConditions, ::testing::ValuesIn(all_dialects), name_of);

TEST(PowertoolsFilter, LeavesOutOnTheServer) {
  const auto format = format_of(DynamoDbDialect::powertools_python);
  const auto expression = [&](ListQuery query) { return format->filter(query).value().expression; };
  EXPECT_EQ(expression({}), "attribute_exists(#f_status)");
  EXPECT_EQ(expression({.state = State::completed}), "#f_status = :f_status");
  EXPECT_EQ(expression({.expired_at = at(now_ms)}), "attribute_exists(#f_status) AND #f_expiration <= :f_expiration");
  EXPECT_EQ(format->filter({.expired_at = at(now_ms)})->values.find(":f_expiration")->text, "1795174839");
  EXPECT_EQ(format->open_partition(0), std::nullopt);
}

}  // namespace
}  // namespace once::stores::dynamodb
