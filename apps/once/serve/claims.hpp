// The claims API of `once serve`: an engine's claims for programs in any language, over HTTP. docs/serve.md describes
// it for users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>
#include <once/time.hpp>

namespace once::cli {

inline constexpr int claims_api_version = 1;

struct ClaimsOptions {
  std::size_t most_open = 10'000;  // Claims at a time. Further ones are refused.
  Millis max_wait{600'000};        // The longest `wait_ms`.
  Millis idle{0};                  // After so long without a request and an open claim, it stops by itself. 0: never.
  std::function<bool()> is_store_gone = {};  // Asked now and then. After true it stops by itself, too. Must not throw.
  std::function<void(std::string_view why)> on_end = {};  // Called once, by a thread of its own. Must not throw.
};

// Who has sent a request.
struct ClaimsClient {
  std::string tenant = {};   // Its claims and sessions are of no other. Empty: all clients are one.
  std::int64_t process = 0;  // On this host; 0: not known. See ClaimSessions::open().
};

// Keeps the handles of claims while their clients live. A client shows that it does by any request about the claim, at
// least once in a lease. A silent one's handle is dropped: the claim is not renewed any more, and lapses. Nothing is
// lost with a handle: the claim's ID takes it up again (Engine::attach()), in this process or another one.
class Claims {
 public:
  explicit Claims(std::shared_ptr<Engine> engine, ClaimsOptions options = {});
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;
  ~Claims();

  // /v1/version, and paths that begin with /v1/claims. Does not block. `done` is called once, from any thread.
  void answer(const http::Request& request, ClaimsClient client, Callback<void(proxy::OperatorsAnswer)> done);

  // Waiting requests and later ones are answered with 503. All handles are dropped; nothing is released.
  void stop();

  [[nodiscard]] std::string metrics() const;  // Prometheus' text format.

 private:
  class Shared;
  std::shared_ptr<Shared> shared_;  // Completions of the engine may come later than this object's end.
  std::jthread silence_;            // Drops the handles of silent clients.
};

}  // namespace once::cli
