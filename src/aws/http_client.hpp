// HTTP/1.1 over TCP, TLS and Unix sockets with kept-alive connections. One thread for any number of exchanges; while a
// caller waits for an answer, that thread runs the loop instead.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

struct HttpClientOptions {
  std::size_t max_connections = 64;  // For each host, port and scheme. At least 1. Further requests wait.
  // Connections idle for this long are closed. Below the servers' limits, so that usually we close. A connection closed
  // by the server is detected before it is used again.
  Millis idle_limit{20'000};
  Millis connect_timeout{2'000};                        // For one address of a host, including the TLS handshake.
  std::size_t max_head_bytes = 64 * 1024;               // Of an answer: status line and headers.
  std::size_t max_body_bytes = std::size_t{64} << 20U;  // Of an answer.
  // A PEM file with the certificates to trust. Empty: what `ca_variable` names, otherwise SSL_CERT_FILE and
  // SSL_CERT_DIR, otherwise the system's. Read for the first TLS connection.
  std::string ca_file = {};
  std::string ca_variable = "AWS_CA_BUNDLE";
  // For servers that ask for a client certificate: PEM files, both or none. Read with the others.
  std::string certificate_file = {};
  std::string key_file = {};
  std::string certificate_option = {};  // What messages call them. Empty: they do not name an option.
  // Called with each Unix socket that was connected, before anything is sent. An error ends the exchange.
  std::function<std::optional<Error>(int socket, const std::string& path)> check_peer = {};
};

// Nothing is sent twice: an exchange that fails after a written byte is in_doubt. Answers end by Content-Length, by
// chunks, or with an orderly close. 1xx answers are skipped, redirects are ordinary answers, and nothing is
// decompressed.
//
// Exchanges with one host begin in the order of send(). `done` is called by the thread with the turn of the client's
// loop (platform/shared_loop.hpp): its own thread, or one that waits for an answer. It should not block, because that
// stops all other exchanges. The destructor fails running exchanges; a completion may call it. In the child of a fork
// every exchange fails (misuse), and the destructor does nothing. Throws Exception(unavailable) if no thread can be
// started, Exception(misuse) for options out of range.
std::shared_ptr<HttpClient> make_http_client(HttpClientOptions options = {});

}  // namespace once::aws
