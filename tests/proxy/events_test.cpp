// Event streams with a key: the client reads them as they come, and they are stored at their end.
#include <cstdio>

#include "proxy_test.hpp"

namespace once::proxy {
namespace events_test {

using ::testing::HasSubstr;

constexpr const char* head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nX-Tag: 1\r\n";

class EventsTest : public ProxyTest {
 protected:
  // An event, a second one when the gate is open, and the end if there is one.
  void start_events(const std::string& first, const std::string& second, bool has_end = true) {
    start([this, first, second, has_end](Line& line) {
      got(line.read_request().value());
      const auto chunk = [](const std::string& text) {
        std::string size(16, '\0');
        size.resize(static_cast<std::size_t>(std::snprintf(size.data(), size.size(), "%zx", text.size())));
        return size + "\r\n" + text + "\r\n";
      };
      line.write(std::string(head) + "Transfer-Encoding: chunked\r\n\r\n" + chunk(first));
      go.wait();
      line.write(chunk(second) + (has_end ? "0\r\n\r\n" : ""));
    });
  }
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
