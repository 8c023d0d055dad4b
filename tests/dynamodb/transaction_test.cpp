// A record and the user's items in one transaction: the requests, and the reading of the answers.
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "fake_aws/fake_dynamodb.hpp"
#include "platform/wait.hpp"

namespace once::testing {
namespace transaction_test {

using namespace std::chrono_literals;
using nlohmann::json;
using stores::DynamoDbDialect;
using stores::TransactItems;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Trips = std::map<std::string, std::uint64_t>;
using Kind = FakeFault::Kind;

// Two tables of a shop beside that of the records: pieces in stock, and orders.
class Transaction : public ::testing::Test {
 protected:
  Transaction() {
    options.table = "records";
    options.clock = clock;
    options.transport = make_fake_transport(fake);
    options.allow_eventual = true;  // So that it does not ask.
    fake->create_table("stock", "sku");
    fake->create_table("orders", "id");
    set_pieces(5);
  }

  void use(DynamoDbDialect dialect, bool composite) {
    options.dialect = dialect;
    if (composite) {
      options.sort_key = "sk";
      options.partition_value = "idempotency#shop";
    }
    fake->create_table("records", "id", options.sort_key);
    store = stores::make_dynamodb_store(options);
  }
  void use_native() { use(DynamoDbDialect::native, false); }

  json must(const char* operation, const json& body) const {
    const FakeAnswer answer = fake->call(operation, body.dump());
    if (answer.status != 200) throw std::runtime_error(answer.body);
    return json::parse(answer.body);
  }
  void set_pieces(int pieces) const {
    must("PutItem",
         {{"TableName", "stock"}, {"Item", {{"sku", {{"S", "tea"}}}, {"pieces", {{"N", std::to_string(pieces)}}}}}});
  }
  [[nodiscard]] int pieces() const {
    const json answer = must("GetItem", {{"TableName", "stock"}, {"Key", {{"sku", {{"S", "tea"}}}}}});
    return std::stoi(answer["Item"]["pieces"]["N"].get<std::string>());
  }
  [[nodiscard]] std::size_t orders() const {
    json request = {{"TableName", "orders"}};
    for (std::size_t count = 0;;) {
      json page = must("Scan", request);
      count += page["Items"].size();
      if (!page.contains("LastEvaluatedKey")) return count;
      request["ExclusiveStartKey"] = page["LastEvaluatedKey"];
    }
  }

  // One piece less, and an order.
  static std::shared_ptr<TransactItems> sale(const std::string& order) {
    auto items = std::make_shared<TransactItems>();
    items->update(R"({"TableName":"stock","Key":{"sku":{"S":"tea"}},"UpdateExpression":"ADD pieces :less",)"
                  R"("ConditionExpression":"pieces >= :one",)"
                  R"("ExpressionAttributeValues":{":less":{"N":"-1"},":one":{"N":"1"}}})");
    items->put(R"({"TableName":"orders","Item":{"id":{"S":")" + order + R"("}}})");
    return items;
  }

  Answer replace_with(const Record& record, Seen seen, std::shared_ptr<const Companion> companion) const {
    return wait_for<Answer>(
        [&](Done done) { store->replace_with(share(record), seen, std::move(companion), std::move(done)); });
  }

  // A claim as it is stored, and its completion.
  Record claim(const std::string& key) const {
    Record record = plain_record(key);
    record.state = State::in_progress;
    record.finished_at = Time{};
    record.result = {};
    record.failure = {};
    const Answer answer = blocking::insert(*store, record);
    if (answer.status != AnswerStatus::done) throw std::runtime_error(describe(answer));
    return copy_of(blocking::get(*store, key).record).value();
  }
  static Record done(Record record) {
    record.state = State::completed;
    record.revision += 1;
    record.finished_at = manual_start;
    record.result = Result::inlined("7", "application/json");
    return record;
  }
  static Seen as(const Record& record) { return {.owner = record.owner, .revision = record.revision}; }

  // What comes to the service from now on, as it is sent.
  void watch_transactions(const FakeFault& fault = {}) {
    fake->set_faults([this, fault](const FakeCall& call) {
      if (call.operation != "TransactWriteItems") return FakeFault{};
      sent.push_back(json::parse(call.body));
      return fault;
    });
  }
  void answer_transactions(int status, const json& body) {
    watch_transactions({.kind = Kind::answered, .answer = {.status = status, .body = body.dump()}});
  }
  void answer_cancelled(const std::vector<json>& reasons) {
    answer_transactions(400, {{"__type", "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"},
                              {"Message", "Transaction cancelled"},
                              {"CancellationReasons", reasons}});
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(clock);
  stores::DynamoDbOptions options;
  std::shared_ptr<Store> store;
  std::vector<json> sent;
};

struct Form {
  DynamoDbDialect dialect;
  bool composite;
  std::string key;
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << "dialect " << static_cast<int>(form.dialect) << (form.composite ? " composite" : "");
}

class TransactionForm : public Transaction, public ::testing::WithParamInterface<Form> {
 protected:
  TransactionForm() { use(GetParam().dialect, GetParam().composite); }
  const std::string key = GetParam().key;
};

TEST_P(TransactionForm, BothAreWrittenOrNeither) {
  const Record seen = claim(key);
  EXPECT_EQ(replace_with(done(seen), as(seen), sale("o1")).status, AnswerStatus::done);
  EXPECT_EQ(pieces(), 4);
  EXPECT_EQ(orders(), 1U);
  const RecordPtr stored = blocking::get(*store, key).record;
  EXPECT_EQ(stored->state, State::completed);
  EXPECT_EQ(stored->result.bytes, done(seen).result.bytes);

  // Another attempt has the claim.
  const Answer refused = replace_with(done(seen), as(seen), sale("o2"));
  ASSERT_EQ(refused.status, AnswerStatus::refused);
  EXPECT_EQ(*refused.record, *stored);
  EXPECT_EQ(pieces(), 4);
  EXPECT_EQ(orders(), 1U);
}

TEST_P(TransactionForm, AConditionThatFailsIsDeclinedByName) {
  const Record seen = claim(key);
  set_pieces(0);
  fake->reset_round_trips();
  const Answer answer = replace_with(done(seen), as(seen), sale("o1"));
  ASSERT_EQ(answer.status, AnswerStatus::failed);
  EXPECT_TRUE(answer.declined);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("write 1 (Update in 'stock'): ConditionalCheckFailed"));
  EXPECT_EQ(fake->round_trips(), (Trips{{"TransactWriteItems", 1}, {"GetItem", 1}}));
  EXPECT_EQ(orders(), 0U);
  EXPECT_EQ(blocking::get(*store, key).record->state, State::in_progress);
  EXPECT_EQ(blocking::replace(*store, done(seen), as(seen)).status, AnswerStatus::done) << "the claim stands";
}

TEST_P(TransactionForm, AskedAgainItIsDoneOnce) {
  const Record seen = claim(key);
  watch_transactions({.kind = Kind::lost_after});
  EXPECT_EQ(replace_with(done(seen), as(seen), sale("o1")).error.kind, ErrorKind::in_doubt);
  watch_transactions();
  EXPECT_EQ(replace_with(done(seen), as(seen), sale("o1")).status, AnswerStatus::done);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_EQ(pieces(), 4);

  clock->advance(11min);  // The service has forgotten it, and finds what it wrote.
  const Answer answer = replace_with(done(seen), as(seen), sale("o1"));
  ASSERT_EQ(answer.status, AnswerStatus::refused);
  EXPECT_EQ(answer.record->owner, seen.owner);
  EXPECT_EQ(answer.record->result, done(seen).result);
  EXPECT_EQ(pieces(), 4);
}

const std::string powertools_id = "fn#4f5f4713d180fb0cb1041f7caf4faaaa";
INSTANTIATE_TEST_SUITE_P(All, TransactionForm,
                         ::testing::Values(Form{DynamoDbDialect::native, false, "order"},
                                           Form{DynamoDbDialect::native, true, "order"},
                                           Form{DynamoDbDialect::powertools_python, false, powertools_id},
                                           Form{DynamoDbDialect::powertools_typescript, false, powertools_id},
                                           Form{DynamoDbDialect::powertools_typescript, true, powertools_id},
                                           Form{DynamoDbDialect::powertools_java, false, powertools_id},
                                           Form{DynamoDbDialect::powertools_dotnet, true, powertools_id}));

TEST_F(Transaction, TheTokenIsThatOfTheText) {
  use_native();
  const Record seen = claim("order");
  Record later = done(seen);
  later.finished_at += 1ms;
  watch_transactions({.kind = Kind::lost_before});
  replace_with(done(seen), as(seen), sale("o1"));
  replace_with(done(seen), as(seen), sale("o1"));
  replace_with(later, as(seen), sale("o1"));
  replace_with(done(seen), as(seen), sale("o2"));
  ASSERT_THAT(sent, SizeIs(4));
  EXPECT_EQ(sent[0]["ClientRequestToken"].get<std::string>().size(), 36U);
  EXPECT_EQ(sent[0]["ClientRequestToken"], sent[1]["ClientRequestToken"]);
  EXPECT_NE(sent[0]["ClientRequestToken"], sent[2]["ClientRequestToken"]);
  EXPECT_NE(sent[0]["ClientRequestToken"], sent[3]["ClientRequestToken"]);
  EXPECT_EQ(sent[0]["TransactItems"][0]["Put"]["ReturnValuesOnConditionCheckFailure"], "ALL_OLD");
}

TEST_F(Transaction, AnEndpointThatTellsNoItemIsAskedForIt) {
  use_native();
  const Record seen = claim("order");
  Record other = seen;
  other.revision += 1;
  ASSERT_EQ(blocking::replace(*store, other, as(seen)).status, AnswerStatus::done);
  watch_transactions({.without_item = true});
  const Answer refused = replace_with(done(seen), as(seen), sale("o1"));
  ASSERT_EQ(refused.status, AnswerStatus::refused);
  EXPECT_EQ(*refused.record, other);
  ASSERT_EQ(blocking::remove(*store, "order", as(other)).status, AnswerStatus::done);
  const Answer gone = replace_with(done(seen), as(seen), sale("o1"));
  EXPECT_EQ(gone.status, AnswerStatus::refused);
  EXPECT_EQ(gone.record, nullptr);
  EXPECT_EQ(pieces(), 5);
}

// The service need not look at every condition before it cancels.
TEST_F(Transaction, ADeclineIsToldOnlyWhileTheRecordStandsAsItWasSeen) {
  use_native();
  const Record seen = claim("order");
  answer_cancelled({{{"Code", "None"}}, {{"Code", "ConditionalCheckFailed"}}, {{"Code", "None"}}});
  EXPECT_TRUE(replace_with(done(seen), as(seen), sale("o1")).declined);

  fake->set_faults([](const FakeCall&) { return FakeFault{}; });
  ASSERT_EQ(replace_with(done(seen), as(seen), sale("o1")).status, AnswerStatus::done);
  answer_cancelled({{{"Code", "None"}}, {{"Code", "ConditionalCheckFailed"}}, {{"Code", "None"}}});
  const Answer written = replace_with(done(seen), as(seen), sale("o1"));
  ASSERT_EQ(written.status, AnswerStatus::refused) << "it was written by the first try";
  EXPECT_EQ(written.record->state, State::completed);

  const Record displaced = claim("another");
  Record theirs = displaced;
  theirs.owner.bytes[0] ^= 0xFFU;
  ASSERT_EQ(blocking::replace(*store, theirs, as(displaced)).status, AnswerStatus::done);
  const Answer lost = replace_with(done(displaced), as(displaced), sale("o2"));
  ASSERT_EQ(lost.status, AnswerStatus::refused);
  EXPECT_EQ(lost.record->owner, theirs.owner);

  const Record unread = claim("unread");
  fake->set_faults([](const FakeCall& call) {
    if (call.operation == "GetItem") return FakeFault{.kind = Kind::throttled};
    return FakeFault{.kind = Kind::answered,
                     .answer = {.status = 400,
                                .body = R"({"__type":"x#TransactionCanceledException","CancellationReasons":)"
                                        R"([{"Code":"None"},{"Code":"ConditionalCheckFailed"},{"Code":"None"}]})"}};
  });
  const Answer unknown = replace_with(done(unread), as(unread), sale("o2"));
  EXPECT_EQ(unknown.error.kind, ErrorKind::unavailable);
  EXPECT_FALSE(unknown.declined);
  EXPECT_THAT(unknown.error.message, HasSubstr("the record could not be read"));
}

TEST_F(Transaction, ReasonsBecomeWhatCanBeDoneAboutThem) {
  use_native();
  const Record seen = claim("order");
  const json none = {{"Code", "None"}};
  const auto code = [](const char* name) { return json{{"Code", name}, {"Message", "said so"}}; };
  struct Case {
    std::vector<json> reasons;
    ErrorKind kind;
    bool declined;
    std::string says;
    bool unfit = false;
  };
  const auto too_large =
      json{{"Code", "ValidationError"}, {"Message", "Item size to update has exceeded the maximum allowed size"}};
  const std::vector<Case> cases = {
      {{none, code("TransactionConflict"), none}, ErrorKind::unavailable, false, "TransactionConflict: said so"},
      {{none, none, code("ThrottlingError")}, ErrorKind::unavailable, false, "ThrottlingError"},
      {{none, none, code("ProvisionedThroughputExceeded")}, ErrorKind::unavailable, false, "Provisioned"},
      {{code("TransactionConflict"), code("ConditionalCheckFailed"), none},
       ErrorKind::unavailable,
       false,
       "the record:"},
      {{code("ValidationError"), none, none}, ErrorKind::misuse, false, "the record: ValidationError"},
      {{too_large, none, none}, ErrorKind::misuse, false, "the record: ValidationError: Item size", true},
      {{none, too_large, none}, ErrorKind::misuse, true, "write 1 (Update in 'stock'): ValidationError: Item size"},
      {{none, code("TransactionConflict"), code("ConditionalCheckFailed")},
       ErrorKind::unavailable,
       true,
       "write 2 (Put in 'orders'): ConditionalCheckFailed"},
      {{none, code("ValidationError"), none}, ErrorKind::misuse, true, "write 1 (Update in 'stock'): ValidationError"},
      {{none, none, code("ItemCollectionSizeLimitExceeded")}, ErrorKind::misuse, true, "write 2 (Put in 'orders')"},
      {{none, none, code("AccessDenied")}, ErrorKind::misuse, true, "AccessDenied"},
      {{none, none, none}, ErrorKind::unavailable, false, "TransactionCanceledException"},
      {{}, ErrorKind::misuse, true, "TransactionCanceledException: Transaction cancelled"},
  };
  for (const Case& c : cases) {
    answer_cancelled(c.reasons);
    const Answer answer = replace_with(done(seen), as(seen), sale("o1"));
    const std::string what = json(c.reasons).dump();
    ASSERT_EQ(answer.status, AnswerStatus::failed) << what;
    EXPECT_EQ(answer.error.kind, c.kind) << what;
    EXPECT_EQ(answer.declined, c.declined) << what;
    EXPECT_EQ(answer.unfit, c.unfit) << what;
    EXPECT_THAT(answer.error.message, HasSubstr(c.says));
  }
  const auto refuse = [&](int status, const char* type) {
    answer_transactions(status, {{"__type", type}, {"message", "said so"}});
    return replace_with(done(seen), as(seen), sale("o1"));
  };
  EXPECT_EQ(refuse(400, "x#TransactionInProgressException").error.kind, ErrorKind::in_doubt);
  EXPECT_EQ(refuse(500, "x#InternalServerError").error.kind, ErrorKind::in_doubt);
  EXPECT_EQ(refuse(400, "x#ThrottlingException").error.kind, ErrorKind::unavailable);
  EXPECT_TRUE(refuse(400, "x#AccessDeniedException").declined);
  EXPECT_TRUE(refuse(400, "x#ValidationException").declined);
  EXPECT_EQ(pieces(), 5);
}

TEST_F(Transaction, WhatTheServiceRefusesOfItIsDeclinedAsMisuse) {
  use_native();
  const Record seen = claim("order");
  const auto refused = [&](TransactItems items) {
    const Answer answer = replace_with(done(seen), as(seen), std::make_shared<TransactItems>(std::move(items)));
    EXPECT_TRUE(answer.declined);
    EXPECT_EQ(answer.error.kind, ErrorKind::misuse);
    EXPECT_EQ(blocking::get(*store, "order").record->state, State::in_progress);
    return answer.error.message;
  };
  EXPECT_THAT(refused(TransactItems().put(R"({"TableName":"nowhere","Item":{"id":{"S":"1"}}})")),
              HasSubstr("ResourceNotFoundException"));
  EXPECT_THAT(refused(TransactItems().remove(R"({"TableName":"stock","Key":{"id":{"S":"1"}}})")),
              HasSubstr("does not match the schema"));
  EXPECT_THAT(refused(TransactItems().remove(R"({"TableName":"records","Key":{"id":{"S":"order"}}})")),
              HasSubstr("multiple operations on one item"));
  EXPECT_THAT(refused(TransactItems().update(R"({"TableName":"stock","Key":{"sku":{"S":"tea"}},)"
                                             R"("UpdateExpression":"SET pieces = "})")),
              HasSubstr("ValidationException"));
}

TEST_F(Transaction, OnlyThisStoresOwnCompanionsAreTaken) {
  struct Other final : Companion {};
  use_native();
  const Record seen = claim("order");
  fake->reset_round_trips();
  const Answer other = replace_with(done(seen), as(seen), std::make_shared<Other>());
  EXPECT_TRUE(other.declined);
  EXPECT_EQ(other.error.kind, ErrorKind::misuse);
  EXPECT_THAT(other.error.message, HasSubstr("TransactItems"));
  EXPECT_EQ(fake->round_trips(), Trips{});
  EXPECT_EQ(replace_with(done(seen), as(seen), std::make_shared<TransactItems>()).status, AnswerStatus::done);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}})) << "with nothing to commit with it is a write";
}

TEST_F(Transaction, LimitsOfTheRecordAndOfBothTogetherAreTheRecords) {
  use_native();
  const Record seen = claim("order");
  Record large = done(seen);
  large.result.bytes.assign(store->capabilities().max_record_bytes, 'x');
  const auto misuse = [&](const Answer& answer) {
    EXPECT_EQ(answer.status, AnswerStatus::failed);
    EXPECT_FALSE(answer.declined) << "without its result it can be written";
    EXPECT_EQ(answer.error.kind, ErrorKind::misuse);
    return answer.error.message;
  };
  fake->reset_round_trips();
  EXPECT_THAT(misuse(replace_with(large, as(seen), sale("o1"))), HasSubstr("over the limit"));
  TransactItems full;
  const std::string item(390'000, 'x');
  for (int i = 0; i < 10; ++i) {
    full.put(R"({"TableName":"orders","Item":{"id":{"S":")" + std::to_string(i) + R"("},"x":{"S":")" + item +
             R"("}}})");
  }
  large.result.bytes.assign(300'000, 'x');
  EXPECT_THAT(misuse(replace_with(large, as(seen), std::make_shared<TransactItems>(full))), HasSubstr("together over"));
  EXPECT_EQ(fake->round_trips(), Trips{});
  EXPECT_EQ(replace_with(done(seen), as(seen), std::make_shared<TransactItems>(full)).status, AnswerStatus::done);
  EXPECT_EQ(orders(), 10U);
}

TEST_F(Transaction, CapacityIsCountedTwice) {
  options.count_capacity = true;
  use_native();
  const Record seen = claim("order");
  const double before = stores::dynamodb_status(*store)->capacity_units;
  ASSERT_EQ(replace_with(done(seen), as(seen), sale("o1")).status, AnswerStatus::done);
  EXPECT_EQ(stores::dynamodb_status(*store)->capacity_units - before, 6.0) << "two units for each of three items";
}

// --- With the engine

class TransactionEngine : public Transaction {
 protected:
  TransactionEngine() { use_native(); }
  ~TransactionEngine() override {
    fake->set_faults([](const FakeCall&) { return FakeFault{}; });
    for (int i = 0; i < 1'000 && timers->run_next(); ++i) {
    }
    EXPECT_EQ(timers->pending(), 0U);
  }

  std::unique_ptr<Engine> process() {
    EngineOptions o;
    o.store = stores::make_dynamodb_store(options);
    o.scope = "shop";
    o.policy.lease = 3s;
    o.policy.heartbeat = false;
    o.clock = clock;
    o.timers = timers;
    o.random = std::make_shared<SeededRandom>(++seed);
    return std::make_unique<Engine>(std::move(o));
  }
  Finish complete(Claim& claim, std::shared_ptr<const Companion> with) {
    std::optional<Finish> finish;
    claim.complete(Result::inlined("sold"), std::move(with), [&](Finish f) { finish = std::move(f); });
    for (int i = 0; !finish && i < 1'000 && timers->run_next(); ++i) {
    }
    if (!finish) throw std::runtime_error("no answer to complete");
    return *std::move(finish);
  }
  std::uint64_t seed = 0;
};

TEST_F(TransactionEngine, ANewOperationTakesTwoRoundTrips) {
  const auto engine = process();
  Begin begun = engine->begin("o1");
  EXPECT_EQ(complete(begun.claim, sale("o1")).kind, Finish::Kind::recorded);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}, {"TransactWriteItems", 1}}));
  EXPECT_EQ(engine->begin("o1").record->result.bytes, "sold");
}

TEST_F(TransactionEngine, EveryFaultWritesOnceOrNotAtAll) {
  const auto engine = process();
  int left = pieces();
  std::size_t written = 0;
  for (const Kind kind : {Kind::unreachable, Kind::lost_before, Kind::lost_after, Kind::half_answer, Kind::throttled,
                          Kind::server_error, Kind::server_error_after}) {
    for (int times = 1; times <= 3; ++times) {
      set_pieces(left = 5);
      const std::string order = "o" + std::to_string(static_cast<int>(kind)) + std::to_string(times);
      Begin begun = engine->begin(order);
      ASSERT_EQ(begun.kind, Begin::Kind::claimed);
      fake->set_faults([kind, times](const FakeCall& call) mutable {
        const bool wrong = call.operation == "TransactWriteItems" && times-- > 0;
        return FakeFault{.kind = wrong ? kind : Kind::none};
      });
      EXPECT_EQ(complete(begun.claim, sale(order)).kind, Finish::Kind::recorded) << order;
      EXPECT_EQ(pieces(), left - 1) << order;
      EXPECT_EQ(orders(), ++written) << order;
    }
  }
}

// The last piece: the repetition would fail its condition, if the service did not know it again.
TEST_F(TransactionEngine, AnAnswerLostOnTheLastPieceIsNoDecline) {
  const auto engine = process();
  set_pieces(1);
  for (const bool forgets : {false, true}) {
    const std::string order = forgets ? "o2" : "o1";
    set_pieces(1);
    Begin begun = engine->begin(order);
    fake->set_faults([first = true, forgets](const FakeCall& call) mutable {
      if (call.operation != "TransactWriteItems") return FakeFault{};
      if (std::exchange(first, false)) return FakeFault{.kind = Kind::lost_after};
      if (!forgets) return FakeFault{};
      return FakeFault{.kind = Kind::answered,  // Of an endpoint that knows no tokens and stops at the first condition.
                       .answer = {.status = 400,
                                  .body = R"({"__type":"x#TransactionCanceledException","CancellationReasons":)"
                                          R"([{"Code":"None"},{"Code":"ConditionalCheckFailed"},{"Code":"None"}]})"}};
    });
    EXPECT_EQ(complete(begun.claim, sale(order)).kind, Finish::Kind::recorded);
    EXPECT_EQ(pieces(), 0);
  }
}

TEST_F(TransactionEngine, ATakeoverBetweenWorkAndFinishWritesOnce) {
  const auto slow = process();
  const auto quick = process();
  Begin late = slow->begin("o1");
  clock->advance(10s);
  Begin taken = quick->begin("o1");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed);
  const Finish lost = complete(late.claim, sale("of the displaced"));
  EXPECT_EQ(lost.kind, Finish::Kind::lost);
  EXPECT_EQ(lost.record->owner, taken.claim.owner());
  EXPECT_EQ(pieces(), 5);
  EXPECT_EQ(complete(taken.claim, sale("o1")).kind, Finish::Kind::recorded);
  EXPECT_EQ(pieces(), 4);
  EXPECT_EQ(orders(), 1U);
}

TEST_F(TransactionEngine, AProcessThatDiesInTheTransactionLeavesBothOrNeither) {
  for (const Kind kind : {Kind::none, Kind::lost_before}) {
    const std::string order = kind == Kind::none ? "executed" : "not executed";
    set_pieces(5);
    const auto dying = process();
    Begin begun = dying->begin(order);
    fake->set_faults([kind](const FakeCall& call) {
      const bool last = call.operation == "TransactWriteItems";
      return FakeFault{.kind = last ? kind : Kind::none, .held = last};
    });
    begun.claim.complete(Result::inlined("sold"), sale(order), [](const Finish&) {});
    ASSERT_EQ(fake->held(), 1U);
    EXPECT_EQ(pieces(), kind == Kind::none ? 4 : 5);
    fake->set_faults([](const FakeCall&) { return FakeFault{}; });
    clock->advance(10s);
    const auto next = process();
    Begin again = next->begin(order);
    if (kind == Kind::none) {
      EXPECT_EQ(again.kind, Begin::Kind::replayed);
      EXPECT_EQ(again.record->result.bytes, "sold");
    } else {
      ASSERT_EQ(again.kind, Begin::Kind::claimed);
      EXPECT_EQ(complete(again.claim, sale(order)).kind, Finish::Kind::recorded);
    }
    EXPECT_EQ(pieces(), 4) << order;
    fake->release();
  }
}

TEST_F(TransactionEngine, RunCommitsWhatTheWorkHandsIn) {
  const auto engine = process();
  const auto sell = [](Context& context) {
    context.commit_with(sale("o1"));
    return std::string("sold");
  };
  EXPECT_EQ(engine->run("o1", {}, sell).kind, Outcome::Kind::executed);
  EXPECT_EQ(engine->run("o1", {}, sell).kind, Outcome::Kind::replayed);
  EXPECT_EQ(pieces(), 4);
  set_pieces(0);
  EXPECT_THROW(engine->run("o2", {}, sell), Declined);
  EXPECT_EQ(engine->begin("o2").kind, Begin::Kind::claimed) << "released";
}

TEST_F(TransactionEngine, AFaultyStorePassesCompanionsOnWithItsFaults) {
  const std::shared_ptr<Store> inner = store;
  int expected = 5;
  for (const Fault::Kind kind : {Fault::Kind::none, Fault::Kind::unavailable, Fault::Kind::lost_before,
                                 Fault::Kind::lost_after, Fault::Kind::resent, Fault::Kind::repeated}) {
    const Record seen = claim("order" + std::to_string(static_cast<int>(kind)));
    store = std::make_shared<FaultyStore>(inner, [kind](const StoreCall& call) {
      EXPECT_EQ(call.operation, StoreCall::Operation::replace);
      return Fault{.kind = kind};
    });
    const Answer answer = replace_with(done(seen), as(seen), sale("o1"));
    const bool written = kind != Fault::Kind::unavailable && kind != Fault::Kind::lost_before;
    const bool told = written && kind != Fault::Kind::lost_after;
    EXPECT_EQ(answer.status, told ? AnswerStatus::done : AnswerStatus::failed) << to_string(kind);
    EXPECT_EQ(pieces(), written ? --expected : expected) << to_string(kind);
    store = inner;
  }
}

}  // namespace transaction_test
}  // namespace once::testing
