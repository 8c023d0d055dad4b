// Who may use the operators' API and the metrics: clients with the token or, without one, programs on this host.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/frontends/http/message.hpp>

#include "operators/sessions.hpp"

namespace once::operators {

// A token of the file, as its digest.
struct KnownToken {
  Sha256 digest{};
  Identity identity;  // Its name is empty if the file has the token alone.

  friend bool operator==(const KnownToken&, const KnownToken&) = default;
};

// What the lines of a file with several tokens say, besides the digest.
enum class TokenLines : std::uint8_t {
  people,   // A name and a role, reader or operator.
  tenants,  // A tenant's name.
};

// A file with a new token that only this user can read, for a port on a loopback address: every user of this host can
// connect to it. In $XDG_RUNTIME_DIR, otherwise in $TMPDIR or /tmp, under a name that nobody has. Deleted with this.
class MadeTokenFile {
 public:
  MadeTokenFile();  // Throws Exception(unavailable).
  MadeTokenFile(const MadeTokenFile&) = delete;
  MadeTokenFile& operator=(const MadeTokenFile&) = delete;
  ~MadeTokenFile();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // For people, after the port.
  [[nodiscard]] std::string note() const { return "the token of the operators' API is in " + path_; }

 private:
  std::string path_;
};

// Thread-safe.
class AdminToken {
 public:
  // Reads the file, which must not be readable for all users. It has one token: a line of 16 to 1024 visible ASCII
  // characters. Or it has several, a line for each: name, role (reader or operator), SHA-256 of the token in 64
  // hexadecimal digits, with blanks between. Empty lines, and those that begin with '#', do not count. For
  // TokenLines::tenants a line is a name and the digest. One name may have several tokens. It has letters, digits and
  // "-._~", and does not begin with "uid-", as the names of users do.
  // Throws Exception(misuse), which says what is wrong, and in which line. Empty: no token. `flag`: the flag that named
  // the file.
  AdminToken(std::string file, std::string flag, TokenLines lines = TokenLines::people);

  // Reads it again. If it throws, the tokens are unchanged. It does for tenants if the file began or ceased to name
  // them: the clients' keys would become other ones.
  void reload();
  // From now on whoever asks for a token makes this look whether the file is another one. It is read then, a second
  // after it changed, as it may be half written. If that fails, the tokens stay; standard error has a line either way.
  // Call it before other threads use this.
  void follow() noexcept { follows_ = true; }
  [[nodiscard]] bool is_set() const noexcept { return !file_.empty(); }
  // Whether the tokens have names.
  [[nodiscard]] bool names() const;
  // Empty: it is none of the tokens.
  [[nodiscard]] std::optional<KnownToken> find(std::string_view token) const;
  // Whether this is one of the tokens still, for the same person.
  [[nodiscard]] bool has(const KnownToken& token) const;

  // An answer that refuses the request, or empty to allow it. With a token, the request must have one: sets `bearer`.
  // Without one, it must not come from a browser, because web pages can make it send requests here: no Origin, and no
  // host name that may be theirs (DNS rebinding).
  [[nodiscard]] std::optional<http::Answer> refuse(const http::Request& request,
                                                   std::optional<KnownToken>* bearer = nullptr) const;

 private:
  // Which file it is, and when it was changed: all zero if there is none.
  using Stamp = std::array<std::int64_t, 7>;
  Stamp stamp() const noexcept;
  void catch_up() const;  // With the lock.
  std::vector<KnownToken> read(bool is_first) const;

  const std::string file_;
  const std::string flag_;
  const TokenLines lines_;
  bool follows_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<KnownToken> tokens_;
  mutable Stamp known_{};                                         // What was read, or refused.
  mutable Stamp changing_{};                                      // Another one, ...
  mutable std::chrono::steady_clock::time_point changing_since_;  // ... first seen then.
};

}  // namespace once::operators
