// One HTTP/1.1 exchange. The port between the client of a service (signing, retries) and the network.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/time.hpp>

namespace once::aws {

struct HttpRequest {
  std::string method = {};  // "POST". Not HEAD, whose answer has no body.
  bool tls = true;
  std::string host = {};  // A name or address, without port.
  std::uint16_t port = 443;
  std::string socket = {};  // The path of a Unix socket, where `host` is only sent along. Empty: none.
  std::string target = {};  // "/": path and query, encoded.
  std::vector<std::pair<std::string, std::string>> headers = {};  // Without Content-Length, which is added.
  std::string body = {};
  Millis timeout{5'000};  // For the whole exchange, connecting included.
};

struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};  // Names in lower case.
  std::string body = {};
  bool refused_certificate = false;  // error: the server wants a client certificate, or another one.
  std::optional<Error> error = {};   // unavailable: no byte of the request was written. in_doubt: it may have arrived.
                                     // misuse: it cannot work (invalid certificate, malformed name).

  // The first header of that name (in lower case), or empty.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

// Thread-safe. `done` is called exactly once: before send() returns, or from a thread of the client, or from one that
// waits for its answer (platform/wait.hpp).
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  virtual void send(HttpRequest request, Callback<void(HttpAnswer)> done) = 0;
};

}  // namespace once::aws
