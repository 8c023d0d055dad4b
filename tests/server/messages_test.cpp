// The claims API as the C++ client reads and writes it. Whole conversations: tests/clients/transcripts.json.
#include "stores/server/messages.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <once/key.hpp>

namespace once::stores {
namespace messages_test {

using nlohmann::json;
using namespace std::chrono_literals;

const Time now{Millis{1'000'000}};

Attempt attempt() {
  Attempt made;
  made.key = Key("pay ments", "17/é").stored();
  made.fingerprint = Fingerprint::of("payload");
  made.holder = "host:1";
  made.label = "17/é";
  return made;
}

Response problem(int status, const std::string& word, json members = json::object()) {
  members["type"] = "urn:once:problem:" + word;
  members["detail"] = "why";
  return {.status = status, .content_type = "application/problem+json", .body = members.dump()};
}

json claim() {
  return {{"claim", "01" + std::string(32, 'a') + "ff"},
          {"stored_key_hex", to_hex(attempt().key + "x")},
          {"verdict", "take_over"},
          {"attempt", 3},
          {"token", 42},
          {"on_lapse", "hold"},
          {"lease_ms", 30000},
          {"valid_for_ms", 29000},
          {"steps", {{"one", "AQI="}}}};
}

Response claimed(const json& members) { return {.status = 201, .answer = "claimed", .body = members.dump()}; }

TEST(BeginRequestTest, SaysWhatThePolicyWants) {
  EffectivePolicy policy;
  policy.retention = keep_forever;
  policy.failure_retention = 1h;
  policy.expected = 5min;
  policy.on_lapse = OnLapse::hold;
  policy.on_stored_failure = OnStoredFailure::execute;
  const Sending sending = begin_request(attempt(), policy, 2s, "0123456789abcdef");
  EXPECT_EQ(sending.method, "POST");
  EXPECT_EQ(sending.target, "/v1/claims");
  const json expected{{"scope", "pay ments"},
                      {"key", "17/é"},
                      {"request_id", "0123456789abcdef"},
                      {"lease_ms", 30000},
                      {"retention_ms", "never"},
                      {"failure_retention_ms", 3600000},
                      {"expected_ms", 300000},
                      {"on_lapse", "hold"},
                      {"retry_failures", true},
                      {"wait_ms", 2000},
                      {"label", "17/é"},
                      {"holder", "host:1"},
                      {"fingerprint_hex", Fingerprint::of("payload").hex()}};
  EXPECT_EQ(json::parse(sending.body), expected);
}

TEST(BeginRequestTest, RefusesKeysThatAreNoText) {
  Attempt binary = attempt();
  binary.key = Key("s", "\xff").stored();
  EXPECT_THROW(begin_request(binary, {}, 0s, "id"), Exception);
  EXPECT_THROW(look_request(binary.key), Exception);
}

TEST(BeginAnswerTest, HasTheClaim) {
  const BeginAnswer answer = read_begin(claimed(claim()), attempt(), now);
  ASSERT_FALSE(answer.claim.empty()) << answer.error.message;
  EXPECT_EQ(answer.decision.verdict, Verdict::take_over);
  EXPECT_EQ(answer.valid_for, 29s);
  const Record& record = *answer.record;
  EXPECT_EQ(record.owner.hex(), std::string(32, 'a'));
  EXPECT_EQ(record.token, 42U);
  EXPECT_EQ(record.attempt, 3U);
  EXPECT_EQ(record.on_lapse, OnLapse::hold);
  EXPECT_EQ(record.key, attempt().key + "x") << "as the server stores it";
  ASSERT_EQ(record.steps.size(), 1U);
  EXPECT_EQ(record.steps[0].result, "\x01\x02");
}

TEST(BeginAnswerTest, IsNoClaimIfAnyPartIsWrong) {
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, json>>{{"claim", nullptr},
                                                           {"claim", ""},
                                                           {"claim", "../x"},
                                                           {"claim", std::string(20'000, 'a')},
                                                           {"token", 0},
                                                           {"token", "1"},
                                                           {"token", 1.5},
                                                           {"token", 1e30},
                                                           {"verdict", "steal"},
                                                           {"valid_for_ms", -1},
                                                           {"valid_for_ms", 1e30},
                                                           {"lease_ms", nullptr},
                                                           {"stored_key_hex", ""},
                                                           {"stored_key_hex", "x"},
                                                           {"steps", json::array()},
                                                           {"steps", {{"a", "%"}}}}) {
    json members = claim();
    members[name] = value;
    const BeginAnswer answer = read_begin(claimed(members), attempt(), now);
    EXPECT_TRUE(answer.claim.empty()) << name << " " << value;
    EXPECT_EQ(answer.record, nullptr) << name << " " << value;
    EXPECT_EQ(answer.error.kind, ErrorKind::corrupt);
    EXPECT_FALSE(answer.retry_after);
  }
}

TEST(BeginAnswerTest, IsAResult) {
  Response response{.status = 200,
                    .answer = "replayed",
                    .content_type = "text/plain",
                    .attempt = "2",
                    .holder = "a%20b",
                    .finished_at = "2026-05-17T09:30:00.250Z",
                    .body = "bytes"};
  BeginAnswer answer = read_begin(response, attempt(), now);
  EXPECT_EQ(answer.decision.verdict, Verdict::replay);
  EXPECT_EQ(answer.record->result, Result::inlined("bytes", "text/plain"));
  EXPECT_EQ(answer.record->holder, "a b");
  EXPECT_EQ(answer.record->attempt, 2U);
  EXPECT_EQ(answer.record->label, "17/é");
  response.content_type = not_kept_type;
  EXPECT_EQ(read_begin(response, attempt(), now).record->result.placement, Placement::dropped);
  answer = read_begin(problem(410, "answer-not-kept", {{"size", 12}}), attempt(), now);
  EXPECT_EQ(answer.decision.verdict, Verdict::replay);
  EXPECT_EQ(answer.record->result.size, 12U);
  response = {.status = 200, .answer = "failed", .body = R"({"code": "declined", "message": "no", "result": "AA=="})"};
  answer = read_begin(response, attempt(), now);
  EXPECT_EQ(answer.decision.verdict, Verdict::replay_failure);
  EXPECT_EQ(answer.record->failure.code, "declined");
  EXPECT_EQ(answer.record->result.bytes, std::string(1, '\0'));
  response.body = R"({"code": "declined", "result": "%"})";
  EXPECT_EQ(read_begin(response, attempt(), now).record, nullptr);
}

TEST(BeginAnswerTest, IsWhatStandsInTheWay) {
  BeginAnswer answer = read_begin(
      problem(409, "in-progress", {{"retry_after_ms", 4000}, {"attempt", 2}, {"holder", "b"}, {"expected_in_ms", -5}}),
      attempt(), now);
  EXPECT_EQ(answer.decision, (Decision{Verdict::conflict, 4s}));
  EXPECT_EQ(answer.record->lease_until, now + 4s);
  EXPECT_TRUE(is_overdue(*answer.record, now));
  answer = read_begin(problem(409, "outcome-unknown", {{"reason", "it died"}}), attempt(), now);
  EXPECT_EQ(answer.decision.verdict, Verdict::unknown);
  EXPECT_EQ(answer.record->failure.message, "it died");
  answer = read_begin(problem(422, "key-reused", {{"standing", "released"}}), attempt(), now);
  EXPECT_EQ(answer.decision.verdict, Verdict::mismatch);
  EXPECT_TRUE(is_released(*answer.record));
  EXPECT_FALSE(answer.record->fingerprint == attempt().fingerprint);
  answer = read_begin(problem(422, "key-reused", {{"standing", "completed"}}), attempt(), now);
  EXPECT_FALSE(is_released(*answer.record));
}

TEST(BeginAnswerTest, MayPass) {
  for (const int status : {429, 500, 502, 503, 504}) {
    BeginAnswer answer = read_begin({.status = status, .retry_after = "2"}, attempt(), now);
    EXPECT_EQ(answer.retry_after, 2s) << status;
    EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  }
  EXPECT_EQ(read_begin({.status = 503, .retry_after = "soon"}, attempt(), now).retry_after, 1s);
  EXPECT_EQ(read_begin({.status = 503, .retry_after = "99999999999999"}, attempt(), now).retry_after, 1min);
  for (const int status : {200, 201, 204, 301, 400, 401, 403, 404, 409, 415, 422}) {
    EXPECT_FALSE(read_begin({.status = status}, attempt(), now).retry_after) << status;
    EXPECT_EQ(read_begin({.status = status}, attempt(), now).record, nullptr) << status;
  }
  const BeginAnswer broken = read_begin(problem(500, "record-unreadable"), attempt(), now);
  EXPECT_TRUE(broken.is_unreadable);
  EXPECT_FALSE(broken.retry_after);
}

TEST(FinishRequestTest, SaysWhatBecameOfTheWork) {
  Record record;
  record.state = State::completed;
  record.result = Result::inlined("bytes", "text/plain");
  EXPECT_EQ(finish_request("id", record, false).target, "/v1/claims/id/complete");
  EXPECT_EQ(finish_request("id", record, false).body, "bytes");
  EXPECT_EQ(finish_request("id", record, true).target, "/v1/claims/id/complete?kept_as=failure");
  record.result = {};
  record.result.placement = Placement::dropped;
  record.result.size = 9;
  EXPECT_EQ(finish_request("id", record, false).content_type, not_kept_type);
  record.state = State::failed;
  record.result = Result::inlined(std::string("\0", 1));
  record.failure = {.code = "", .message = "why"};
  EXPECT_EQ(json::parse(finish_request("id", record, false).body),
            (json{{"code", "failed"}, {"message", "why"}, {"result", "AA=="}}));
  record.state = State::unknown;
  EXPECT_EQ(finish_request("id", record, false).target, "/v1/claims/id/hold");
  EXPECT_EQ(release_request("id", "").body, "");
  EXPECT_EQ(step_request("id", {"a/b.c", "bytes"}).target, "/v1/claims/id/steps/a%2Fb%2Ec");
}

TEST(WriteAnswerTest, OnlyItsOwnWordCounts) {
  Record sent;
  sent.state = State::completed;
  sent.result = Result::inlined("bytes");
  const auto read = [&](const Response& response, std::string_view wanted) {
    return read_write(response, wanted, sent).answer;
  };
  EXPECT_EQ(read({.status = 200, .answer = "recorded", .body = "{}"}, "recorded").status, AnswerStatus::done);
  EXPECT_EQ(read({.status = 200, .answer = "renewed", .body = "{}"}, "recorded").status, AnswerStatus::failed);
  EXPECT_EQ(read({.status = 200, .answer = "recorded", .body = "{}"}, "renewed").status, AnswerStatus::failed);
  EXPECT_EQ(read({.status = 200, .body = "<html>"}, "recorded").error.kind, ErrorKind::misuse);
  EXPECT_EQ(read({.status = 201, .answer = "recorded"}, "recorded").status, AnswerStatus::failed);
  EXPECT_EQ(read({.status = 200, .answer = "superseded", .body = "other"}, "recorded").record->result.bytes, "other");
  for (const int status : {401, 429, 500, 502, 503, 504}) {
    EXPECT_EQ(read({.status = status}, "recorded").error.kind, ErrorKind::in_doubt) << status;
  }
  EXPECT_TRUE(read({.status = 413}, "recorded").unfit);
  EXPECT_EQ(
      read_write({.status = 200, .answer = "renewed", .body = R"({"valid_for_ms": 5})"}, "renewed", sent).valid_for,
      Millis{5});
  EXPECT_EQ(read({.status = 200, .answer = "renewed", .body = "{}"}, "renewed").status, AnswerStatus::failed)
      << "for how long?";
  const Answer dropped = read({.status = 200, .answer = "recorded", .body = R"({"result_kept": false})"}, "recorded");
  EXPECT_EQ(dropped.record->result.placement, Placement::dropped);
  EXPECT_EQ(dropped.record->result.size, 5U);
}

TEST(WriteAnswerTest, SaysWhetherToLook) {
  const auto read = [](const Response& response) { return read_write(response, "recorded", {}); };
  WriteAnswer lost = read(problem(409, "claim-lost", {{"state", "none"}}));
  EXPECT_EQ(lost.answer.status, AnswerStatus::refused);
  EXPECT_FALSE(lost.must_look);
  lost = read(problem(409, "claim-lost"));
  EXPECT_TRUE(lost.must_look);
  EXPECT_FALSE(lost.is_finished);
  EXPECT_TRUE(read(problem(409, "already-finished")).is_finished);
  EXPECT_EQ(read(problem(409, "no-session")).answer.error.kind, ErrorKind::misuse);
}

TEST(LookAnswerTest, IsWhatTheServerTells) {
  EXPECT_EQ(look_request(attempt().key).target, "/v1/claims?scope=pay%20ments&key=17%2F%C3%A9");
  const auto read = [](const Response& response) { return read_look(response, attempt().key, now); };
  EXPECT_EQ(read(problem(404, "no-record")).status, AnswerStatus::done);
  EXPECT_EQ(read(problem(404, "no-record")).record, nullptr);
  EXPECT_EQ(read({.status = 404, .body = "<html>"}).error.kind, ErrorKind::misuse);
  EXPECT_EQ(read({.status = 503}).error.kind, ErrorKind::unavailable);
  EXPECT_EQ(read(problem(500, "record-unreadable")).error.kind, ErrorKind::corrupt);
  const auto seen = [&](const char* standing) {
    return read({.status = 200, .answer = "seen", .body = json{{"standing", standing}}.dump()}).record;
  };
  EXPECT_TRUE(is_released(*seen("released")));
  EXPECT_FALSE(is_released(*seen("lapsed")));
  EXPECT_LT(seen("lapsed")->lease_until, now);
  EXPECT_GT(seen("running")->lease_until, now);
  EXPECT_EQ(seen("unknown")->state, State::unknown);
  EXPECT_EQ(seen("vanished"), nullptr);
  EXPECT_EQ(read({.status = 200, .answer = "replayed", .body = "r"}).record->result.bytes, "r");
}

}  // namespace messages_test
}  // namespace once::stores
