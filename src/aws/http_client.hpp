// HTTP/1.1 over TCP and TLS with kept-alive connections: one thread, however many exchanges are under way, and none of
// its own while somebody waits for an answer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

struct HttpClientOptions {
  std::size_t max_connections = 64;  // For each host, port and scheme. At least 1. More requests wait in line.
  // A connection that nobody has used for so long is closed. Below what servers allow, so that it is mostly we who
  // close; a connection that the server has closed all the same is recognised before it is used again.
  Millis idle_limit{20'000};
  Millis connect_timeout{2'000};                        // For one address of a host, TLS handshake included.
  std::size_t max_head_bytes = 64 * 1024;               // Of an answer: status line and headers.
  std::size_t max_body_bytes = std::size_t{64} << 20U;  // Of an answer.
  // A PEM file with the certificates to trust. Empty: AWS_CA_BUNDLE, or else SSL_CERT_FILE and SSL_CERT_DIR, or else
  // the system's. Read with the first connection that wants it.
  std::string ca_file;
};

// Nothing is ever sent twice: an exchange of which a byte was written and that fails is in_doubt. Answers end by
// Content-Length, by chunks, or with a connection that is closed in order; 1xx answers are passed over; redirects are
// answers like others; nothing is uncompressed.
//
// Exchanges with one host begin in the order of their send(). `done` is called by who has the turn at the client's loop
// (platform/shared_loop.hpp): its own thread, or one that waits for an answer. It should not block: nothing else goes
// on then, but for what it waits for. The destructor fails what is under way; it may be called from a completion. In
// the child of a fork every exchange fails (misuse), and the destructor touches nothing. Throws Exception(unavailable)
// if there is no thread to be had, Exception(misuse) for options out of range.
std::shared_ptr<HttpClient> make_http_client(HttpClientOptions options = {});

}  // namespace once::aws
