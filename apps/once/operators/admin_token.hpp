// Who may use the operators' API and the metrics: clients with the token or, without one, programs on this host.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <once/fingerprint.hpp>
#include <once/frontends/http/message.hpp>

namespace once::cli {

// Thread-safe.
class AdminToken {
 public:
  // Reads the token: a line of 16 to 1024 visible ASCII characters, in a file that is not readable for all users.
  // Throws Exception(misuse), which says what is wrong. Empty: no token. `flag`: the flag that named the file.
  AdminToken(std::string file, std::string flag);

  void reload();  // Reads it again. If it throws, the token is unchanged.
  [[nodiscard]] bool is_set() const noexcept { return !file_.empty(); }
  [[nodiscard]] bool is(std::string_view token) const;  // Whether this is the token.
  [[nodiscard]] std::optional<Sha256> digest() const;   // Of the token. Empty: none.

  // An answer that refuses the request, or empty to allow it. With a token, the request must have it. Without one, it
  // must not come from a browser, because web pages can make it send requests here: no Origin, and no host name that
  // may be theirs (DNS rebinding).
  [[nodiscard]] std::optional<http::Answer> refuse(const http::Request& request) const;

 private:
  const std::string file_;
  const std::string flag_;
  mutable std::mutex mutex_;
  std::optional<Sha256> digest_;
};

}  // namespace once::cli
