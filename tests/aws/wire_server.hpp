// A server on 127.0.0.1 under a test's control, with plain sockets and a thread for each connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

struct ssl_ctx_st;
struct ssl_st;

namespace once::aws::testing {

// A certificate with its key, and the file of the authority that signed it.
struct Identity {
  std::shared_ptr<ssl_ctx_st> context;
  std::string ca_file;
};

struct IdentityOptions {
  std::string name = "localhost";  // The certificate is for this name and, unless it is changed, for 127.0.0.1.
  bool expired = false;
  std::string authority = {};  // Its name. Empty: one that no other has.
};

// Signed by an authority that is made for it.
Identity make_identity(const IdentityOptions& options = {});

// What a certificate's file is called in OpenSSL's hashed directories: "5ad8a5d6.0".
std::string hashed_name(const std::string& file);

// One connection, seen from the server.
class Peer {
 public:
  Peer(int socket, std::size_t number, ssl_ctx_st* context);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The next request, head and body. Nothing: the client has closed.
  std::optional<std::string> request();
  // Waits until the client closes. False: it sent something instead.
  bool closed_by_client();
  void send(std::string_view bytes);
  void close();                        // In order: with TLS it says goodbye first.
  void cut();                          // Without a goodbye.
  void reset();                        // RST.
  void shut_down() noexcept;           // From another thread: wakes whoever waits here.
  [[nodiscard]] bool resumed() const;  // TLS went on from an earlier session.

  const std::size_t number;  // From 1, in the order of the connections.

 private:
  long receive(char* buffer, std::size_t size);

  std::mutex mutex_;  // For closing against shut_down().
  int socket_;
  std::string buffer_;
  std::shared_ptr<ssl_st> ssl_;
};

// "HTTP/1.1 200 OK" with this body.
std::string answer(std::string_view body, std::string_view more_headers = {});

class Server {
 public:
  // `serve` is called for each connection; the connection is closed when it returns.
  explicit Server(std::function<void(Peer&)> serve, std::optional<Identity> identity = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::size_t connections() const noexcept { return connections_; }

 private:
  void accept();

  std::function<void(Peer&)> serve_;
  std::optional<Identity> identity_;
  std::uint16_t port_ = 0;
  int socket_;  // Sets port_.
  std::atomic<std::size_t> connections_{0};
  std::mutex mutex_;
  bool stopping_ = false;
  std::vector<Peer*> peers_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// A port on 127.0.0.1 that this program owns, and where none listens.
std::uint16_t closed_port();

}  // namespace once::aws::testing
