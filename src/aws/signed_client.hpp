// Signed exchanges with one service: the credentials, the clock, the signature, and sending again what may be sent
// again. In what services differ, it is told: how they word a refusal, how long to go on, what may be in doubt.
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
#include <once/time.hpp>

#include "aws/endpoint.hpp"
#include "aws/http.hpp"
#include "aws/service_error.hpp"

namespace once::aws {

struct SignedClientOptions {
  std::string service;  // Of signatures, as the region.
  std::string region;
  Endpoint endpoint;
  Refusal (*read_refusal)(const HttpAnswer& answer) = nullptr;  // Asked for answers with status 400 and above.
  // Whether a call that failed may have been carried out is of interest. False: every call may be repeated, whatever
  // became of it, and no error is in_doubt.
  bool tells_doubt = true;

  Millis timeout{5'000};                // For one request.
  std::optional<Millis> total_timeout;  // No request of a call begins later than this after the call. Empty: no limit.
  // As ClientOptions has them.
  std::uint32_t max_attempts = 5;
  Millis backoff{25};
  Millis max_backoff{2'000};
  std::optional<std::uint32_t> retry_budget;  // Empty: no limit.

  std::shared_ptr<HttpClient> http;
  std::shared_ptr<CredentialsProvider> credentials;
  std::shared_ptr<Clock> clock;
  std::shared_ptr<Timers> timers;  // Empty: no pauses, and nothing is held back.
  std::shared_ptr<Random> random;  // For the pauses.
};

struct SignedCall {
  std::string method = "POST";
  std::string target;  // Path and query, encoded, with the endpoint's path.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  bool repeatable = false;         // As Call has it.
  std::uint32_t attempts_made{0};  // Requests of a call before, of which this is the continuation.
};

struct SignedAnswer {
  // The service's last answer, if there was one. With `error` none came that could be used; the service's words are in
  // it, and nothing of the call. Its kinds are those of Client.
  HttpAnswer http;
  SignedCall call;                                 // Given back.
  bool refused = false;                            // With `error`: the signature, or who signed.
  std::uint32_t attempts = 0;                      // Requests so far.
  std::shared_ptr<const Credentials> credentials;  // Of the last request; null if there was none.
  std::optional<StoreTime> time;                   // As Reply has them.
  bool false_time = false;
};

// What is repeated, and when, is said of Client (once/aws/client.hpp). Thread-safe; `done` is called exactly once. The
// destructor completes what is under way; it may be called from a completion.
class SignedClient {
 public:
  explicit SignedClient(SignedClientOptions options);
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
