// What is said of TLS handshakes that failed, and how seldom. The clock is an argument.
#include "frontends/proxy/handshakes.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace handshakes_test {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

unsigned long code(int reason) { return ERR_PACK(ERR_LIB_SSL, 0, reason); }

class HandshakesTest : public ::testing::Test {
 protected:
  void fail(HandshakeFault fault, Listener listener = Listener::clients, bool said_something = true) {
    handshakes.failed(listener, {.fault = fault, .openssl_code = 0, .said_something = said_something}, "10.0.0.5", now);
  }

  Handshakes::Clock::time_point now{seconds(1'000'000)};
  std::vector<std::string> notices;
  std::shared_ptr<Metrics> metrics = std::make_shared<Metrics>();
  Handshakes handshakes{metrics, [this](std::string_view text) { notices.emplace_back(text); }};
};

TEST_F(HandshakesTest, OneLineInTenSecondsHowManyThereAre) {
  for (int i = 0; i < 1'000; ++i) fail(i % 4 == 0 ? HandshakeFault::timeout : HandshakeFault::closed);
  EXPECT_THAT(notices, ElementsAre("no TLS with 10.0.0.5: it took too long (head-timeout)"));
  notices.clear();
  now += seconds(10) - std::chrono::milliseconds(1);
  fail(HandshakeFault::alpn);
  EXPECT_THAT(notices, IsEmpty());
  now += std::chrono::milliseconds(1);
  fail(HandshakeFault::not_tls, Listener::operators);
  EXPECT_THAT(notices, ElementsAre("no TLS with 10.0.0.5 on the operators' port: the client did not send TLS; since "
                                   "the last line like this: timeout 249, closed 750, alpn 1"));
  notices.clear();
  now += seconds(60);
  fail(HandshakeFault::closed);
  EXPECT_THAT(notices, ElementsAre("no TLS with 10.0.0.5: the client closed the connection"));
  const std::string name = "once_proxy_tls_handshake_failures_total{listener=";
  const std::string text = metrics->text(0);
  EXPECT_THAT(text, HasSubstr(name + "\"clients\",reason=\"timeout\"} 250\n"));
  EXPECT_THAT(text, HasSubstr(name + "\"clients\",reason=\"closed\"} 751\n"));
  EXPECT_THAT(text, HasSubstr(name + "\"operators\",reason=\"not-tls\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(name + "\"operators\",reason=\"other\"} 0\n"));
}

TEST_F(HandshakesTest, WhoSaidNothingIsCountedOnly) {
  fail(HandshakeFault::closed, Listener::clients, false);
  EXPECT_THAT(notices, IsEmpty());
  EXPECT_THAT(metrics->text(0), HasSubstr("{listener=\"clients\",reason=\"closed\"} 1\n"));
  fail(HandshakeFault::closed);  // The line is still to be had.
  EXPECT_EQ(notices.size(), 1U);
}

TEST(HandshakeFaults, AreToldByOpenSslsReasons) {
  EXPECT_EQ(handshake_fault(0, X509_V_OK), HandshakeFault::closed);
  EXPECT_EQ(handshake_fault(code(SSL_R_HTTP_REQUEST), X509_V_OK), HandshakeFault::plain_http);
  EXPECT_EQ(handshake_fault(code(SSL_R_WRONG_VERSION_NUMBER), X509_V_OK), HandshakeFault::not_tls);
  EXPECT_EQ(handshake_fault(code(SSL_R_UNSUPPORTED_PROTOCOL), X509_V_OK), HandshakeFault::version);
  EXPECT_EQ(handshake_fault(code(SSL_R_NO_SHARED_CIPHER), X509_V_OK), HandshakeFault::cipher);
  EXPECT_EQ(handshake_fault(code(SSL_R_NO_APPLICATION_PROTOCOL), X509_V_OK), HandshakeFault::alpn);
  EXPECT_EQ(handshake_fault(code(SSL_AD_REASON_OFFSET + SSL_AD_UNKNOWN_CA), X509_V_OK), HandshakeFault::certificate);
  EXPECT_EQ(handshake_fault(code(SSL_AD_REASON_OFFSET + SSL_AD_PROTOCOL_VERSION), X509_V_OK), HandshakeFault::alert);
  EXPECT_EQ(handshake_fault(code(SSL_R_BAD_EXTENSION), X509_V_OK), HandshakeFault::other);
  EXPECT_EQ(handshake_fault(code(SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_REQUIRED), X509_V_OK),
            HandshakeFault::certificate);
  EXPECT_EQ(handshake_fault(code(SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE), X509_V_OK),
            HandshakeFault::client_certificate_missing);
  const auto refused = [](long verdict) { return handshake_fault(code(SSL_R_CERTIFICATE_VERIFY_FAILED), verdict); };
  EXPECT_EQ(refused(X509_V_ERR_CERT_NOT_YET_VALID), HandshakeFault::client_certificate_expired);
  EXPECT_EQ(refused(X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT), HandshakeFault::client_certificate_untrusted);
  EXPECT_EQ(refused(X509_V_ERR_EE_KEY_TOO_SMALL), HandshakeFault::client_certificate_bad);
}

}  // namespace handshakes_test
}  // namespace once::proxy
