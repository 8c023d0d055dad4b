// Signed exchanges with one service: credentials, clock, signature and retries. ServiceTraits has the differences
// between services: how to read a refusal, how long to retry, what may be in doubt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/aws/client.hpp>
#include <once/aws/credentials.hpp>
#include <once/callback.hpp>
#include <once/clock.hpp>

#include "aws/endpoint.hpp"
#include "aws/http.hpp"
#include "aws/service_error.hpp"

namespace once::aws {

// The properties of a service, besides its ClientOptions.
struct ServiceTraits {
  Endpoint endpoint;
  Refusal (*read_refusal)(const HttpAnswer& answer) = nullptr;  // Called for answers with status 400 and above.
  // False: every call may be repeated after any failure, and no error is in_doubt.
  bool tells_doubt = true;
};

struct SignedCall {
  std::string method = "POST";
  std::string target = {};  // Path and query, encoded, with the endpoint's path.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  bool repeatable = false;          // As in Call.
  std::uint32_t attempts_made = 0;  // Requests of the earlier call that this one continues.
};

struct SignedAnswer {
  // The service's last answer, if any. `error`: no usable answer came. It has the service's text, and nothing of the
  // call; its kinds are those of Client.
  HttpAnswer http;
  SignedCall call;                                 // The request's call, returned.
  bool refused = false;                            // With `error`: the signature or the credentials were refused.
  std::uint32_t attempts = 0;                      // Requests so far.
  std::shared_ptr<const Credentials> credentials;  // Of the last request; null if there was none.
  std::optional<StoreTime> time;                   // As in Reply.
  bool false_time = false;
};

// Client (once/aws/client.hpp) says what is retried, and when. Thread-safe; `done` is called exactly once. The
// destructor completes running calls; a completion may call it.
class SignedClient {
 public:
  // Used options: service, region, credentials, times and limits, and those for tests. All must be set, except `timers`
  // and `random`: without them there are no pauses and no rate limit.
  SignedClient(ClientOptions options, ServiceTraits traits, std::shared_ptr<HttpClient> http);
  ~SignedClient();
  SignedClient(const SignedClient&) = delete;
  SignedClient& operator=(const SignedClient&) = delete;

  void call(SignedCall call, Callback<void(SignedAnswer)> done);
  [[nodiscard]] ClientCounts counts() const noexcept;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace once::aws
