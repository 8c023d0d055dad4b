// The Runtime API's HTTP: one connection, kept alive, of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

struct addrinfo;

namespace once::lambda::runtime {

class StopFlag;

using ApiAnswer = boost::beast::http::response<boost::beast::http::string_body>;

struct ApiAddress {
  std::string host;
  std::string port;

  [[nodiscard]] std::string text() const;  // For the header Host.
};

// HOST:PORT, with IPv6 in brackets. Empty otherwise.
std::optional<ApiAddress> parse_api(std::string_view text);

// How an exchange may end.
enum class Trouble : std::uint8_t {
  none,
  stopped,    // Stopped while waiting.
  lost,       // Could not connect, or the connection ended: see problem().
  too_large,  // The answer's head came, its body is over the limit.
};

// Blocking. No error of the other side throws.
class ApiConnection {
 public:
  explicit ApiConnection(const ApiAddress& address) : address_(address) {}
  ApiConnection(const ApiConnection&) = delete;
  ApiConnection& operator=(const ApiConnection&) = delete;
  ~ApiConnection() { disconnect(); }

  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  void disconnect() noexcept;

  // Replaces a connection that the other side has closed, so that no post is lost because of that.
  bool connect_if_needed();

  // Sends everything, up to four parts. False: the other side may have refused the rest, with an answer.
  bool send_all(std::span<const std::string_view> parts);

  // Reads an answer. `stop` ends the wait for its first byte. too_large: `answer` has the head.
  Trouble read_answer(ApiAnswer& answer, std::size_t body_limit, const StopFlag* stop);

 private:
  class Parser;

  [[nodiscard]] bool connect_to(const addrinfo& to) const;
  bool fail(std::string problem);
  Trouble wait_readable(const StopFlag& stop);
  Trouble receive(Parser& parser);

  const ApiAddress& address_;
  int fd_ = -1;
  bool broken_ = false;  // No more bytes can be sent.
  boost::beast::flat_buffer buffer_;
  std::string problem_;
};

}  // namespace once::lambda::runtime
