// Messages as they are read: what heads say, and how bodies end.
#include "frontends/proxy/incoming.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace incoming_test {

using ::testing::ElementsAre;

std::string request(const std::string& lines, const std::string& start = "POST /a?b HTTP/1.1\r\n") {
  return start + lines + "\r\n";
}

bool reads(const std::string& head) {
  Incoming message;
  return message.read_request(head);
}

bool is_clear(const std::string& lines, const std::string& start = "POST / HTTP/1.1\r\n") {
  Incoming message;
  EXPECT_TRUE(message.read_request(request(lines, start))) << lines;
  return message.is_framed_well();
}

TEST(Incoming, ReadsTheHeadOfARequest) {
  Incoming message;
  ASSERT_TRUE(message.read_request(request("Host: a\r\nX-Y:  v \t\r\nEmpty:\r\nContent-Length: 3\r\n")));
  EXPECT_EQ(message.method(), "POST");
  EXPECT_EQ(message.target(), "/a?b");
  EXPECT_EQ(message.version(), 11U);
  ASSERT_EQ(message.headers().size(), 4U);
  EXPECT_EQ(message.headers()[1].name, "X-Y");
  EXPECT_EQ(message.headers()[1].value, "v");
  EXPECT_EQ(message.headers()[2].value, "");
  EXPECT_EQ(message.content_length(), 3U);
  EXPECT_TRUE(message.keep_alive());
  EXPECT_FALSE(message.is_done());
  // Nothing of it is left for the next one.
  ASSERT_TRUE(message.read_request(request("Host: a\r\n", "GET /b HTTP/1.0\r\n")));
  EXPECT_EQ(message.headers().size(), 1U);
  EXPECT_EQ(message.version(), 10U);
  EXPECT_EQ(message.content_length(), std::nullopt);
  EXPECT_FALSE(message.keep_alive());
  EXPECT_TRUE(message.is_done());
}

TEST(Incoming, ReadsTheHeadOfAnAnswer) {
  Incoming message;
  ASSERT_TRUE(message.read_answer("HTTP/1.1 201 Very well\r\nContent-Length: 0\r\n\r\n", false));
  EXPECT_EQ(message.status(), 201U);
  EXPECT_EQ(message.reason(), "Very well");
  EXPECT_TRUE(message.is_done());
  EXPECT_TRUE(message.keep_alive());
  for (const char* const without : {"HTTP/1.1 200\r\n\r\n", "HTTP/1.1 200 \r\n\r\n"}) {
    ASSERT_TRUE(message.read_answer(without, false));
    EXPECT_EQ(message.reason(), "");
  }
}

TEST(Incoming, RefusesLinesThatAreNone) {
  for (const char* const start :
       {"POST /a\r\n", "POST  /a HTTP/1.1\r\n", "POST /a HTTP/1.1 \r\n", "POST /a b HTTP/1.1\r\n",
        " POST /a HTTP/1.1\r\n", "PO(ST /a HTTP/1.1\r\n", "POST /a HTTP/1.2\r\n", "POST /a HTTP/2.0\r\n",
        "POST /a http/1.1\r\n", "POST /a HTTP/1.10\r\n", "POST  HTTP/1.1\r\n", "POST /\x7F HTTP/1.1\r\n",
        "POST /\t HTTP/1.1\r\n", "\r\n"}) {
    EXPECT_FALSE(reads(request("Host: a\r\n", start))) << start;
  }
  for (const char* const line : {"Host\r\n", "Host : a\r\n", ": a\r\n", "Ho st: a\r\n", "X: \x01\r\n", "X: a\x7F\r\n",
                                 "X\xE9: a\r\n", "Connection: a b\r\n"}) {
    EXPECT_FALSE(reads(request(line))) << line;
  }
  Incoming message;
  for (const char* const answer : {"HTTP/1.1 20\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n",
                                   "HTTP/1.1 200OK\r\n\r\n", "HTTP/1.1 099 No\r\n\r\n", "HTTP/1.1 -20 No\r\n\r\n",
                                   "HTTP/2.0 200 OK\r\n\r\n", "200 OK\r\n\r\n", "HTTP/1.1 200 O\x01\r\n\r\n"}) {
    EXPECT_FALSE(message.read_answer(answer, false)) << answer;
  }
}

// Field values are looked at eight bytes at a time; a bad one must be found wherever it stands.
TEST(Incoming, RefusesControlCharactersAnywhereInAValue) {
  for (std::size_t at = 0; at < 24; ++at) {
    for (const char bad : {'\x01', '\x1F', '\x7F'}) {
      std::string value(25, 'v');
      value[at] = bad;
      EXPECT_FALSE(reads(request("X: " + value + "\r\n"))) << at;
    }
    for (const char good : {'\t', '\x80', '\xFF', ' ', '~'}) {
      std::string value(25, 'v');
      value[at] = good;
      EXPECT_TRUE(reads(request("X: a" + value + "\r\n"))) << at;
    }
  }
}

TEST(Incoming, FramingHasOneReadingOrNone) {
  EXPECT_TRUE(is_clear(""));
  EXPECT_TRUE(is_clear("Content-Length: 18446744073709551615\r\n"));
  EXPECT_TRUE(is_clear("transfer-encoding: Chunked\r\n"));
  for (const char* const lines :
       {"Content-Length: 1\r\nContent-Length: 1\r\n", "Content-Length: 1, 1\r\n", "Content-Length: +1\r\n",
        "Content-Length: -1\r\n", "Content-Length:\r\n", "Content-Length: 1 1\r\n", "Content-Length: 0x1\r\n",
        "Content-Length: 18446744073709551616\r\n", "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\n"}) {
    EXPECT_FALSE(is_clear(lines)) << lines;
  }
  EXPECT_FALSE(is_clear("Transfer-Encoding: chunked\r\n", "POST / HTTP/1.0\r\n"));
}

TEST(Incoming, ConnectionsAreKeptAsBothSay) {
  const auto kept = [](const std::string& lines, const std::string& version) {
    Incoming message;
    EXPECT_TRUE(message.read_request(request(lines, "GET / HTTP/" + version + "\r\n")));
    return message.keep_alive();
  };
  EXPECT_TRUE(kept("", "1.1"));
  EXPECT_FALSE(kept("", "1.0"));
  EXPECT_TRUE(kept("Connection: Keep-Alive\r\n", "1.0"));
  EXPECT_FALSE(kept("Connection: x, Close\r\n", "1.1"));
  EXPECT_FALSE(kept("Connection: keep-alive\r\nProxy-Connection: close\r\n", "1.0"));
}

// Everything that `message` takes of `bytes`, which come `step` at a time; empty: malformed.
std::optional<std::string> body_of(Incoming& message, std::string_view bytes, std::size_t step) {
  std::string body;
  std::size_t used = 0;
  for (std::size_t end = 0; end < bytes.size() && !message.is_done();) {
    end = std::min(bytes.size(), end + step);
    for (;;) {
      const Incoming::Step taken = message.take(bytes.substr(used, end - used));
      if (taken.malformed) return std::nullopt;
      used += taken.skipped + taken.piece.size();
      body += taken.piece;
      if (taken.piece.empty()) break;
    }
  }
  return body + "|" + std::string(bytes.substr(used));
}

TEST(Incoming, BodiesWithALengthEndThere) {
  for (const std::size_t step : {1U, 2U, 100U}) {
    Incoming message;
    ASSERT_TRUE(message.read_request(request("Content-Length: 5\r\n")));
    EXPECT_EQ(body_of(message, "abcdeGET", step), "abcde|GET");
    EXPECT_TRUE(message.is_done());
  }
}

TEST(Incoming, ChunksAreJoinedAndTrailersKeptApart) {
  const std::string chunks =
      "3\r\nabc\r\n00A;x=\"y\";z\r\n0123456789\r\n1 ; q\r\nd\r\n0\r\nX-Sum: 1\r\nx-sum:2\r\n\r\nGET";
  for (std::size_t step = 1; step <= chunks.size(); ++step) {
    Incoming message;
    ASSERT_TRUE(message.read_request(request("Transfer-Encoding: chunked\r\n")));
    EXPECT_EQ(body_of(message, chunks, step), "abc0123456789d|GET") << step;
    EXPECT_TRUE(message.is_done());
    EXPECT_THAT(message.trailers(), ElementsAre(http::Header{"X-Sum", "1"}, http::Header{"x-sum", "2"}));
  }
}

TEST(Incoming, ChunksWithMoreThanOneReadingAreRefused) {
  for (const std::string& chunks : {std::string("zz\r\n"),
                                    std::string("-1\r\n"),
                                    std::string("+1\r\n"),
                                    std::string("\r\n"),
                                    std::string("4\nwiki\r\n"),
                                    std::string("4\r\nwikipedia"),
                                    std::string("4;\x01\r\n"),
                                    std::string("4 wiki\r\n"),
                                    std::string("0x4\r\n"),
                                    std::string("fffffffffffffffff\r\n"),
                                    std::string("4;\r\r\n"),
                                    std::string("4\r\nwiki\n0\r\n\r\n"),
                                    std::string("4\r\nwiki\rX"),
                                    "1;" + std::string(5'000, 'x'),
                                    std::string("0\r\nX\r\n\r\n"),
                                    std::string("0\r\nX : y\r\n\r\n"),
                                    std::string("0\r\n X: y\r\n\r\n"),
                                    std::string("0\r\nX: y\n\r\n"),
                                    std::string("0\r\nX: \x01\r\n\r\n"),
                                    "0\r\nX: " + std::string(20'000, 'x')}) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}, chunks.size()}) {
      Incoming message;
      ASSERT_TRUE(message.read_request(request("Transfer-Encoding: chunked\r\n")));
      EXPECT_EQ(body_of(message, chunks, step), std::nullopt) << chunks.substr(0, 40) << " by " << step;
      EXPECT_FALSE(message.is_done());
    }
  }
}

TEST(Incoming, AnAnswerWithoutALengthEndsWithItsConnection) {
  Incoming message;
  ASSERT_TRUE(message.read_answer("HTTP/1.1 200 OK\r\n\r\n", false));
  EXPECT_FALSE(message.is_done());
  EXPECT_FALSE(message.keep_alive());
  EXPECT_EQ(body_of(message, "abc", 1), "abc|");
  EXPECT_TRUE(message.end_with_connection());
  ASSERT_TRUE(message.read_answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", false));
  EXPECT_FALSE(message.end_with_connection());
}

TEST(Incoming, AnswersThatHaveNoBody) {
  Incoming message;
  for (const char* const status : {"100", "101", "103", "204", "304"}) {
    ASSERT_TRUE(message.read_answer("HTTP/1.1 " + std::string(status) + " X\r\nContent-Length: 5\r\n\r\n", false));
    EXPECT_TRUE(message.is_done()) << status;
    EXPECT_EQ(message.content_length(), 5U);
  }
  ASSERT_TRUE(message.read_answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true));
  EXPECT_TRUE(message.is_done());
  EXPECT_TRUE(message.keep_alive());
}

}  // namespace incoming_test
}  // namespace once::proxy
