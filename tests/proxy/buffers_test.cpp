// Bodies in memory: how much of them there may be.
#include "proxy_test.hpp"

namespace once::proxy {
namespace buffers_test {

using ::testing::HasSubstr;

constexpr std::size_t mib = std::size_t{1} << 20U;

TEST_F(ProxyTest, WhatGoesOverAllBodiesTogetherIsRefused) {
  rules.max_body_bytes = 8 * mib;
  options.max_buffered_bytes = options.max_buffered_bytes_per_client = 2 * mib;
  options.metrics = std::make_shared<Metrics>();
  options.admin = Address{"127.0.0.1", 0};
  start(counting());
  const std::string body(mib + mib / 2, 'b');
  const std::string whole = post("k", body);
  Line slow = client();
  slow.write(whole.substr(0, whole.size() - 1));
  // Until it has that room.
  const auto until = std::chrono::steady_clock::now() + patience;
  for (std::string text; text.find("once_proxy_buffered_bytes " + std::to_string(body.size())) == std::string::npos;) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << text;
    Line page = Line::to(proxy->admin_port());
    page.write("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    text = page.read_message().value().body;
  }
  const Message answer = ask(post("l", body));
  EXPECT_EQ(answer.status(), 503U);
  EXPECT_THAT(answer.body, HasSubstr("urn:once:problem:overloaded"));
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_EQ(logged(0).cause, "overloaded");
  // What comes in pieces and says nothing of its length as well.
  const std::string chunks =
      "POST /charges HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: m\r\nTransfer-Encoding: chunked\r\n\r\n180000\r\n" +
      body + "\r\n0\r\n\r\n";
  EXPECT_EQ(ask(chunks).status(), 503U);
  EXPECT_EQ(ask(post("n")).status(), 201U);  // A small one needs none of that room.
  slow.write(whole.substr(whole.size() - 1));
  EXPECT_EQ(slow.read_message()->status(), 201U);
  EXPECT_EQ(ask(post("l", body)).status(), 201U);
}

// What ran is kept, even if it is more than there is room for.
TEST_F(ProxyTest, AnAnswerIsKeptWhateverRoomThereIs) {
  rules.max_answer_bytes = 4 * mib;
  options.max_buffered_bytes = options.max_buffered_bytes_per_client = mib;
  start(sending(answer_text("200 OK", std::string(3 * mib, 'a'))));
  EXPECT_EQ(ask(post("k")).body.size(), 3 * mib);
  EXPECT_EQ(ask(post("k")).header("Idempotent-Replayed"), "true");
  EXPECT_EQ(runs(), 1U);
}

}  // namespace buffers_test
}  // namespace once::proxy
