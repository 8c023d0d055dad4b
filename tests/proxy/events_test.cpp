// Event streams with a key: the client reads them as they come, and they are stored at their end.
#include <cstdio>

#include "proxy_test.hpp"

namespace once::proxy {
namespace events_test {

using ::testing::HasSubstr;

constexpr const char* events_type = "text/event-stream; charset=utf-8";

class EventsTest : public ProxyTest {
 protected:
  // An event, a second one when the gate is open, and the end if there is one.
  void start_events(const std::string& first, const std::string& second, bool has_end = true,
                    const std::string& type = events_type) {
    start([this, first, second, has_end, type](Line& line) {
      got(line.read_request().value());
      const auto chunk = [](const std::string& text) {
        std::string size(16, '\0');
        size.resize(static_cast<std::size_t>(std::snprintf(size.data(), size.size(), "%zx", text.size())));
        return size + "\r\n" + text + "\r\n";
      };
      line.write("HTTP/1.1 " + status + "\r\nContent-Type: " + type + "\r\nX-Tag: 1\r\n" + lines +
                 "Transfer-Encoding: chunked\r\n\r\n" + chunk(first));
      go.wait();
      line.write(chunk(second) + (has_end ? "0\r\n\r\n" : ""));
    });
  }

  std::string status = "200 OK";
  std::string lines;  // More of the head, each with its end.
};

TEST_F(EventsTest, ComeAtOnceAndAreReplayed) {
  start_events("data: 1\n\n", "data: 2\n\n");
  Line line = client();
  line.write(post("k"));
  EXPECT_THAT(line.read_until("data: 1\n\n"), HasSubstr("X-Tag: 1\r\n"));  // The gate is shut.
  EXPECT_THAT(ask(post("k")).body, HasSubstr("in-progress"));
  go.open();
  EXPECT_THAT(line.read_until("0\r\n\r\n"), HasSubstr("data: 2\n\n"));
  line.write(post("k"));  // On the same connection.
  const auto again = line.read_message();
  EXPECT_EQ(again->body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(again->header("Idempotent-Replayed"), "true");
  EXPECT_EQ(again->header("X-Tag"), "1");
  EXPECT_EQ(logged(1).fate, "store");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(EventsTest, OtherTypesComeAtOnceTooIfTheyAreNamed) {
  rules.stream_types = {"application/x-ndjson"};
  start_events("{\"a\":1}\n", "{\"a\":2}\n", true, "Application/X-NDJSON;v=1");
  Line line = client();
  line.write(post("k"));
  line.read_until("{\"a\":1}\n");  // The gate is shut.
  go.open();
  line.read_until("0\r\n\r\n");
  EXPECT_EQ(ask(post("k")).body, "{\"a\":1}\n{\"a\":2}\n");
  EXPECT_EQ(runs(), 1U);
}

// The service answers when the client has waited for its own limit. What another request gets then.
class PatienceTest : public ProxyTest {
 protected:
  Message after_patience(const std::string& type, const std::string& body, const std::string& version = "1.1") {
    rules.client_timeout = Millis{100};
    rules.max_answer_bytes = 1000;
    start([this, type, body](Line& line) {
      got(line.read_request().value());
      go.wait();
      line.write("HTTP/1.1 200 OK\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
                 "\r\n\r\n" + body);
    });
    Line line = client();
    line.write("POST /charges HTTP/" + version + "\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\na");
    const auto told = line.read_message();
    EXPECT_EQ(told->status(), 409U);
    EXPECT_THAT(told->body, HasSubstr("in-progress"));
    go.open();
    EXPECT_EQ(line.read_all(), "");
    EXPECT_EQ(logged(0).outcome, RequestOutcome::executed);
    EXPECT_EQ(logged(0).status, 409U);
    EXPECT_EQ(logged(0).cause, "client-waited");
    Message later = ask("POST /charges HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\na");
    EXPECT_EQ(runs(), 1U);
    return later;
  }
};

TEST_F(PatienceTest, TheWorkGoesOnAndIsKept) {
  EXPECT_EQ(after_patience("text/plain", "done").body, "done");
  EXPECT_EQ(logged(0).fate, "store");
}
TEST_F(PatienceTest, OfHttp10Too) { EXPECT_EQ(after_patience("text/plain", "done", "1.0").body, "done"); }
TEST_F(PatienceTest, OfStreamsToo) { EXPECT_EQ(after_patience(events_type, "data: 1\n\n").body, "data: 1\n\n"); }
TEST_F(PatienceTest, OfWhatIsTooLargeATombstoneIsLeft) {
  EXPECT_EQ(after_patience("text/plain", std::string(100'000, 'x')).status(), 410U);
  EXPECT_EQ(logged(0).fate, "tombstone");
}

TEST_F(EventsTest, AClientThatLeavesChangesNothing) {
  start_events("data: 1\n\n", "data: 2\n\n");
  Line line = client();
  line.write(post("k"));
  line.read_until("data: 1\n\n");
  line.reset();
  go.open();
  EXPECT_EQ(ask_until_decided(post("k")).body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(EventsTest, WhatBreaksOffIsUnknownAndDoesNotLookWhole) {
  start_events("data: 1\n\n", "data: 2\n\n", false);
  go.open();
  Line line = client();
  line.write(post("k"));
  const auto answer = line.read_message();
  EXPECT_FALSE(answer->whole);
  EXPECT_EQ(logged(0).fate, "ambiguous");
  EXPECT_EQ(logged(0).cause, "upstream-lost");
  EXPECT_THAT(ask(post("k")).body, HasSubstr("outcome-unknown"));
  EXPECT_EQ(runs(), 1U);
}

TEST_F(EventsTest, WhatIsTooLargeStreamsOnAndLeavesATombstone) {
  rules.max_answer_bytes = 16;
  start_events("data: 1\n\n", "data: " + std::string(100'000, '2') + "\n\n");
  go.open();
  EXPECT_EQ(ask(post("k")).body.size(), 9 + 100'008U);
  EXPECT_EQ(logged(0).fate, "tombstone");
  EXPECT_EQ(ask(post("k")).status(), 410U);
}

// Its status alone would make the outcome unknown.
TEST_F(EventsTest, OnceFateCountsForOnesThatAreTooLarge) {
  rules.max_answer_bytes = 16;
  rules.service_fate = true;
  status = "503 Partly done";
  lines = "Once-Fate: complete\r\n";
  start_events("data: 1\n\n", "data: " + std::string(100'000, '2') + "\n\n");
  go.open();
  const Message first = ask(post("k"));
  EXPECT_EQ(first.status(), 503U);
  EXPECT_EQ(first.header("Once-Fate"), "");
  EXPECT_EQ(first.body.size(), 9 + 100'008U);
  EXPECT_EQ(logged(0).fate, "tombstone");
  const Message again = ask(post("k"));
  EXPECT_EQ(again.status(), 410U);
  EXPECT_THAT(again.body, HasSubstr("answer-not-kept"));
  EXPECT_EQ(again.header("Once-Fate"), "");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(EventsTest, TheEndIsSentWhenTheyAreStored) {
  rules.policy->on_unrecorded = OnUnrecorded::fail;
  start_events("data: 1\n\n", "data: 2\n\n");
  Line line = client();
  line.write(post("k"));
  line.read_until("data: 1\n\n");
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  go.open();
  EXPECT_THAT(line.read_all(), ::testing::Not(HasSubstr("0\r\n\r\n")));
  store->set_plan(once::testing::no_faults());
}

TEST_F(EventsTest, OfHttp10EndWithTheConnection) {
  start_events("data: 1\n\n", "data: 2\n\n");
  Line line = client();
  line.write("POST /charges HTTP/1.0\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\na");
  line.read_until("data: 1\n\n");
  go.open();
  EXPECT_EQ(line.read_all(), "data: 2\n\n");
  EXPECT_EQ(logged(0).fate, "store");
}

}  // namespace events_test
}  // namespace once::proxy
