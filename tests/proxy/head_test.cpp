// Heads: which are accepted or refused, and how they are written.
#include "frontends/proxy/head.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace head_test {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = HeadScan::Kind;

TEST(ScanHead, FindsTheEnd) {
  const std::string head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  const HeadScan scan = scan_head(head + "body\n\0");
  EXPECT_EQ(scan.kind, Kind::complete);
  EXPECT_EQ(scan.bytes, head.size());
}

TEST(ScanHead, GoesOnWhereverItWasCut) {
  const std::string head = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
  for (std::size_t cut = 0; cut < head.size(); ++cut) {
    const HeadScan part = scan_head(std::string_view(head).substr(0, cut));
    ASSERT_EQ(part.kind, Kind::incomplete) << cut;
    const HeadScan whole = scan_head(head, part.bytes);
    ASSERT_EQ(whole.kind, Kind::complete) << cut;
    ASSERT_EQ(whole.bytes, head.size()) << cut;
  }
}

TEST(ScanHead, RefusesWhatParsersDisagreeAbout) {
  const std::string start = "GET / HTTP/1.1\r\n";
  for (const std::string& rest :
       {std::string("Host: a\n\n"), std::string("Host: a\r\r\n\r\n"), std::string("A: b\rC: d"),
        std::string("A: b\r\n c\r\n\r\n"), std::string("A: b\r\n\tc\r\n\r\n"), std::string(" A: b\r\n\r\n"),
        std::string("A: \0\r\n\r\n", 8), std::string("\n")}) {
    EXPECT_EQ(scan_head(start + rest).kind, Kind::malformed) << rest;
    // Byte by byte as well.
    HeadScan scan;
    for (std::size_t size = 0; size <= start.size() + rest.size() && scan.kind == Kind::incomplete; ++size) {
      scan = scan_head((start + rest).substr(0, size), scan.bytes);
    }
    EXPECT_EQ(scan.kind, Kind::malformed) << rest;
  }
}

RequestHead request(std::string target, std::vector<http::HeaderView> headers = {{"Host", "a"}}) {
  return {.method = "POST", .target = std::move(target), .host = {}, .version = 11, .headers = std::move(headers)};
}

class ReadRequest : public ::testing::Test {
 protected:
  // What is wrong: its status and why. Empty: nothing.
  std::string fault(const std::string& line, const std::string& lines = "Host: a\r\n") {
    const auto refusal = read_request(line + "\r\n" + lines + "\r\n", message, head);
    return refusal ? std::to_string(refusal->status) + ' ' + std::string(refusal->detail) : std::string();
  }

  Incoming message;
  RequestHead head;
};

TEST_F(ReadRequest, AbsoluteTargetsBecomePaths) {
  EXPECT_EQ(fault("POST http://shop:80/a?b HTTP/1.1"), "");
  EXPECT_EQ(head.target, "/a?b");
  EXPECT_EQ(head.host, "shop:80");
  EXPECT_THAT(head.headers, ElementsAre(Field(&http::HeaderView::value, "shop:80")));
  EXPECT_EQ(fault("POST HTTP://shop?b HTTP/1.1"), "");
  EXPECT_EQ(head.target, "/?b");
  EXPECT_EQ(fault("POST //h HTTP/1.1"), "");
  EXPECT_EQ(head.target, "//h");
  EXPECT_EQ(head.host, "");
  for (const char* const bad : {"a", "*", "http://", "http://u@h/", "ftp://h/", "h:80"}) {
    EXPECT_THAT(fault("POST " + std::string(bad) + " HTTP/1.1"), HasSubstr("400 The request target")) << bad;
  }
  EXPECT_EQ(fault("OPTIONS * HTTP/1.1"), "");
}

TEST_F(ReadRequest, SaysWhatIsWrong) {
  const std::string post = "POST / HTTP/1.1";
  const std::string host = "Host: a\r\n";
  const std::string length = "Content-Length: 1\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(fault(post, length), "400 The request must have exactly one Host header.");
  EXPECT_EQ(fault(post, host + host), "400 The request must have exactly one Host header.");
  EXPECT_EQ(fault("POST / HTTP/1.0", ""), "");
  EXPECT_EQ(fault(post, host + length + length), "400 The request has more than one Content-Length.");
  EXPECT_EQ(fault(post, host + "Content-Length: 1a\r\n"), "400 Content-Length is not a number.");
  EXPECT_EQ(fault(post, host + "Content-Length: 99999999999999999999\r\n"), "400 Content-Length is not a number.");
  EXPECT_EQ(fault(post, host + length + chunked), "400 The request has both Content-Length and Transfer-Encoding.");
  EXPECT_EQ(fault("POST / HTTP/1.0", host + chunked), "400 HTTP/1.0 has no Transfer-Encoding.");
  for (const std::string& codings : {chunked + chunked, chunked + "Transfer-Encoding: gzip\r\n"}) {
    EXPECT_EQ(fault(post, host + codings), "400 The request has more than one Transfer-Encoding.");
  }
  EXPECT_EQ(fault(post, host + "Transfer-Encoding: gzip, chunked\r\n"),
            "400 The only supported Transfer-Encoding is chunked.");
  EXPECT_EQ(fault("CONNECT a:1 HTTP/1.1"), "501 CONNECT is not supported.");
  EXPECT_EQ(head.method, "CONNECT");
  EXPECT_EQ(fault("POST / HTTP/2.0"), "505 Only HTTP/1.0 and HTTP/1.1 are supported.");
  EXPECT_EQ(fault("POST /"), "400 The request line or a header cannot be read.");
  EXPECT_EQ(fault(post, host + "A b: c\r\n"), "400 The request line or a header cannot be read.");
  // Nothing is left of the one before.
  EXPECT_EQ(head.method, "");
  EXPECT_EQ(head.target, "");
  EXPECT_TRUE(head.headers.empty());
}

// As nginx (ngx_http_validate_host), and stricter: what RFC 3986, section 3.2.2, has no place for.
TEST_F(ReadRequest, HostsAreHosts) {
  for (const char* const good :
       {"a", "a:80", "a:", "a.b.", ".a", "A-b_c~1", "1.2.3.4:5", "[::1]", "[::1]:80", "a%20b", "a!$&'()*+,;=b"}) {
    EXPECT_EQ(fault("GET / HTTP/1.1", "Host: " + std::string(good) + "\r\n"), "") << good;
    EXPECT_EQ(fault("GET http://" + std::string(good) + "/ HTTP/1.1"), "") << good;
  }
  for (const char* const bad : {"",    ".",     "..",    "a..b", "a/b", "a\\b",   "a b", "a\tb", ":80",
                                "a:b", "a:1:2", "a:80/", "[::1", "[]",  "[::1]a", "[g]", "u@a",  "a?b",
                                "a#b", "a,b c", "\"a\"", "<a>",  "a|b", "a^b",    "{a}", "a`b",  "\xc3\xa4"}) {
    EXPECT_EQ(fault("GET / HTTP/1.1", "Host: " + std::string(bad) + "\r\n"),
              "400 The Host header does not name a host.")
        << bad;
  }
  EXPECT_THAT(fault("GET http://a..b/ HTTP/1.1"), HasSubstr("400 The request target has no host"));
  EXPECT_THAT(fault("GET /x HTTP/1.0", "Host: a/b\r\n"), HasSubstr("400 The Host header"));
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST_F(ReadRequest, LinesAndNamesHaveABound) {
  const std::string get = "GET / HTTP/1.1";
  const std::string host = "Host: a\r\n";
  EXPECT_EQ(fault(get, host + repeated("a:\r\n", Incoming::most_lines - 1)), "");
  EXPECT_THAT(fault(get, host + repeated("a:\r\n", Incoming::most_lines)),
              HasSubstr("431 The request has too many headers"));
  for (const std::string name : {"Connection", "Trailer"}) {
    EXPECT_EQ(fault(get, host + name + ": a" + repeated(", b,", Incoming::most_listed - 1) + "\r\n"), "");
    EXPECT_THAT(fault(get, host + name + ": a" + repeated(",b", Incoming::most_listed) + "\r\n"), HasSubstr("431 "));
  }
  const std::string answer = "HTTP/1.1 200 OK\r\n";
  EXPECT_TRUE(message.read_answer(answer + repeated("a:\r\n", Incoming::most_lines) + "\r\n", false));
  EXPECT_FALSE(message.read_answer(answer + repeated("a:\r\n", Incoming::most_lines + 1) + "\r\n", false));
}

TEST(AnnouncedTrailers, LeaveOutWhatTheRulesGoBy) {
  http::Options rules{.principal = http::Principal::header("X-Tenant")};
  rules.key_header = "X-Payment-Id";
  rules.fingerprint_headers = {"X-Version"};
  const std::vector<http::HeaderView> headers{
      {"Host", "a"}, {"Trailer", "x-payment-id, X-Sum, X-TENANT, x-version, idempotency-key, host"}};
  EXPECT_EQ(joined(announced_trailers(headers, &rules)), "X-Sum");
  EXPECT_EQ(joined(announced_trailers(headers)), "x-payment-id, X-Sum, X-TENANT, x-version");
  // Nor what servers take for one of them.
  EXPECT_EQ(joined(announced_trailers(
                {{"Host", "a"},
                 {"Trailer",
                  "Once_Owner, once.token, X_Forwarded_For, Content_Length, X_Payment_Id, X-Sum, X_Tenant, "
                  "X_Version, Client_Cert"}},
                &rules)),
            "X-Sum");
}

TEST(HasLookAlike, FindsWhatServersTakeForAnother) {
  http::Options rules{.principal = http::Principal::headers({"Authorization", "X-Tenant"})};
  rules.fingerprint_headers = {"X_Odd-One"};
  const auto has = [&](std::string_view name) { return has_look_alike({{"Host", "a"}, {name, "b"}}, rules); };
  for (const char* const name : {"X_Forwarded_Proto", "x-forwarded_for", "X_FORWARDED-HOST", "X.Forwarded.Proto",
                                 "X_Forwarded_", "Idempotency_Key", "idempotency.key", "X_Tenant", "x-odd_one",
                                 "Content_Length", "transfer_encoding", "Once_Token", "once.fate"}) {
    EXPECT_TRUE(has(name)) << name;
  }
  for (const char* const name :
       {"X-Forwarded-Proto", "x-forwarded-for", "Idempotency-Key", "IDEMPOTENCY-KEY", "X-Tenant", "X_Odd-One",
        "Content-Length", "X", "_", "X_Forwarded", "XxForwardedxProto", "Idempotency_Kex", "IdempotencyyKey",
        "X_Tenants", "Once-Token", "Onces_a", "My_Own", "Authorization"}) {
    EXPECT_FALSE(has(name)) << name;
  }
  rules.key_field = "id";
  EXPECT_FALSE(has("Idempotency_Key"));
  rules.protect = false;
  EXPECT_FALSE(has("X_Tenant"));
  EXPECT_TRUE(has("X_Forwarded_For"));
}

TEST(WriteRequestHead, DropsWhatIsOfTheConnectionAndAppendsItself) {
  const RequestHead head = request("/a", {{"Host", "shop"},
                                          {"Connection", "keep-alive, X-Hop, Host"},
                                          {"X-Hop", "1"},
                                          {"Keep-Alive", "timeout=5"},
                                          {"TE", "trailers"},
                                          {"Transfer-Encoding", "chunked"},
                                          {"Expect", "100-continue"},
                                          {"X-Forwarded-For", "1.2.3.4"},
                                          {"X-Forwarded-Proto", "gopher"},
                                          {"Via", "1.1 edge"},
                                          {"Idempotency-Key", "k"}});
  EXPECT_EQ(write_request_head(head, {Framing::Kind::chunked, 0}, {.address = "10.0.0.1"}),
            "POST /a HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nX-Forwarded-For: 1.2.3.4, "
            "10.0.0.1\r\nX-Forwarded-Proto: http\r\n"
            "Via: 1.1 edge, 1.1 once\r\nTransfer-Encoding: chunked\r\n\r\n");
}

TEST(WriteRequestHead, HeadersOfOnceComeOnlyFromTheProxy) {
  const RequestHead head =
      request("/a", {{"Host", "shop"}, {"once-token", "9"}, {"Once-Fate", "release"}, {"Oncebox", "1"}});
  const std::string plain = write_request_head(head, {}, {.address = "10.0.0.1", .is_trusted = true});
  EXPECT_EQ(plain.find("once-token"), std::string::npos);
  EXPECT_EQ(plain.find("Once-Fate"), std::string::npos);
  EXPECT_THAT(plain, HasSubstr("\r\nOncebox: 1\r\n"));
  Arrival from{.address = "10.0.0.1"};
  from.of_claim = {{"Once-Token", "17"}};
  const std::string own = write_request_head(head, {}, from);
  EXPECT_THAT(own, HasSubstr("\r\nOnce-Token: 17\r\n"));
  EXPECT_EQ(own.find("once-token"), std::string::npos);
  EXPECT_EQ(joined(announced_trailers({{"Host", "a"}, {"Trailer", "Once-Fate, X-Sum"}})), "X-Sum");
  EXPECT_THAT(forwarded({{"Once-Fate", "hold"}, {"once-owner", "00"}, {"Once-Stored-Key", "01"}, {"A", "b"}}),
              ElementsAre(Field(&http::HeaderView::name, "A")));
}

TEST(KeptFor, HalfOfWhatTheUpstreamAnnounces) {
  const auto of = [](std::vector<http::HeaderView> headers) { return kept_for(headers, Millis{4'000}); };
  EXPECT_EQ(of({}), Millis{4'000});
  EXPECT_EQ(of({{"Keep-Alive", "timeout=2"}}), Millis{1'000});
  EXPECT_EQ(of({{"keep-alive", "max=100, Timeout = 5"}}), Millis{2'500});
  EXPECT_EQ(of({{"Keep-Alive", "timeout=\"1\", max=7"}}), Millis{500});
  EXPECT_EQ(of({{"Keep-Alive", "timeout=30"}}), Millis{4'000}) << "a limit, not a wish";
  EXPECT_EQ(of({{"Keep-Alive", "timeout=0"}}), Millis{0});
  EXPECT_EQ(of({{"Keep-Alive", "timeout=5"}, {"Keep-Alive", "timeout=3"}}), Millis{1'500});
  for (const std::string_view other :
       {"timeout", "timeout=", "timeout=-1", "timeout=x", "timeouts=1", "timeout=99999999999999999999"}) {
    EXPECT_EQ(of({{"Keep-Alive", other}}), Millis{4'000}) << other;
  }
}

TEST(WriteAnswerHead, HasADateOfItsOwnUnlessThereIsOne) {
  const std::string without = write_answer_head(200, {}, {{"A", "b"}}, {Framing::Kind::length, 3}, 11, true);
  EXPECT_THAT(without, HasSubstr("HTTP/1.1 200 OK\r\nA: b\r\nDate: "));
  EXPECT_THAT(without, HasSubstr(" GMT\r\nContent-Length: 3\r\n\r\n"));
  const std::string with = write_answer_head(299, "Fine", {{"date", "d"}}, {}, 10, false);
  EXPECT_EQ(with, "HTTP/1.1 299 Fine\r\ndate: d\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(write_answer_head(200, {}, {}, {}, 10, true), HasSubstr("Connection: keep-alive\r\n"));
}

TEST(ChunkHead, IsHexadecimal) {
  EXPECT_EQ(chunk_head(0), "0\r\n");
  EXPECT_EQ(chunk_head(16384), "4000\r\n");
}

TEST(Problem, IsJson) {
  const http::Answer answer = problem("head-too-large", 431, "T", "D");
  EXPECT_EQ(answer.body, R"({"type":"urn:once:problem:head-too-large","title":"T","status":431,"detail":"D",)"
                         R"("error":{"type":"invalid_request_error","code":"head-too-large","message":"T"}})"
                         "\n");
  EXPECT_EQ(answer.status, 431U);
}

}  // namespace head_test
}  // namespace once::proxy
