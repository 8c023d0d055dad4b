// The TLS of one connection, as a machine that never waits: each step says what it waits for. Not thread-safe.
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
  room,    // The network takes no more bytes at present.
  closed,  // The other side has ended the stream in order.
  failed,  // See error(). That includes a connection that ended out of order.
};

// Whether an error of OpenSSL's is an alert by which the other side refuses our certificate, or wants one (RFC 8446,
// section 6.2).
bool is_refusal_of_certificate(unsigned long openssl_code) noexcept;

class Stream {
 public:
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Step handshake();
  Step read(char* into, std::size_t size, std::size_t& count);
  Step write(std::string_view bytes, std::size_t& count);  // After more or room: the same bytes again, from anywhere.
  void close() noexcept;                                   // Says goodbye; read() may go on.

  // misuse: the certificate is not good, or it is not TLS that the server speaks. unavailable: the rest.
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  // OpenSSL's own for what failed. 0: it has none, as the connection just ended.
  [[nodiscard]] unsigned long error_code() const noexcept { return error_code_; }
  [[nodiscard]] bool has_read() const noexcept;  // A byte of the network.
  // A client's: the server ended it as it wants a certificate, or another one. With TLS 1.3 that comes when the
  // client's handshake is over (RFC 8446, section 4.4.2.4); nothing that was sent by then was read by anybody.
  [[nodiscard]] bool was_refused() const noexcept;
  // What OpenSSL found wrong with the other side's certificate: X509_V_OK, nothing, or X509_V_ERR_...
  [[nodiscard]] long verdict() const noexcept;
  // A server's, after the handshake: the client's certificate in DER, and in it the name of whom it is for, byte for
  // byte. Text is not the same thing: one text may stand for several names. Both are empty if none was required, and
  // the name if there is nothing in it.
  [[nodiscard]] std::string certificate() const;
  [[nodiscard]] std::string subject() const;

 protected:
  // The client's side. `ticket` is tried, and replaced when the server offers a new one; it must stay where it is as
  // long as the stream. The certificate must be for `host`, a name or an address. Throws Exception: misuse for a host
  // that cannot be checked, unavailable if OpenSSL has no memory.
  Stream(const ClientContext& context, const std::string& host, Ticket& ticket);
  explicit Stream(const ServerContext& context);
  ~Stream() = default;

  [[nodiscard]] ssl_st* ssl() const noexcept { return ssl_.get(); }

 private:
  Step outcome(int result);

  std::string host_;  // The server's. Empty: that is us.
  std::string option_;
  std::string certificate_option_;
  std::unique_ptr<ssl_st, Free> ssl_;
  Error error_;
  unsigned long error_code_ = 0;
};

// Between two buffers: bytes of the network come in and go out by hand. All steps leave in outgoing() what has to be
// sent next, and none waits for room. write() takes all that it is given.
class BufferedStream : public Stream {
 public:
  BufferedStream(const ClientContext& context, const std::string& host, Ticket& ticket);

  void incoming(std::string_view bytes);  // From the network.
  [[nodiscard]] std::string_view outgoing() const noexcept;
  void sent(std::size_t count);  // So many bytes of outgoing() are gone.

 private:
  std::size_t sent_ = 0;  // Of what lies in the outgoing buffer.
};

// Straight on a socket that does not block, and that stays the caller's. Never raises SIGPIPE. It must not move.
class SocketStream : public Stream {
 public:
  SocketStream(int socket, const ClientContext& context, const std::string& host, Ticket& ticket);
  SocketStream(int socket, const ServerContext& context);

  // That the kernel has taken, of whatever kind. If it has not grown, the other side has seen nothing.
  [[nodiscard]] std::uint64_t sent_bytes() const noexcept { return wire_.sent_bytes; }

  void detach() noexcept { wire_.socket = -1; }  // Before the socket is closed: all that comes fails.

  struct Wire {
    int socket;
    std::uint64_t sent_bytes = 0;
  };

 private:
  void attach();
  Wire wire_;
};

}  // namespace once::tls
