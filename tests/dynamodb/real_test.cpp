// The store against servers that know nothing of once: moto, which the test's command has started, and whatever
// ONCE_TEST_DYNAMODB_ENDPOINT names (a real one takes its region and credentials from the usual places; tables named
// once-test-… are made there and deleted).
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>

#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_table.hpp>
#include <once/stores/dynamodb_transaction.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/records.hpp>

#include "platform/wait.hpp"
#include "spoils.hpp"
#include "stores/dynamodb/item.hpp"

namespace once::testing {
namespace {

// The table is being made or deleted by another program: there is nothing to wait for but time.
bool pause_a_little(std::string_view) {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return true;
}

stores::DynamoDbOptions options_at(const std::string& endpoint, const std::string& sort_key) {
  static int tables = 0;
  stores::DynamoDbOptions options{.table = "once-test-" + std::to_string(getpid()) + "-" + std::to_string(++tables),
                                  .endpoint = endpoint};
  // The emulator takes seconds for a record with many steps, where other tests take the processors.
  options.request_timeout = std::chrono::seconds(60);
  options.operation_timeout = std::chrono::minutes(5);
  options.sort_key = sort_key;
  if (!sort_key.empty()) options.partition_value = "idempotency#suite";
  options.transport = stores::make_dynamodb_transport(options);
  return options;
}

class RealHarness final : public StoreHarness {
 public:
  RealHarness(const std::string& endpoint, const std::string& sort_key) : options_(options_at(endpoint, sort_key)) {
    // The index lags behind at the real service, and the suite wants to see at once what was written.
    options_.use_index = stores::DynamoDbOptions::UseIndex::never;
    stores::create_table(*options_.transport, options_, {}, pause_a_little);
  }
  ~RealHarness() override {
    try {
      stores::delete_table(*options_.transport, options_, pause_a_little);
    } catch (const Exception& error) {
      ADD_FAILURE() << "the table " << options_.table << " is left: " << error.what();
    }
  }

  std::unique_ptr<Store> open() override { return stores::make_dynamodb_store(options_); }

  void plant(std::size_t which, const std::string& key) override {
    const auto reply = wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) {
      options_.transport->call({.operation = "PutItem", .body = spoiled_put(options_, which, key)}, std::move(done));
    });
    if (reply.status != 200) throw std::runtime_error("cannot plant: " + reply.body);
  }

 private:
  stores::DynamoDbOptions options_;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const StoreTraits traits{.shared = true, .durable = true, .foreign_records = spoils};

void add(const std::string& name, const std::string& endpoint) {
  register_conformance(
      name, traits, [endpoint] { return std::make_unique<RealHarness>(endpoint, ""); }, __FILE__, __LINE__);
  register_conformance(
      name + "_composite", traits, [endpoint] { return std::make_unique<RealHarness>(endpoint, "sk"); }, __FILE__,
      __LINE__);
}

const bool added = [] {
  add("moto", variable("ONCE_TEST_MOTO_ENDPOINT"));
  if (const std::string endpoint = variable("ONCE_TEST_DYNAMODB_ENDPOINT"); !endpoint.empty()) add("given", endpoint);
  return true;
}();

TEST(Moto, OpenRecordsAreListedByTheIndex) {
  ASSERT_TRUE(added);
  const auto options = options_at(variable("ONCE_TEST_MOTO_ENDPOINT"), "");
  stores::create_table(*options.transport, options, {}, pause_a_little);
  const auto store = stores::make_dynamodb_store(options);
  for (int i = 0; i < 20; ++i) {
    Record record = plain_record("k" + std::to_string(i));
    if (i % 2 == 0) record.state = State::completed;
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  std::size_t listed = 0;
  ListQuery query{.state = State::in_progress, .limit = 2};
  do {
    const ListPage page = blocking::list(*store, query);
    ASSERT_FALSE(page.error) << page.error->message;
    listed += page.records.size();
    query.cursor = page.cursor;
  } while (!query.cursor.empty());
  EXPECT_EQ(listed, 10U);
  EXPECT_EQ(stores::dynamodb_status(*store)->uses_index, true);
  stores::delete_table(*options.transport, options, pause_a_little);
}

// A record and other items of its table in one transaction: done, declined, refused, and asked for again.
void expect_transactions(const std::string& endpoint) {
  const auto options = options_at(endpoint, "");
  stores::create_table(*options.transport, options, {}, pause_a_little);
  const std::shared_ptr<Store> store = stores::make_dynamodb_store(options);
  const auto item = [&](const std::string& id) {
    return "{\"TableName\":\"" + options.table + R"(","Key":{"id":{"S":")" + id + "\"}}";
  };
  const auto count = [&](const std::string& id) {
    const auto reply = wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) {
      options.transport->call({.operation = "GetItem", .body = item(id) + R"(,"ConsistentRead":true})"},
                              std::move(done));
    });
    const auto answer = std::get<stores::dynamodb::ServiceAnswer>(stores::dynamodb::answer_from_json(reply.body));
    const auto* times = answer.item ? answer.item->find("times") : nullptr;
    if (!answer.item) return std::string("none");
    return times == nullptr ? "uncounted" : times->text;
  };
  // Counts up to one and no further.
  const auto counting = [&](const std::string& id) {
    auto items = std::make_shared<stores::TransactItems>();
    items->update(item(id) + R"j(,"UpdateExpression":"ADD times :one","ExpressionAttributeValues":{":one":{"N":"1"}},)j"
                             R"j("ConditionExpression":"attribute_not_exists(times)"})j");
    items->put(R"({"TableName":")" + options.table + R"(","Item":{"id":{"S":"beside )" + id + R"("}}})");
    return items;
  };
  const auto replace_with = [&](const Record& record, const Record& seen, const std::string& id) {
    return wait_for<Answer>([&](Done done) {
      store->replace_with(share(record), {.owner = seen.owner, .revision = seen.revision}, counting(id),
                          std::move(done));
    });
  };
  const auto completed = [](Record record) {
    record.state = State::completed;
    record.revision += 1;
    record.result = Result::inlined("done");
    return record;
  };

  const Record a = plain_record("a");
  ASSERT_EQ(blocking::insert(*store, a).status, AnswerStatus::done);
  const Answer done = replace_with(completed(a), a, "counter");
  ASSERT_EQ(done.status, AnswerStatus::done) << describe(done);
  EXPECT_EQ(count("counter"), "1") << endpoint;
  EXPECT_EQ(blocking::get(*store, "a").record->result.bytes, "done");

  // An endpoint knows it again by its token, or finds the record that it wrote.
  const Answer again = replace_with(completed(a), a, "counter");
  ASSERT_NE(again.status, AnswerStatus::failed) << describe(again);
  if (again.status == AnswerStatus::refused) {
    EXPECT_EQ(*again.record, completed(a));
  }
  EXPECT_EQ(count("counter"), "1");

  const Record b = plain_record("b");
  ASSERT_EQ(blocking::insert(*store, b).status, AnswerStatus::done);
  const Answer declined = replace_with(completed(b), b, "counter");
  EXPECT_TRUE(declined.declined) << describe(declined);
  EXPECT_EQ(declined.error.kind, ErrorKind::unavailable);
  EXPECT_EQ(*blocking::get(*store, "b").record, b) << "nothing was written";

  Record stale = b;
  stale.revision += 5;
  const Answer refused = replace_with(completed(stale), stale, "another");
  ASSERT_EQ(refused.status, AnswerStatus::refused) << describe(refused);
  EXPECT_EQ(*refused.record, b);
  EXPECT_EQ(count("another"), "none");
  EXPECT_EQ(count("beside counter"), "uncounted");
  EXPECT_EQ(count("beside another"), "none");
  stores::delete_table(*options.transport, options, pause_a_little);
}

TEST(Moto, TransactionsWriteBothOrNeither) {
  expect_transactions(variable("ONCE_TEST_MOTO_ENDPOINT"));
  if (const std::string given = variable("ONCE_TEST_DYNAMODB_ENDPOINT"); !given.empty()) expect_transactions(given);
}

}  // namespace
}  // namespace once::testing
