// Proxies and balancers in front: whose word counts, and who the client is.
#include "proxy_test.hpp"

namespace once::proxy {
namespace balancers_test {

using ::testing::HasSubstr;

class BalancersTest : public ProxyTest {
 protected:
  // Requests come from 127.0.0.1.
  void trust(const std::string& network) { options.trusted_proxies = {parse_network(network, "x")}; }
  Message seen(const std::string& lines) {
    ask("GET /a HTTP/1.1\r\nHost: a\r\n" + lines + "\r\n");
    return request(runs() - 1);
  }
  std::string logged_client() {
    const std::lock_guard lock(mutex);
    return log.back().client;
  }
  static std::string redirect(const Message& request) {
    return answer_text("303 See Other", "", "Location: " + request.header("X-Forwarded-Proto") + "://shop/1\r\n");
  }
};

constexpr const char* told =
    "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\nX-Forwarded-Port: 443\r\n"
    "Forwarded: for=1.2.3.4\r\n";

TEST_F(BalancersTest, TheWordOfThoseWhoAreTrustedGoesOn) {
  trust("127.0.0.0/8");
  start(counting());
  const Message request = seen(told);
  EXPECT_EQ(request.header("X-Forwarded-For"), "198.51.100.7, 127.0.0.1");
  EXPECT_EQ(request.header("X-Forwarded-Proto"), "https");
  EXPECT_EQ(request.header("X-Forwarded-Host"), "shop");
  EXPECT_EQ(request.header("X-Forwarded-Port"), "443");
  EXPECT_EQ(request.header("Forwarded"), "for=1.2.3.4");
  EXPECT_EQ(logged_client(), "198.51.100.7");
  // Other schemes, or two of them, are not passed on.
  EXPECT_EQ(seen("X-Forwarded-Proto: ftp\r\n").header("X-Forwarded-Proto"), "http");
  EXPECT_EQ(seen("X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n").header("X-Forwarded-Proto"), "http");
  EXPECT_EQ(logged_client(), "127.0.0.1");
}

TEST_F(BalancersTest, ThatOfOthersDoesNot) {
  trust("10.0.0.0/8");
  start(counting());
  const Message request = seen(told);
  EXPECT_EQ(request.header("X-Forwarded-For"), "198.51.100.7, 127.0.0.1");
  EXPECT_EQ(request.header("X-Forwarded-Proto"), "http");
  for (const char* const name : {"X-Forwarded-Host", "X-Forwarded-Port", "Forwarded"}) {
    EXPECT_EQ(request.header(name), "") << name;
  }
  EXPECT_EQ(logged_client(), "127.0.0.1");
}

// Seen before: the redirect to http:// was stored, and replayed for a day.
TEST_F(BalancersTest, BehindOneThatEndsTlsTheRedirectIsToHttps) {
  trust("127.0.0.1");
  start([this](Line& line) {
    while (auto request = line.read_request()) {
      const std::string answer = redirect(*request);
      got(std::move(*request));
      line.write(answer);
    }
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ask(post("k", "a", "X-Forwarded-Proto: https\r\n")).header("Location"), "https://shop/1");
  }
  EXPECT_EQ(runs(), 1U);
}

TEST_F(BalancersTest, TheProxyProtocolSaysWhoTheClientIs) {
  options.proxy_protocol = {parse_network("127.0.0.1", "x")};
  options.threads = 1;
  start(counting());
  // Version 2, with TLS at the balancer.
  const std::string two = std::string("\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x14", 16) +
                          std::string("\xC0\x00\x02\x01\x0A\x00\x00\x01\x30\x39\x01\xBB", 12) +
                          std::string("\x20\x00\x05\x01\x00\x00\x00\x00", 8);
  const std::string one = "PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n";
  for (const std::string& header : {one, two}) {
    Line line = client();
    for (const char byte : header) line.write(std::string(1, byte));
    line.write(post("") + post(""));
    EXPECT_EQ(line.read_message()->status(), 201U);
    EXPECT_EQ(line.read_message()->status(), 201U);
    const Message request = this->request(runs() - 1);
    EXPECT_EQ(request.header("X-Forwarded-For"), "192.0.2.1");
    EXPECT_EQ(request.header("X-Forwarded-Proto"), header == two ? "https" : "http");
    EXPECT_EQ(logged(runs() - 1).client, "192.0.2.1");
  }
  // The balancer itself, which looks at our health.
  Line probe = client();
  probe.write("PROXY UNKNOWN\r\n" + post(""));
  EXPECT_EQ(probe.read_message()->status(), 201U);
  EXPECT_EQ(logged(4).client, "127.0.0.1");
}

TEST_F(BalancersTest, WhoHasToSpeakTheProxyProtocolAndDoesNotIsLeft) {
  options.proxy_protocol = {parse_network("127.0.0.1", "x")};
  options.timeouts.head = Millis{200};
  options.metrics = std::make_shared<Metrics>();
  std::string notices;
  options.on_notice = [&](std::string_view text) {
    const std::lock_guard lock(mutex);
    notices += text;
  };
  start(counting());
  Line plain = client();
  plain.write(post(""));
  EXPECT_EQ(plain.read_all(), "");
  Line slow = client();
  slow.write("PROXY TCP4 192.0.2.1");
  EXPECT_EQ(slow.read_all(), "");
  EXPECT_EQ(runs(), 0U);
  EXPECT_THAT(options.metrics->text(0), HasSubstr("{listener=\"clients\",reason=\"proxy-header\"} 2\n"));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(notices, HasSubstr("no connection with 127.0.0.1: it does not begin with the PROXY protocol"));
}

TEST_F(BalancersTest, OthersAreNotAskedForTheProxyProtocol) {
  options.proxy_protocol = {parse_network("10.0.0.0/8", "x")};
  start(counting());
  EXPECT_EQ(ask(post("")).status(), 201U);
  EXPECT_EQ(ask("PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n" + post("")).status(), 400U);
}

TEST_F(BalancersTest, AClientHasSoManyConnections) {
  options.max_connections_per_client = 2;
  options.proxy_protocol = {parse_network("127.0.0.1", "x")};
  options.metrics = std::make_shared<Metrics>();
  start(counting());
  const auto connect = [&](const std::string& address) {
    Line line = client();
    line.write("PROXY TCP4 " + address + " 10.0.0.1 56324 443\r\n" + post(""));
    return line;
  };
  Line first = connect("192.0.2.1");
  Line second = connect("192.0.2.1");
  EXPECT_TRUE(first.read_message());
  EXPECT_TRUE(second.read_message());
  EXPECT_EQ(connect("192.0.2.1").read_all(), "");
  EXPECT_TRUE(connect("192.0.2.2").read_message());
  EXPECT_THAT(options.metrics->text(0), HasSubstr("once_proxy_refused_connections_total 1\n"));
  options.trusted_proxies = {parse_network("192.0.2.1", "x")};  // Many are behind it.
  start(counting());
  std::vector<Line> many;
  for (int i = 0; i < 5; ++i) many.push_back(connect("192.0.2.1"));
  for (Line& line : many) EXPECT_TRUE(line.read_message());
}

}  // namespace balancers_test
}  // namespace once::proxy
