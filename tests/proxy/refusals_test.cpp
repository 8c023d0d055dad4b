// What is no request, or might be two: refused with an answer, and the connection closed.
#include <poll.h>

#include <filesystem>
#include <fstream>

#include <boost/asio/local/stream_protocol.hpp>

#include "../sqlite/scratch_directory.hpp"
#include "frontends/proxy/listening.hpp"
#include "proxy_test.hpp"

namespace once::proxy {
namespace refusals_test {

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

using ::testing::HasSubstr;

struct Refused {
  const char* name;
  std::string bytes;
  unsigned status;
  const char* problem;
};

const std::string start_line = "POST /charges HTTP/1.1\r\n";
const std::string hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

std::vector<Refused> refused() {
  const std::string host = start_line + "Host: a\r\n";
  const std::string chunked = host + "Transfer-Encoding: chunked\r\n";
  return {
      {"CL.TE", chunked + "Content-Length: 6\r\n\r\n0\r\n\r\n" + hidden, 400, "malformed-request"},
      {"TE.CL", host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5c\r\n" + hidden, 400,
       "malformed-request"},
      {"TE.TE, two lines", chunked + "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE.TE, twice chunked", chunked + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE: xchunked", host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE: gzip, chunked", host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE: chunked, identity", host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400,
       "malformed-request"},
      {"TE: \"chunked\"", host + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE with a vertical tab", host + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"TE in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"a blank before the colon", host + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"two lengths", host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "malformed-request"},
      {"one length twice", host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400, "malformed-request"},
      {"a list of lengths", host + "Content-Length: 1, 1\r\n\r\na", 400, "malformed-request"},
      {"length with a sign", host + "Content-Length: +1\r\n\r\na", 400, "malformed-request"},
      {"negative length", host + "Content-Length: -1\r\n\r\n", 400, "malformed-request"},
      {"length in hexadecimal", host + "Content-Length: 0x1\r\n\r\na", 400, "malformed-request"},
      {"length over 64 bits", host + "Content-Length: 18446744073709551617\r\n\r\na", 400, "malformed-request"},
      {"empty length", host + "Content-Length: \r\n\r\n", 400, "malformed-request"},
      {"obs-fold", host + "X: a\r\n b\r\n\r\n", 400, "malformed-request"},
      {"obs-fold of TE", host + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, "malformed-request"},
      {"bare LF", "POST / HTTP/1.1\nHost: a\n\n", 400, "malformed-request"},
      {"bare LF in one line", host + "X: a\nY: b\r\n\r\n", 400, "malformed-request"},
      {"bare CR", host + "X: a\rY: b\r\n\r\n", 400, "malformed-request"},
      {"NUL", host + std::string("X: a\0b\r\n\r\n", 10), 400, "malformed-request"},
      {"no colon", host + "X\r\n\r\n", 400, "malformed-request"},
      {"empty name", host + ": a\r\n\r\n", 400, "malformed-request"},
      {"no host", start_line + "\r\n", 400, "malformed-request"},
      {"two hosts", host + "Host: b\r\n\r\n", 400, "malformed-request"},
      {"blank before the method", " " + host + "\r\n", 400, "malformed-request"},
      {"blank in the target", "POST /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"},
      {"no HTTP", "hello\r\n\r\n", 400, "malformed-request"},
      {"target without a slash", "POST a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\n", 505, "version-not-supported"},
      {"CONNECT", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "not-supported"},
      {"a header that is too large", host + "X: " + std::string(40'000, 'x') + "\r\n\r\n", 431, "head-too-large"},
      {"too many headers", host + repeated("a:\r\n", 1'000) + "\r\n", 431, "head-too-large"},
      {"too many names in Connection", host + "Connection: a" + repeated(",a", 100) + "\r\n\r\n", 431,
       "head-too-large"},
      {"too many names in two lines", host + repeated("Connection: a" + repeated(",a", 50) + "\r\n", 2) + "\r\n", 431,
       "head-too-large"},
      {"too many names in Trailer", host + "Trailer: a" + repeated(",a", 100) + "\r\n\r\n", 431, "head-too-large"},
      {"an empty host", "POST / HTTP/1.1\r\nHost:\r\n\r\n", 400, "malformed-request"},
      {"a host with a path", "POST / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "malformed-request"},
      {"a head without an end", host + "X: " + std::string(40'000, 'x'), 431, "head-too-large"},
  };
}

TEST_F(ProxyTest, MalformedHeadsAreRefused) {
  start(counting());
  const auto cases = refused();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Line line = client();
    line.write(cases[i].bytes);
    const auto answer = line.read_message();
    ASSERT_TRUE(answer) << cases[i].name;
    EXPECT_EQ(answer->status(), cases[i].status) << cases[i].name;
    EXPECT_EQ(answer->header("Content-Type"), "application/problem+json") << cases[i].name;
    EXPECT_THAT(answer->body, HasSubstr(std::string("urn:once:problem:") + cases[i].problem + "\"")) << cases[i].name;
    EXPECT_EQ(answer->header("Connection"), "close") << cases[i].name;
    EXPECT_EQ(line.read_all(), "") << cases[i].name;
    line.close();
    EXPECT_EQ(logged(i).outcome, RequestOutcome::refused) << cases[i].name;
  }
  EXPECT_EQ(runs(), 0U);
  EXPECT_EQ(upstream->connections(), 0U);
}

TEST_F(ProxyTest, HeadersThatServersTakeForOthersAreRefused) {
  start(counting());
  std::size_t at = 0;
  for (const std::string header :
       {"X_Forwarded_Proto: https\r\n", "Idempotency_Key: k\r\n", "idempotency-key_: k\r\n"}) {
    for (const std::string& request : {post("", "a", header), post("k" + header.substr(0, 1), "a", header)}) {
      const bool is_other = header.starts_with("idempotency-key_");
      const Message answer = ask(request);
      EXPECT_EQ(answer.status(), is_other ? 201U : 400U) << header;
      EXPECT_EQ(answer.body.find("malformed-request") != std::string::npos, !is_other);
      EXPECT_EQ(logged(at++).outcome == RequestOutcome::refused, !is_other);
    }
  }
  EXPECT_EQ(runs(), 2U);
}

TEST_F(ProxyTest, MalformedChunksAreRefused) {
  start(counting());
  const std::vector<std::string> bodies{"zz\r\n",
                                        "-1\r\n",
                                        "4\nwiki\r\n0\r\n\r\n",
                                        "4\r\nwikipedia\r\n",
                                        "4;\x01\r\nwiki",
                                        "4 wiki\r\n",
                                        "fffffffffffffffff\r\n",
                                        "0x4\r\nwiki\r\n\r\n",
                                        "4\r\nwiki0\r\n\r\n",
                                        "4;\nfoo\r\nwiki\r\n0\r\n\r\n",
                                        "4;" + std::string(200'000, 'x') + "\r\nwiki\r\n0\r\n\r\n"};
  std::size_t at = 0;
  for (const std::string& body : bodies) {
    for (const std::string key : {"Idempotency-Key: k\r\n", ""}) {
      Line line = client();
      line.write(start_line + "Host: a\r\nTransfer-Encoding: chunked\r\n" + key + "\r\n" + body);
      const auto answer = line.read_message();
      ASSERT_TRUE(answer) << body;
      EXPECT_EQ(answer->status(), 400U) << body << key;
      EXPECT_EQ(answer->header("Connection"), "close") << body;
      EXPECT_EQ(line.read_all(), "") << body;
      line.close();
      EXPECT_EQ(logged(at++).outcome, RequestOutcome::refused) << body << key;
    }
  }
  EXPECT_EQ(runs(), 0U);  // No upstream has seen the end of any of them.
}

TEST_F(ProxyTest, HeadsThatDoNotComeInTimeAreRefused) {
  options.timeouts.head = Millis{40};
  start(counting());
  Line line = client();
  line.write("POST / HTTP/1.1\r\nHo");
  const auto answer = line.read_message();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), 408U);
  EXPECT_THAT(answer->body, HasSubstr("urn:once:problem:request-timeout"));
  Line silent = client();
  EXPECT_EQ(silent.read_all(), "");
}

// Byte after byte, each in time and none of the body: what frames it has no end.
TEST_F(ProxyTest, ABodyThatTricklesHasTheTimeOfAWholeOne) {
  options.timeouts.body = Millis{200};
  start(counting());
  Line line = client();
  line.write("POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  pollfd answered{.fd = line.fd(), .events = POLLIN, .revents = 0};
  for (int i = 0; i < 4'000 && ::poll(&answered, 1, 5) == 0; ++i) line.write("a");
  EXPECT_EQ(line.read_message()->status(), 408U);
  EXPECT_EQ(logged(0).cause, "client-timeout");
  EXPECT_EQ(runs(), 0U);
}

TEST_F(ProxyTest, OptionsAreChecked) {
  const auto refuses = [&](auto change) {
    Engine other({.store = store});
    ProxyOptions wrong{.listen = {"127.0.0.1", 0}, .upstreams = {{.address = {"127.0.0.1", 1}}}};
    change(wrong);
    try {
      const Proxy proxy_of_it(other, rules, wrong);
    } catch (const Exception& error) {
      return error.kind();
    }
    return ErrorKind::corrupt;
  };
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.upstreams.clear(); }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.admin_certificate = {"cert.pem", "key.pem"}; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) {
              o.admin = Address{"127.0.0.1", 0};
              o.admin_certificate = {"cert.pem", ""};
            }),
            ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.upstreams.front().address.port = 0; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.health_path = "healthz"; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.max_connections = 0; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.timeouts.body = Millis{0}; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.max_head_bytes = 10; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.threads = 1'000; }), ErrorKind::misuse);
  EXPECT_EQ(refuses([](ProxyOptions& o) { o.listen_mode = 0600; }), ErrorKind::misuse) << "there is no file";
  start(counting());
  EXPECT_EQ(refuses([&](ProxyOptions& o) { o.listen.port = proxy->port(); }), ErrorKind::unavailable);
}

TEST(ParseAddress, TakesHostAndPort) {
  const auto text = [](const char* address) {
    const Address parsed = parse_address(address, "--listen");
    return parsed.host + " " + std::to_string(parsed.port);
  };
  EXPECT_EQ(text("127.0.0.1:80"), "127.0.0.1 80");
  EXPECT_EQ(text("[::1]:0"), "::1 0");
  EXPECT_EQ(text("localhost:65535"), "localhost 65535");
  for (const char* const bad : {"", ":", ":80", "a", "a:", "a:65536", "a:-1", "a:8x", "::1:80", "[]:80", "a:80/"}) {
    EXPECT_THROW(static_cast<void>(parse_address(bad, "--listen")), Exception) << bad;
  }
}

TEST(ParseListen, TakesAnAddressOrAUnixSocket) {
  EXPECT_EQ(parse_listen("127.0.0.1:80", "--listen"), (Address{.host = "127.0.0.1", .port = 80}));
  EXPECT_EQ(parse_listen("unix:/run/once.sock", "--listen"), (Address{.socket = "/run/once.sock"}));
  EXPECT_TRUE(is_loopback(parse_listen("unix:/run/once.sock", "--listen")));
  const std::string long_path = "/" + std::string(107, 'a');
  EXPECT_EQ(parse_listen("unix:" + long_path.substr(0, 107), "--listen").socket.size(), 107U);
  for (const std::string& bad : {std::string("unix:"), std::string("unix:once.sock"), std::string("unix:@once"),
                                 "unix:" + long_path, std::string("unix:/a\0b", 9)}) {
    EXPECT_THROW(static_cast<void>(parse_listen(bad, "--listen")), Exception) << bad;
  }
}

TEST(SetMode, IsForSocketsAndFollowsNoLink) {
  const once::testing::Scratch scratch;
  const auto mode = [](const std::string& path) {
    return static_cast<unsigned>(std::filesystem::status(path).permissions());
  };
  const std::string path = scratch.file("once.sock");
  net::io_context io;
  const net::local::stream_protocol::acceptor listening(io, net::local::stream_protocol::endpoint(path));
  EXPECT_FALSE(set_mode(path, 0600));
  EXPECT_EQ(mode(path), 0600U);
  EXPECT_FALSE(set_mode(path, 0666)) << "whatever the umask";
  EXPECT_EQ(mode(path), 0666U);
  const std::string secret = scratch.file("secret");
  std::ofstream(secret) << "mine";
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const std::string link = scratch.file("link.sock");
  std::filesystem::create_symlink(secret, link);
  EXPECT_TRUE(set_mode(link, 0666));
  EXPECT_TRUE(set_mode(secret, 0666));
  EXPECT_EQ(mode(secret), 0400U);
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path, link);
  EXPECT_TRUE(set_mode(link, 0600));
  EXPECT_EQ(mode(path), 0666U);
  EXPECT_TRUE(set_mode(scratch.file("none"), 0600));
}

TEST(ParseService, TakesAUrlWithOrWithoutAPath) {
  const auto text = [](const char* url) {
    const Service parsed = parse_service(url, "--upstream");
    const std::string port = parsed.address.port == 0 ? "" : " " + std::to_string(parsed.address.port);
    return (parsed.tls ? "tls " : "") + parsed.address.host + parsed.address.socket + port +
           (parsed.path.empty() ? "" : " " + parsed.path);
  };
  EXPECT_EQ(text("http://pay/v1"), "pay 80 /v1");
  EXPECT_EQ(text("https://pay:8443/v1.0/a-b_c~/"), "tls pay 8443 /v1.0/a-b_c~");
  EXPECT_EQ(text("http://[::1]/v1"), "::1 80 /v1");
  EXPECT_EQ(text("unix:/run/pay.sock"), "/run/pay.sock");
  EXPECT_EQ(text("http://unix:/run/pay.sock"), "/run/pay.sock");
  EXPECT_EQ(text("http://unix:/run/pay.sock:/v1"), "/run/pay.sock /v1");
  EXPECT_EQ(text("unix:/run/pay.sock:/"), "/run/pay.sock");
  EXPECT_EQ(text("http://127.0.0.1:9000"), "127.0.0.1 9000");
  EXPECT_EQ(text("http://pay/"), "pay 80");
  EXPECT_EQ(text("https://pay"), "tls pay 443");
  EXPECT_EQ(text("https://[::1]"), "tls ::1 443");
  EXPECT_EQ(text("https://[::1]:8443"), "tls ::1 8443");
  for (const char* const bad : {"",
                                "pay:80",
                                "ftp://pay",
                                "http://",
                                "http://pay/a?b",
                                "https://u@pay",
                                "http://pay?q",
                                "http://pay:",
                                "http://::1",
                                "HTTP//pay",
                                "http:///v1",
                                "http://pay/a/../b",
                                "http://pay/.",
                                "http://pay//v1",
                                "http://pay/%2e",
                                "http://pay/a b",
                                "http://pay/v1#x",
                                "https://unix:/run/pay.sock",
                                "unix:pay.sock",
                                "unix:",
                                "unix:/run/pay.sock:v1"}) {
    EXPECT_THROW(static_cast<void>(parse_service(bad, "--upstream")), Exception) << bad;
  }
}

}  // namespace refusals_test
}  // namespace once::proxy
