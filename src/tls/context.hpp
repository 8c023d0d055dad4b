// What connections with TLS have in common: whom a client trusts, who a server is. TLS 1.2 or later, no renegotiation.
#pragma once

#include <memory>
#include <string>

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace once::tls {

struct Free {
  void operator()(ssl_st* ssl) const noexcept;
  void operator()(ssl_ctx_st* context) const noexcept;
  void operator()(ssl_session_st* session) const noexcept;
};

// What lets the next connection to the same host begin with fewer steps.
using Ticket = std::unique_ptr<ssl_session_st, Free>;

// How an error speaks of the first bytes on the wire: what OpenSSL says of the last thing that went wrong.
std::string openssl_text();

struct Trust {
  std::string file;    // PEM, the certificates to trust. Empty: SSL_CERT_FILE and SSL_CERT_DIR, or the system's.
  std::string origin;  // Where `file` was named, for errors: "the option ca_file".
  std::string option;  // Where a file can be named: "AWS_CA_BUNDLE", "--upstream-ca".
  std::string certificate_option = {};  // Where a certificate of the client's can be. Empty: nowhere.
};

// The server's certificate is checked. The system's certificates are looked up one by one, in its hashed directory or
// its one file (bundle.hpp), as decoding them all takes 27 ms. Thread-safe once it is made.
class ClientContext {
 public:
  // Throws Exception: misuse for a file that cannot be read, or if there is nothing to trust; unavailable if OpenSSL
  // cannot begin.
  explicit ClientContext(Trust trust);
  void offer_http_1_1();  // By ALPN (RFC 7301).
  // For servers that ask who the client is. As ServerContext has its own.
  void show_certificate(const std::string& certificate_file, const std::string& key_file);

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }
  [[nodiscard]] const std::string& option() const noexcept { return option_; }
  [[nodiscard]] const std::string& certificate_option() const noexcept { return certificate_option_; }

 private:
  std::unique_ptr<ssl_ctx_st, Free> context_;
  std::string option_;
  std::string certificate_option_;
};

// Speaks HTTP/1.1 and nothing else, by ALPN: a client that offers only others is told so (RFC 7301, section 3.2), one
// that offers nothing is served. Sessions are resumed by tickets; nothing is kept here. Thread-safe once it is made.
class ServerContext {
 public:
  // PEM: the certificate with those between it and an authority behind it, and its key, without a password. Throws
  // Exception(misuse) if a file cannot be read, or the key is another certificate's.
  ServerContext(const std::string& certificate_file, const std::string& key_file);
  // Each client must show a certificate for clients, signed by one in this file: PEM, roots or those in between. The
  // handshake fails without it. A resumed session has the certificate of its first handshake, and no session outlives
  // a certificate that it was verified by, or this object. Throws as above; `option`: where the file was named.
  void require_certificate(const std::string& authorities_file, const std::string& option);
  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

}  // namespace once::tls
