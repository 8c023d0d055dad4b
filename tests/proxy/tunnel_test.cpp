// WebSocket: the one way through, and all that only looks like it.
#include <sys/socket.h>

#include "proxy_test.hpp"

namespace once::proxy {
namespace tunnel_test {

using ::testing::HasSubstr;

// RFC 6455, section 1.3.
const std::string key_line = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
const std::string upgrade_lines = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
const std::string accepted =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
const std::string asking = "GET /chat HTTP/1.1\r\nHost: shop\r\n" + upgrade_lines + key_line + "\r\n";

TEST_F(ProxyTest, AWebSocketIsATunnelUntilBothSidesHaveEnded) {
  options.metrics = std::make_shared<Metrics>();
  start([&](Line& line) {
    got(line.read_request().value());
    line.write(accepted + "early");
    line.write(line.read_until("ping"));
    arrived.open();
    const std::string rest = line.read_all();  // The client's end gets here, and the answer to it back.
    line.write(rest + "bye");
  });
  Line line = client();
  line.write(asking + "ping");
  const auto answer = line.read_message();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), 101U);
  EXPECT_EQ(answer->header("Upgrade"), "websocket");
  EXPECT_EQ(answer->header("Connection"), "Upgrade");
  EXPECT_EQ(answer->header("Sec-WebSocket-Protocol"), "chat");
  EXPECT_EQ(line.read_bytes(9), "earlyping");
  arrived.wait();
  EXPECT_THAT(options.metrics->text(0), HasSubstr("\nonce_proxy_tunnels 1\n"));
  line.write("last");
  ::shutdown(line.fd(), SHUT_WR);
  EXPECT_EQ(line.read_all(), "lastbye");
  const LogLine logline = logged(0);
  EXPECT_EQ(logline.status, 101U);
  EXPECT_EQ(logline.outcome, RequestOutcome::passed);
  EXPECT_EQ(logline.cause, "");
  EXPECT_EQ(request(0).header("Upgrade"), "websocket");
  EXPECT_EQ(request(0).header("Connection"), "Upgrade");
  EXPECT_THAT(options.metrics->text(0), HasSubstr("\nonce_proxy_tunnels 0\n"));
}

TEST_F(ProxyTest, WhatOnlyLooksLikeAnUpgradeIsARequestWithoutOne) {
  start(counting());
  const std::string get = "GET /chat HTTP/1.1\r\nHost: a\r\n";
  const std::string texts[] = {
      get + upgrade_lines + "\r\n",                                         // No key.
      get + upgrade_lines + "Sec-WebSocket-Key: short\r\n\r\n",             // A wrong one.
      get + "Upgrade: websocket\r\n" + key_line + "\r\n",                   // Connection does not name it.
      get + "Connection: Upgrade\r\nUpgrade: h2c\r\n" + key_line + "\r\n",  // HTTP/2 would dodge everything.
      get + "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n" + key_line + "\r\n",
      get + upgrade_lines + key_line + "Content-Length: 2\r\n\r\nhi",
      get + upgrade_lines + key_line + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "GET /chat HTTP/1.0\r\nHost: a\r\n" + upgrade_lines + key_line + "\r\n",
      post("", "x", upgrade_lines + key_line),
      post("k", "x", upgrade_lines + key_line),
  };
  for (const std::string& text : texts) EXPECT_EQ(ask(text).status(), 201U) << text;
  for (std::size_t i = 0; i < runs(); ++i) {
    EXPECT_EQ(request(i).header("Upgrade"), "") << i;
    EXPECT_EQ(request(i).header("Connection"), "") << i;
  }
  // The key's request was protected like any other.
  EXPECT_EQ(ask(post("k", "x", upgrade_lines + key_line)).header("Idempotent-Replayed"), "true");
}

TEST_F(ProxyTest, AnUpgradeThatIsNotAcceptedOpensNothing) {
  options.threads = 1;
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      const bool first = got(std::move(*message)) == 1;
      line.write(answer_text(first ? "426 Upgrade Required" : "201 Created", "no"));
    }
  });
  Line line = client();
  line.write(asking + post("smuggled"));  // If a tunnel were there, nobody would look at it.
  EXPECT_EQ(line.read_message()->status(), 426U);
  EXPECT_EQ(line.read_message()->status(), 201U);
  EXPECT_EQ(logged(1).outcome, RequestOutcome::executed);
  EXPECT_EQ(request(1).header("Via"), "1.1 once");
  EXPECT_EQ(upstream->connections(), 2U);  // The first one's is not used again.
}

TEST_F(ProxyTest, A101ThatDoesNotFitIsNoAnswer) {
  start([&](Line& line) {
    got(line.read_request().value());
    line.write(said());
    line.read_all();
  });
  say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n");
  EXPECT_EQ(ask(asking).status(), 502U);
  say(accepted);
  EXPECT_EQ(ask("GET /chat HTTP/1.1\r\nHost: a\r\n\r\n").status(), 502U);
  EXPECT_EQ(ask(post("k", "x", upgrade_lines + key_line)).status(), 502U);
  EXPECT_EQ(logged(2).fate, "ambiguous");
  say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
  EXPECT_EQ(ask(asking).status(), 502U);
}

TEST_F(ProxyTest, ATunnelOnWhichNobodySpeaksEnds) {
  options.timeouts.tunnel = Millis{60};
  start([&](Line& line) {
    line.read_request();
    line.write(accepted);
    line.read_all();
    arrived.open();
  });
  Line line = client();
  line.write(asking);
  EXPECT_EQ(line.read_message()->status(), 101U);
  EXPECT_EQ(line.read_all(), "");
  arrived.wait();
  EXPECT_EQ(logged(0).cause, "tunnel-idle");
}

TEST_F(ProxyTest, WhatBreaksOffOnOneSideBreaksOffOnTheOther) {
  start([&](Line& line) {
    line.read_request();
    line.write(accepted);
    line.read_until("go");
    line.reset();
  });
  Line line = client();
  line.write(asking + "go");
  EXPECT_EQ(line.read_message()->status(), 101U);
  EXPECT_EQ(line.read_all(), "");
  EXPECT_EQ(logged(0).cause, "tunnel-broken");
}

TEST_F(ProxyTest, ADrainLeavesTunnelsAloneUntilItsEnd) {
  start([&](Line& line) {
    line.read_request();
    line.write(accepted);
    line.write(line.read_until("ping"));
    line.read_all();
    arrived.open();
  });
  Line line = client();
  line.write(asking);
  EXPECT_EQ(line.read_message()->status(), 101U);
  EXPECT_FALSE(proxy->stop(Millis{1}));
  line.write("ping");
  EXPECT_EQ(line.read_bytes(4), "ping");
  proxy.reset();
  EXPECT_EQ(line.read_all(), "");
  arrived.wait();
}

}  // namespace tunnel_test
}  // namespace once::proxy
