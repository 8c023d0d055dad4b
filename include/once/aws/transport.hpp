// One call of an AWS service's JSON protocol. A store needs no more from a client. make_client() in once/aws/client.hpp
// makes the built-in one. Implement this port to use another, such as the AWS SDK's.
#pragma once

#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/error.hpp>

namespace once::aws {

// One request of a JSON protocol.
struct Call {
  std::string operation = {};  // As the service names it: "PutItem".
  std::string body = {};       // JSON.
  bool repeatable = false;     // Sending it twice does no harm: reads.
};

// Any answer of the service, or an error if there is none.
struct Reply {
  int status = 0;         // Of HTTP. 0 with an error.
  std::string body = {};  // JSON, also for errors of the service.
  // The service's, from the Date header: whole seconds, so an error of half a second.
  std::optional<StoreTime> time = {};
  bool false_time = false;          // Its Date contradicts the signature that it accepted; `time` is empty.
  std::optional<Error> error = {};  // No answer. unavailable: not executed. in_doubt: perhaps executed. misuse: cannot
                                    // work, for example without credentials.
};

// Thread-safe. Each call completes exactly once: before it returns, or later from a thread of the transport, or from a
// thread that waits in another blocking call. A completion must not block or throw, and may start further calls. The
// destructor completes running calls (in_doubt).
class Transport {
 public:
  virtual ~Transport() = default;

  // Signs and sends the call. Retries only where that is safe: the call was certainly not executed (nothing written,
  // throttled, clock or credentials corrected), or it is repeatable.
  virtual void call(Call call, Callback<void(Reply)> done) = 0;

  // For people: "https://dynamodb.eu-central-1.amazonaws.com". Never contains a secret.
  [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace once::aws
