// Shared by TLS connections: whom a client trusts, and who a server is. TLS 1.2 or later, no renegotiation.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <once/time.hpp>

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace once::tls {

struct Free {
  void operator()(ssl_st* ssl) const noexcept;
  void operator()(ssl_ctx_st* context) const noexcept;
  void operator()(ssl_session_st* session) const noexcept;
};

// Lets the next connection to the same host resume the session.
using Ticket = std::unique_ptr<ssl_session_st, Free>;

// OpenSSL's text for the last error.
std::string openssl_text();

// When the first of the certificates expires that connections of this context show: its own one, and the intermediate
// ones of the same file. Empty: it shows none. The epoch: that cannot be read.
std::optional<Time> valid_until(const ssl_ctx_st& context);

struct Trust {
  std::string file;    // PEM, the certificates to trust. Empty: SSL_CERT_FILE and SSL_CERT_DIR, or the system's.
  std::string origin;  // Where `file` was named, for errors: "the option ca_file".
  std::string option;  // The option that can name a file: "AWS_CA_BUNDLE", "--upstream-ca".
  std::string certificate_option = {};  // The option for a client certificate. Empty: none.
};

// Verifies the server's certificate. The system's certificates are looked up one by one, in its hashed directory or its
// file (bundle.hpp), because decoding them all takes 27 ms. Thread-safe after construction.
class ClientContext {
 public:
  // Throws Exception: misuse for an unreadable file, or if there are no trusted certificates; unavailable if OpenSSL
  // cannot start.
  explicit ClientContext(Trust trust);
  void offer_http_1_1();  // By ALPN (RFC 7301).
  // For servers that ask for a client certificate. Files as for ServerContext.
  void show_certificate(const std::string& certificate_file, const std::string& key_file);

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }
  [[nodiscard]] const std::string& option() const noexcept { return option_; }
  [[nodiscard]] const std::string& certificate_option() const noexcept { return certificate_option_; }

 private:
  std::unique_ptr<ssl_ctx_st, Free> context_;
  std::string option_;
  std::string certificate_option_;
};

// Speaks only HTTP/1.1, by ALPN: a client that offers only others gets an alert (RFC 7301, section 3.2), one that
// offers nothing is served. Sessions are resumed by tickets; nothing is stored here. Thread-safe after construction.
class ServerContext {
 public:
  // PEM: the certificate followed by its intermediate ones, and its key without a password. Throws Exception(misuse) if
  // a file cannot be read, or the key belongs to another certificate.
  ServerContext(const std::string& certificate_file, const std::string& key_file);
  // Each client must show a client certificate signed by one in this file (PEM, roots or intermediates); otherwise the
  // handshake fails. A resumed session has the certificate of its first handshake. No session outlives this object, or
  // a certificate of the verified chain. Throws as above. `option`: where the file was named.
  void require_certificate(const std::string& authorities_file, const std::string& option);
  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

}  // namespace once::tls
