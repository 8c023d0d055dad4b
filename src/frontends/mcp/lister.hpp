// Reads the tools of a server, as a client that does nothing else. Pure, as the session is.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "frontends/mcp/message.hpp"
#include "frontends/mcp/tools.hpp"

namespace once::mcp {

// Begins with the handshake of 2025-11-25. A server that does not know it is of a later revision: asked without one.
class Lister {
 public:
  explicit Lister(std::string version);  // Of once, as the server is told.

  void from_server(const std::string& line);
  [[nodiscard]] std::vector<std::string> take() { return std::exchange(to_server_, {}); }  // Lines to send.
  [[nodiscard]] bool is_done() const noexcept { return is_done_; }
  [[nodiscard]] const std::string& error() const noexcept { return error_; }  // Not empty: they cannot be listed.
  [[nodiscard]] const Tools& tools() const noexcept { return tools_; }
  [[nodiscard]] const std::string& server() const noexcept { return server_; }  // The name that it says.

 private:
  void ask(const std::string& cursor);
  void fail(std::string why);
  void on_initialized(const Message& message);
  void on_page(const Message& message);

  const std::string client_info_;
  std::vector<std::string> to_server_ = {};
  Tools tools_ = {};
  std::string server_ = {};
  std::string error_ = {};
  std::string meta_ = {};  // Of our requests, as JSON. Empty: the session has a handshake.
  std::size_t pages_ = 0;
  bool is_initialized_ = false;
  bool is_done_ = false;
};

}  // namespace once::mcp
