// Fields after a chunked body: passed on only if both sides announced support, and never into a head.
#include "proxy_test.hpp"

namespace once::proxy {
namespace trailers_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* last_chunk =
    "0\r\nX-Sum: 1\r\nX-Unsaid: 2\r\nX-Tag: 3\r\nAuthorization: a\r\nIdempotency-Key: k\r\n\r\n";
constexpr const char* announced =
    "Transfer-Encoding: chunked\r\nX-Tag: 0\r\nTrailer: X-Sum, X-Tag, Authorization\r\nTrailer: Idempotency-Key\r\n";

// What an upstream reads of a request with chunks, to the end of its trailers.
std::string read_raw(Line& line) {
  std::string raw = line.read_until("\r\n\r\n");
  while (!raw.ends_with("\r\n0\r\n")) {
    const std::string more = line.read_until("\r\n");
    if (more.empty()) return raw;
    raw += more;
  }
  for (std::string more = line.read_until("\r\n"); more != "\r\n" && !more.empty(); more = line.read_until("\r\n")) {
    raw += more;
  }
  return raw;
}

TEST_F(ProxyTest, TrailersOfRequestsPassIfTheyWereAnnounced) {
  start([&](Line& line) {
    got({.first = read_raw(line), .headers = {}, .body = {}});
    line.write(answer_text("200 OK", "x"));
  });
  ask("PUT /a HTTP/1.1\r\nHost: a\r\n" + std::string(announced) + "\r\n3\r\nabc\r\n" + last_chunk);
  const std::string raw = request(0).first;
  EXPECT_THAT(raw, HasSubstr("\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n"));
  for (const char* const kept_back : {"X-Unsaid", "X-Tag: 3", "Authorization: a", "Idempotency-Key: k"}) {
    EXPECT_THAT(raw, Not(HasSubstr(kept_back)));
  }
}

TEST_F(ProxyTest, TrailersOfAnswersPassToThoseWhoTakeThem) {
  start(sending("HTTP/1.1 200 OK\r\nConnection: close\r\n" + std::string(announced) + "\r\n3\r\nabc\r\n" + last_chunk));
  const auto raw = [&](const std::string& lines, const std::string& start = "GET /a HTTP/1.1\r\nHost: a\r\n") {
    Line line = client();
    line.write(start + lines + "Connection: close\r\n\r\n");
    return line.read_all();
  };
  const std::string with = raw("TE: deflate, trailers\r\n");
  EXPECT_THAT(with, HasSubstr("\r\nTrailer: X-Sum\r\n"));
  EXPECT_TRUE(with.ends_with("\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n")) << with;
  EXPECT_EQ(request(0).header("TE"), "trailers");
  EXPECT_EQ(request(0).header("Connection"), "TE");
  const std::string without = raw("");
  EXPECT_TRUE(without.ends_with("\r\nabc\r\n0\r\n\r\n")) << without;
  EXPECT_THAT(without, Not(HasSubstr("X-Sum")));
  EXPECT_EQ(request(1).header("TE"), "");
  // What is stored has none.
  for (int i = 0; i < 2; ++i) {
    const std::string stored = raw("TE: trailers\r\nIdempotency-Key: k\r\n", "POST /a HTTP/1.1\r\nHost: a\r\n");
    EXPECT_TRUE(stored.ends_with("\r\n\r\nabc")) << stored;
    EXPECT_THAT(stored, Not(HasSubstr("X-Sum")));
  }
}

TEST_F(ProxyTest, AnAnswerThatIsTooLargeHasItsHeadOnly) {
  rules.max_answer_bytes = 2;
  start(sending("HTTP/1.1 200 OK\r\n" + std::string(announced) + "\r\n3\r\nabc\r\n" + last_chunk));
  const Message answer = ask(post("k", "x", "TE: trailers\r\n"));
  EXPECT_EQ(answer.body, "abc");
  EXPECT_EQ(answer.header("X-Sum"), "");
  EXPECT_EQ(answer.header("Authorization"), "");
}

}  // namespace trailers_test
}  // namespace once::proxy
