// Who may ask the operators' API, or for the metrics: whoever knows the token, or, without one, programs of this host.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <once/fingerprint.hpp>
#include <once/frontends/http/message.hpp>

namespace once::cli {

// Thread-safe.
class AdminToken {
 public:
  // Reads the token: a line of 16 to 1024 visible ASCII characters in a file that not everybody on the host can read.
  // Throws Exception(misuse) that says what is wrong. Empty: there is none. `flag`: what named it.
  AdminToken(std::string file, std::string flag);

  void reload();  // The same. If it throws, the token stays what it was.
  [[nodiscard]] bool is_set() const noexcept { return !file_.empty(); }

  // The answer that refuses the request. Empty: it may go on. With a token, the request must bear it. Without, it must
  // not come from a browser, where pages of others can make one send requests here: neither with an Origin, nor under a
  // host name that may be theirs (DNS rebinding).
  [[nodiscard]] std::optional<http::Answer> refuse(const http::Request& request) const;

 private:
  const std::string file_;
  const std::string flag_;
  mutable std::mutex mutex_;
  std::optional<Sha256> digest_;
};

}  // namespace once::cli
