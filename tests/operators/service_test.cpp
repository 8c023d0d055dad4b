// POST …/reconcile and what follows from it: what the service says of unknown operations, one or many; and related
// records.
#include "operators/service.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/fingerprint.hpp>
#include <once/operate.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace service_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ServiceTest : public OperatorsCase {
 protected:
  explicit ServiceTest(std::shared_ptr<Store> inner = stores::make_memory_store())
      : ServiceTest(std::move(inner), std::make_shared<once::testing::ManualClock>()) {}
  ServiceTest(std::shared_ptr<Store> inner, const std::shared_ptr<once::testing::ManualClock>& set)
      : OperatorsCase(std::move(inner), set), clock(set) {
    operators.ask_by(Reconciler({.store = store,
                                 .ask = ask_blocking([this](const Record& record) { return asked(record); }),
                                 .settle = 0ms,
                                 .concerns = [](const Record& record) { return !record.key.starts_with("other#"); },
                                 .retention = 14 * 24h,
                                 .failure_retention = 2 * 24h}));
  }

  Finding asked(const Record& record) {
    std::function<void()> first;
    {
      const std::lock_guard lock(mutex);
      ++questions;
      first = before_answer;
    }
    if (first) first();
    const std::lock_guard lock(mutex);
    const auto found = ledger.find(record.key);
    return found == ledger.end() ? Finding::not_known("the ledger is away") : found->second;
  }
  void knows(const Record& record, Finding finding) { ledger[record.key] = std::move(finding); }
  json ask_about(const Record& record) {
    const http::Answer answer = post(record, "reconcile", json::object());
    EXPECT_EQ(answer.status, 200U) << answer.body;
    return read(answer);
  }
  // `between`: what happens between the plan and its start.
  json bulk(const json& body, const std::function<void()>& between = {}) {
    const std::vector<http::HeaderView> is_json{{"Content-Type", "application/json"}};
    const std::string path = "/v1/bulk/" + read(ask("POST", "/v1/bulk", body.dump(), is_json))["id"].get<std::string>();
    const auto until = [&](const std::string& state) {
      json now = read(get(path));
      for (; now["state"] != state; now = read(get(path))) {
        if (now["state"] == "failed" || now["state"] == "done") ADD_FAILURE() << now;
        if (now["state"] == "failed" || now["state"] == "done") break;
        std::this_thread::yield();
      }
      return now;
    };
    const json plan = until("planned");
    if (plan["count"] == 0) return plan;
    if (between) between();
    EXPECT_EQ(ask("POST", path + "/start", json{{"count", plan["count"]}}.dump(), is_json).status, 202U);
    return until("done");
  }

  const std::shared_ptr<once::testing::ManualClock> clock;
  std::mutex mutex;  // Guards the following members while questions run.
  std::map<std::string, Finding> ledger;
  std::function<void()> before_answer;
  int questions = 0;
};

TEST_F(ServiceTest, AskingWritesNothingAndTheAnswerIsKeptForTheRecordAsItIs) {
  const Record record = unknown("order-17");
  knows(record, Finding::happened(Result::inlined("charge 4711", "text/plain"), "charge 4711 is in the ledger"));
  EXPECT_EQ(read(get(path_of(record)))["service"], (json{{"asks", true}, {"says", nullptr}}));
  const json told = ask_about(record);
  EXPECT_EQ(told["says"], "done");
  EXPECT_EQ(told["why"], "charge 4711 is in the ledger");
  EXPECT_EQ(stored(record), record);
  EXPECT_EQ(read(get(path_of(record)))["service"], told);
  // Of another version of the record nothing is known.
  EXPECT_EQ(post(record, "resolve", {{"as", "failed"}, {"reason", "r"}, {"dry_run", true}}).status, 200U);
  Record next = stored(record);
  next.revision += 1 << 20;
  ASSERT_EQ(blocking::replace(*store, next, {record.owner, record.revision}).status, AnswerStatus::done);
  EXPECT_EQ(read(get(path_of(record)))["service"]["says"], nullptr);
  expect_problem(post(record, "reconcile", json::object()), 412, "record-changed", "The service was not asked");
  EXPECT_EQ(questions, 1);
}

TEST_F(ServiceTest, ResolveTakesWhatTheServiceSays) {
  const Record record = unknown("order-17");
  const json act{{"as", "completed"}, {"reconciled", true}, {"reason", "INC-88"}, {"who", "alice"}};
  expect_problem(post(record, "resolve", act), 409, "refused", "was not asked about it");
  ask_about(record);
  expect_problem(post(record, "resolve", act), 409, "refused", "the service says not_known: the ledger is away");
  knows(record, Finding::not_done("no such charge"));
  EXPECT_EQ(ask_about(record)["says"], "not_done");
  expect_problem(post(record, "resolve", act), 409, "refused", "the service says not_done: no such charge");
  json both = act;
  both["result"] = {{"text", "x"}};
  expect_problem(post(record, "resolve", both), 400, "bad-request", "result and reconciled exclude each other");
  EXPECT_EQ(stored(record), record);
  knows(record, Finding::happened(Result::inlined("charge 4711", "text/plain")));
  EXPECT_EQ(ask_about(record)["says"], "done");
  EXPECT_EQ(post(record, "resolve", act).status, 200U);
  const Record now = stored(record);
  EXPECT_EQ(now.state, State::completed);
  EXPECT_EQ(now.result.bytes, "charge 4711");
  EXPECT_EQ(now.history.entries.back().why, "INC-88; the service says done");
  EXPECT_EQ(now.history.entries.back().who, "alice");
}

// Otherwise a duplicate of day 2 would run again.
TEST_F(ServiceTest, AnAnswerIsKeptAsLongAsAResult) {
  const auto kept = [&](const char* name, const Finding& finding, const char* as, const json& more = json::object()) {
    const Record record = unknown(name);
    knows(record, finding);
    ask_about(record);
    json act{{"as", as}, {"reconciled", true}, {"reason", "r"}};
    act.update(more);
    EXPECT_EQ(post(record, "resolve", act).status, 200U);
    const Record decided = stored(record);
    return decided.expires_at - decided.finished_at;
  };
  EXPECT_EQ(kept("a", Finding::happened(Result::inlined("charge a")), "completed"), 14 * 24h);
  EXPECT_EQ(kept("b", Finding::failed({.code = "refunded"}), "failed"), 2 * 24h);
  EXPECT_EQ(kept("c", Finding::happened(Result::inlined("charge c")), "completed", {{"retention", "1h"}}), 1h);
  Finding own = Finding::happened(Result::inlined("charge d"));
  own.retention = 30 * 24h;
  EXPECT_EQ(kept("d", own, "completed"), 30 * 24h);
}

class SmallServiceTest : public ServiceTest {
 protected:
  SmallServiceTest() : ServiceTest(std::make_shared<once::testing::SmallStore>(stores::make_memory_store())) {}
};

TEST_F(SmallServiceTest, AnAnswerWithoutRoomIsDroppedAndTheOperationIsStillDone) {
  const Record one = unknown("order-17");
  const Record many = unknown("order-18");
  const std::string charge(10'000, 'x');
  for (const Record& record : {one, many}) {
    knows(record, Finding::happened(Result::inlined(charge, "text/plain")));
    ask_about(record);
  }
  const json act{{"as", "completed"}, {"reconciled", true}, {"reason", "INC-88"}};
  EXPECT_EQ(post(one, "resolve", act).status, 200U);
  json all = act;
  all.update({{"act", "resolve"}, {"filter", {{"reconciled", "done"}}}});
  const json done = bulk(all);
  EXPECT_EQ(done["count"], 1);
  EXPECT_EQ(done["written"], 1);
  for (const Record& record : {one, many}) {
    const Record now = stored(record);
    EXPECT_EQ(now.state, State::completed);
    EXPECT_EQ(now.result.placement, Placement::dropped);
    EXPECT_EQ(now.result.size, charge.size());
  }
  // What an operator gives is kept, or refused.
  json own = act;
  own.erase("reconciled");
  own["result"] = {{"text", charge}};
  expect_problem(post(unknown("order-19"), "resolve", own), 400, "bad-request", "too large");
}

TEST_F(ServiceTest, OnlyUnknownOperationsThatTheServiceKnowsAreAskedAbout) {
  expect_problem(post(running("busy"), "reconcile", json::object()), 409, "refused", "it is in_progress");
  const Record other = unknown("order-1", "other");
  expect_problem(post(other, "reconcile", json::object()), 409, "refused", "knows no service");
  EXPECT_EQ(read(get(path_of(other)))["service"]["asks"], false);
  const Record record = unknown("order-2");
  expect_problem(ask("POST", path_of(record) + "/reconcile", "{}", {{"Content-Type", "application/json"}}), 428,
                 "precondition-required");
  expect_problem(post(record, "reconcile", {{"nothing", 1}}), 400, "bad-request", "the members are who");
  EXPECT_EQ(questions, 0);
  operators.ask_by(std::nullopt);
  expect_problem(post(record, "reconcile", json::object()), 409, "asks-nobody", "--reconcile");
  EXPECT_EQ(read(get(path_of(record)))["service"]["asks"], false);
}

TEST_F(ServiceTest, ASlowServiceDelaysNobodyElse) {
  const Record record = unknown("order-17");
  std::promise<void> began;
  std::promise<void> go_on;
  before_answer = [&] {
    began.set_value();
    go_on.get_future().wait();
  };
  const std::string target = path_of(record) + "/reconcile";
  const std::string tag = tag_of(record);
  const std::vector<http::HeaderView> headers{
      {"Content-Type", "application/json"}, {"If-Match", tag}, {"Host", "127.0.0.1:9100"}};
  std::promise<unsigned> asked_status;
  operators.answer_later({.method = "POST", .target = target, .headers = headers, .body = "{}", .principal = {}},
                         [&](const proxy::OperatorsAnswer& answer) { asked_status.set_value(answer.status); });
  began.get_future().wait();
  std::promise<unsigned> other_status;
  const std::string other = path_of(record);
  operators.answer_later({.method = "GET", .target = other, .headers = headers, .body = {}, .principal = {}},
                         [&](const proxy::OperatorsAnswer& answer) { other_status.set_value(answer.status); });
  EXPECT_EQ(other_status.get_future().get(), 200U);  // While the question still runs.
  go_on.set_value();
  EXPECT_EQ(asked_status.get_future().get(), 200U);
}

TEST_F(ServiceTest, AsksAboutManyAndEachTakesItsOwnAnswer) {
  std::vector<Record> records;
  for (const char* const name : {"a", "b", "c", "d"}) records.push_back(unknown(name));
  const Record busy = running("busy");
  knows(records[0], Finding::happened(Result::inlined("charge a", "text/plain")));
  knows(records[1], Finding::happened(Result::inlined("charge b", "text/plain")));
  knows(records[2], Finding::not_done());
  const json asked = bulk({{"act", "reconcile"}, {"filter", {{"scope", "pay"}}}});
  EXPECT_EQ(asked["says"], (json{{"done", 2}, {"not_done", 1}, {"failed", 0}, {"not_known", 1}}));
  EXPECT_EQ(asked["written"], 4);
  EXPECT_EQ(asked["refused"], 1);  // It is running.
  EXPECT_EQ(stored(records[0]), records[0]);
  const auto listed = [&](const std::string& query) { return read(get("/v1/records?" + query))["records"]; };
  EXPECT_THAT(listed("reconciled=done"), SizeIs(2));
  EXPECT_THAT(listed("reconciled=not_done&scope=pay"), SizeIs(1));
  EXPECT_THAT(listed("reconciled=not_known&standing=unknown"), SizeIs(1));
  EXPECT_EQ(listed("reconciled=done")[0]["service"]["says"], "done");
  expect_problem(get("/v1/records?reconciled=maybe"), 400, "bad-request", "done, failed, not_done or not_known");
  // The filter is the selection, and each record gets its own answer.
  const json done = bulk({{"act", "resolve"},
                          {"as", "completed"},
                          {"reconciled", true},
                          {"reason", "bank outage"},
                          {"filter", {{"reconciled", "done"}}}});
  EXPECT_EQ(done["count"], 2);
  EXPECT_EQ(done["written"], 2);
  EXPECT_EQ(stored(records[0]).result.bytes, "charge a");
  EXPECT_EQ(stored(records[1]).result.bytes, "charge b");
  EXPECT_EQ(stored(records[2]), records[2]);
  // What the service does not say is refused by the plan.
  const json none = bulk({{"act", "resolve"},
                          {"as", "completed"},
                          {"reconciled", true},
                          {"reason", "r"},
                          {"filter", {{"standing", "unknown"}}}});
  EXPECT_EQ(none["count"], 0);
  EXPECT_EQ(none["refused"], 2);
  EXPECT_EQ(stored(records[3]), records[3]);
}

TEST_F(ServiceTest, WhatIsDoneIsNotReleasedWithoutForce) {
  const Record record = unknown("order-17");
  knows(record, Finding::happened(Result::inlined("charge 4711", "text/plain"), "charge 4711 is in the ledger"));
  ask_about(record);
  const std::string why = "the service says done: charge 4711 is in the ledger";
  json act{{"reason", "INC-88"}};
  const auto remove = [&](const json& body) {
    return ask("DELETE", path_of(record), body.dump(),
               {{"Content-Type", "application/json"}, {"If-Match", tag_of(record)}});
  };
  expect_problem(post(record, "release", act), 409, "refused", why);
  expect_problem(remove(act), 409, "refused", why);
  act["as"] = "released";
  expect_problem(post(record, "resolve", act), 409, "refused", why);
  const json many{{"act", "release"}, {"reason", "r"}, {"keys", {to_hex(record.key)}}};
  EXPECT_EQ(bulk(many)["leftovers"][0]["text"], why + ". Force the change if it shall run again");
  EXPECT_EQ(stored(record), record);
  // As sure as the operator: by force.
  act["force"] = true;
  EXPECT_EQ(post(record, "resolve", act).status, 200U);
  EXPECT_TRUE(is_released(stored(record)));
}

// A plan by what the service says, and then it says something else.
TEST_F(ServiceTest, AnAnswerThatWasReplacedReleasesNothing) {
  const Record kept = unknown("kept");
  const Record done = unknown("done");
  const Record away = unknown("away");
  for (const Record* record : {&kept, &done, &away}) knows(*record, Finding::not_done());
  bulk({{"act", "reconcile"}, {"filter", {{"scope", "pay"}}}});
  const json group{{"act", "release"}, {"reason", "r"}, {"filter", {{"reconciled", "not_done"}}}};
  const json released = bulk(group, [&] {
    knows(done, Finding::happened({}, "charge 4711"));
    knows(away, Finding::not_known("the ledger is away"));
    ask_about(done);
    ask_about(away);
  });
  EXPECT_EQ(released["count"], 3);
  EXPECT_EQ(released["written"], 1);
  EXPECT_EQ(released["left_alone"], 2);
  EXPECT_EQ(stored(done), done);
  EXPECT_EQ(stored(away), away);
  EXPECT_TRUE(is_released(stored(kept)));
  std::vector<std::string> left;
  for (const json& one : released["leftovers"]) {
    left.push_back(one["kind"].get<std::string>() + ": " + one["text"].get<std::string>());
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("refused: the service says done: charge 4711",
                                                    "refused: the service says not_known: the ledger is away"));
}

// Also selected by their keys, without a word of the service.
TEST_F(ServiceTest, WhatWasDoneSinceThePlanIsLeft) {
  const Record record = unknown("order-17");
  const json left = bulk({{"act", "release"}, {"reason", "r"}, {"keys", {to_hex(record.key)}}}, [&] {
    knows(record, Finding::happened({}));
    ask_about(record);
  });
  EXPECT_EQ(left["left_alone"], 1);
  EXPECT_EQ(stored(record), record);
}

TEST_F(ServiceTest, NotDoneDoesNotCountForever) {
  const Record record = unknown("order-17");
  knows(record, Finding::not_done());
  ask_about(record);
  const json one{{"as", "released"}, {"reconciled", true}, {"reason", "r"}};
  const json group{{"act", "release"}, {"reason", "r"}, {"filter", {{"reconciled", "not_done"}}}};
  const std::string old = "the service said not_done more than 10 minutes ago: ask it again";
  const auto dry_run = [&] {
    json body = one;
    body["dry_run"] = true;
    return post(record, "resolve", body);
  };
  clock->jump(Millis{1000L * 3600 * 24});  // It does not count by this.
  clock->advance(10min - 1s);
  EXPECT_EQ(dry_run().status, 200U);
  // Planned while it counts, started when it does not.
  const json late = bulk(group, [&] { clock->advance(1s); });
  EXPECT_EQ(late["left_alone"], 1);
  EXPECT_EQ(late["leftovers"][0]["text"], old);
  expect_problem(dry_run(), 409, "refused", old);
  const json refused = bulk(group);
  EXPECT_EQ(refused["count"], 0);
  EXPECT_EQ(refused["refused"], 1);
  EXPECT_EQ(refused["leftovers"][0]["text"], old);
  EXPECT_EQ(stored(record), record);
  // It can be asked again, by this group as well.
  EXPECT_EQ(bulk({{"act", "reconcile"}, {"filter", {{"reconciled", "not_done"}}}})["says"]["not_done"], 1);
  EXPECT_EQ(bulk(group)["written"], 1);
}

TEST_F(ServiceTest, ItIsNotedOnWhichAnswerWasActed) {
  const Record record = unknown("order-17");
  knows(record, Finding::happened(Result::inlined("charge 4711", "text/plain"), "charge 4711 is in the ledger"));
  ask_about(record);
  const json act{{"as", "completed"}, {"reconciled", true}, {"reason", "INC-88"}, {"who", "alice"}};
  EXPECT_EQ(post(record, "resolve", act).status, 200U);
  EXPECT_EQ(stored(record).history.entries.back().why, "INC-88; the service says done: charge 4711 is in the ledger");
  const Record other = unknown("order-18");
  const Record away = unknown("away");
  knows(other, Finding::not_done("no charge"));
  bulk({{"act", "reconcile"}, {"who", "bob"}, {"filter", {{"scope", "pay"}}}});
  json forced{{"as", "released"}, {"force", true}, {"reason", "r"}, {"who", "bob"}};
  EXPECT_EQ(post(away, "resolve", forced).status, 200U);
  bulk({{"act", "resolve"},
        {"as", "released"},
        {"reconciled", true},
        {"reason", "INC-88"},
        {"filter", {{"reconciled", "not_done"}}}});
  EXPECT_EQ(stored(other).history.entries.back().why, "INC-88; the service says not_done: no charge");
  const auto last = [&](const Record& of, const std::string& what) {
    json acts = read(get("/v1/acts?limit=1&act=" + what + "&key=" + to_hex(of.key)))["acts"];
    json one = acts.empty() ? json() : acts[0];
    for (const char* const name : {"at", "stored_key_hex", "key", "bulk"}) one.erase(name);
    return one;
  };
  EXPECT_EQ(last(record, "reconcile"), (json{{"who", "the operators' API"},
                                             {"act", "reconcile"},
                                             {"says", "done"},
                                             {"why", "charge 4711 is in the ledger"}}));
  EXPECT_EQ(last(record, "resolve"), (json{{"who", "alice"},
                                           {"act", "resolve"},
                                           {"as", "completed"},
                                           {"reconciled", true},
                                           {"reason", "INC-88"},
                                           {"outcome", "done"}}));
  EXPECT_EQ(last(other, "reconcile")["says"], "not_done");
  EXPECT_EQ(last(other, "reconcile")["who"], "bob");
  EXPECT_EQ(last(away, "reconcile")["why"], "the ledger is away");
  EXPECT_EQ(last(away, "resolve")["force"], true);
  EXPECT_EQ(last(other, "resolve")["as"], "released");
  EXPECT_EQ(last(other, "resolve")["reconciled"], true);
}

// One that changed before its turn was not asked about.
TEST_F(ServiceTest, ItIsNotedWhoWasNotAskedAbout) {
  const Record record = unknown("order-17");
  bulk({{"act", "reconcile"}, {"filter", {{"scope", "pay"}}}}, [&] {
    EXPECT_EQ(blocking::remove(*store, record.key, {record.owner, record.revision}).status, AnswerStatus::done);
  });
  const json act = read(get("/v1/acts?act=reconcile"))["acts"][0];
  EXPECT_EQ(act["says"], nullptr);
  EXPECT_EQ(act["outcome"], "gone");
  EXPECT_EQ(questions, 0);
}

TEST_F(ServiceTest, RelatedHasTheSamePayloadAndTheSameKeyElsewhere) {
  const auto paid = [&](const std::string& scope, const std::string& name, std::chrono::minutes ago,
                        const char* payload) {
    Record record = once::testing::plain_record(Key(scope, name).stored());
    record.state = State::completed;
    record.created_at = now() - ago;
    record.expires_at = now() + 1h;
    record.fingerprint = Fingerprint::of(payload);
    return keep(std::move(record));
  };
  const Record record = paid("pay", "order-17", 90min, "cents=500");
  const Record retried = paid("pay", "order-17-again", 60min, "cents=500");
  paid("pay", "later", 1min, "cents=500");        // More than an hour.
  paid("pay", "other", 90min, "cents=900");       // Another payload.
  paid("refunds", "refund", 90min, "cents=500");  // Another scope.
  const json related = read(get(path_of(record) + "/related"));
  ASSERT_THAT(related["same_payload"], SizeIs(1));
  EXPECT_EQ(related["same_payload"][0]["stored_key_hex"], to_hex(retried.key));
  EXPECT_EQ(related["searched"], 4);
  EXPECT_EQ(related["next"], nullptr);
  EXPECT_THAT(related["same_key"], SizeIs(0));
  EXPECT_EQ(related["scopes_searched"], 0);  // Nobody has looked at the store.
  ASSERT_THAT(related["downstream"], SizeIs(2));
  EXPECT_EQ(related["downstream"][0], (json{{"name", "command"}, {"key", derived_key(record.key, "command")}}));
  const json named = read(get(path_of(record) + "/related?name=charge"));
  EXPECT_EQ(named["downstream"], (json::array({{{"name", "charge"}, {"key", derived_key(record.key, "charge")}}})));
  expect_problem(get(path_of(record) + "/related?name="), 400, "bad-request");
  expect_problem(get("/v1/records/6b/related"), 404, "no-record");

  OverviewSources sources;
  sources.figures = [] { return std::optional(StoreFigures{.prefixes = {"pay", "refunds"}}); };
  const Record elsewhere = paid("refunds", "order-17", 1min, "");
  const Operators knowing({.url = "memory:", .store = store}, token, sources);
  const std::vector<http::HeaderView> headers{{"Host", "127.0.0.1:9100"}};
  const std::string target = path_of(record) + "/related";
  const json found =
      read(knowing.answer({.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}}));
  EXPECT_EQ(found["scopes_searched"], 1);
  ASSERT_THAT(found["same_key"], SizeIs(1));
  EXPECT_EQ(found["same_key"][0]["stored_key_hex"], to_hex(elsewhere.key));
}

TEST_F(ServiceTest, RelatedReadsOnWhereItEnded) {
  const auto made = [&](const std::string& name) {
    Record record = once::testing::plain_record(Key("pay", name).stored());
    record.created_at = now();
    record.fingerprint = Fingerprint::of(name.starts_with("retry") ? "same" : name);
    return keep(std::move(record));
  };
  const Record record = made("retry-0");
  for (int i = 0; i < 10'100; ++i) made("order-" + std::to_string(i));
  made("retry-1");
  const json first = read(get(path_of(record) + "/related"));
  EXPECT_EQ(first["searched"], 10'000);
  ASSERT_TRUE(first["next"].is_string());
  const json second = read(get(path_of(record) + "/related?after=" + first["next"].get<std::string>()));
  EXPECT_EQ(second["searched"], 102);
  EXPECT_EQ(second["next"], nullptr);
  EXPECT_EQ(first["same_payload"].size() + second["same_payload"].size(), 1U);
}

}  // namespace service_test
}  // namespace once::operators
