// The operators' API: what it shows, changes and refuses, and which clients it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/admin_token.hpp"
#include "operators/operators.hpp"
#include "operators/reporter.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace operators_api_test {

using ::testing::HasSubstr;
using OperatorsTest = OperatorsCase;
using ::testing::Not;

// Reports its time only with an answer, as DynamoDB does.
class Timeless final : public once::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return std::nullopt; }
};

// Keeps no changes.
class Narrow final : public once::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void replace(RecordPtr /*record*/, Seen /*seen*/, Done done) override {
    done(once::Answer::cannot_keep("the record is too large"));
  }
};

TEST_F(OperatorsTest, ListsInPages) {
  for (int i = 0; i < 5; ++i) unknown("u" + std::to_string(i));
  running("r");
  unknown("u", "other scope");
  EXPECT_EQ(read(get("/v1/records"))["records"].size(), 7U);
  EXPECT_EQ(read(get("/v1/records"))["next"], nullptr);
  EXPECT_EQ(read(get("/v1/records?state=running"))["records"][0]["key"], "r");
  EXPECT_EQ(read(get("/v1/records?scope=other+scope"))["records"].size(), 1U);
  EXPECT_EQ(read(get("/v1/records?scope=p%61y&prefix=u"))["records"].size(), 5U);
  EXPECT_EQ(read(get("/v1/records?older-than=30m"))["records"].size(), 6U);
  EXPECT_EQ(read(get("/v1/records?label=order"))["records"].size(), 0U);
  EXPECT_EQ(read(get("/v1/records?holder=no-such-host"))["records"].size(), 0U);
  EXPECT_EQ(read(get("/v1/records?overdue=true"))["records"].size(), 0U);
  EXPECT_EQ(read(get("/v1/records?overdue=false"))["records"].size(), 7U);
  EXPECT_EQ(read(get("/v1/records?newer-than=30m"))["records"].size(), 1U);
  std::set<std::string> seen;
  std::string next;
  do {
    const json page = read(get("/v1/records?state=unknown&limit=2" + (next.empty() ? "" : "&after=" + next)));
    EXPECT_LE(page["records"].size(), 2U);
    for (const json& record : page["records"]) EXPECT_TRUE(seen.insert(record["stored_key_hex"]).second);
    next = page["next"].is_null() ? "" : page["next"].get<std::string>();
  } while (!next.empty());
  EXPECT_EQ(seen.size(), 6U);
}

TEST_F(OperatorsTest, RefusesWhatItDoesNotKnow) {
  unknown("k");
  expect_problem(get("/v1/records?status=unknown"), 400, "bad-request", "unknown parameter 'status'");
  expect_problem(get("/v1/records?state=lost"), 400, "bad-request", "state is 'lost'; it is one of");
  expect_problem(get("/v1/records?limit=0"), 400, "bad-request", "1 to 500");
  expect_problem(get("/v1/records?limit=501"), 400, "bad-request", "1 to 500");
  expect_problem(get("/v1/records?limit=1&limit=2"), 400, "bad-request", "more than once");
  expect_problem(get("/v1/records?overdue=soon"), 400, "bad-request", "overdue");
  expect_problem(get("/v1/records?older-than=yesterday"), 400, "bad-request", "older-than");
  expect_problem(get("/v1/records?scope=%4"), 400, "bad-request", "%");
  expect_problem(get("/v1/records?scope=%"), 400, "bad-request", "%");
  expect_problem(get("/v1/records?after=xyz"), 400, "bad-request", "after");
  expect_problem(get("/v1/records/zz"), 400, "bad-request", "the key in the path");
  expect_problem(get("/v1/records/"), 400, "bad-request", "stored_key_hex");
  expect_problem(get("/v1/records/" + std::string(2050, 'a')), 400, "bad-request", "stored_key_hex");
  expect_problem(get("/v1/records/6b?x=1"), 400, "bad-request", "unknown parameter 'x'; the parameter is include");
  expect_problem(get("/v1/records/6b?include=results"), 400, "bad-request", "include has 'results'");
  expect_problem(get("/v1/records/6b/raw"), 400, "bad-request", "part must be result or input");
  expect_problem(get("/v1/records/6b/raw?part=steps"), 400, "bad-request", "part must be result or input");
  expect_problem(get("/v1/records/6b/raw?part=result"), 404, "no-record");
  expect_problem(ask("POST", "/v1/records/6b/resolve?x=1"), 400, "bad-request", "no query");
  expect_problem(ask("DELETE", "/v1/records/6b?x=1"), 400, "bad-request", "no query");
  expect_problem(ask("POST", "/v1/records/6b/raw"), 405, "method-not-allowed", "GET, HEAD");
  expect_problem(get("/v1/records/6b/extend"), 405, "method-not-allowed", "POST");
  expect_problem(get("/v1/records/6b"), 404, "no-record");
  expect_problem(get("/v1/records/6b/burn"), 404, "not-found");
  expect_problem(get("/v1/recordsx"), 404, "not-found");
  expect_problem(get("/v1/"), 404, "not-found");
  expect_problem(get("/v1/records/6b/resolve"), 405, "method-not-allowed", "POST");
  expect_problem(ask("PUT", "/v1/records/6b"), 405, "method-not-allowed", "GET, HEAD, DELETE");
  EXPECT_EQ(*http::find_header(ask("POST", "/v1/records").headers, "Allow"), "GET, HEAD");
}

TEST_F(OperatorsTest, ShowsARecordWithItsResult) {
  Record record = once::testing::plain_record(std::string("pay#\0\xFF/?", 8));  // Keys are any bytes.
  record.state = State::completed;
  record.result = Result::inlined("{\"charge\":1}", "application/json");
  record.expires_at = never;
  keep(record);
  const http::Answer answer = get(path_of(record));
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(*http::find_header(answer.headers, "ETag"), tag_of(record));
  EXPECT_EQ(*http::find_header(answer.headers, "Cache-Control"), "no-store");
  const json shown = read(answer);
  EXPECT_EQ(shown["stored_key_hex"], to_hex(record.key));
  EXPECT_EQ(shown["key"], nullptr);
  EXPECT_EQ(shown["result"]["text"], "{\"charge\":1}");
  EXPECT_FALSE(read(get("/v1/records"))["records"][0]["result"].contains("text"));
}

// Which payloads are in the answer.
TEST_F(OperatorsTest, ShowsThePayloadsThatAreAskedFor) {
  Record record = once::testing::plain_record("pay#k");
  record.state = State::completed;
  record.result = Result::inlined("the result");
  record.steps = {{.name = "charge", .result = "the step"}};
  record.input = "the input";
  record.input_bytes = record.input.size();
  keep(record);
  const auto shown = [&](const std::string& query) {
    const json found = read(get(path_of(record) + query));
    std::set<std::string> parts;
    if (found["result"].contains("text")) parts.insert("result");
    if (found["steps"][0].contains("result")) parts.insert("steps");
    if (found.contains("input")) parts.insert("input");
    // What is left out is not there under another name either.
    for (const char* const part : {"result", "input", "step"}) {
      const bool is_there = found.dump().find(std::string("the ") + part) != std::string::npos;
      EXPECT_EQ(is_there, parts.contains(part == std::string("step") ? "steps" : part)) << query;
    }
    return parts;
  };
  using Parts = std::set<std::string>;
  EXPECT_EQ(shown(""), (Parts{"result", "steps", "input"}));
  EXPECT_EQ(shown("?include="), Parts());
  EXPECT_EQ(shown("?include=result"), Parts{"result"});
  EXPECT_EQ(shown("?include=steps"), Parts{"steps"});
  EXPECT_EQ(shown("?include=input,result"), (Parts{"result", "input"}));
  EXPECT_EQ(shown("?include=input%2Csteps,result"), (Parts{"result", "steps", "input"}));
  EXPECT_EQ(*http::find_header(get(path_of(record) + "?include=").headers, "ETag"), tag_of(record));
}

// As a file: a browser that opens it neither shows nor runs it.
TEST_F(OperatorsTest, GivesAPayloadAsAFile) {
  Record record = once::testing::plain_record("pay#k");
  record.state = State::completed;
  record.result = Result::inlined(std::string("<script>alert(1)</script>\0\xFF", 27), "text/html");
  record.input = "first";
  record.input_bytes = 100;
  keep(record);
  const http::Answer answer = get(path_of(record) + "/raw?part=result");
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(answer.body, record.result.bytes);
  const auto header = [&](std::string_view name) { return *http::find_header(answer.headers, name); };
  EXPECT_EQ(header("Content-Type"), "application/octet-stream");
  EXPECT_EQ(header("Content-Disposition"), "attachment; filename=\"" + key_hash(record.key) + "-result\"");
  EXPECT_EQ(header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(header("Content-Security-Policy"), "default-src 'none'; sandbox");
  EXPECT_EQ(header("ETag"), tag_of(record));
  EXPECT_EQ(get(path_of(record) + "/raw?part=input").body, "first");
}

TEST_F(OperatorsTest, SaysWhyAPayloadIsNotThere) {
  const Record open = unknown("open");
  expect_problem(get(path_of(open) + "/raw?part=result"), 404, "no-payload", "it is unknown, and has no result");
  expect_problem(get(path_of(open) + "/raw?part=input"), 404, "no-payload", "not kept");
  Record record = once::testing::full_record("pay#dropped", State::completed, Placement::dropped);
  keep(record);
  expect_problem(get(path_of(record) + "/raw?part=result"), 404, "no-payload", "too large");
  record = once::testing::full_record("pay#offloaded", State::completed, Placement::offloaded);
  keep(record);
  expect_problem(get(path_of(record) + "/raw?part=result"), 404, "no-payload", "--offload is none");
  record = once::testing::full_record("pay#sealed", State::completed, Placement::sealed);
  keep(record);
  expect_problem(get(path_of(record) + "/raw?part=result"), 500, "payload-unreadable", "seal");
  expect_problem(get(path_of(record) + "/raw?part=input"), 500, "payload-unreadable", "seal");
  EXPECT_TRUE(read(get(path_of(record) + "?include=input")).contains("problems"));
  EXPECT_FALSE(read(get(path_of(record) + "?include=")).contains("problems"));
}

TEST_F(OperatorsTest, Extends) {
  const Record record = running("k");
  json body{{"by", "2h"}, {"reason", "the bank is slow"}, {"who", "alice"}, {"dry_run", true}};
  EXPECT_FALSE(read(post(record, "extend", body))["changed"]);
  EXPECT_EQ(stored(record), record);
  body.erase("dry_run");
  const http::Answer answer = post(record, "extend", body);
  ASSERT_EQ(answer.status, 200U) << answer.body;
  const Record after = stored(record);
  EXPECT_EQ(*http::find_header(answer.headers, "ETag"), tag_of(after));
  EXPECT_EQ(after.owner, record.owner);  // Its holder goes on.
  EXPECT_EQ(after.lease_until, record.lease_until + std::chrono::hours(2));
  const HistoryEntry& act = after.history.entries.back();
  EXPECT_THAT(act.what, HasSubstr("lease extended"));
  EXPECT_EQ(act.who, "alice");
  EXPECT_EQ(act.why, "the bank is slow");
  expect_problem(post(record, "extend", body), 412, "record-changed");
  // The other thing that it changes.
  EXPECT_EQ(post(after, "extend", {{"on_lapse", "hold"}, {"reason", "r"}}).status, 200U);
  EXPECT_EQ(stored(record).on_lapse, OnLapse::hold);
  EXPECT_EQ(post(stored(record), "extend", {{"on_lapse", "takeover"}, {"reason", "r"}, {"retention", "9h"}}).status,
            200U);
  EXPECT_GT(stored(record).expires_at, now() + std::chrono::hours(8));
  EXPECT_LT(stored(record).expires_at, now() + std::chrono::hours(10));
  const Record other = unknown("other");
  expect_problem(post(other, "extend", {{"by", "1h"}, {"reason", "r"}}), 409, "refused", "unknown");
}

TEST_F(OperatorsTest, ReadsBodiesOfExtendStrictly) {
  const Record record = running("k");
  const auto refuses = [&](const json& body, const std::string& detail) {
    expect_problem(post(record, "extend", body), 400, "bad-request", detail);
  };
  refuses({{"by", "1h"}}, "reason is empty");
  refuses({{"reason", "r"}}, "give by");
  refuses({{"reason", "r"}, {"by", "1h"}, {"on_lapse", "hold"}}, "not both");
  refuses({{"reason", "r"}, {"by", "soon"}}, "by");
  refuses({{"reason", "r"}, {"on_lapse", "explode"}}, "takeover or hold");
  refuses({{"reason", "r"}, {"by", "1h"}, {"retention", "1h"}}, "retention goes with on_lapse");
  refuses({{"reason", "r"}, {"by", "1h"}, {"force", true}}, "unknown member 'force'; the members are act, by, dry_run");
  EXPECT_EQ(stored(record), record);
}

TEST_F(OperatorsTest, DescribesItself) {
  const http::Answer answer = get("/v1/openapi.json");
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(*http::find_header(answer.headers, "Content-Type"), "application/json");
  EXPECT_TRUE(read(answer)["paths"].contains("/v1/records/{key}/extend"));
}

TEST_F(OperatorsTest, ResolvesAsCompleted) {
  const Record record = unknown("k");
  const json body{{"as", "completed"},
                  {"reason", "seen in the ledger"},
                  {"who", "alice"},
                  {"retention", "48h"},
                  {"result", {{"text", "{\"charge\":1}"}, {"content_type", "application/json"}}}};
  json dry = body;
  dry["dry_run"] = true;
  EXPECT_FALSE(read(post(record, "resolve", dry))["changed"]);
  EXPECT_EQ(stored(record), record);
  const http::Answer answer = post(record, "resolve", body);
  ASSERT_EQ(answer.status, 200U) << answer.body;
  EXPECT_TRUE(read(answer)["changed"]);
  const Record after = stored(record);
  EXPECT_EQ(*http::find_header(answer.headers, "ETag"), tag_of(after));
  EXPECT_EQ(after.state, State::completed);
  EXPECT_EQ(after.result, Result::inlined("{\"charge\":1}", "application/json"));
  EXPECT_EQ(after.note, "resolved as completed by alice: seen in the ledger");
  EXPECT_NE(after.owner, record.owner);
  EXPECT_GT(after.expires_at, now() + std::chrono::hours(47));
}

TEST_F(OperatorsTest, ResolvesAsFailedAndAsReleased) {
  const Record failed = unknown("f");
  EXPECT_EQ(post(failed, "resolve",
                 {{"as", "failed"},
                  {"reason", "r"},
                  {"code", "declined"},
                  {"message", "no money"},
                  {"result", {{"text_base64", "AP8="}}}})
                .status,
            200U);
  EXPECT_EQ(stored(failed).failure, (Failure{.code = "declined", .message = "no money"}));
  EXPECT_EQ(stored(failed).result.bytes, std::string("\0\xFF", 2));
  const Record released = unknown("r");
  EXPECT_EQ(post(released, "resolve", {{"as", "released"}, {"reason", "r"}}).status, 200U);
  EXPECT_TRUE(is_released(stored(released)));
  const Record other = unknown("o");
  EXPECT_EQ(post(other, "release", {{"reason", "r"}}).status, 200U);
  EXPECT_TRUE(is_released(stored(other)));
  expect_problem(post(stored(other), "release", {{"reason", "r"}}), 409, "refused", "already released");
}

TEST_F(OperatorsTest, RefusesWhatTheCommandsRefuse) {
  const Record record = running("k");
  const http::Answer refused = post(record, "release", {{"reason", "r"}});
  expect_problem(refused, 409, "refused", "its claim is live");
  EXPECT_EQ(read(refused)["record"]["standing"], "running");
  EXPECT_EQ(*http::find_header(refused.headers, "ETag"), tag_of(record));
  EXPECT_EQ(stored(record), record);
  EXPECT_EQ(post(record, "release", {{"reason", "r"}, {"force", true}}).status, 200U);
  const Record none = once::testing::plain_record("pay#none");
  expect_problem(post(none, "release", {{"reason", "r"}}), 404, "no-record");
}

TEST_F(OperatorsTest, Removes) {
  const auto remove = [&](const Record& record, const json& body, const std::string& tag = {}) {
    return ask("DELETE", path_of(record), body.dump(),
               {{"Content-Type", "application/json"}, {"If-Match", tag.empty() ? tag_of(record) : tag}});
  };
  const Record record = unknown("k");
  expect_problem(ask("DELETE", path_of(record), R"({"reason":"r"})", {{"Content-Type", "application/json"}}), 428,
                 "precondition-required");
  expect_problem(remove(record, {{"who", "alice"}}), 400, "bad-request", "reason is empty");
  expect_problem(remove(record, {{"reason", "r"}, {"retention", "1h"}}), 400, "bad-request", "unknown member");
  Record older = record;
  older.revision += 1;
  expect_problem(remove(older, {{"reason", "r"}}), 412, "record-changed", "has revision");
  EXPECT_FALSE(read(remove(record, {{"reason", "r"}, {"dry_run", true}}))["changed"]);
  EXPECT_EQ(stored(record), record);
  std::string said;
  set_reporter([&](std::string_view text, LogLevel /*level*/) { said += text; });
  const json body = read(remove(record, {{"reason", "asked\nfor"}, {"who", "alice"}}));
  set_reporter({});
  EXPECT_EQ(said, "operators' API: removed 'k' in scope 'pay' by alice: asked\\nfor");
  EXPECT_TRUE(body["changed"]);
  EXPECT_EQ(body["record"], nullptr);
  expect_problem(remove(record, {{"reason", "r"}}), 404, "no-record");
  const Record live = running("live");
  expect_problem(remove(live, {{"reason", "r"}}), 409, "refused", "its claim is live");
  EXPECT_EQ(remove(live, {{"reason", "r"}, {"force", true}}).status, 200U);
  expect_problem(get(path_of(live)), 404, "no-record");
}

TEST_F(OperatorsTest, ChangesOnlyWhatWasSeen) {
  const Record record = unknown("k");
  Record older = record;
  older.revision += 1;
  expect_problem(post(older, "release", {{"reason", "r"}}), 412, "record-changed", "has revision");
  Record others = record;
  others.owner = once::testing::owner_of(9);
  const http::Answer answer = post(others, "release", {{"reason", "r"}});
  expect_problem(answer, 412, "record-changed", "another owner");
  EXPECT_EQ(*http::find_header(answer.headers, "ETag"), tag_of(record));
  const std::string path = path_of(record) + "/release";
  const std::string body = R"({"reason":"r"})";
  expect_problem(ask("POST", path, body, {{"Content-Type", "application/json"}}), 428, "precondition-required");
  for (const char* const tag : {"*", "\"\"", "W/\"x\"", "\"0102-1\"", "1"}) {
    expect_problem(post(record, "release", {{"reason", "r"}}, tag), 400, "bad-request", "If-Match");
  }
  EXPECT_EQ(stored(record), record);
}

TEST_F(OperatorsTest, ReadsBodiesStrictly) {
  const Record record = unknown("k");
  const auto refuses = [&](const std::string& action, const json& body, const std::string& detail) {
    expect_problem(post(record, action, body), 400, "bad-request", detail);
  };
  refuses("release", json::object(), "reason is empty");
  refuses("release", {{"reason", " \n"}}, "reason is empty");
  refuses("release", {{"reason", 1}}, "reason must be a string");
  refuses("release", {{"reason", "r"}, {"who", " "}}, "who");
  refuses("release", {{"reason", "r"}, {"forse", true}}, "unknown member 'forse'");
  refuses("release", {{"reason", "r"}, {"as", "completed"}}, "unknown member 'as'");
  refuses("release", {{"reason", "r"}, {"force", "yes"}}, "true or false");
  refuses("release", {{"reason", "r"}, {"retention", "soon"}}, "retention");
  refuses("release", json::array(), "not a JSON object");
  refuses("resolve", {{"reason", "r"}}, "as must be");
  refuses("resolve", {{"reason", "r"}, {"as", "gone"}}, "as must be completed, failed or released");
  refuses("resolve", {{"reason", "r"}, {"as", "completed"}, {"code", "c"}}, "as failed");
  refuses("resolve", {{"reason", "r"}, {"as", "released"}, {"result", json::object()}}, "neither a result");
  refuses("resolve", {{"reason", "r"}, {"as", "completed"}, {"result", "text"}}, "result. is not a JSON object");
  refuses("resolve", {{"reason", "r"}, {"as", "completed"}, {"result", {{"bytes", ""}}}},
          "unknown member 'result.bytes'");
  for (const char* const wrong : {"AP8", "AP8=\n", "A", "AQ==AQ==", "A*8=", "AR=="}) {
    refuses("resolve", {{"reason", "r"}, {"as", "completed"}, {"result", {{"text_base64", wrong}}}}, "base64");
  }
  refuses("resolve", {{"reason", "r"}, {"as", "completed"}, {"result", {{"text", ""}, {"text_base64", ""}}}},
          "not both");
  const std::string path = path_of(record) + "/release";
  expect_problem(
      ask("POST", path, "{\"reason\":", {{"Content-Type", "application/json"}, {"If-Match", tag_of(record)}}), 400,
      "bad-request", "not a JSON object");
  // A form of a page somewhere can send this without being asked.
  expect_problem(ask("POST", path, "{}", {{"Content-Type", "text/plain"}, {"If-Match", tag_of(record)}}), 415,
                 "unsupported-media-type");
  expect_problem(ask("POST", path, "{}", {{"If-Match", tag_of(record)}}), 415, "unsupported-media-type");
  EXPECT_EQ(stored(record), record);
}

TEST_F(OperatorsTest, SaysThatTheStoreDoesNotAnswer) {
  const Record record = unknown("k");
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  expect_problem(get("/v1/records"), 503, "store-unavailable");
  expect_problem(get(path_of(record)), 503, "store-unavailable");
  expect_problem(post(record, "release", {{"reason", "r"}}), 503, "store-unavailable");
}

// A table that is missing or a permission: the request is right, and the client can do nothing about it.
TEST_F(OperatorsTest, WhatTheStoreRefusesIsNoMistakeOfTheClients) {
  const Record record = unknown("k");
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::forbidden};
  });
  expect_problem(get("/v1/records"), 503, "store-unavailable");
  expect_problem(get(path_of(record)), 503, "store-unavailable");
  expect_problem(post(record, "release", {{"reason", "r"}}), 503, "store-unavailable");
  // Found by the read, and the write is forbidden.
  store->set_plan([](const once::testing::StoreCall& call) {
    using enum once::testing::Fault::Kind;
    return once::testing::Fault{.kind = call.is_write() ? forbidden : none};
  });
  expect_problem(post(record, "release", {{"reason", "r"}}), 503, "store-unavailable");
  expect_problem(get("/v1/records?limit=0"), 400, "bad-request");
}

// Its time is asked for first, with an answer.
TEST_F(OperatorsTest, AStoreThatMayNotBeAskedForItsTimeIsNoMistakeOfTheClients) {
  const Operators forbidden({.url = "x:", .store = std::make_shared<Timeless>(store)}, token);
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::forbidden};
  });
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  expect_problem(
      forbidden.answer({.method = "GET", .target = "/v1/records", .headers = headers, .body = {}, .principal = {}}),
      503, "store-unavailable");
}

TEST_F(OperatorsTest, AResultThatTheStoreCanNeverKeepIsTheClients) {
  const Record record = unknown("k");
  const Operators narrow({.url = "x:", .store = std::make_shared<Narrow>(store)}, token);
  const std::string target = path_of(record) + "/resolve";
  const std::string tag = tag_of(record);
  const std::vector<http::HeaderView> headers{
      {"Host", "localhost"}, {"Content-Type", "application/json"}, {"If-Match", tag}};
  expect_problem(narrow.answer({.method = "POST",
                                .target = target,
                                .headers = headers,
                                .body = R"({"as":"completed","reason":"r"})",
                                .principal = {}}),
                 400, "bad-request", "too large");
}

TEST_F(OperatorsTest, WithoutATokenRefusesBrowsersAndStrangers) {
  without_host = true;
  for (const char* const host : {"127.0.0.1:9100", "127.3.2.1", "localhost", "LOCALHOST:1", "[::1]:9100", "[::1]"}) {
    EXPECT_EQ(ask("GET", "/v1/records", {}, {{"Host", host}}).status, 200U) << host;
  }
  // What a name leads to is up to whoever owns it (DNS rebinding).
  for (const char* const host : {"evil.example:9100", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
                                 "[::2]", "[::1]evil", ""}) {
    expect_problem(ask("GET", "/v1/records", {}, {{"Host", host}}), 403, "forbidden");
  }
  expect_problem(ask("GET", "/v1/records"), 403, "forbidden");
  expect_problem(ask("GET", "/v1/records", {}, {{"Host", "localhost"}, {"Origin", "http://localhost"}}), 403,
                 "forbidden");
  expect_problem(ask("GET", "/v1/records", {}, {{"Host", "localhost"}, {"Sec-Fetch-Site", "cross-site"}}), 403,
                 "forbidden");
}

TEST_F(OperatorsTest, AnswersLaterOnAThreadOfItsOwn) {
  unknown("k");
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  std::vector<std::future<http::Answer>> answers;
  for (int i = 0; i < 3; ++i) {
    std::promise<http::Answer> promise;
    answers.push_back(promise.get_future());
    const std::string target = "/v1/records";
    operators.answer_later(
        {.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}},
        [promise = std::move(promise)](http::Answer answer) mutable { promise.set_value(std::move(answer)); });
  }
  for (auto& answer : answers) EXPECT_EQ(read(answer.get())["records"].size(), 1U);
}

TEST_F(OperatorsTest, TakesSoManyRequestsAndNoMore) {
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  std::promise<void> reached;
  std::promise<void> go;
  // The store holds up the first one, on the worker's thread.
  std::atomic<bool> first = true;
  store->set_plan([&](const once::testing::StoreCall&) {
    if (first.exchange(false)) {
      reached.set_value();
      go.get_future().wait();
    }
    return once::testing::Fault{};
  });
  std::atomic<int> answered = 0;
  std::atomic<int> busy = 0;
  std::promise<void> all;
  const auto start = [&] {
    operators.answer_later(
        {.method = "GET", .target = "/v1/records/6b", .headers = headers, .body = {}, .principal = {}},
        [&](const http::Answer& answer) {
          if (answer.status == 503) {
            ++busy;
          } else if (++answered == 17) {
            all.set_value();
          }
        });
  };
  start();
  reached.get_future().wait();
  for (int i = 0; i < 18; ++i) start();
  EXPECT_EQ(busy, 2);
  go.set_value();
  EXPECT_EQ(all.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(busy, 2);
}

class TokenFile : public ::testing::Test {
 protected:
  TokenFile() { std::filesystem::create_directories(folder); }
  ~TokenFile() override { std::filesystem::remove_all(folder); }

  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(file, std::ios::trunc | std::ios::binary) << text;
    ::chmod(file.c_str(), mode);
  }
  std::string complaint() {
    try {
      const AdminToken token(file, "--admin-token-file");
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return {};
  }
  static unsigned status(const AdminToken& token, const std::vector<std::string>& lines) {
    std::vector<http::HeaderView> headers{{"Host", "evil.example"}};
    for (const std::string& line : lines) headers.push_back({"authorization", line});
    const auto answer = token.refuse({.method = "GET", .target = "/", .headers = headers, .body = {}, .principal = {}});
    return answer ? answer->status : 0;
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("once-token-test-" + std::to_string(::getpid()));
  const std::string file = (folder / "token").string();
};

TEST_F(TokenFile, HasOneTokenThatNotEverybodyCanRead) {
  EXPECT_THAT(complaint(), HasSubstr("cannot be read: No such file"));
  for (const char* const text :
       {"", "\n", "short", "fifteen-letters", "two-lines-are-here\nand-one-is-there", "# only a remark\n\n",
        "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4"}) {
    write(text);
    EXPECT_THAT(complaint(), HasSubstr("16 to 1024 visible")) << text;
  }
  write(std::string(1025, 'a'));
  EXPECT_THAT(complaint(), HasSubstr("1024"));
  write(std::string(5000, 'a'));
  EXPECT_THAT(complaint(), HasSubstr("1024"));
  write("0123456789abcdef", 0644);
  EXPECT_THAT(complaint(), HasSubstr("every user of this host"));
  EXPECT_THAT(complaint(), Not(HasSubstr("0123456789abcdef")));
  for (const mode_t mode : {0600, 0440, 0640}) {
    write("0123456789abcdef\n", mode);
    EXPECT_EQ(complaint(), "");
  }
}

TEST_F(TokenFile, IsAskedFor) {
  write("0123456789abcdef\n");
  AdminToken token(file, "--admin-token-file");
  EXPECT_TRUE(token.is_set());
  EXPECT_EQ(status(token, {"Bearer 0123456789abcdef"}), 0U);
  EXPECT_EQ(status(token, {"bearer  0123456789abcdef"}), 0U);
  for (const char* const line : {"Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "Bearer 0123456789abcdeff",
                                 "Bearer ", "Bearer", "", "Basic 0123456789abcdef", "0123456789abcdef"}) {
    EXPECT_EQ(status(token, {line}), 401U) << line;
  }
  EXPECT_EQ(status(token, {}), 401U);
  EXPECT_EQ(status(token, {"Bearer 0123456789abcdef", "Bearer 0123456789abcdef"}), 401U);
  write("another-0123456789\n");
  token.reload();
  EXPECT_EQ(status(token, {"Bearer 0123456789abcdef"}), 401U);
  EXPECT_EQ(status(token, {"Bearer another-0123456789"}), 0U);
  write("bad");
  EXPECT_THROW(token.reload(), Exception);
  EXPECT_EQ(status(token, {"Bearer another-0123456789"}), 0U);
}

TEST_F(TokenFile, HasALineForEachName) {
  const std::string alice = "alice operator " + to_hex(sha256("token-of-alice-0")) + "\n";
  write("# name role digest\r\n\n\t" + alice + "  rita\treader  " + to_hex(sha256("token-of-rita-00")));
  AdminToken token(file, "--admin-token-file");
  EXPECT_EQ(token.find("token-of-alice-0")->identity, (Identity{.name = "alice"}));
  const auto rita = token.find("token-of-rita-00");
  EXPECT_EQ(rita->identity, (Identity{.name = "rita", .reads_only = true}));
  EXPECT_FALSE(token.find("token-of-nobody-"));
  EXPECT_FALSE(token.find(""));
  EXPECT_FALSE(token.find(to_hex(sha256("token-of-alice-0"))));  // The file alone lets nobody in.
  std::optional<KnownToken> bearer;
  const std::vector<http::HeaderView> headers{{"Authorization", "Bearer token-of-rita-00"}};
  EXPECT_FALSE(
      token.refuse({.method = "GET", .target = "/", .headers = headers, .body = {}, .principal = {}}, &bearer));
  EXPECT_EQ(bearer, rita);
  EXPECT_TRUE(token.has(*rita));
  // Another role is another token.
  write(alice + "rita operator " + to_hex(sha256("token-of-rita-00")) + "\n");
  token.reload();
  EXPECT_FALSE(token.has(*rita));
  EXPECT_FALSE(token.find("token-of-rita-00")->identity.reads_only);
  write(alice);
  token.reload();
  EXPECT_FALSE(token.find("token-of-rita-00"));
  EXPECT_TRUE(token.find("token-of-alice-0"));
}

TEST_F(TokenFile, SaysWhichLineIsWrong) {
  const std::string digest = to_hex(sha256("token"));
  const std::string good = "# remark\nalice operator " + digest + "\n";
  for (const auto& [line, why] : std::vector<std::pair<std::string, std::string>>{
           {"bob operator", "line 3: must be a name, a role and a digest"},
           {"bob the operator " + digest, "line 3: must be a name, a role and a digest"},
           {"bob", "line 3: must be a name"},
           {"bob admin " + digest, "line 3: the role must be reader or operator"},
           {"b\xC3\xB6 reader " + digest, "line 3: the name must be"},
           {std::string(65, 'b') + " reader " + digest, "line 3: the name must be"},
           {"bob reader " + digest.substr(1), "line 3: the digest must be 64 hexadecimal digits"},
           {"bob reader token-of-bob-0123", "line 3: the digest must be 64 hexadecimal digits"},
           {"bob reader " + digest, "line 3: has the digest of line 2"},
       }) {
    write(good + line + "\n");
    EXPECT_THAT(complaint(), HasSubstr(why)) << line;
    EXPECT_THAT(complaint(), HasSubstr(file));
  }
  EXPECT_THAT(complaint(), Not(HasSubstr(digest)));  // It may be a token by mistake.
  write("a token with blanks");
  EXPECT_THAT(complaint(), HasSubstr("line 1: must be a name"));
  write(std::string(300'000, '\n'));
  EXPECT_THAT(complaint(), HasSubstr("256 KiB"));
}

}  // namespace operators_api_test
}  // namespace once::operators
