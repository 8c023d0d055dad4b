#include "tls/stream.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace once::tls {

namespace {

Exception no_memory() { return {ErrorKind::unavailable, "OpenSSL has no memory for a connection"}; }

// OpenSSL's own socket BIO uses write(), which raises SIGPIPE.
int wire_write(BIO* bio, const char* bytes, int count) {
  auto* const wire = static_cast<SocketStream::Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(wire->socket, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) wire->sent_bytes += static_cast<std::uint64_t>(sent);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int wire_read(BIO* bio, char* into, int size) {
  const auto* const wire = static_cast<SocketStream::Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(wire->socket, into, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long wire_control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// Made once, and never freed.
const BIO_METHOD* wire_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "once");
    if (made == nullptr || BIO_meth_set_write(made, wire_write) != 1 || BIO_meth_set_read(made, wire_read) != 1 ||
        BIO_meth_set_ctrl(made, wire_control) != 1) {
      throw no_memory();
    }
    return made;
  }();
  return method;
}

}  // namespace

bool is_refusal_of_certificate(unsigned long openssl_code) noexcept {
  if (ERR_GET_LIB(openssl_code) != ERR_LIB_SSL) return false;
  switch (ERR_GET_REASON(openssl_code) - SSL_AD_REASON_OFFSET) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

Stream::Stream(const ClientContext& context, const std::string& host, Ticket& ticket)
    : host_(host),
      option_(context.option()),
      certificate_option_(context.certificate_option()),
      ssl_(SSL_new(context.get())) {
  if (!ssl_) throw no_memory();
  SSL_set_connect_state(ssl_.get());
  SSL_set_app_data(ssl_.get(), &ticket);
  std::array<unsigned char, sizeof(in6_addr)> address{};
  bool good = true;
  if (inet_pton(AF_INET, host.c_str(), address.data()) == 1 || inet_pton(AF_INET6, host.c_str(), address.data()) == 1) {
    good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
  } else {
    // A name in the subject proves nothing: RFC 9525, section 2.
    SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    good = SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
           // SSL_set_tlsext_host_name() without its cast.
           SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    const_cast<char*>(host.c_str())) == 1;
  }
  if (!good) throw Exception(ErrorKind::misuse, "'" + host + "' is not a name that a certificate could be for");
  if (ticket) SSL_set_session(ssl_.get(), ticket.get());
}

Stream::Stream(const ServerContext& context) : ssl_(SSL_new(context.get())) {
  if (!ssl_) throw no_memory();
  SSL_set_accept_state(ssl_.get());
}

Step Stream::handshake() {
  ERR_clear_error();
  return outcome(SSL_do_handshake(ssl_.get()));
}

Step Stream::write(std::string_view bytes, std::size_t& count) {
  ERR_clear_error();
  return outcome(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count));
}

Step Stream::read(char* into, std::size_t size, std::size_t& count) {
  ERR_clear_error();
  return outcome(SSL_read_ex(ssl_.get(), into, size, &count));
}

void Stream::close() noexcept {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

bool Stream::has_read() const noexcept { return BIO_number_read(SSL_get_rbio(ssl_.get())) != 0; }

long Stream::verdict() const noexcept { return SSL_get_verify_result(ssl_.get()); }

std::string Stream::certificate() const {
  const X509* const shown = SSL_get0_peer_certificate(ssl_.get());
  std::string der;
  if (shown == nullptr || verdict() != X509_V_OK) return der;
  const int size = i2d_X509(shown, nullptr);
  if (size <= 0) return der;
  der.resize(static_cast<std::size_t>(size));
  auto* at = reinterpret_cast<unsigned char*>(der.data());
  i2d_X509(shown, &at);
  return der;
}

std::string Stream::subject() const {
  const X509* const shown = SSL_get0_peer_certificate(ssl_.get());
  if (shown == nullptr || verdict() != X509_V_OK) return {};
  const X509_NAME* const name = X509_get_subject_name(shown);
  const unsigned char* der = nullptr;
  std::size_t size = 0;
  if (X509_NAME_entry_count(name) == 0 || X509_NAME_get0_der(name, &der, &size) != 1) return {};
  return {reinterpret_cast<const char*>(der), size};
}

bool Stream::was_refused() const noexcept { return !host_.empty() && is_refusal_of_certificate(error_code_); }

Step Stream::outcome(int result) {
  if (result == 1) return Step::done;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::more;
    case SSL_ERROR_WANT_WRITE:
      return Step::room;
    case SSL_ERROR_ZERO_RETURN:
      return Step::closed;
    default:
      break;
  }
  error_code_ = ERR_peek_error();
  if (host_.empty()) {
    error_ = {ErrorKind::unavailable, "TLS with a client failed: " + openssl_text()};
    return Step::failed;
  }
  if (const long found = verdict(); found != X509_V_OK) {
    std::string text = "the server's certificate is not good for '" + host_ +
                       "': " + X509_verify_cert_error_string(found) + ". Nothing was sent. ";
    if (found == X509_V_ERR_HOSTNAME_MISMATCH || found == X509_V_ERR_IP_ADDRESS_MISMATCH) {
      text += "Use a name that it has as a subjectAltName";
    } else if (found == X509_V_ERR_CERT_HAS_EXPIRED || found == X509_V_ERR_CERT_NOT_YET_VALID) {
      text += "Renew it, or set this machine's clock";
    } else {
      text += "If it should be trusted, name its authority's file in " + option_;
    }
    error_ = {ErrorKind::misuse, std::move(text)};
  } else if (was_refused()) {
    error_ = {ErrorKind::misuse,
              "'" + host_ + "' does not accept who we are: " + openssl_text() + ". Nothing was done"};
  } else if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_WRONG_VERSION_NUMBER) {
    error_ = {ErrorKind::misuse, "'" + host_ + "' does not speak TLS at this port: write http:// if that is meant"};
  } else {
    error_ = {ErrorKind::unavailable, "TLS with '" + host_ + "' failed: " + openssl_text()};
  }
  // With TLS 1.2 a missing certificate has no own alert (RFC 5246, section 7.4.6).
  const bool may_be_that = was_refused() || ERR_GET_REASON(error_code_) == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE;
  if (may_be_that && !certificate_option_.empty()) {
    error_.message += ". If it asks for a certificate, name one in " + certificate_option_;
  }
  return Step::failed;
}

BufferedStream::BufferedStream(const ClientContext& context, const std::string& host, Ticket& ticket)
    : Stream(context, host, ticket) {
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    throw no_memory();
  }
  SSL_set_bio(ssl(), in, out);
}

void BufferedStream::incoming(std::string_view bytes) {
  // A memory BIO takes everything, or has no memory, which then looks like a broken stream.
  BIO_write(SSL_get_rbio(ssl()), bytes.data(), static_cast<int>(bytes.size()));
}

std::string_view BufferedStream::outgoing() const noexcept {
  char* data = nullptr;
  const long size = BIO_get_mem_data(SSL_get_wbio(ssl()), &data);
  return std::string_view(data, static_cast<std::size_t>(size)).substr(sent_);
}

void BufferedStream::sent(std::size_t count) {
  sent_ += count;
  if (!outgoing().empty()) return;
  static_cast<void>(BIO_reset(SSL_get_wbio(ssl())));
  sent_ = 0;
}

SocketStream::SocketStream(int socket, const ClientContext& context, const std::string& host, Ticket& ticket)
    : Stream(context, host, ticket), wire_{socket} {
  attach();
}

SocketStream::SocketStream(int socket, const ServerContext& context) : Stream(context), wire_{socket} { attach(); }

void SocketStream::attach() {
  BIO* const bio = BIO_new(wire_method());
  if (bio == nullptr) throw no_memory();
  BIO_set_data(bio, &wire_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl(), bio, bio);
  SSL_set_mode(ssl(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

}  // namespace once::tls
