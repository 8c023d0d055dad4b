// Sessions of `once serve`: a client says that it lives by a stream that it keeps open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <once/clock.hpp>
#include <once/frontends/proxy.hpp>
#include <once/time.hpp>

#include "platform/file.hpp"

namespace once::cli {

struct ClaimSessionsOptions {
  std::size_t most_open = 1'000;
  Millis alive_pause{10'000};  // At least so often a line is sent.
};

// Thread-safe. The functions that are given are called without a lock of this.
class ClaimSessions {
 public:
  // `closed` is called once for each session that has ended: its client has gone.
  ClaimSessions(std::shared_ptr<Clock> clock, std::shared_ptr<Random> random, ClaimSessionsOptions options,
                std::function<void(const std::string& id)> closed);
  ClaimSessions(const ClaimSessions&) = delete;
  ClaimSessions& operator=(const ClaimSessions&) = delete;
  ~ClaimSessions();  // As stop().

  // A stream of JSON lines; or 503 if there are too many. `process`: the client's, 0 if it is not known. The session
  // ends with the process, also if a child of it has the connection too. `tenant`: whose it is.
  proxy::OperatorsAnswer open(std::int64_t process, const std::string& tenant);

  // When it was opened: a later one has a greater number. Empty: it is not open, or is not this tenant's.
  [[nodiscard]] std::optional<std::uint64_t> number_of(const std::string& id, const std::string& tenant) const;
  // Sends a line. Nothing happens if it is not open.
  void tell(const std::string& id, const nlohmann::ordered_json& event);
  // Ends the sessions of processes that have ended, and sends lines that are due. Called four times a second.
  void look();
  void stop();  // Ends all, without `closed`.

  [[nodiscard]] std::size_t count() const;

 private:
  struct Session;
  class Stream;
  using SessionPtr = std::shared_ptr<Session>;
  struct State;
  std::shared_ptr<State> state_;  // Streams may live longer than this object.
};

}  // namespace once::cli
