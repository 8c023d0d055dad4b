#include "tls/context.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include <once/error.hpp>

#include "tls/bundle.hpp"

namespace once::tls {

namespace {

constexpr std::string_view only_protocol = "\x08http/1.1";  // In ALPN's form: with its length.

std::unique_ptr<ssl_ctx_st, Free> make(const SSL_METHOD* method) {
  std::unique_ptr<ssl_ctx_st, Free> context(SSL_CTX_new(method));
  if (!context) throw Exception(ErrorKind::unavailable, "OpenSSL cannot begin: " + openssl_text());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Of TLS 1.2: no suites with CBC or without forward secrecy (RFC 9325, section 4.2). Those of 1.3 are all like this.
  if (SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20") != 1) {
    throw Exception(ErrorKind::unavailable, "OpenSSL has none of the ciphers that are to be used: " + openssl_text());
  }
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);  // An idle connection should cost little.
  return context;
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

Exception cannot_trust(const std::string& path, const std::string& origin) {
  return {ErrorKind::misuse, "the certificates to trust cannot be read from '" + path + "' (" + origin +
                                 "): " + openssl_text() + ". It must be a file of PEM certificates"};
}

void trust_file(SSL_CTX* context, const std::string& path, const std::string& origin) {
  if (!trust_bundle(context, path)) throw cannot_trust(path, origin);
}

void trust(SSL_CTX* context, const Trust& whom) {
  if (!whom.file.empty()) return trust_file(context, whom.file, whom.origin);
  const char* const file = variable("SSL_CERT_FILE");
  const char* const directory = variable("SSL_CERT_DIR");
  if (file != nullptr) trust_file(context, file, "SSL_CERT_FILE");
  if (directory != nullptr) SSL_CTX_load_verify_dir(context, directory);  // It may be empty, as with OpenSSL itself.
  if (file != nullptr || directory != nullptr) return;

  for (const char* place : {X509_get_default_cert_dir(), "/etc/ssl/certs"}) {
    if (is_hashed_directory(place) && SSL_CTX_load_verify_dir(context, place) == 1) return;
  }
  // Systems without hashed links have one file: OpenSSL's own, Debian's, Red Hat's.
  for (const char* place :
       {X509_get_default_cert_file(), "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}) {
    std::error_code error;
    if (std::filesystem::exists(place, error)) return trust_file(context, place, "the system's");
  }
  throw Exception(
      ErrorKind::misuse,
      "this system has no certificates to trust: install the package ca-certificates, or name a file of PEM "
      "certificates in " +
          whom.option);
}

int keep_ticket(SSL* ssl, SSL_SESSION* session) {
  static_cast<Ticket*>(SSL_get_app_data(ssl))->reset(session);
  return 1;  // It is ours now.
}

int choose_protocol(SSL* /*ssl*/, const unsigned char** out, unsigned char* out_length, const unsigned char* in,
                    unsigned int in_length, void* /*none*/) {
  const auto* const ours = reinterpret_cast<const unsigned char*>(only_protocol.data());
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_length, ours, static_cast<unsigned>(only_protocol.size()), in, in_length);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// OpenSSL does not verify certificates again when a session is resumed, and each resumption gives a new ticket. So a
// ticket contains until when all certificates of the first verified chain are valid, in seconds since 1970.
using ValidUntil = std::int64_t;

ValidUntil end_of(const X509* certificate) {
  std::tm end{};
  const bool known = ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1;
  return known ? ValidUntil{::timegm(&end)} : 0;
}

ValidUntil end_of(const STACK_OF(X509) * chain) {
  ValidUntil earliest = chain == nullptr ? 0 : std::numeric_limits<ValidUntil>::max();
  for (int i = 0; i < sk_X509_num(chain); ++i) earliest = std::min(earliest, end_of(sk_X509_value(chain, i)));
  return earliest;
}

int write_ticket(SSL* ssl, void* /*none*/) {
  if (SSL_session_reused(ssl) == 1) return 1;  // It contains the time already.
  const ValidUntil until = end_of(SSL_get0_verified_chain(ssl));
  return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), &until, sizeof until);
}

// A client whose ticket is refused makes a full handshake, and shows its certificate again.
SSL_TICKET_RETURN read_ticket(SSL* /*ssl*/, SSL_SESSION* session, const unsigned char* /*key*/, std::size_t /*size*/,
                              SSL_TICKET_STATUS status, void* /*none*/) {
  if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) return SSL_TICKET_RETURN_IGNORE_RENEW;
  void* data = nullptr;
  std::size_t size = 0;
  ValidUntil until = 0;
  if (SSL_SESSION_get0_ticket_appdata(session, &data, &size) == 1 && size == sizeof until) {
    std::memcpy(&until, data, sizeof until);
  }
  if (until < ValidUntil{std::time(nullptr)}) return SSL_TICKET_RETURN_IGNORE_RENEW;
  return status == SSL_TICKET_SUCCESS ? SSL_TICKET_RETURN_USE : SSL_TICKET_RETURN_USE_RENEW;
}

// Instead of asking at the terminal.
int no_password(char* /*into*/, int /*size*/, int /*writing*/, void* /*none*/) { return -1; }

void use_certificate(SSL_CTX* context, const std::string& certificate_file, const std::string& key_file) {
  SSL_CTX_set_default_passwd_cb(context, no_password);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1) {
    throw Exception(ErrorKind::misuse, "the certificate cannot be read from '" + certificate_file +
                                           "': " + openssl_text() +
                                           ". It must be a file of PEM certificates, its owner's own first");
  }
  if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    const bool other = ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH;
    throw Exception(ErrorKind::misuse,
                    other ? "the key in '" + key_file + "' is not of the certificate in '" + certificate_file + "'"
                          : "the key cannot be read from '" + key_file + "': " + openssl_text() +
                                ". It must be a PEM file with one private key, without a password");
  }
}

}  // namespace

std::string openssl_text() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_error();
  if (code == 0) return "the connection broke off";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

std::optional<Time> valid_until(const ssl_ctx_st& context) {
  const X509* const own = SSL_CTX_get0_certificate(&context);
  if (own == nullptr) return std::nullopt;
  STACK_OF(X509)* others = nullptr;
  SSL_CTX_get0_chain_certs(const_cast<SSL_CTX*>(&context), &others);  // A macro, which changes nothing.
  const ValidUntil until = others == nullptr ? end_of(own) : std::min(end_of(own), end_of(others));
  return Time{std::chrono::seconds{until}};
}

void Free::operator()(ssl_st* ssl) const noexcept { SSL_free(ssl); }
void Free::operator()(ssl_ctx_st* context) const noexcept { SSL_CTX_free(context); }
void Free::operator()(ssl_session_st* session) const noexcept { SSL_SESSION_free(session); }

ClientContext::ClientContext(Trust whom) : context_(make(TLS_client_method())) {
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context_.get(), keep_ticket);
  trust(context_.get(), whom);
  option_ = std::move(whom.option);
  certificate_option_ = std::move(whom.certificate_option);
}

void ClientContext::show_certificate(const std::string& certificate_file, const std::string& key_file) {
  use_certificate(context_.get(), certificate_file, key_file);
}

void ClientContext::offer_http_1_1() {
  const auto* const ours = reinterpret_cast<const unsigned char*>(only_protocol.data());
  if (SSL_CTX_set_alpn_protos(context_.get(), ours, static_cast<unsigned>(only_protocol.size())) != 0) {
    throw Exception(ErrorKind::unavailable, "OpenSSL has no memory for a protocol's name");
  }
}

ServerContext::ServerContext(const std::string& certificate_file, const std::string& key_file)
    : context_(make(TLS_server_method())) {
  SSL_CTX* const context = context_.get();
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  use_certificate(context, certificate_file, key_file);
}

void ServerContext::require_certificate(const std::string& authorities_file, const std::string& option) {
  SSL_CTX* const context = context_.get();
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(context, authorities_file.c_str()) != 1) throw cannot_trust(authorities_file, option);
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context),
                              X509_V_FLAG_PARTIAL_CHAIN);  // An intermediate certificate is enough.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // So that clients with several certificates know which one to show.
  const STACK_OF(X509_OBJECT)* const authorities = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context));
  bool good = true;
  for (int i = 0; i < sk_X509_OBJECT_num(authorities); ++i) {
    X509* const authority = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(authorities, i));
    if (authority != nullptr) good = SSL_CTX_add_client_CA(context, authority) == 1 && good;
  }
  // Without a session id context, OpenSSL resumes no session with a client certificate.
  constexpr std::array<unsigned char, 4> sessions{'o', 'n', 'c', 'e'};
  good = SSL_CTX_set_session_id_context(context, sessions.data(), sessions.size()) == 1 && good;
  good = SSL_CTX_set_session_ticket_cb(context, write_ticket, read_ticket, nullptr) == 1 && good;
  if (!good) throw Exception(ErrorKind::unavailable, "OpenSSL has no memory for authorities of clients");
}

}  // namespace once::tls
