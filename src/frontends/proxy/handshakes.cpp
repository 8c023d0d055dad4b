#include "frontends/proxy/handshakes.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

namespace once::proxy {

namespace {

// What the operator can do about it, if anything.
std::string_view words_for(HandshakeFault fault) noexcept {
  switch (fault) {
    case HandshakeFault::proxy_header:
      return "it does not begin with the PROXY protocol, which connections from there have to (proxy-protocol)";
    case HandshakeFault::timeout:
      return "it was not over in time (head-timeout)";
    case HandshakeFault::closed:
      return "the client ended the connection";
    case HandshakeFault::plain_http:
      return "the client speaks HTTP without TLS: it must use https://";
    case HandshakeFault::not_tls:
      return "what the client speaks is not TLS";
    case HandshakeFault::version:
      return "the client knows only versions before TLS 1.2";
    case HandshakeFault::cipher:
      return "the client has no cipher or key type that fits the certificate";
    case HandshakeFault::alpn:
      return "the client wants other protocols than http/1.1";
    case HandshakeFault::certificate:
      return "the client does not accept the certificate";
    case HandshakeFault::alert:
      return "the client refused";
    case HandshakeFault::other:
      break;
  }
  return "it failed";
}

}  // namespace

std::string_view to_string(Listener listener) noexcept {
  return listener == Listener::clients ? "clients" : "operators";
}

std::string_view to_string(HandshakeFault fault) noexcept {
  switch (fault) {
    case HandshakeFault::proxy_header:
      return "proxy-header";
    case HandshakeFault::timeout:
      return "timeout";
    case HandshakeFault::closed:
      return "closed";
    case HandshakeFault::plain_http:
      return "plain-http";
    case HandshakeFault::not_tls:
      return "not-tls";
    case HandshakeFault::version:
      return "version";
    case HandshakeFault::cipher:
      return "cipher";
    case HandshakeFault::alpn:
      return "alpn";
    case HandshakeFault::certificate:
      return "certificate";
    case HandshakeFault::alert:
      return "alert";
    case HandshakeFault::other:
      break;
  }
  return "other";
}

HandshakeFault handshake_fault(unsigned long openssl_code) noexcept {
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
    default:
      break;
  }
  // An alert that came (RFC 8446, section 6.2) is its number and this.
  if (reason < SSL_AD_REASON_OFFSET) return HandshakeFault::other;
  switch (reason - SSL_AD_REASON_OFFSET) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
      return HandshakeFault::certificate;
    default:
      return HandshakeFault::alert;
  }
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
  text += words_for(failure.fault);
  const char* const reason = failure.openssl_code == 0 ? nullptr : ERR_reason_error_string(failure.openssl_code);
  if (reason != nullptr) text += " (" + std::string(reason) + ")";
  std::string since;
  for (std::size_t i = 0; i < faults; ++i) {
    if (before[i] == 0) continue;
    since += since.empty() ? "; since the last such line: " : ", ";
    since += std::string(to_string(static_cast<HandshakeFault>(i))) + ' ' + std::to_string(before[i]);
  }
  on_notice_(text + since);
}

}  // namespace once::proxy
