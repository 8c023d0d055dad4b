// Acts on many records by the operators' API: plans, what is written of them, and how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/operate.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/audit_log.hpp"
#include "operators/console.hpp"
#include "operators/notes.hpp"
#include "operators/record_json.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace bulk_test {

using namespace std::chrono_literals;
using once::testing::Fault;
using once::testing::FaultPlan;
using once::testing::FaultyStore;
using once::testing::StoreCall;
using ::testing::HasSubstr;

// Stops before a write of a record, until the test lets it go on.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    news_.notify_all();
    news_.wait(lock, [&] { return !is_shut_; });
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    is_shut_ = true;
    arrived_ = 0;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_shut_ = false;
    news_.notify_all();
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [&] { return arrived_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  bool is_shut_ = false;
  int arrived_ = 0;
};

class GatedStore : public once::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void replace(RecordPtr record, Seen seen, Done done) override {
    gate.pass();
    ForwardingStore::replace(std::move(record), seen, std::move(done));
  }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    list_gate.pass();
    ForwardingStore::list(std::move(query), std::move(done));
  }

  Gate gate;
  Gate list_gate;
};

// By default as a program on this host; in a session with a link.
class BulkTest : public OperatorsCase {
 protected:
  BulkTest() { start_program(); }
  ~BulkTest() override {
    gated->gate.open();
    gated->list_gate.open();
    served.reset();
    unlink(audit_file.c_str());
  }

  struct Served {
    Served(const StoreAccess& access, const AdminToken& token, std::shared_ptr<Clock> clock, AuditLog* audit,
           bool by_links)
        : console(token, {.by_links = by_links, .audit = audit, .clock = clock}),
          operators(access, token, {}, &console, clock) {}
    Console console;
    Operators operators;
  };

  // Another process on the same store.
  void start_program(AuditLog* audit = nullptr, bool by_links = false) {
    served.reset();
    served = std::make_unique<Served>(StoreAccess{.url = "memory:", .store = faulty}, token, clock, audit, by_links);
  }

  using Session = std::vector<http::HeaderView>;
  struct SignedIn {
    std::string cookie;
    std::string half;
    [[nodiscard]] Session headers() const {
      return {{"Cookie", cookie}, {"Once-Session", half}, {"Sec-Fetch-Site", "same-origin"}};
    }
  };
  SignedIn sign_in(const std::string& name, bool reads_only = false) {
    const std::string link = served->console.new_link({.name = name, .reads_only = reads_only});
    const http::Answer answer = ask("POST", "/v1/session", {{"link", link}}, {{"Sec-Fetch-Site", "same-origin"}});
    const std::string& line = *http::find_header(answer.headers, "Set-Cookie");
    return {.cookie = line.substr(0, line.find(';')), .half = read(answer)["half"]};
  }

  http::Answer ask(const std::string& method, const std::string& target, const json& body = nullptr,
                   Session headers = {}) {
    headers.push_back({"Host", "127.0.0.1:9100"});
    headers.push_back({"Content-Type", "application/json"});
    const std::string text = body.is_null() ? "" : body.dump();
    return served->operators.answer(
        {.method = method, .target = target, .headers = headers, .body = text, .principal = {}});
  }
  json bulk(const std::string& id, const Session& headers = {}) {
    return read(ask("GET", "/v1/bulk/" + id, nullptr, headers));
  }
  // Polls, as a page does.
  json ended(const std::string& id, const std::string& state, const Session& headers = {}) {
    for (;;) {
      json now = bulk(id, headers);
      const bool goes_on = now["state"] == "counting" || now["state"] == "running";
      if (!goes_on || now["state"] == state) {
        EXPECT_EQ(now["state"], state) << now;
        return now;
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  // The plan, when it is made.
  json plan(json body, const Session& headers = {}) {
    body.emplace("act", "release");
    if (!body.contains("keys")) body.emplace("filter", json{{"standing", "unknown"}});
    body.emplace("reason", "the bank was down");
    const http::Answer answer = ask("POST", "/v1/bulk", body, headers);
    EXPECT_EQ(answer.status, 202U) << answer.body;
    return ended(read(answer)["id"], "planned", headers);
  }
  http::Answer start(const json& plan, const Session& headers = {}) {
    return ask("POST", "/v1/bulk/" + plan["id"].get<std::string>() + "/start", {{"count", plan["count"]}}, headers);
  }
  http::Answer stop(const json& plan) {
    return ask("POST", "/v1/bulk/" + plan["id"].get<std::string>() + "/stop", json::object());
  }
  json run(const json& plan, const std::string& state = "done") {
    const http::Answer answer = start(plan);
    EXPECT_EQ(answer.status, 202U) << answer.body;
    return ended(plan["id"], state);
  }
  std::vector<Record> many(int count) {
    std::vector<Record> records;
    for (int i = 0; i < count; ++i) records.push_back(unknown("k" + std::to_string(i)));
    return records;
  }
  static json leftover(const Record& record, const std::string& kind, const std::string& text) {
    return {
        {"stored_key_hex", to_hex(record.key)}, {"key", key_parts(record.key).name}, {"kind", kind}, {"text", text}};
  }
  static json keys(const std::vector<Record>& records) {
    json digits = json::array();
    for (const Record& record : records) digits.push_back(to_hex(record.key));
    return digits;
  }
  std::size_t released() {
    std::size_t count = 0;
    operate::for_each(*store, {.standing = operate::Standing::released}, now(),
                      [&](const Record&) { return ++count > 0; });
    return count;
  }
  std::vector<json> audit_lines() {
    std::ifstream in(audit_file);
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  FaultPlan faults;
  std::shared_ptr<GatedStore> gated = std::make_shared<GatedStore>(store);
  std::shared_ptr<Store> faulty =
      std::make_shared<FaultyStore>(gated, [this](const StoreCall& call) { return faults ? faults(call) : Fault{}; });
  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  std::string audit_file = ::testing::TempDir() + "bulk-audit-" + std::to_string(getpid());
  std::unique_ptr<Served> served;
};

TEST_F(BulkTest, PlansThenWritesWhatWasPlanned) {
  const std::vector<Record> records = many(3);
  const Record live = running("live");
  unknown("elsewhere", "other");
  const json planned = plan({{"act", "resolve"},
                             {"as", "failed"},
                             {"code", "declined"},
                             {"filter", {{"scope", "pay"}, {"newer-than", "100d"}}},
                             {"reason", "INC-88"},
                             {"who", "alice"}});
  EXPECT_EQ(planned["count"], 3);
  EXPECT_EQ(planned["refused"], 1);
  EXPECT_EQ(planned["searched"], 4);
  EXPECT_EQ(planned["bounded"], false);
  EXPECT_EQ(planned["written"], nullptr);
  EXPECT_EQ(planned["as"], "failed");
  EXPECT_EQ(planned["filter"], (json{{"scope", "pay"}, {"newer-than", "100d"}}));
  EXPECT_EQ(planned["planned"].size(), 3U);
  EXPECT_EQ(planned["planned"][0]["scope"], "pay");
  ASSERT_EQ(planned["leftovers"].size(), 1U);
  EXPECT_EQ(planned["leftovers"][0]["stored_key_hex"], to_hex(live.key));
  EXPECT_EQ(planned["leftovers"][0]["kind"], "refused");
  EXPECT_THAT(planned["leftovers"][0]["text"].get<std::string>(), HasSubstr("its claim is live"));
  for (const Record& record : records) EXPECT_EQ(stored(record), record);  // A plan writes nothing.
  const json done = run(planned);
  EXPECT_EQ(done["written"], 3);
  EXPECT_EQ(done["left_alone"], 0);
  EXPECT_EQ(done["failed"], 0);
  for (const Record& record : records) {
    EXPECT_EQ(stored(record).failure.code, "declined");
    EXPECT_EQ(stored(record).history.entries.back().who, "alice");
    EXPECT_EQ(stored(record).history.entries.back().why, "INC-88");
  }
  EXPECT_EQ(stored(live), live);
  const json list = read(ask("GET", "/v1/bulk"));
  ASSERT_EQ(list["bulk"].size(), 1U);
  EXPECT_EQ(list["bulk"][0]["state"], "done");
  EXPECT_FALSE(list["bulk"][0].contains("leftovers"));
}

TEST_F(BulkTest, RefusesBeforeAnythingIsRead) {
  unknown("k");
  bool is_asked = false;
  faults = [&](const StoreCall&) { return is_asked = true, Fault{}; };
  const auto refuses = [&](json body, const std::string& detail) {
    body.emplace("act", "release");
    body.emplace("reason", "r");
    expect_problem(ask("POST", "/v1/bulk", body), 400, "bad-request", detail);
  };
  refuses({{"filter", json::object()}}, "filter is empty");
  refuses({{"filter", {{"overdue", "false"}, {"label", ""}}}}, "filter is empty");
  refuses({{"filter", {{"standing", 1}}}}, "filter.standing must be a string");
  refuses({{"filter", {{"standing", "lost"}}}}, "standing is 'lost'");
  refuses({{"filter", {{"state", "lost"}}}}, "filter.state is 'lost'");
  refuses({{"filter", {{"older-than", "soon"}}}}, "filter.older-than");
  refuses({{"filter", {{"scope", "pay"}, {"limit", "5"}}}}, "unknown parameter 'limit'");
  refuses(json::object(), "give filter or keys");
  refuses({{"filter", {{"scope", "pay"}}}, {"keys", {"6b"}}}, "not both");
  refuses({{"keys", json::array()}}, "1 to 10000");
  refuses({{"keys", json(std::vector<std::string>(10'001, "6b"))}}, "1 to 10000");
  refuses({{"keys", {"6"}}}, "keys");
  refuses({{"keys", {""}}}, "stored_key_hex");
  refuses({{"keys", {1}}}, "array of strings");
  refuses({{"keys", {"6b"}}, {"act", "burn"}}, "act must be");
  refuses({{"keys", {"6b"}}, {"act", "resolve"}}, "as must be");
  refuses({{"keys", {"6b"}}, {"act", "extend"}}, "give by");
  refuses({{"keys", {"6b"}}, {"act", "remove"}, {"retention", "1h"}}, "unknown member 'retention'");
  refuses({{"keys", {"6b"}}, {"reason", " "}}, "reason is empty");
  refuses({{"keys", {"6b"}}, {"dry_run", true}}, "unknown member 'dry_run'");
  EXPECT_FALSE(is_asked);
  EXPECT_EQ(read(ask("GET", "/v1/bulk"))["bulk"].size(), 0U);
  expect_problem(ask("GET", "/v1/bulk/00"), 404, "no-bulk");
  expect_problem(ask("POST", "/v1/bulk/00/start", {{"count", 1}}), 404, "no-bulk");
  expect_problem(ask("POST", "/v1/bulk/00/burn", json::object()), 404, "not-found");
  expect_problem(ask("GET", "/v1/bulk/00/start"), 405, "method-not-allowed", "POST");
  expect_problem(ask("DELETE", "/v1/bulk/00"), 405, "method-not-allowed", "GET, HEAD");
}

TEST_F(BulkTest, StartsOnlyWithItsNumberAndOnce) {
  many(3);
  const json planned = plan({});
  const std::string path = "/v1/bulk/" + planned["id"].get<std::string>() + "/start";
  expect_problem(ask("POST", path, {{"count", 4}}), 409, "bulk-refused", "would change 3");
  expect_problem(ask("POST", path, json::object()), 400, "bad-request", "count is missing");
  expect_problem(ask("POST", path, {{"count", "3"}}), 400, "bad-request", "whole number");
  EXPECT_EQ(released(), 0U);
  gated->gate.shut();
  EXPECT_EQ(start(planned).status, 202U);
  gated->gate.wait_for_arrival();
  expect_problem(start(planned), 409, "bulk-refused", "running");  // A double click.
  // Two operators at once: the other one plans, and waits for the end.
  const json other = plan({});
  expect_problem(start(other), 409, "bulk-refused", "Another one is running");
  EXPECT_EQ(read(ask("GET", "/v1/records"))["records"].size(), 3U);  // Others are answered meanwhile.
  gated->gate.open();
  EXPECT_EQ(ended(planned["id"], "done")["written"], 3);
  expect_problem(start(planned), 409, "bulk-refused", "done");
  // What the other one has planned is not so any more.
  const json left = run(other);
  EXPECT_EQ(left["written"], 0);
  EXPECT_EQ(left["left_alone"], 3);
  expect_problem(start(plan({})), 409, "bulk-refused", "no record");
}

// Resolved by another, gone, and taken over by a caller since the plan.
TEST_F(BulkTest, LeavesAloneWhatChanged) {
  const Record settled = unknown("settled");
  const Record gone = unknown("gone");
  Record lapsed = once::testing::plain_record(Key("pay", "lapsed").stored());
  lapsed.created_at = now() - 1h;
  lapsed.lease_until = now() - 30min;
  lapsed.expires_at = now() + 1h;
  keep(lapsed);
  const Record kept = unknown("kept");
  const json planned = plan({{"filter", {{"scope", "pay"}}}});
  EXPECT_EQ(planned["count"], 4);
  Record taken = lapsed;
  taken.owner.bytes[0] ^= 1;
  taken.revision += 1U << 20U;
  taken.lease_until = now() + 1h;
  taken.expires_at = now() + 2h;
  const auto replace = [&](const Record& record, const Record& seen) {
    EXPECT_EQ(blocking::replace(*store, record, {.owner = seen.owner, .revision = seen.revision}).status,
              AnswerStatus::done);
  };
  replace(taken, lapsed);
  Record changed = settled;
  changed.revision += 1U << 20U;
  replace(changed, settled);
  EXPECT_EQ(blocking::remove(*store, gone.key, {.owner = gone.owner, .revision = gone.revision}).status,
            AnswerStatus::done);
  const json done = run(planned);
  EXPECT_EQ(done["written"], 1);
  EXPECT_EQ(done["left_alone"], 3);
  EXPECT_EQ(stored(taken), taken);
  EXPECT_EQ(stored(changed), changed);
  EXPECT_TRUE(is_released(stored(kept)));
  EXPECT_THAT(done["leftovers"], ::testing::UnorderedElementsAre(leftover(settled, "changed", "changed meanwhile"),
                                                                 leftover(lapsed, "changed", "changed meanwhile"),
                                                                 leftover(gone, "gone", "gone meanwhile")));
}

TEST_F(BulkTest, TakesKeysAndSearches) {
  const std::vector<Record> records = many(3);
  json digits = keys({records[0], records[2], records[0]});
  digits.push_back("6b");
  const json by_keys = plan({{"keys", digits}});
  EXPECT_EQ(by_keys["keys"], 3);
  EXPECT_EQ(by_keys["count"], 2);
  EXPECT_EQ(by_keys["refused"], 1);
  EXPECT_EQ(by_keys["leftovers"][0]["kind"], "gone");
  // An "all" that ignored the search would be three.
  const json by_text = plan({{"filter", {{"q", "k1"}, {"standing", "unknown"}}}});
  EXPECT_EQ(by_text["count"], 1);
  EXPECT_EQ(by_text["planned"][0]["key"], "k1");
  EXPECT_EQ(run(by_keys)["written"], 2);
  EXPECT_EQ(stored(records[1]), records[1]);
}

// An operator selected unknown records; one was settled before the plan.
TEST_F(BulkTest, LeavesWhatIsNotAsItWasSelected) {
  const std::vector<Record> records = many(2);
  const json tags = {tag_of(records[0]), tag_of(records[1])};
  Record settled = records[0];
  settled.state = State::completed;
  settled.revision = next_revision(settled.revision, 1);
  EXPECT_EQ(blocking::replace(*store, settled, {records[0].owner, records[0].revision}).status, AnswerStatus::done);
  const json removal = plan({{"act", "remove"}, {"keys", keys(records)}, {"tags", tags}});
  EXPECT_EQ(removal["count"], 1);
  EXPECT_EQ(removal["planned"][0]["standing"], "unknown");
  EXPECT_EQ(removal["leftovers"][0], leftover(settled, "changed", "changed since it was selected"));
  EXPECT_EQ(run(removal)["written"], 1);
  EXPECT_EQ(stored(records[0]), settled);
  const auto refuses = [&](const json& tags_sent, const std::string& detail) {
    const json body{{"act", "release"}, {"reason", "r"}, {"keys", keys(records)}, {"tags", tags_sent}};
    expect_problem(ask("POST", "/v1/bulk", body), 400, "bad-request", detail);
  };
  refuses({tag_of(records[0])}, "one ETag for each");
  refuses({tag_of(records[0]), "W/1"}, "records' ETags");
}

// By a clock that nobody sets.
TEST_F(BulkTest, APlanExpires) {
  many(1);
  const json planned = plan({});
  clock->jump(Millis{1000L * 3600 * 24});
  clock->advance(10min - 1s);
  EXPECT_EQ(bulk(planned["id"])["state"], "planned");
  clock->jump(-Millis{1000L * 3600 * 48});
  clock->advance(1s);
  expect_problem(start(planned), 409, "bulk-refused", "10 minutes");
  EXPECT_EQ(bulk(planned["id"])["state"], "expired");
  EXPECT_EQ(released(), 0U);
}

TEST_F(BulkTest, StopsAfterTheWriteThatIsUnderWay) {
  many(3);
  const json planned = plan({});
  gated->gate.shut();
  start(planned);
  gated->gate.wait_for_arrival();
  EXPECT_EQ(read(stop(planned))["state"], "running");
  gated->gate.open();
  const json stopped = ended(planned["id"], "stopped");
  EXPECT_EQ(stopped["written"], 1);
  EXPECT_EQ(released(), 1U);
  EXPECT_EQ(read(stop(planned))["state"], "stopped");
  // A plan, and one that is being made, also in the midst of a store without any match.
  const json other = plan({});
  EXPECT_EQ(read(stop(other))["state"], "stopped");
  expect_problem(start(other), 409, "bulk-refused", "stopped");
  gated->list_gate.shut();
  const json counting =
      read(ask("POST", "/v1/bulk", {{"act", "release"}, {"reason", "r"}, {"filter", {{"label", "x"}}}}));
  gated->list_gate.wait_for_arrival();
  EXPECT_EQ(read(stop(counting))["state"], "stopped");
  gated->list_gate.open();
  EXPECT_EQ(released(), 1U);
}

TEST_F(BulkTest, EndsWithTheProgram) {
  many(3);
  gated->gate.shut();
  start(plan({}));
  gated->gate.wait_for_arrival();
  served->operators.stop();
  gated->gate.open();
  served.reset();  // Waits for the write.
  EXPECT_EQ(released(), 1U);
}

TEST_F(BulkTest, AStoreThatIsAwayEndsIt) {
  many(3);
  const json planned = plan({});
  unsigned writes = 0;
  faults = [&](const StoreCall& call) {
    return Fault{.kind = call.is_write() && ++writes == 2 ? Fault::Kind::unavailable : Fault::Kind::none};
  };
  const json failed = run(planned, "failed");
  EXPECT_EQ(failed["written"], 1);
  EXPECT_EQ(failed["failed"], 1);
  EXPECT_EQ(failed["leftovers"][0]["kind"], "failed");
  EXPECT_EQ(failed["error"], failed["leftovers"][0]["text"]);
  EXPECT_EQ(released(), 1U);
  faults = [](const StoreCall&) { return Fault{.kind = Fault::Kind::unavailable}; };
  const http::Answer answer = ask("POST", "/v1/bulk", {{"act", "release"}, {"reason", "r"}, {"keys", {"6b"}}});
  EXPECT_NE(ended(read(answer)["id"], "failed")["error"], nullptr);
}

// Whether it was written cannot be told: neither the write nor the look after it was answered.
TEST_F(BulkTest, TellsAWriteInDoubt) {
  many(2);
  const json planned = plan({});
  bool is_away = false;
  faults = [&](const StoreCall& call) {
    if (call.is_write()) is_away = true;
    return Fault{.kind = is_away ? Fault::Kind::lost_after : Fault::Kind::none};
  };
  const json failed = run(planned, "failed");
  faults = {};
  EXPECT_EQ(failed["written"], 0);
  EXPECT_EQ(failed["failed"], 1);
  EXPECT_THAT(failed["error"].get<std::string>(), HasSubstr("may be written"));
  EXPECT_EQ(released(), 1U);
  EXPECT_EQ(read(ask("GET", "/v1/acts?act=release"))["acts"][0]["outcome"], "in_doubt");
}

// The same of an act on one.
TEST_F(BulkTest, NotesAWriteInDoubt) {
  const Record record = unknown("k");
  bool is_away = false;
  faults = [&](const StoreCall& call) {
    if (call.is_write()) is_away = true;
    return Fault{.kind = is_away ? Fault::Kind::lost_after : Fault::Kind::none};
  };
  const std::string tag = tag_of(record);
  expect_problem(ask("POST", path_of(record) + "/release", {{"reason", "r"}}, {{"If-Match", tag}}), 503,
                 "store-unavailable");
  faults = {};
  EXPECT_TRUE(is_released(stored(record)));
  EXPECT_EQ(read(ask("GET", "/v1/acts?act=release"))["acts"][0]["outcome"], "in_doubt");
}

TEST_F(BulkTest, NeverGoesBeyondTenThousand) {
  many(10'001);
  const json planned = plan({});
  EXPECT_EQ(planned["bounded"], true);
  EXPECT_EQ(planned["planned"].size(), 100U);
  expect_problem(start(planned), 409, "bulk-refused", "More than 10000");
  EXPECT_EQ(released(), 0U);
}

TEST_F(BulkTest, KeepsTwenty) {
  many(1);
  std::vector<json> plans;
  for (int i = 0; i < 20; ++i) plans.push_back(plan({}));
  const json body{{"act", "release"}, {"reason", "r"}, {"filter", {{"scope", "pay"}}}};
  expect_problem(ask("POST", "/v1/bulk", body), 409, "bulk-refused", "20 others");
  stop(plans[7]);
  const json last = plan({});
  expect_problem(ask("GET", "/v1/bulk/" + plans[7]["id"].get<std::string>()), 404, "no-bulk");
  const json list = read(ask("GET", "/v1/bulk"))["bulk"];
  EXPECT_EQ(list.size(), 20U);
  EXPECT_EQ(list[0]["id"], last["id"]);
}

// Another one starts what alice has planned, and its session ends meanwhile.
TEST_F(BulkTest, IsDoneInTheNameOfWhoStartsIt) {
  AuditLog audit(audit_file);
  start_program(&audit, true);
  const std::vector<Record> records = many(2);
  const SignedIn alice = sign_in("alice");
  const SignedIn bob = sign_in("bob");
  const SignedIn reader = sign_in("carol", true);
  const json planned = plan({}, alice.headers());
  EXPECT_EQ(planned["who"], "alice");
  expect_problem(start(planned, reader.headers()), 403, "role");
  const json body{{"act", "release"}, {"reason", "r"}, {"filter", {{"scope", "pay"}}}};
  expect_problem(ask("POST", "/v1/bulk", body, reader.headers()), 403, "role");
  EXPECT_EQ(ask("GET", "/v1/bulk", nullptr, reader.headers()).status, 200U);
  gated->gate.shut();
  EXPECT_EQ(start(planned, bob.headers()).status, 202U);
  gated->gate.wait_for_arrival();
  EXPECT_EQ(ask("DELETE", "/v1/session", json::object(), bob.headers()).status, 204U);
  gated->gate.open();
  EXPECT_EQ(ended(planned["id"], "done", reader.headers())["who"], "bob");
  for (const Record& record : records) EXPECT_EQ(stored(record).history.entries.back().who, "bob");
  std::vector<std::string> events;
  for (const json& line : audit_lines()) {
    if (!line.contains("bulk")) continue;
    events.push_back(line["event"]);
    EXPECT_EQ(line["who"], "bob");
    EXPECT_EQ(line["role"], "operator");
    EXPECT_EQ(line["bulk"], planned["id"]);
  }
  EXPECT_THAT(events, ::testing::ElementsAre("bulk-start", "act", "acted", "act", "acted", "bulk-end"));
  // The page of acts has one of each, the newest first.
  const json acts = read(ask("GET", "/v1/acts?who=bob&limit=3", nullptr, reader.headers()));
  EXPECT_EQ(acts["source"], "audit log");
  ASSERT_EQ(acts["acts"].size(), 3U);
  EXPECT_EQ(acts["acts"][0]["act"], "bulk-end");
  EXPECT_EQ(acts["acts"][0]["outcome"], "done");
  EXPECT_EQ(acts["acts"][1]["act"], "release");
  EXPECT_EQ(acts["acts"][1]["outcome"], "done");
  EXPECT_EQ(acts["acts"][1]["reason"], "the bank was down");
  EXPECT_EQ(acts["acts"][2]["act"], "sign-out");
  // The rest of it, on another page: the line after an act may be on the page before.
  const json rest =
      read(ask("GET", "/v1/acts?who=bob&after=" + acts["next"].get<std::string>(), nullptr, reader.headers()));
  EXPECT_EQ(rest["acts"].size(), 3U);  // release, bulk-start, sign-in
  EXPECT_EQ(rest["acts"][0]["outcome"], "done");
  EXPECT_EQ(rest["next"], nullptr);
  const json one = read(ask("GET", "/v1/acts?act=release&key=" + to_hex(records[0].key), nullptr, reader.headers()));
  EXPECT_EQ(one["acts"].size(), 1U);
}

TEST_F(BulkTest, WhatCannotBeNotedDoesNotStart) {
  AuditLog audit("/dev/full");
  start_program(&audit);
  many(1);
  expect_problem(start(plan({})), 503, "not-audited");
  EXPECT_EQ(released(), 0U);
}

// Acts without a file; and a file in which others have written, too.
TEST_F(BulkTest, ListsWhatItRemembers) {
  const std::vector<Record> records = many(1);
  run(plan({{"who", "alice"}}));
  const json acts = read(ask("GET", "/v1/acts"));
  EXPECT_EQ(acts["source"], "this process");
  EXPECT_EQ(acts["searched_bytes"], nullptr);
  ASSERT_EQ(acts["acts"].size(), 3U);
  EXPECT_EQ(acts["acts"][1]["who"], "alice");
  EXPECT_EQ(acts["acts"][1]["key"], "k0");
  EXPECT_EQ(acts["acts"][1]["outcome"], "done");
  const json first = read(ask("GET", "/v1/acts?limit=1"));
  const json second = read(ask("GET", "/v1/acts?limit=5&after=" + first["next"].get<std::string>()));
  EXPECT_EQ(second["acts"].size(), 2U);
  EXPECT_EQ(second["next"], nullptr);
  expect_problem(ask("GET", "/v1/acts?after=x"), 400, "bad-request", "after");
  expect_problem(ask("GET", "/v1/acts?key=x"), 400, "bad-request", "key");
}

// A page of acts was read, and then newer ones pushed the rest of them out.
TEST(NotesTest, WhatIsForgottenIsNoError) {
  Notes notes(nullptr);
  for (std::size_t i = 0; i <= Notes::most_kept + 5; ++i)
    ASSERT_TRUE(notes.write({{"event", "show"}, {"who", "alice"}}));
  for (const char* const after : {"0", "1", "5"}) {
    const http::Answer answer = notes.list(std::string("after=") + after);
    EXPECT_EQ(answer.status, 200U);
    EXPECT_EQ(json::parse(answer.body)["acts"], json::array());
  }
}

TEST_F(BulkTest, ReadsTheAuditLogInPieces) {
  AuditLog audit(audit_file);
  {
    std::ofstream out(audit_file);
    out << "not ours\n{\"time\":1}\n";
    for (int i = 0; i < 1500; ++i) {
      out << R"({"time":"2026-01-01T00:00:00.000Z","event":"show","stored_key_hex":"6b","who":"w)" << i << R"(","x":")"
          << std::string(4000, 'x') << "\"}\n";
    }
    out << R"({"time":"2026-01-01T00:00:00.000Z","event":"act","act":"release","stored_key_hex":"6b","who":"killed"})"
        << "\n{\"torn";
  }
  start_program(&audit);
  std::vector<json> acts;
  std::uint64_t skipped = 0;
  std::string next;
  unsigned pages = 0;
  do {
    const json page = read(ask("GET", "/v1/acts?limit=500" + (next.empty() ? "" : "&after=" + next)));
    EXPECT_LE(page["searched_bytes"], 1U << 20U);
    for (const json& act : page["acts"]) acts.push_back(act);
    skipped += page["skipped"].get<std::uint64_t>();
    next = page["next"].is_null() ? "" : page["next"].get<std::string>();
    ++pages;
  } while (!next.empty());
  EXPECT_GE(pages, 6U);  // 6 MB: they end at 1 MiB, in the midst of a line.
  ASSERT_EQ(acts.size(), 1501U);
  EXPECT_EQ(acts[0]["who"], "killed");
  EXPECT_EQ(acts[0]["outcome"], nullptr);  // Nobody noted what became of it.
  for (std::size_t i = 0; i < 1500; ++i) ASSERT_EQ(acts[1500 - i]["who"], "w" + std::to_string(i));
  EXPECT_EQ(skipped, 3U);
  // Others' bytes only: no act, and the way on.
  const json none = read(ask("GET", "/v1/acts?who=w0"));
  EXPECT_EQ(none["acts"].size(), 0U);
  EXPECT_FALSE(none["next"].is_null());
}

}  // namespace bulk_test
}  // namespace once::operators
