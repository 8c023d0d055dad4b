// Who has signed in to the console, by a one-time link or the admin token.
//
// A session has two halves, 128 random bits each. One is in a cookie, which scripts cannot read. But browsers send it
// to every port of a host, so other servers there get it. The other is in the storage of the page's own origin, and the
// page sends it as a header. Neither is worth anything alone. docs/console.md has the whole of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/clock.hpp>
#include <once/fingerprint.hpp>
#include <once/platform/system.hpp>

namespace once::operators {

// For whom a session is.
struct Identity {
  std::string name;         // For histories. Not empty.
  bool reads_only = false;  // The role reader, else operator.

  friend bool operator==(const Identity&, const Identity&) = default;
};

// Secrets are kept as their digests only. Thread-safe. Times are those of the clock's uptime().
class Sessions {
 public:
  static constexpr std::chrono::seconds link_life{60};
  static constexpr std::chrono::minutes idle_life{30};
  static constexpr std::chrono::hours whole_life{12};
  static constexpr std::size_t most_sessions = 64;  // One more ends the one that was used least recently.
  static constexpr std::size_t most_links = 16;     // The same: the oldest.
  // Attempts to sign in that failed within the last minute, from one address. More have no line.
  static constexpr std::size_t most_failures = 20;
  // From all addresses, so that they do not fill the audit log.
  static constexpr std::size_t most_failures_in_all = 2000;
  static constexpr std::chrono::minutes failure_life{1};

  explicit Sessions(std::shared_ptr<Clock> clock = system_clock(), std::shared_ptr<Random> random = system_random());
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;
  ~Sessions();

  // The secret of a link for one use, 32 hexadecimal digits.
  std::string new_link(Identity identity);
  // Takes the link. Empty: there is none with this secret, or no longer.
  std::optional<Identity> take_link(std::string_view secret);

  struct Halves {
    std::string cookie;
    std::string header;
  };
  // `credential`: what the identity signed in with, if it may change: see end_unless().
  Halves open(Identity identity, std::optional<Sha256> credential = std::nullopt);
  struct Found {
    Identity identity;
    std::uint64_t number = 0;  // Never 0, and no other session's.
  };
  // Counts as a use. Empty: there is no such session, or no longer.
  std::optional<Found> find(std::string_view cookie, std::string_view header);
  // The same by its number instead of its secrets, for what goes on after the request.
  bool use(std::uint64_t number);
  void end(std::string_view cookie, std::string_view header);
  // Ends the sessions whose credential is not good any more for whom they are. Those without one stay.
  void end_unless(const std::function<bool(const Sha256& credential, const Identity& identity)>& is_good);

  // An attempt failed. False: too many from this address, or from all of them, failed before.
  [[nodiscard]] bool count_failure(std::string_view address);

 private:
  struct Link;
  struct Session;

  std::string secret();
  void drop_old();
  Session* of(std::string_view cookie, std::string_view header);

  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Random> random_;
  std::mutex mutex_;         // Guards the following members.
  std::vector<Link> links_;  // Oldest first.
  std::vector<Session> sessions_;
  struct Failure {
    std::string address;
    Uptime at;
  };
  std::deque<Failure> failures_;  // Oldest first.
  std::uint64_t opened_ = 0;
};

}  // namespace once::operators
