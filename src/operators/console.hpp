// The console: its page's files, and the sessions of browsers. docs/console.md describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/clock.hpp>
#include <once/frontends/http/message.hpp>
#include <once/platform/system.hpp>

#include "operators/admin_token.hpp"
#include "operators/audit_log.hpp"
#include "operators/notes.hpp"
#include "operators/sessions.hpp"

namespace once::operators {

// Who has sent a request that is allowed.
struct Caller {
  // Of a session, or of a token that has a name. Empty: a program, with the only token or on this host.
  std::optional<Identity> session = {};
  std::uint64_t number = 0;              // Of the session. 0: it is none.
  std::optional<KnownToken> token = {};  // What a program has shown.
  Notes* notes = nullptr;                // Null: nothing is noted.

  // Notes what this caller does. False: it must not be done. In a session `who` is its name.
  [[nodiscard]] bool note(nlohmann::ordered_json line) const;
};

// 403 for a change by a reader.
std::optional<http::Answer> refuse_reader(const http::Request& request, const Caller& caller);

// HOST[:PORT] of "https://HOST[:PORT]", in lower case, without the port 443; empty for an empty origin. Throws
// Exception(misuse), also for an origin where nobody could sign in.
std::string console_host(std::string_view origin, bool can_sign_in);

struct ConsoleOptions {
  bool by_links = false;          // Browsers come by links, and programs not at all; else by the token.
  bool by_tls = false;            // The port speaks TLS.
  AuditLog* audit = nullptr;      // Null: none. Must outlive the console.
  std::string host = {};          // As console_host() gives it: browsers may use this one, too. Empty: none.
  std::string name = "operator";  // Of those who sign in with a token that has no name.
  std::shared_ptr<Clock> clock = system_clock();
};

// Thread-safe. Blocks for no store.
class Console {
 public:
  // `token` must outlive it.
  Console(const AdminToken& token, ConsoleOptions options);

  // The secret of a link for one use within 60 s: what stands behind "/console/#link=".
  std::string new_link(Identity identity) { return sessions_.new_link(std::move(identity)); }

  // Ends the sessions of tokens that are gone, or are for another name or role.
  void end_changed();

  // For the paths /console, those below it, and /v1/session. Empty: another path. Throws Exception(misuse) for a body
  // that is wrong.
  std::optional<http::Answer> answer(const http::Request& request);

  // Whether admit() decides about this request, and not the token.
  [[nodiscard]] bool decides(const http::Request& request) const;
  // An answer that refuses the request; or empty, and sets caller.session.
  std::optional<http::Answer> admit(const http::Request& request, Caller& caller);
  // Whether the session with this number is there still. Counts as a use.
  [[nodiscard]] bool still_admits(std::uint64_t number);

  [[nodiscard]] Notes& notes() noexcept { return notes_; }

 private:
  [[nodiscard]] std::vector<std::string_view> cookies(const http::Request& request) const;
  [[nodiscard]] std::optional<http::Answer> refuse_host(const http::Request& request) const;
  // Whether the browser speaks TLS: to this port, or to a gateway in front of it.
  [[nodiscard]] bool is_secure(const http::Request& request) const;
  [[nodiscard]] std::string cookie_name(const http::Request& request) const;
  http::Answer session(const http::Request& request);
  http::Answer sign_in(const http::Request& request);
  [[nodiscard]] Identity named(Identity identity) const;

  const AdminToken& token_;
  const ConsoleOptions options_;
  Notes notes_;
  Sessions sessions_;
};

}  // namespace once::operators
