// TLS on both sides: which certificates are trusted, how connections end, and that a slow handshake delays no other.
#include <openssl/ssl.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <once/error.hpp>
#include <once/frontends/http/endpoint.hpp>
#include <once/testing/manual_time.hpp>

#include "tls_test.hpp"

namespace once::proxy {
namespace tls_test {

using ::testing::HasSubstr;

TEST_F(ProxyTlsTest, ClientsSpeakTls) {
  const Identity identity;
  options.certificate = write_files(identity);
  start(counting());
  const Context context = believing(identity.authority);
  SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>("\x02h2\x08http/1.1"), 12);
  for (int i = 0; i < 2; ++i) {
    Line line = client();
    ASSERT_TRUE(line.begin_tls(context.get(), false, "localhost"));
    EXPECT_GE(SSL_version(line.tls()), TLS1_2_VERSION);
    const unsigned char* protocol = nullptr;
    unsigned length = 0;
    SSL_get0_alpn_selected(line.tls(), &protocol, &length);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(protocol), length), "http/1.1");
    line.write(post("k") + post("k", "cents=500", "Connection: close\r\n"));
    EXPECT_EQ(line.read_message()->body, "run 1");
    EXPECT_EQ(line.read_message()->header("Idempotent-Replayed"), "true");
    EXPECT_EQ(line.read_all(), "");
    EXPECT_TRUE(line.was_told_the_end());
  }
  EXPECT_EQ(runs(), 1U);
  EXPECT_EQ(request(0).header("X-Forwarded-Proto"), "https");
}

TEST_F(ProxyTlsTest, OtherProtocolsAndOldOnesAreNotSpoken) {
  const Identity identity;
  options.certificate = write_files(identity);
  start(counting());
  const Context other = believing(identity.authority);
  SSL_CTX_set_alpn_protos(other.get(), reinterpret_cast<const unsigned char*>("\x02h2"), 3);
  EXPECT_FALSE(client().begin_tls(other.get(), false));
  const Context old = believing(identity.authority);
  SSL_CTX_set_cipher_list(old.get(), "ALL:@SECLEVEL=0");
  SSL_CTX_set_min_proto_version(old.get(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(old.get(), TLS1_1_VERSION);
  EXPECT_FALSE(client().begin_tls(old.get(), false));
  Line plain = client();
  plain.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(plain.read_all(), ::testing::Not(HasSubstr("HTTP/1.1 201")));
  EXPECT_EQ(runs(), 0U);
}

TEST_F(ProxyTlsTest, HandshakesThatFailAreCountedByWhyAndToldOnce) {
  const Identity identity;
  const Identity stranger;
  options.certificate = options.admin_certificate = write_files(identity);
  options.admin = Address{"127.0.0.1", 0};
  options.timeouts.head = Millis{300};
  listen_to_notices();
  start(counting());
  client().close();
  EXPECT_TRUE(counted("closed"));
  EXPECT_EQ(noticed(), "");  // It has said nothing.
  Line plain = client();
  plain.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(counted("plain-http"));
  EXPECT_EQ(noticed(),
            "no TLS with 127.0.0.1: the client sent HTTP without TLS: it must use https:// (http request)\n");
  Line strange = client();
  strange.write("SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_TRUE(counted("not-tls"));
  const Context doubting = believing(stranger.authority);
  EXPECT_FALSE(client().begin_tls(doubting.get(), false));
  EXPECT_TRUE(counted("certificate"));
  const Context other = believing(identity.authority);
  SSL_CTX_set_alpn_protos(other.get(), reinterpret_cast<const unsigned char*>("\x02h2"), 3);
  EXPECT_FALSE(client().begin_tls(other.get(), false));
  EXPECT_TRUE(counted("alpn"));
  const Context old = believing(identity.authority);
  SSL_CTX_set_cipher_list(old.get(), "ALL:@SECLEVEL=0");
  SSL_CTX_set_min_proto_version(old.get(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(old.get(), TLS1_1_VERSION);
  EXPECT_FALSE(client().begin_tls(old.get(), false));
  EXPECT_TRUE(counted("version"));
  const Context rsa = believing(identity.authority);
  SSL_CTX_set_max_proto_version(rsa.get(), TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(rsa.get(), "aRSA");  // The certificate's key is of elliptic curves.
  EXPECT_FALSE(client().begin_tls(rsa.get(), false));
  EXPECT_TRUE(counted("cipher"));
  Line slow = client();
  slow.write(std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(counted("timeout"));
  Line operators = Line::to(proxy->admin_port());
  operators.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(counted("plain-http", "operators"));
  EXPECT_EQ(noticed().find('\n'), noticed().size() - 1);  // Still one line.
  EXPECT_EQ(lines(), 0U);
}

TEST_F(ProxyTlsTest, SlowHandshakesHoldUpNobody) {
  const Identity identity;
  options.certificate = write_files(identity);
  options.threads = 1;
  options.timeouts.head = Millis{300};
  start(counting());
  Line silent = client();
  Line half = client();
  half.write(std::string("\x16\x03\x01\x02\x00\x01", 6));  // The beginning of a ClientHello.
  const Context context = believing(identity.authority);
  for (int i = 0; i < 3; ++i) {
    Line line = client();
    ASSERT_TRUE(line.begin_tls(context.get(), false));
    line.write(post("k" + std::to_string(i)));
    EXPECT_EQ(line.read_message()->status(), 201U);
  }
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(half.read_all(), "");
}

TEST_F(ProxyTlsTest, ABrokenAnswerDoesNotLookLikeAWholeOne) {
  const Identity identity;
  options.certificate = write_files(identity);
  start([&](Line& line) {
    const bool whole = line.read_request()->first.starts_with("GET /whole");
    line.write(whole ? "HTTP/1.0 200 OK\r\n\r\nall" : "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
  });
  const Context context = believing(identity.authority);
  const std::string target[] = {"/whole", "/half"};
  for (const std::string& path : target) {
    Line line = client();
    ASSERT_TRUE(line.begin_tls(context.get(), false));
    line.write("GET " + path + " HTTP/1.0\r\n\r\n");
    EXPECT_THAT(line.read_all(), HasSubstr(path == "/whole" ? "all" : "half"));
    EXPECT_EQ(line.was_told_the_end(), path == "/whole");
  }
}

TEST_F(ProxyTlsTest, NewCertificatesAreTakenUp) {
  const Identity first;
  options.certificate = write_files(first);
  start(counting());
  Line kept = client();
  ASSERT_TRUE(kept.begin_tls(believing(first.authority).get(), false));
  const Identity second;
  static_cast<void>(write_files(second));
  EXPECT_FALSE(client().begin_tls(believing(second.authority).get(), false));
  proxy->reload_certificates();
  EXPECT_TRUE(client().begin_tls(believing(second.authority).get(), false));
  kept.write(post("k"));
  EXPECT_EQ(kept.read_message()->status(), 201U);
  // What cannot be used changes nothing.
  static_cast<void>(write_file("cert.pem", "no certificate"));
  EXPECT_THROW(proxy->reload_certificates(), Exception);
  EXPECT_TRUE(client().begin_tls(believing(second.authority).get(), false));
}

TEST_F(ProxyTlsTest, OperatorsSpeakTlsWithACertificateOfTheirOwn) {
  const Identity first;
  options.admin = Address{"127.0.0.1", 0};
  options.admin_certificate = write_files(first);
  start(counting());
  const auto page = [&](const Identity& identity, const std::string& path) -> std::string {
    Line line = Line::to(proxy->admin_port());
    if (!line.begin_tls(believing(identity.authority).get(), false, "localhost")) return "no TLS";
    line.write("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
    const auto answer = line.read_message();
    EXPECT_EQ(line.read_all(), "");
    EXPECT_TRUE(line.was_told_the_end());
    return answer ? answer->body : "no answer";
  };
  EXPECT_EQ(page(first, "/readyz"), "ready\n");
  EXPECT_THAT(page(first, "/metrics"), HasSubstr("# TYPE once_proxy_connections gauge\n"));
  Line plain = Line::to(proxy->admin_port());
  plain.write("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(plain.read_all(), ::testing::Not(HasSubstr("alive")));
  EXPECT_EQ(ask(post("k")).status(), 201U);  // Clients still use no TLS.
  const Identity second;
  static_cast<void>(write_files(second));
  EXPECT_EQ(page(second, "/healthz"), "no TLS");
  proxy->reload_certificates();
  EXPECT_EQ(page(second, "/healthz"), "alive\n");
  EXPECT_EQ(page(first, "/healthz"), "no TLS");
}

TEST_F(ProxyTlsTest, OperatorsWhoAreSlowToShakeHandsAreLeft) {
  const Identity identity;
  options.admin = Address{"127.0.0.1", 0};
  options.admin_certificate = write_files(identity);
  options.timeouts.head = Millis{50};
  start(counting());
  EXPECT_EQ(Line::to(proxy->admin_port()).read_all(), "");
}

TEST_F(ProxyTlsTest, CertificatesThatCannotBeUsedAreSaidSo) {
  const Identity identity;
  const Certificate good = write_files(identity);
  Upstream nobody([](Line&) {});
  const auto problem = [&](const std::string& file, const std::string& key_file) -> std::string {
    options.certificate = Certificate{.file = file, .key_file = key_file};
    try {
      start_for(nobody.port());
    } catch (const Exception& exception) {
      EXPECT_EQ(exception.kind(), ErrorKind::misuse);
      return exception.what();
    }
    return "no problem";
  };
  EXPECT_THAT(problem(path("none"), good.key_file), HasSubstr("the certificate cannot be read from '" + path("none")));
  EXPECT_THAT(problem(good.file, path("none")), HasSubstr("the key cannot be read from '" + path("none")));
  EXPECT_THAT(problem(good.file, write_file("empty", "")), HasSubstr("It must be a PEM file with one private key"));
  const Identity other;
  const std::string certificate = path("first.pem");
  std::filesystem::rename(good.file, certificate);
  EXPECT_THAT(problem(certificate, write_files(other).key_file), HasSubstr("is not of the certificate in"));
}

TEST_F(ProxyTlsTest, TheUpstreamSpeaksTls) {
  const Identity identity;
  options.threads = 1;
  trust_upstream(identity.authority);
  start(secured(identity, counting()));
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).body, "run " + std::to_string(i));
  EXPECT_EQ(ask(post("")).body, "run 4");
  EXPECT_EQ(upstream->connections(), 1U);
  EXPECT_EQ(noticed(), "");
}

TEST_F(ProxyTlsTest, AnUpstreamWithTlsMayComeLaterAndGo) {
  const Identity identity;
  options.threads = 1;
  trust_upstream(identity.authority);
  upstream_tls = false;
  start(counting());
  Upstream later(secured(identity, counting()));
  const Service plain{.address = {"127.0.0.1", upstream->port()}};
  const Service secure{.address = {"127.0.0.1", later.port()}, .tls = true};
  for (int i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i);
    proxy->set_upstreams({plain});
    EXPECT_EQ(ask(post("plain" + number)).body, "run " + std::to_string(2 * i + 1));
    proxy->set_upstreams({secure});
    EXPECT_EQ(ask(post("secure" + number)).body, "run " + std::to_string(2 * i + 2));
  }
  EXPECT_EQ(later.connections(), 3U);  // None is kept for one that has gone.
  EXPECT_EQ(noticed(), "");
  proxy.reset();  // Before the one that comes later.
}

TEST_F(ProxyTlsTest, AnUpstreamThatIsNotBelievedGetsNothing) {
  using Kind = FakeServerOptions::Certificate;
  const Identity stranger;
  for (const Kind kind : {Kind::wrong_name, Kind::expired, Kind::good}) {
    const Identity identity(kind);
    trust_upstream(kind == Kind::good ? stranger.authority : identity.authority);
    start(secured(identity, counting()));
    const std::size_t before = lines();
    EXPECT_EQ(ask(post("k")).status(), 503U);
    EXPECT_EQ(logged(before).fate, "release");
    EXPECT_EQ(logged(before).cause, "upstream-tls");
    EXPECT_THAT(noticed(), HasSubstr("the server's certificate is not good for '127.0.0.1'"));
    proxy.reset();
    notices.clear();
  }
  EXPECT_EQ(runs(), 0U);
}

// A proxy that was stopped while it connected: the handshake is held, and the engine's clock is moved by hand.
class ProxyLeaseTest : public ProxyTlsTest {
 protected:
  void hold_the_connection() {
    clock = manual;
    store = std::make_shared<once::testing::FaultyStore>(std::shared_ptr<Store>(stores::make_memory_store(manual)),
                                                         once::testing::no_faults());
    timers = std::make_shared<once::testing::ManualTimers>(manual);
    rules.on_ambiguous = OnLapse::takeover;
    trust_upstream(identity.authority);
    start([this, inner = secured(identity, counting())](Line& line) {
      arrived.open();
      go.wait();
      inner(line);
    });
  }
  void outlive_the_lease() const { manual->advance(2 * effective(*rules.policy).lease); }

  const Identity identity;
  std::shared_ptr<once::testing::ManualClock> manual = std::make_shared<once::testing::ManualClock>();
};

TEST_F(ProxyLeaseTest, WhatAnotherHasDoneMeanwhileIsNotSentAgain) {
  hold_the_connection();
  Line held = client();
  held.write(post("k"));
  arrived.wait();
  outlive_the_lease();
  Engine others({.store = store, .clock = clock, .timers = timers});
  http::Endpoint endpoint(others, rules);
  const http::Request request{.method = "POST",
                              .target = "/charges",
                              .headers = {{"Host", "shop"}, {"Idempotency-Key", "k"}},
                              .body = "cents=500",
                              .principal = {}};
  http::Opening opening = endpoint.open(request);
  ASSERT_EQ(opening.kind, http::Opening::Kind::claimed);
  static_cast<void>(
      opening.execution.finish(http::Answer{.status = 201, .reason = {}, .headers = {}, .body = "other"}));
  go.open();
  EXPECT_EQ(held.read_message()->body, "other");
  EXPECT_EQ(logged(0).cause, "lease-over");
  EXPECT_EQ(runs(), 0U);
}

TEST_F(ProxyLeaseTest, AClaimWhoseLeaseIsOverIsGivenUp) {
  hold_the_connection();
  Line held = client();
  held.write(post("k"));
  arrived.wait();
  outlive_the_lease();
  go.open();
  const auto answer = held.read_message();
  EXPECT_EQ(answer->status(), 503U);
  EXPECT_THAT(answer->body, HasSubstr("urn:once:problem:lease-over"));
  EXPECT_EQ(answer->header("Retry-After"), "1");
  EXPECT_EQ(logged(0).fate, "release");
  EXPECT_EQ(runs(), 0U);
  EXPECT_EQ(ask(post("k")).body, "run 1");
}

class ProxyUpstreamCertificateTest : public ProxyTlsTest {
 protected:
  // The upstream wants a certificate of this authority's.
  void start_asking(const std::string& authority, int version) {
    SSL_CTX_load_verify_file(identity.context.get(), write_file("clients.pem", authority).c_str());
    SSL_CTX_set_verify(identity.context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_max_proto_version(identity.context.get(), version);
    SSL_CTX_set_session_id_context(identity.context.get(), reinterpret_cast<const unsigned char*>("once"), 4);
    // It reads what was sent before it ends the connection, so that its alert arrives.
    const auto script = counting();
    trust_upstream(identity.authority);
    start([this, script](Line& line) {
      if (line.begin_tls(identity.context.get(), true)) return script(line);
      ::shutdown(line.fd(), SHUT_WR);
      static_cast<void>(line.read_all());
    });
  }
  const Identity identity;
};

TEST_F(ProxyUpstreamCertificateTest, OneThatAsksWhoWeAreIsShownIt) {
  const Identity ours;
  options.upstream_certificate = write_files(ours);
  start_asking(ours.authority, TLS1_3_VERSION);
  EXPECT_EQ(ask(post("k")).body, "run 1");
  const Identity other;
  static_cast<void>(write_files(other));
  proxy->reload_certificates();
  proxy->set_upstreams({{.address = {"localhost", 1}}});
  proxy->set_upstreams({{.address = {"127.0.0.1", upstream->port()}, .tls = true}});
  EXPECT_EQ(ask(post("l")).status(), 503U);
}

TEST_F(ProxyUpstreamCertificateTest, ThatItIsRefusedIsToldAsWhatItIs) {
  const Identity wanted;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    start_asking(wanted.authority, version);
    const std::size_t before = lines();
    EXPECT_EQ(ask(post("k")).status(), 503U);
    EXPECT_EQ(logged(before).fate, "release");
    EXPECT_EQ(logged(before).cause, "upstream-tls");
    // TLS 1.2 has no word for it.
    const char* const why = version == TLS1_3_VERSION ? "does not accept who we are" : "handshake failure";
    EXPECT_THAT(noticed(), HasSubstr(why));
    EXPECT_THAT(noticed(), HasSubstr("--upstream-cert"));
    EXPECT_EQ(runs(), 0U);
    proxy.reset();
    notices.clear();
  }
}

TEST_F(ProxyTlsTest, SuitesWithCbcAreNotSpoken) {
  const Identity identity;
  options.certificate = write_files(identity);
  start(counting());
  const Context cbc = believing(identity.authority);
  SSL_CTX_set_max_proto_version(cbc.get(), TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(cbc.get(), "ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA:ECDHE-ECDSA-AES128-SHA");
  EXPECT_FALSE(client().begin_tls(cbc.get(), false));
  SSL_CTX_set_cipher_list(cbc.get(), "ECDHE-ECDSA-AES128-GCM-SHA256");
  EXPECT_TRUE(client().begin_tls(cbc.get(), false));
}

TEST_F(ProxyTlsTest, AnUpstreamThatEndsWithoutAGoodbyeHasNotEnded) {
  const Identity identity;
  trust_upstream(identity.authority);
  start(secured(identity, [&](Line& line) {
    const bool cut = got(line.read_request().value()) % 2 == 1;
    line.write("HTTP/1.1 200 OK\r\n\r\nup to the end");
    if (cut) line.cut();
  }));
  EXPECT_FALSE(ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n").whole);
  EXPECT_EQ(ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n").body, "up to the end");
  EXPECT_EQ(ask(post("cut")).status(), 502U);
  EXPECT_THAT(ask(post("cut")).body, HasSubstr("outcome-unknown"));
  EXPECT_EQ(ask(post("whole")).body, "up to the end");
}

TEST_F(ProxyTlsTest, AWebSocketHalfClosesWithTlsToo) {
  const Identity identity;
  options.certificate = write_files(identity);
  trust_upstream(identity.authority);
  start(secured(identity, [](Line& line) {
    line.read_request();
    line.write(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
    const std::string all = line.read_all();
    line.write(line.was_told_the_end() ? all : "broken off");
  }));
  Line line = client();
  ASSERT_TRUE(line.begin_tls(believing(identity.authority).get(), false));
  line.write(
      "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n");
  EXPECT_EQ(line.read_message()->status(), 101U);
  line.write("all of it");
  SSL_shutdown(line.tls());
  EXPECT_EQ(line.read_all(), "all of it");
  EXPECT_TRUE(line.was_told_the_end());
  EXPECT_EQ(logged(0).cause, "");
}

TEST_F(ProxyTlsTest, LargeBodiesStreamThrough) {
  const Identity identity;
  options.certificate = write_files(identity);
  trust_upstream(identity.authority);
  const std::string large(std::size_t{4} << 20U, 'u');
  start(secured(identity, [&](Line& line) {
    while (auto message = line.read_request()) line.write(answer_text("200 OK", message->body));
  }));
  Line line = client();
  ASSERT_TRUE(line.begin_tls(believing(identity.authority).get(), false));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(line.write("PUT /file HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(large.size()) +
                           "\r\n\r\n" + large));
    const auto answer = line.read_message();
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->body == large);
  }
}

}  // namespace tls_test
}  // namespace once::proxy
