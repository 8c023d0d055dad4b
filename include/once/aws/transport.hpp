// One call of an AWS service's JSON protocol: all that a store needs of a client. make_client() in
// once/aws/client.hpp is the built-in one; implement this to bring another, such as the AWS SDK's.
#pragma once

#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/error.hpp>

namespace once::aws {

struct Call {
  std::string operation;    // As the service names it: "PutItem".
  std::string body;         // JSON.
  bool repeatable = false;  // May be sent again although it may have been executed: reads.
};

// An answer of the service, whatever it says, or the error if there is none.
struct Reply {
  int status = 0;                 // Of HTTP. 0 with an error.
  std::string body;               // JSON, for errors of the service too.
  std::optional<StoreTime> time;  // The service's, from the Date header: whole seconds, so half of one either way.
  bool false_time =
      false;  // It reported an impossible one, since it accepted a signature of another time: `time` is empty.
  std::optional<Error> error;  // No answer. unavailable: nothing was executed. in_doubt: it may have been.
                               // misuse: it cannot work, such as without credentials.
};

// Thread-safe. Each call completes exactly once, before it returns or later from a thread of the transport, or one that
// waits in a blocking call for another answer of it; a completion must not block or throw, and may start further calls.
// The destructor completes running calls (in_doubt).
class Transport {
 public:
  virtual ~Transport() = default;

  // Sends the call, signed. It is sent again only if that is safe: when it certainly was not executed (nothing
  // written, throttled, clock or credentials corrected), or when it is repeatable.
  virtual void call(Call call, Callback<void(Reply)> done) = 0;

  // For people: "https://dynamodb.eu-central-1.amazonaws.com". Never holds a secret.
  [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace once::aws
