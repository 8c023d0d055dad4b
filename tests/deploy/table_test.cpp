// Making, checking and deleting a table, against a service that answers as written down here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb_table.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::stores {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Grade = TableFinding::Grade;

// Answers each operation by its plan, repeating the last one, and records the requests.
class Service final : public aws::Transport {
 public:
  void plan(const std::string& operation, json body, int status = 200) {
    plans_[operation].push_back({.status = status, .body = body.dump(), .time = {}, .error = {}});
  }
  void plan_error(const std::string& operation, const std::string& type, const std::string& message = "so it is",
                  int status = 400) {
    plan(operation, {{"__type", "com.amazonaws.dynamodb.v20120810#" + type}, {"message", message}}, status);
  }
  void plan_failure(const std::string& operation, ErrorKind kind, std::string message) {
    plans_[operation].push_back({.status = 0, .body = {}, .time = {}, .error = Error{kind, std::move(message)}});
  }

  void call(aws::Call call, Callback<void(aws::Reply)> done) override {
    asked.push_back(call.operation);
    bodies[call.operation] = json::parse(call.body);
    EXPECT_EQ(call.repeatable, call.operation.starts_with("Describe")) << call.operation;
    auto& plans = plans_[call.operation];
    if (plans.empty()) {
      ADD_FAILURE() << "nobody planned for " << call.operation;
      return done({.status = 0, .body = {}, .time = {}, .error = Error{ErrorKind::misuse, "unplanned"}});
    }
    aws::Reply reply = plans.front();
    if (plans.size() > 1) plans.pop_front();
    done(std::move(reply));
  }
  [[nodiscard]] std::string name() const override { return "https://db.test"; }

  std::vector<std::string> asked;
  std::map<std::string, json> bodies;

 private:
  std::map<std::string, std::deque<aws::Reply>> plans_;
};

DynamoDbOptions options_of(std::string table = "once") {
  DynamoDbOptions options;
  options.table = std::move(table);
  return options;
}

// A table as create_table() makes it and DescribeTable reports it.
json good_table() {
  return {{"TableName", "once"},
          {"TableArn", "arn:aws:dynamodb:eu-central-1:123456789012:table/once"},
          {"TableStatus", "ACTIVE"},
          {"ItemCount", 17},
          {"TableSizeBytes", 4711},
          {"KeySchema", {{{"AttributeName", "id"}, {"KeyType", "HASH"}}}},
          {"AttributeDefinitions",
           {{{"AttributeName", "id"}, {"AttributeType", "S"}}, {{"AttributeName", "open"}, {"AttributeType", "S"}}}},
          {"BillingModeSummary", {{"BillingMode", "PAY_PER_REQUEST"}}},
          {"DeletionProtectionEnabled", true},
          {"GlobalSecondaryIndexes",
           {{{"IndexName", "open"},
             {"IndexStatus", "ACTIVE"},
             {"KeySchema", {{{"AttributeName", "open"}, {"KeyType", "HASH"}}}},
             {"Projection", {{"ProjectionType", "ALL"}}}}}}};
}

json ttl_of(const std::string& status, const std::string& attribute = "expiration") {
  return {{"TimeToLiveDescription", {{"TimeToLiveStatus", status}, {"AttributeName", attribute}}}};
}

json backups_of(const std::string& status) {
  return {
      {"ContinuousBackupsDescription", {{"PointInTimeRecoveryDescription", {{"PointInTimeRecoveryStatus", status}}}}}};
}

// The rest of what check_table() asks of a good table.
void plan_rest(Service& service) {
  service.plan("DescribeTimeToLive", ttl_of("ENABLED"));
  service.plan("DescribeContinuousBackups", backups_of("ENABLED"));
}

bool never_waits(std::string_view doing) {
  ADD_FAILURE() << "waits because " << doing;
  return false;
}

// "key lack", … of everything that is not fine.
std::vector<std::string> complaints(const TableReport& report) {
  std::vector<std::string> out;
  for (const TableFinding& finding : report.findings) {
    if (finding.grade != Grade::fine) out.push_back(finding.name + (finding.grade == Grade::hint ? " hint" : " lack"));
  }
  return out;
}

std::string text_of(const TableReport& report, const std::string& name) {
  for (const TableFinding& finding : report.findings) {
    if (finding.name == name) return finding.text;
  }
  return "nothing was said";
}

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.error();
  }
  ADD_FAILURE() << "no exception";
  return {};
}

TEST(CreateTable, MakesOneAndWaitsForItAndItsIndexAndTurnsOnTheTtl) {
  Service service;
  json creating = good_table();
  creating["TableStatus"] = "CREATING";
  json indexing = good_table();
  indexing["GlobalSecondaryIndexes"][0]["IndexStatus"] = "CREATING";
  service.plan_error("DescribeTable", "ResourceNotFoundException");
  service.plan("CreateTable", {{"TableDescription", creating}});
  service.plan_error("DescribeTable", "ResourceNotFoundException");  // Not seen everywhere yet.
  service.plan("DescribeTable", {{"Table", creating}});
  service.plan("DescribeTable", {{"Table", indexing}});
  service.plan("DescribeTable", {{"Table", good_table()}});
  service.plan("UpdateTimeToLive", {{"TimeToLiveSpecification", {{"Enabled", true}}}});
  std::vector<std::string> waits;
  const Creation made = create_table(service, options_of(), {.deletion_protection = true, .tags = {{"team", "pay"}}},
                                     [&](std::string_view doing) {
                                       waits.emplace_back(doing);
                                       return true;
                                     });
  EXPECT_EQ(made.outcome, Created::made);
  EXPECT_THAT(waits, ElementsAre("the table is not there yet", "the table is CREATING",
                                 "the table is waiting for its index 'open', which is CREATING"));
  EXPECT_THAT(service.asked, ElementsAre("DescribeTable", "CreateTable", "DescribeTable", "DescribeTable",
                                         "DescribeTable", "DescribeTable", "UpdateTimeToLive"));
  EXPECT_EQ(service.bodies["CreateTable"], json::parse(R"({
    "TableName": "once", "BillingMode": "PAY_PER_REQUEST", "DeletionProtectionEnabled": true,
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"},
                             {"AttributeName": "open", "AttributeType": "S"}],
    "GlobalSecondaryIndexes": [{"IndexName": "open", "KeySchema": [{"AttributeName": "open", "KeyType": "HASH"}],
                                "Projection": {"ProjectionType": "ALL"}}],
    "Tags": [{"Key": "team", "Value": "pay"}]})"));
  EXPECT_EQ(service.bodies["UpdateTimeToLive"], json::parse(R"({
    "TableName": "once", "TimeToLiveSpecification": {"AttributeName": "expiration", "Enabled": true}})"));
}

TEST(CreateTable, FollowsTheNamesAndTheDialect) {
  DynamoDbOptions options = options_of();
  options.partition_key = "pk";
  options.sort_key = "sk";
  options.attributes.expiration = "ttl";
  options.dialect = DynamoDbDialect::powertools_python;
  const auto calls = create_table_calls(options, {});
  const json create = json::parse(calls.at(0).body);
  EXPECT_EQ(create["KeySchema"], json::parse(R"([{"AttributeName": "pk", "KeyType": "HASH"},
                                                 {"AttributeName": "sk", "KeyType": "RANGE"}])"));
  EXPECT_EQ(create["AttributeDefinitions"].size(), 2);
  EXPECT_FALSE(create.contains("GlobalSecondaryIndexes"));  // Those libraries' items would be missing in it.
  EXPECT_FALSE(create.contains("Tags"));
  EXPECT_EQ(json::parse(calls.at(1).body)["TimeToLiveSpecification"]["AttributeName"], "ttl");
}

TEST(CreateTable, LeavesOneThatFitsAlone) {
  Service service;
  service.plan("DescribeTable", {{"Table", good_table()}});
  plan_rest(service);
  const Creation creation = create_table(service, options_of(), {}, never_waits);
  EXPECT_EQ(creation.outcome, Created::was_there);
  EXPECT_TRUE(creation.report.fits());
  EXPECT_THAT(service.asked, ::testing::Each(HasSubstr("Describe")));
}

TEST(CreateTable, FinishesWhatWasBegun) {
  Service service;
  service.plan("DescribeTable", {{"Table", good_table()}});
  service.plan("DescribeTimeToLive", {{"TimeToLiveDescription", {{"TimeToLiveStatus", "DISABLED"}}}});
  service.plan("DescribeTimeToLive", ttl_of("ENABLING"));
  service.plan("DescribeContinuousBackups", backups_of("DISABLED"));
  service.plan_error("UpdateTimeToLive", "ValidationException", "TimeToLive is already enabled");  // By another.
  const Creation creation = create_table(service, options_of(), {}, never_waits);
  EXPECT_EQ(creation.outcome, Created::completed);
  EXPECT_TRUE(creation.report.fits()) << text_of(creation.report, "ttl");
  EXPECT_EQ(service.bodies["UpdateTimeToLive"]["TimeToLiveSpecification"]["AttributeName"], "expiration");
}

TEST(CreateTable, WaitsForTheOneThatAnotherMakes) {
  Service service;
  service.plan_error("DescribeTable", "ResourceNotFoundException");
  service.plan("DescribeTable", {{"Table", good_table()}});
  service.plan_error("CreateTable", "ResourceInUseException", "Table is being created: once");
  plan_rest(service);
  EXPECT_EQ(create_table(service, options_of(), {}, never_waits).outcome, Created::was_there);
}

TEST(CreateTable, ChangesNothingOfOneThatDoesNotFit) {
  Service service;
  json table = good_table();
  table["KeySchema"][0]["AttributeName"] = "pk";
  table.erase("GlobalSecondaryIndexes");
  service.plan("DescribeTable", {{"Table", table}});
  service.plan("DescribeTimeToLive", ttl_of("DISABLED"));
  service.plan("DescribeContinuousBackups", backups_of("ENABLED"));
  const Creation creation = create_table(service, options_of(), {}, never_waits);
  EXPECT_EQ(creation.outcome, Created::does_not_fit);
  EXPECT_THAT(complaints(creation.report), ElementsAre("key lack", "ttl lack", "index lack"));
  EXPECT_THAT(service.asked, ::testing::Each(HasSubstr("Describe")));
}

TEST(CreateTable, GivesUpWaitingWhenToldTo) {
  Service service;
  json creating = good_table();
  creating["TableStatus"] = "CREATING";
  service.plan("DescribeTable", {{"Table", creating}});
  const Error error =
      error_of([&] { create_table(service, options_of(), {}, [](std::string_view) { return false; }); });
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("table 'once' at https://db.test is CREATING still"));
}

TEST(CreateTable, SaysWhatIsInTheWay) {
  const auto refused = [](const std::string& type) {
    Service service;
    service.plan_error("DescribeTable", "ResourceNotFoundException");
    service.plan_error("CreateTable", type, "what the service says", type == "InternalServerError" ? 500 : 400);
    return error_of([&] { create_table(service, options_of(), {}, never_waits); });
  };
  EXPECT_EQ(refused("AccessDeniedException"),
            (Error{ErrorKind::misuse,
                   "CreateTable of table 'once' at https://db.test: what the service says. The "
                   "permission dynamodb:CreateTable on this table is missing"}));
  EXPECT_EQ(refused("LimitExceededException").kind, ErrorKind::unavailable);
  EXPECT_EQ(refused("InternalServerError").kind, ErrorKind::unavailable);
  EXPECT_EQ(refused("ValidationException").kind, ErrorKind::misuse);

  Service lost;
  lost.plan_failure("DescribeTable", ErrorKind::misuse, "no credentials: looked in the environment");
  const Error error = error_of([&] { create_table(lost, options_of(), {}, never_waits); });
  EXPECT_EQ(error.kind, ErrorKind::misuse);
  EXPECT_THAT(error.message, HasSubstr("no credentials: looked in the environment"));
}

TEST(CheckTable, FindsNothingWrongWithAGoodOne) {
  Service service;
  service.plan("DescribeTable", {{"Table", good_table()}});
  plan_rest(service);
  const TableReport report = check_table(service, options_of());
  EXPECT_TRUE(report.fits());
  EXPECT_THAT(complaints(report), ElementsAre());
  EXPECT_EQ(report.arn, "arn:aws:dynamodb:eu-central-1:123456789012:table/once");
  EXPECT_EQ(report.records, 17);
  EXPECT_EQ(report.bytes, 4711);
  EXPECT_TRUE(report.deletion_protection);
  EXPECT_EQ(report.findings.size(), 8);
}

TEST(CheckTable, SaysThatThereIsNone) {
  Service service;
  service.plan_error("DescribeTable", "ResourceNotFoundException");
  const TableReport report = check_table(service, options_of());
  EXPECT_FALSE(report.exists);
  EXPECT_FALSE(report.fits());
  EXPECT_THAT(text_of(report, "table"), HasSubstr("once table create"));
}

// A change of a good table, and its finding.
struct Fault {
  const char* name;
  void (*change)(json& table);
  std::vector<std::string> complaints;
  const char* says;
};

TEST(CheckTable, SaysEachThingThatIsWrong) {
  const Fault faults[] = {
      {"key", [](json& t) { t["KeySchema"][0]["AttributeName"] = "pk"; }, {"key lack"}, "is pk, not id"},
      {"key",
       [](json& t) {
         t["KeySchema"].push_back({{"AttributeName", "sk"}, {"KeyType", "RANGE"}});
       },
       {"key lack"},
       "is id, sk, not id"},
      {"key", [](json& t) { t["AttributeDefinitions"][0]["AttributeType"] = "B"; }, {"key lack"}, "of type B"},
      {"index", [](json& t) { t.erase("GlobalSecondaryIndexes"); }, {"index lack"}, "no index 'open'"},
      {"index", [](json& t) { t["GlobalSecondaryIndexes"][0]["IndexName"] = "other"; }, {"index lack"}, "no index"},
      {"index",
       [](json& t) { t["GlobalSecondaryIndexes"][0]["KeySchema"][0]["AttributeName"] = "id"; },
       {"index lack"},
       "is on id"},
      {"index", [](json& t) { t["AttributeDefinitions"][1]["AttributeType"] = "N"; }, {"index lack"}, "of type S"},
      {"index",
       [](json& t) { t["GlobalSecondaryIndexes"][0]["Projection"]["ProjectionType"] = "KEYS_ONLY"; },
       {"index lack"},
       "KEYS_ONLY"},
      {"index",
       [](json& t) { t["GlobalSecondaryIndexes"][0]["IndexStatus"] = "CREATING"; },
       {"index lack"},
       "is CREATING"},
      {"status", [](json& t) { t["TableStatus"] = "DELETING"; }, {"status lack"}, "DELETING"},
      {"status", [](json& t) { t["TableStatus"] = "UPDATING"; }, {}, "UPDATING"},
      {"billing", [](json& t) { t.erase("BillingModeSummary"); }, {"billing hint"}, "provisioned"},
      {"replicas",
       [](json& t) {
         t["Replicas"] = {{{"RegionName", "us-east-1"}}, {{"RegionName", "eu-west-1"}}};
         t["MultiRegionConsistency"] = "EVENTUAL";
       },
       {"replicas lack"},
       "replicated with us-east-1, eu-west-1, eventually consistent"},
      {"replicas",
       [](json& t) {
         t["Replicas"] = {{{"RegionName", "us-east-1"}}};
       },
       {"replicas lack"},
       "eventually"},
      {"replicas", [](json& t) { t["GlobalTableVersion"] = "2017.11.29"; }, {"replicas lack"}, "version 2017.11.29"},
      {"replicas",
       [](json& t) {
         t["Replicas"] = {{{"RegionName", "us-east-1"}}};
         t["MultiRegionConsistency"] = "STRONG";
       },
       {"replicas hint"},
       "no transactions"},
      {"protection", [](json& t) { t["DeletionProtectionEnabled"] = false; }, {"protection hint"}, "is off"},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.says);
    Service service;
    json table = good_table();
    fault.change(table);
    service.plan("DescribeTable", {{"Table", table}});
    plan_rest(service);
    const TableReport report = check_table(service, options_of());
    EXPECT_EQ(complaints(report), fault.complaints);
    EXPECT_THAT(text_of(report, fault.name), HasSubstr(fault.says));
  }
}

TEST(CheckTable, AllowedEventualReplicasAreAHint) {
  Service service;
  json table = good_table();
  table["Replicas"] = {{{"RegionName", "us-east-1"}}};
  service.plan("DescribeTable", {{"Table", table}});
  plan_rest(service);
  DynamoDbOptions options = options_of();
  options.allow_eventual = true;
  const TableReport report = check_table(service, options);
  EXPECT_THAT(complaints(report), ElementsAre("replicas hint"));
  EXPECT_TRUE(report.fits());
}

TEST(CheckTable, StrongReplicasNeedNoTtl) {
  Service service;
  json table = good_table();
  table["Replicas"] = {{{"RegionName", "us-east-1"}}, {{"RegionName", "us-west-2"}}};
  table["MultiRegionConsistency"] = "STRONG";
  service.plan("DescribeTable", {{"Table", table}});
  service.plan("DescribeTimeToLive", ttl_of("DISABLED", ""));
  service.plan("DescribeContinuousBackups", backups_of("ENABLED"));
  const TableReport report = check_table(service, options_of());
  EXPECT_THAT(complaints(report), ElementsAre("ttl hint", "replicas hint"));
  EXPECT_THAT(text_of(report, "ttl"), HasSubstr("once sweep"));
  EXPECT_TRUE(report.fits());
}

TEST(CheckTable, LooksAtTheTtlAndTheBackups) {
  const auto check = [](const json& ttl, const std::string& recovery) {
    Service service;
    service.plan("DescribeTable", {{"Table", good_table()}});
    service.plan("DescribeTimeToLive", ttl);
    service.plan("DescribeContinuousBackups", backups_of(recovery));
    return check_table(service, options_of());
  };
  EXPECT_THAT(complaints(check(ttl_of("ENABLING"), "ENABLED")), ElementsAre());
  EXPECT_THAT(text_of(check(ttl_of("DISABLED", ""), "ENABLED"), "ttl"), HasSubstr("it is off"));
  EXPECT_THAT(text_of(check(ttl_of("ENABLED", "ttl"), "ENABLED"), "ttl"), HasSubstr("on 'ttl', not on 'expiration'"));
  EXPECT_THAT(complaints(check(ttl_of("ENABLED", "ttl"), "ENABLED")), ElementsAre("ttl lack"));
  EXPECT_THAT(complaints(check(ttl_of("ENABLED"), "DISABLED")), ElementsAre("recovery hint"));
}

TEST(CheckTable, SaysWhatItMayNotSee) {
  Service service;
  service.plan("DescribeTable", {{"Table", good_table()}});
  service.plan_error("DescribeTimeToLive", "AccessDeniedException");
  service.plan_failure("DescribeContinuousBackups", ErrorKind::misuse, "refused, as the built-in client puts it");
  const TableReport report = check_table(service, options_of());
  EXPECT_THAT(complaints(report), ElementsAre("ttl hint", "recovery hint"));
  EXPECT_THAT(text_of(report, "ttl"), HasSubstr("dynamodb:DescribeTimeToLive is missing"));
  EXPECT_THAT(text_of(report, "recovery"), HasSubstr("refused, as the built-in client puts it"));

  Service emulator;
  emulator.plan("DescribeTable", {{"Table", good_table()}});
  emulator.plan_error("DescribeTimeToLive", "UnknownOperationException");
  emulator.plan_error("DescribeContinuousBackups", "UnknownOperationException", "", 501);
  EXPECT_THAT(complaints(check_table(emulator, options_of())), ElementsAre("ttl hint", "recovery hint"));

  Service down;
  down.plan("DescribeTable", {{"Table", good_table()}});
  down.plan_failure("DescribeTimeToLive", ErrorKind::unavailable, "connection refused");
  EXPECT_EQ(error_of([&] { check_table(down, options_of()); }).kind, ErrorKind::unavailable);
}

TEST(CheckTable, UnderstandsNobodyElse) {
  Service service;
  service.plan("DescribeTable", json::array(), 404);
  EXPECT_THAT(error_of([&] { check_table(service, options_of()); }).message, HasSubstr("Is this its endpoint?"));
}

TEST(DeleteTable, WaitsUntilItIsGone) {
  Service service;
  json deleting = good_table();
  deleting["TableStatus"] = "DELETING";
  service.plan("DeleteTable", {{"TableDescription", deleting}});
  service.plan("DescribeTable", {{"Table", deleting}});
  service.plan_error("DescribeTable", "ResourceNotFoundException");
  int waits = 0;
  delete_table(service, options_of(), [&](std::string_view doing) {
    EXPECT_EQ(doing, "the table is DELETING");
    return ++waits > 0;
  });
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(service.bodies["DeleteTable"], (json{{"TableName", "once"}}));
}

TEST(DeleteTable, SaysWhyItWillNot) {
  Service none;
  none.plan_error("DeleteTable", "ResourceNotFoundException");
  EXPECT_THAT(error_of([&] { delete_table(none, options_of(), never_waits); }).message,
              HasSubstr("there is no such table"));
  Service held;
  held.plan_error("DeleteTable", "ValidationException",
                  "Resource cannot be deleted as it is currently protected against deletion. Disable deletion "
                  "protection first.");
  const Error error = error_of([&] { delete_table(held, options_of(), never_waits); });
  EXPECT_EQ(error.kind, ErrorKind::misuse);
  EXPECT_THAT(error.message, HasSubstr("deletion protection is on"));
}

// The service's rules instead of a script: what is made is what the store and check_table() want.
TEST(Table, ComesAndGoes) {
  const auto fake = std::make_shared<once::testing::FakeDynamoDb>(system_clock());
  fake->set_creation_steps(3);
  const auto transport = once::testing::make_fake_transport(fake);
  std::uint64_t queries = 0;
  for (DynamoDbOptions options : {options_of("plain"), options_of("shared"), options_of("python")}) {
    SCOPED_TRACE(options.table);
    options.transport = transport;
    if (options.table == "shared") {
      options.sort_key = "sk";
      options.partition_value = "idempotency#pay";
    }
    if (options.table == "python") options.dialect = DynamoDbDialect::powertools_python;
    EXPECT_FALSE(check_table(*transport, options).exists);
    int waits = 0;
    const Pause pause = [&waits](std::string_view) { return ++waits < 10; };
    EXPECT_EQ(
        create_table(*transport, options, {.deletion_protection = false, .tags = {{"team", "pay"}}}, pause).outcome,
        Created::made);
    EXPECT_GT(waits, 0);
    const TableReport report = check_table(*transport, options);
    EXPECT_TRUE(report.fits());
    EXPECT_TRUE(report.time);
    EXPECT_THAT(complaints(report), ::testing::IsSubsetOf({"protection hint", "recovery hint"}));
    EXPECT_EQ(create_table(*transport, options, {}, pause).outcome, Created::was_there);

    const auto store = make_dynamodb_store(options);
    Record record;
    record.key = "pay#1";
    record.owner.bytes.fill(7);
    record.attempt = 1;
    record.token = 1;
    record.revision = next_revision(0, 0);
    record.lease_until = record.expires_at = Time{Millis{4'000'000'000'000}};
    EXPECT_EQ(blocking::insert(*store, record).status, once::AnswerStatus::done);
    std::size_t listed = 0;
    ListPage page;
    do {  // Partition by partition of the index, so that pages may be empty.
      page = blocking::list(*store, {.state = State::in_progress, .cursor = page.cursor});
      ASSERT_FALSE(page.error) << page.error->message;
      listed += page.records.size();
    } while (!page.cursor.empty());
    EXPECT_EQ(listed, 1);
    const bool has_index = options.dialect == DynamoDbDialect::native;
    EXPECT_EQ(fake->round_trips("Query") > queries, has_index);
    queries = fake->round_trips("Query");

    delete_table(*transport, options, pause);
    EXPECT_FALSE(check_table(*transport, options).exists);
    EXPECT_THAT(error_of([&] { delete_table(*transport, options, pause); }).message, HasSubstr("no such table"));
  }
}

TEST(Table, OfDeletionProtectionStays) {
  const auto fake = std::make_shared<once::testing::FakeDynamoDb>(system_clock());
  const auto transport = once::testing::make_fake_transport(fake);
  create_table(*transport, options_of(), {.deletion_protection = true, .tags = {}}, never_waits);
  EXPECT_TRUE(check_table(*transport, options_of()).deletion_protection);
  EXPECT_THAT(error_of([&] { delete_table(*transport, options_of(), never_waits); }).message,
              HasSubstr("deletion protection is on"));
}

TEST(LeastPolicy, NamesTableAndIndex) {
  const std::string arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/once";
  const json worker = json::parse(least_policy(options_of(), arn, PolicyFor::worker));
  EXPECT_EQ(worker["Statement"].size(), 1);
  EXPECT_EQ(worker["Statement"][0]["Resource"], arn);
  EXPECT_FALSE(worker["Statement"][0].contains("Condition"));
  const json all = json::parse(least_policy(options_of(), arn, PolicyFor::operators));
  EXPECT_EQ(all["Statement"].size(), 3);
  EXPECT_EQ(all["Statement"][2]["Resource"], arn + "/index/open");
  EXPECT_EQ(all["Statement"][2]["Action"], json::array({"dynamodb:Query"}));
}

TEST(LeastPolicy, NamesWhereLargeResultsAre) {
  const json policy = json::parse(
      least_policy(options_of(), "arn:aws-cn:dynamodb:cn-north-1:1:table/once", PolicyFor::worker, "bucket/results"));
  EXPECT_EQ(policy["Statement"][1]["Resource"], "arn:aws-cn:s3:::bucket/results/*");
  EXPECT_EQ(policy["Statement"][1]["Action"], (json{"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}));
}

TEST(LeastPolicy, KeepsToItsPartOfASharedTable) {
  DynamoDbOptions options = options_of();
  options.sort_key = "sk";
  options.partition_value = "idempotency#pay";
  const json policy = json::parse(least_policy(options, "arn", PolicyFor::worker));
  const json condition = json::parse(R"({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["idempotency#pay"]}})");
  EXPECT_EQ(policy["Statement"][0]["Condition"], condition);
  const json all = json::parse(least_policy(options, "arn", PolicyFor::operators));
  EXPECT_EQ(all["Statement"][1]["Condition"], condition);
  EXPECT_EQ(all["Statement"][1]["Action"][0], "dynamodb:Query");  // Of its partition; it reads no other.
}

TEST(TableArn, IsMadeOfWhatIsKnown) {
  EXPECT_EQ(table_arn(options_of(), "eu-central-1", "123456789012"),
            "arn:aws:dynamodb:eu-central-1:123456789012:table/once");
  EXPECT_EQ(table_arn(options_of(), "", ""), "arn:aws:dynamodb:*:*:table/once");
  EXPECT_EQ(table_arn(options_of(), "cn-north-1", ""), "arn:aws-cn:dynamodb:cn-north-1:*:table/once");
  EXPECT_EQ(table_arn(options_of(), "us-isob-east-1", ""), "arn:aws-iso-b:dynamodb:us-isob-east-1:*:table/once");
  EXPECT_EQ(table_arn(options_of(), "eusc-de-east-1", ""), "arn:aws-eusc:dynamodb:eusc-de-east-1:*:table/once");
  EXPECT_EQ(table_arn(options_of("arn:aws:dynamodb:us-east-1:1:table/t"), "eu-central-1", ""),
            "arn:aws:dynamodb:us-east-1:1:table/t");
}

}  // namespace
}  // namespace once::stores
