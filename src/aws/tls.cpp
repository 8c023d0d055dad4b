#include "aws/tls.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace once::aws {

namespace {

std::string openssl_text() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_error();
  if (code == 0) return "the connection broke off";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

// "5ad8a5d6.0", as openssl-rehash(1) names the links.
bool is_hashed_directory(const std::string& path) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.size() >= 10 && name[8] == '.' && name.find_first_not_of("0123456789abcdef") == 8 &&
        name.find_first_not_of("0123456789", 9) == std::string::npos) {
      return true;
    }
  }
  return false;
}

const char* variable(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void trust_file(SSL_CTX* context, const std::string& path, const std::string& origin) {
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(context, path.c_str()) == 1) return;
  throw Exception(ErrorKind::misuse, "the certificates to trust cannot be read from '" + path + "' (" + origin +
                                         "): " + openssl_text() + ". It must be a file of PEM certificates");
}

void trust(SSL_CTX* context, const std::string& ca_file) {
  if (!ca_file.empty()) return trust_file(context, ca_file, "the option ca_file");
  if (const char* bundle = variable("AWS_CA_BUNDLE")) return trust_file(context, bundle, "AWS_CA_BUNDLE");
  const char* const file = variable("SSL_CERT_FILE");
  const char* const directory = variable("SSL_CERT_DIR");
  if (file != nullptr) trust_file(context, file, "SSL_CERT_FILE");
  if (directory != nullptr) SSL_CTX_load_verify_dir(context, directory);  // May hold nothing, as for OpenSSL itself.
  if (file != nullptr || directory != nullptr) return;

  for (const char* place : {X509_get_default_cert_dir(), "/etc/ssl/certs"}) {
    if (is_hashed_directory(place) && SSL_CTX_load_verify_dir(context, place) == 1) return;
  }
  // Systems without the hashes have one file: OpenSSL's own place, Debian's, Red Hat's.
  for (const char* place :
       {X509_get_default_cert_file(), "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}) {
    std::error_code error;
    if (std::filesystem::exists(place, error)) return trust_file(context, place, "the system's");
  }
  throw Exception(
      ErrorKind::misuse,
      "this system has no certificates to trust: install the package ca-certificates, or name a file of PEM "
      "certificates in AWS_CA_BUNDLE");
}

int keep_session(SSL* ssl, SSL_SESSION* session) {
  static_cast<TlsSession*>(SSL_get_app_data(ssl))->reset(session);
  return 1;  // It is ours now.
}

}  // namespace

void TlsFree::operator()(ssl_st* ssl) const noexcept { SSL_free(ssl); }
void TlsFree::operator()(ssl_ctx_st* context) const noexcept { SSL_CTX_free(context); }
void TlsFree::operator()(ssl_session_st* session) const noexcept { SSL_SESSION_free(session); }

TlsContext::TlsContext(const std::string& ca_file) : context_(SSL_CTX_new(TLS_client_method())) {
  if (!context_) throw Exception(ErrorKind::unavailable, "OpenSSL cannot begin: " + openssl_text());
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context_.get(), SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context_.get(), keep_session);
  trust(context_.get(), ca_file);
}

TlsStream::TlsStream(const TlsContext& context, const std::string& host, TlsSession& session)
    : host_(host), ssl_(SSL_new(context.get())) {
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (!ssl_ || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    throw Exception(ErrorKind::unavailable, "OpenSSL has no memory for a connection");
  }
  SSL_set_bio(ssl_.get(), in, out);
  SSL_set_connect_state(ssl_.get());
  SSL_set_app_data(ssl_.get(), &session);

  std::array<unsigned char, sizeof(in6_addr)> address{};
  bool good = true;
  if (inet_pton(AF_INET, host.c_str(), address.data()) == 1 || inet_pton(AF_INET6, host.c_str(), address.data()) == 1) {
    good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
  } else {
    SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    good = SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
           // SSL_set_tlsext_host_name() as it is defined, without its cast.
           SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    const_cast<char*>(host.c_str())) == 1;
  }
  if (!good) throw Exception(ErrorKind::misuse, "'" + host + "' is not a name that a certificate could be for");
  if (session) SSL_set_session(ssl_.get(), session.get());
}

void TlsStream::incoming(std::string_view bytes) {
  // A memory BIO takes all there is, or has no memory, which shows as a stream that breaks off.
  BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
}

std::string_view TlsStream::outgoing() const noexcept {
  char* data = nullptr;
  const long size = BIO_get_mem_data(SSL_get_wbio(ssl_.get()), &data);
  return std::string_view(data, static_cast<std::size_t>(size)).substr(sent_);
}

void TlsStream::sent(std::size_t count) {
  sent_ += count;
  if (!outgoing().empty()) return;
  static_cast<void>(BIO_reset(SSL_get_wbio(ssl_.get())));
  sent_ = 0;
}

TlsStream::Step TlsStream::handshake() {
  ERR_clear_error();
  return outcome(SSL_do_handshake(ssl_.get()));
}

TlsStream::Step TlsStream::write(std::string_view bytes) {
  ERR_clear_error();
  std::size_t written = 0;
  return outcome(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written));
}

TlsStream::Step TlsStream::read(char* buffer, std::size_t size, std::size_t& count) {
  ERR_clear_error();
  return outcome(SSL_read_ex(ssl_.get(), buffer, size, &count));
}

void TlsStream::close() noexcept {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

TlsStream::Step TlsStream::outcome(int result) {
  if (result == 1) return Step::done;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::more;
    case SSL_ERROR_ZERO_RETURN:
      return Step::closed;
    default:
      break;
  }
  if (const long verdict = SSL_get_verify_result(ssl_.get()); verdict != X509_V_OK) {
    std::string text = "the server's certificate is not good for '" + host_ +
                       "': " + X509_verify_cert_error_string(verdict) + ". Nothing was sent. ";
    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
      text += "Use the name that the certificate is for";
    } else if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID) {
      text += "Renew it, or set this machine's clock";
    } else {
      text += "If it should be trusted, name its authority's file in AWS_CA_BUNDLE";
    }
    error_ = {ErrorKind::misuse, std::move(text)};
  } else if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_WRONG_VERSION_NUMBER) {
    error_ = {ErrorKind::misuse, "'" + host_ + "' does not speak TLS at this port: write http:// if that is meant"};
  } else {
    error_ = {ErrorKind::unavailable, "TLS with '" + host_ + "' failed: " + openssl_text()};
  }
  return Step::failed;
}

}  // namespace once::aws
