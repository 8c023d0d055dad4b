#include "frontends/proxy/handshakes.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <array>
#include <cstddef>
#include <utility>

#include "tls/stream.hpp"

namespace once::proxy {

namespace {

struct Told {
  HandshakeFault fault;
  std::string_view name;
  std::string_view words;  // Says what the operator can do about it, if anything.
};
constexpr auto in_words = [] {
  using enum HandshakeFault;
  return std::array{
      Told{proxy_header, "proxy-header",
           "it does not begin with the PROXY protocol, which is required from that address (proxy-protocol)"},
      Told{timeout, "timeout", "it took too long (head-timeout)"},
      Told{closed, "closed", "the client closed the connection"},
      Told{plain_http, "plain-http", "the client sent HTTP without TLS: it must use https://"},
      Told{not_tls, "not-tls", "the client did not send TLS"},
      Told{version, "version", "the client supports only versions before TLS 1.2"},
      Told{cipher, "cipher", "the client has no cipher or key type that fits the certificate"},
      Told{alpn, "alpn", "the client does not offer the protocol http/1.1"},
      Told{certificate, "certificate", "the client does not accept the certificate"},
      Told{client_certificate_missing, "client-certificate-missing",
           "the client showed no certificate, but must (client-ca)"},
      Told{client_certificate_expired, "client-certificate-expired", "the client's certificate is not valid now"},
      Told{client_certificate_untrusted, "client-certificate-untrusted",
           "no authority in client-ca signed the client's certificate"},
      Told{client_certificate_bad, "client-certificate-bad", "the client's certificate is invalid"},
      Told{alert, "alert", "the client refused"},
      Told{other, "other", "it failed"},
  };
}();
static_assert([] {
  std::size_t at = 0;
  for (const Told& each : in_words) {
    if (static_cast<std::size_t>(each.fault) != at++) return false;
  }
  return in_words.back().fault == HandshakeFault::other;
}());

const Told& told_of(HandshakeFault fault) noexcept { return in_words[static_cast<std::size_t>(fault)]; }

HandshakeFault fault_of_certificate(long verdict) noexcept {
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return HandshakeFault::client_certificate_expired;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return HandshakeFault::client_certificate_untrusted;
    default:
      return HandshakeFault::client_certificate_bad;
  }
}

}  // namespace

std::string_view to_string(Listener listener) noexcept {
  return listener == Listener::clients ? "clients" : "operators";
}

std::string_view to_string(HandshakeFault fault) noexcept { return told_of(fault).name; }

HandshakeFault handshake_fault(unsigned long openssl_code, long verdict) noexcept {
  if (openssl_code == 0 || ERR_SYSTEM_ERROR(openssl_code)) return HandshakeFault::closed;
  const int reason = ERR_GET_REASON(openssl_code);
  switch (reason) {
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return HandshakeFault::closed;
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
      return HandshakeFault::plain_http;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return HandshakeFault::not_tls;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
      return HandshakeFault::version;
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SHARED_SIGNATURE_ALGORITHMS:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
      return HandshakeFault::cipher;
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return HandshakeFault::alpn;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return HandshakeFault::client_certificate_missing;
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return fault_of_certificate(verdict);
    default:
      break;
  }
  if (tls::is_refusal_of_certificate(openssl_code)) return HandshakeFault::certificate;
  // A received alert is its number plus this.
  return reason < SSL_AD_REASON_OFFSET ? HandshakeFault::other : HandshakeFault::alert;
}

void Handshakes::failed(Listener listener, const HandshakeFailure& failure, std::string_view client,
                        Clock::time_point now) {
  metrics_->count(listener, failure.fault);
  if (!failure.said_something || !on_notice_) return;
  std::array<std::uint64_t, faults> before{};
  {
    const std::lock_guard lock(mutex_);
    if (now < quiet_until_) {
      ++untold_[static_cast<std::size_t>(failure.fault)];
      return;
    }
    quiet_until_ = now + pause;
    before = std::exchange(untold_, {});
  }
  const bool is_tls = failure.fault != HandshakeFault::proxy_header;
  std::string text =
      (is_tls ? "no TLS with " : "no connection with ") + std::string(client.empty() ? "a client" : client);
  if (listener == Listener::operators) text += " on the operators' port";
  text += ": ";
  text += told_of(failure.fault).words;
  const char* reason = failure.openssl_code == 0 ? nullptr : ERR_reason_error_string(failure.openssl_code);
  if (failure.verdict != X509_V_OK) reason = X509_verify_cert_error_string(failure.verdict);
  if (reason != nullptr) text += " (" + std::string(reason) + ")";
  std::string since;
  for (std::size_t i = 0; i < faults; ++i) {
    if (before[i] == 0) continue;
    since += since.empty() ? "; since the last line like this: " : ", ";
    since += std::string(to_string(static_cast<HandshakeFault>(i))) + ' ' + std::to_string(before[i]);
  }
  on_notice_(text + since);
}

}  // namespace once::proxy
