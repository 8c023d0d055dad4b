#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "aws/http_reader.hpp"

namespace once::aws {
namespace wire_reader_test {

using Status = HttpReader::Status;

HttpReader make_reader() { return {1000, 10'000}; }

// An answer and what it says; `rest` bytes of the text lie behind its end.
struct Good {
  const char* text;
  int status;
  const char* body;
  bool reusable = true;
  bool ends_by_close = false;
};

const std::vector<Good> good_ones = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDate: today\r\n\r\nhello", 200, "hello"},
    {"HTTP/1.1 200 OK\r\ncontent-LENGTH:5\r\n\r\nhello", 200, "hello"},
    {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, ""},
    {"HTTP/1.1 400 Bad Request\r\nContent-Length:  2 \t\r\nConnection: close\r\n\r\n{}", 400, "{}", false},
    {"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: upgrade, Close\r\n\r\n{}", 400, "{}", false},
    {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", false},
    {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}", 200, "{}"},
    {"HTTP/1.1 204 No Content\r\n\r\n", 204, ""},
    {"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", 304, ""},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
     "2\r\n\r\nok",
     200, "ok"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n00A;a=\"b\"\r\n, my world\r\n0\r\nTrailer: "
     "x\r\n\r\n",
     200, "hello, my world"},
    {"HTTP/1.1 200 OK\r\n\r\nall there is", 200, "all there is", false, true},
};

TEST(WireReader, ReadsAnswersHoweverTheyAreCut) {
  for (const Good& good : good_ones) {
    SCOPED_TRACE(good.text);
    const std::string_view text = good.text;
    for (std::size_t first = 0; first <= text.size(); ++first) {
      for (const std::size_t step : {std::size_t{1}, text.size()}) {
        HttpReader reader = make_reader();
        reader.begin();
        reader.feed(text.substr(0, first));
        for (std::size_t at = first; at < text.size(); at += step) {
          ASSERT_EQ(reader.status(), Status::more) << "at " << at;
          reader.feed(text.substr(at, step));
        }
        if (good.ends_by_close) {
          ASSERT_EQ(reader.status(), Status::more);
          reader.end();
        }
        ASSERT_EQ(reader.status(), Status::done) << reader.problem();
        EXPECT_EQ(reader.reusable(), good.reusable);
        const HttpAnswer answer = reader.take();
        EXPECT_EQ(answer.status, good.status);
        EXPECT_EQ(answer.body, good.body);
      }
    }
  }
}

TEST(WireReader, BreaksOffWhereTheAnswerDoes) {
  for (const Good& good : good_ones) {
    if (good.ends_by_close) continue;
    const std::string_view text = good.text;
    for (std::size_t size = 0; size < text.size(); ++size) {
      HttpReader reader = make_reader();
      reader.begin();
      reader.feed(text.substr(0, size));
      EXPECT_EQ(reader.end(), Status::failed) << text.substr(0, size);
      EXPECT_EQ(reader.begun(), size != 0);
    }
  }
}

TEST(WireReader, GivesHeadersInLowerCase) {
  HttpReader reader = make_reader();
  reader.begin();
  ASSERT_EQ(reader.feed("HTTP/1.1 200 OK\r\nDate:  Thu, 01 Jan 1970 00:00:00 GMT \r\nX-Amzn-ErrorType:\r\n"
                        "Content-Length: 0\r\n\r\n"),
            Status::done);
  const HttpAnswer answer = reader.take();
  EXPECT_EQ(answer.header("date"), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(answer.header("x-amzn-errortype"), "");
  ASSERT_EQ(answer.headers.size(), 3U);
}

TEST(WireReader, BytesBehindTheAnswerSpoilTheConnection) {
  HttpReader reader = make_reader();
  reader.begin();
  EXPECT_EQ(reader.feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n"), Status::done);
  EXPECT_FALSE(reader.reusable());
  EXPECT_EQ(reader.take().body, "ok");
}

TEST(WireReader, OneReaderReadsManyAnswers) {
  HttpReader reader = make_reader();
  for (int round = 0; round < 3; ++round) {
    for (const Good& good : good_ones) {
      reader.begin();
      reader.feed(good.text);
      if (good.ends_by_close) reader.end();
      ASSERT_EQ(reader.status(), Status::done);
      EXPECT_EQ(reader.take().body, good.body);
    }
  }
}

TEST(WireReader, RefusesWhatIsNoAnswer) {
  const std::string endless(1001, 'a');
  const std::vector<std::pair<std::string, std::string>> bad_ones = {
      {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n\r\n", "is not HTTP/1.1"},
      {"HTTP/2.0 200 OK\r\n\r\n", "is not HTTP/1.1"},
      {"HTTP/1.1 2x0 OK\r\n\r\n", "is not HTTP/1.1"},
      {"HTTP/1.1 2000 OK\r\n\r\n", "is not HTTP/1.1"},
      {"HTTP/1.1 099 OK\r\n\r\n", "is not HTTP/1.1"},
      {"\r\n\r\n\r\n", "is not HTTP/1.1"},
      {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "switches protocols"},
      {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "has a malformed header"},
      {"HTTP/1.1 200 OK\r\n: x\r\n\r\n", "has a malformed header"},
      {"HTTP/1.1 200 OK\r\nName : x\r\n\r\n", "has a malformed header"},
      {"HTTP/1.1 200 OK\r\nName: x\r\n folded\r\n\r\n", "has a malformed header"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n", "has a malformed Content-Length"},
      {"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", "has a malformed Content-Length"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n", "has a malformed Content-Length"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", "has a malformed Content-Length"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "has both a length and chunks"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "has an encoding other than chunked"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "has a malformed chunk"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", "has a malformed chunk"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\n", "has a malformed chunk"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n", "has a malformed chunk"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "has a malformed chunk"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + endless, "has an endless line"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + endless.substr(0, 600) +
           "\r\nB: " + endless.substr(0, 600) + "\r\n",
       "has an endless trailer"},
      {"HTTP/1.1 200 OK\r\nA: " + endless + "\r\n\r\n", "has a head of more than 1000 bytes"},
      {"HTTP/1.1 200 OK\r\nA: " + endless, "has a head of more than 1000 bytes"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10001\r\n\r\n", "has a body of more than 10000 bytes"},
      {"HTTP/1.1 200 OK\r\n\r\n" + std::string(10'001, 'x'), "has a body of more than 10000 bytes"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n" + std::string(10'001, 'x'),
       "has a body of more than 10000 bytes"},
  };
  for (const auto& [text, problem] : bad_ones) {
    SCOPED_TRACE(text.substr(0, 100));
    HttpReader whole = make_reader();
    whole.begin();
    EXPECT_EQ(whole.feed(text), Status::failed);
    EXPECT_EQ(whole.problem(), problem);
    EXPECT_FALSE(whole.reusable());
    HttpReader slowly = make_reader();
    slowly.begin();
    for (const char c : text) slowly.feed({&c, 1});
    EXPECT_EQ(slowly.status(), Status::failed);
    EXPECT_EQ(slowly.problem(), problem);
  }
}

}  // namespace wire_reader_test
}  // namespace once::aws
