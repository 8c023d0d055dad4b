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

#include "aws/endpoint.hpp"
#include "aws/http.hpp"
#include "aws/service_error.hpp"

namespace once::aws {

// What a service is, beside its ClientOptions.
struct ServiceTraits {
  Endpoint endpoint;
  Refusal (*read_refusal)(const HttpAnswer& answer) = nullptr;  // Asked for answers with status 400 and above.
  // False: every call may be repeated, whatever became of it, and no error is in_doubt.
  bool tells_doubt = true;
};

struct SignedCall {
  std::string method = "POST";
  std::string target;  // Path and query, encoded, with the endpoint's path.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  bool repeatable = false;          // As Call has it.
  std::uint32_t attempts_made = 0;  // Requests of a call before, of which this is the continuation.
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
  // Of the options count service, region, credentials, times and limits, and what is for tests; all must be set, but
  // for `timers` and `random`: without them there are no pauses, and nothing is held back.
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
