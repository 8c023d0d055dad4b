// TLS as a machine between two buffers: bytes of the network on one side, bytes of the application on the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <once/error.hpp>

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace once::aws {

struct TlsFree {
  void operator()(ssl_st* ssl) const noexcept;
  void operator()(ssl_ctx_st* context) const noexcept;
  void operator()(ssl_session_st* session) const noexcept;
};

// What lets the next connection to the same host begin with fewer steps.
using TlsSession = std::unique_ptr<ssl_session_st, TlsFree>;

// Whom to trust: TLS 1.2 or later, the server's certificate checked. See HttpClientOptions::ca_file for where the
// trusted certificates are found. The system's are looked up one by one in its hashed directory, as reading them all
// takes 27 ms. Throws Exception(misuse) for a file that cannot be read.
class TlsContext {
 public:
  explicit TlsContext(const std::string& ca_file);
  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  std::unique_ptr<ssl_ctx_st, TlsFree> context_;
};

// The client's side of one connection. Not thread-safe. All steps leave in outgoing() what has to be sent next.
class TlsStream {
 public:
  enum class Step : std::uint8_t {
    done,
    more,    // More bytes of the network are needed.
    closed,  // The server has ended the stream in order.
    failed,  // See error().
  };

  // `session` is tried, and replaced when the server offers a new one; it must stay where it is as long as the stream.
  // Throws Exception(misuse) for a host that cannot be checked, Exception(unavailable) if OpenSSL has no memory.
  TlsStream(const TlsContext& context, const std::string& host, TlsSession& session);

  void incoming(std::string_view bytes);  // From the network.
  [[nodiscard]] std::string_view outgoing() const noexcept;
  void sent(std::size_t count);  // So many bytes of outgoing() are gone.

  Step handshake();
  Step write(std::string_view bytes);  // done: all of it is in outgoing().
  Step read(char* buffer, std::size_t size, std::size_t& count);
  void close() noexcept;  // Says goodbye in outgoing().

  // misuse: the certificate is not good, or it is not TLS that the server speaks. unavailable: the rest.
  [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
  Step outcome(int result);

  std::string host_;
  std::unique_ptr<ssl_st, TlsFree> ssl_;
  std::size_t sent_ = 0;  // Of what lies in the outgoing buffer.
  Error error_;
};

}  // namespace once::aws
