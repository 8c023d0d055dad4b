// The TLS of one connection, as a machine that never blocks: each step returns what it needs. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <once/error.hpp>

#include "tls/context.hpp"

namespace once::tls {

enum class Step : std::uint8_t {
  done,
  more,    // More bytes of the network are needed.
  room,    // The network takes no more bytes now.
  closed,  // The other side has ended the stream with close_notify.
  failed,  // See error(). Also a connection that ended without close_notify.
};

// Whether an OpenSSL error is an alert that our certificate is refused or missing (RFC 8446, section 6.2).
bool is_refusal_of_certificate(unsigned long openssl_code) noexcept;

class Stream {
 public:
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Step handshake();
  Step read(char* into, std::size_t size, std::size_t& count);
  Step write(std::string_view bytes,
             std::size_t& count);  // After more or room: call it again with the same bytes, at any address.
  void close() noexcept;           // Sends close_notify; read() may continue.

  // misuse: an invalid certificate, or the server does not speak TLS. unavailable: other errors.
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  // OpenSSL's error code. 0: none, the connection ended.
  [[nodiscard]] unsigned long error_code() const noexcept { return error_code_; }
  [[nodiscard]] bool has_read() const noexcept;  // At least one byte came from the network.
  // A client's: the server ended it because it wants a certificate, or another one. With TLS 1.3 that comes after the
  // client's handshake (RFC 8446, section 4.4.2.4); the server has read none of the bytes sent until then.
  [[nodiscard]] bool was_refused() const noexcept;
  // OpenSSL's verdict on the other side's certificate: X509_V_OK or X509_V_ERR_...
  [[nodiscard]] long verdict() const noexcept;
  // A server's, after the handshake: the client's certificate in DER, and its subject's DER bytes. Not as text, because
  // several names can have the same text. Both are empty if none was required; the subject also if it has no name.
  [[nodiscard]] std::string certificate() const;
  [[nodiscard]] std::string subject() const;

 protected:
  // The client's side. `ticket` is tried, and replaced when the server offers a new one. It must live as long as the
  // stream, at the same address. The certificate must be for `host`, a name or an address. Throws Exception: misuse for
  // a host that cannot be verified, unavailable if OpenSSL has no memory.
  Stream(const ClientContext& context, const std::string& host, Ticket& ticket);
  explicit Stream(const ServerContext& context);
  ~Stream() = default;

  [[nodiscard]] ssl_st* ssl() const noexcept { return ssl_.get(); }

 private:
  Step outcome(int result);

  std::string host_;  // The server's host. Empty: this is the server.
  std::string option_;
  std::string certificate_option_;
  std::unique_ptr<ssl_st, Free> ssl_;
  Error error_;
  unsigned long error_code_ = 0;
};

// Between two buffers: the caller moves the network's bytes. Each step leaves the bytes to send in outgoing(), and none
// waits for room. write() takes all bytes.
class BufferedStream : public Stream {
 public:
  BufferedStream(const ClientContext& context, const std::string& host, Ticket& ticket);

  void incoming(std::string_view bytes);  // From the network.
  [[nodiscard]] std::string_view outgoing() const noexcept;
  void sent(std::size_t count);  // `count` bytes of outgoing() were sent.

 private:
  std::size_t sent_ = 0;  // Sent bytes of the outgoing buffer.
};

// On a non-blocking socket, which the caller owns. Never raises SIGPIPE. It must not move.
class SocketStream : public Stream {
 public:
  SocketStream(int socket, const ClientContext& context, const std::string& host, Ticket& ticket);
  SocketStream(int socket, const ServerContext& context);

  // All bytes that the kernel has taken. If it has not grown, the other side has seen nothing.
  [[nodiscard]] std::uint64_t sent_bytes() const noexcept { return wire_.sent_bytes; }

  void detach() noexcept { wire_.socket = -1; }  // Call it before the socket is closed: later steps fail.

  struct Wire {
    int socket;
    std::uint64_t sent_bytes = 0;
  };

 private:
  void attach();
  Wire wire_;
};

}  // namespace once::tls
