// The built-in client of an AWS service with a JSON protocol, such as DynamoDB. Finds the service and the credentials,
// signs, sends, and retries requests where that is safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <once/aws/credentials.hpp>
#include <once/aws/transport.hpp>
#include <once/clock.hpp>
#include <once/time.hpp>

namespace once::aws {

// Which service, and how it is reached.
struct ClientOptions {
  std::string service = "dynamodb";                         // In host names, variables and signatures.
  std::string target_prefix = "DynamoDB_20120810";          // X-Amz-Target is this, '.' and the operation.
  std::string content_type = "application/x-amz-json-1.0";  // The version of the service's JSON protocol.

  std::string region = {};  // Empty: AWS_REGION, AWS_DEFAULT_REGION, or the profile's.
  // A URL. Empty: AWS_ENDPOINT_URL_<SERVICE>, AWS_ENDPOINT_URL, the profile's, or the service's.
  std::string endpoint = {};
  std::string profile = {};  // Of the shared config files. Empty: AWS_PROFILE, or "default".
  std::shared_ptr<CredentialsProvider> credentials = {};  // Empty: default_credentials() with `profile`.
  std::string ca_file = {};  // PEM, the certificates to trust. Empty: AWS_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, or
                             // the system's.

  Millis timeout{5'000};             // For one request, including the wait for a connection. At least 1 ms.
  Millis total_timeout{15'000};      // No request of a call begins later than this. At least `timeout`.
  std::size_t max_connections = 64;  // At least 1. Requests beyond them wait, within their timeout.

  // At most this many requests for one call, beside throttled ones: 1 to 100. 1: nothing is retried. The pause before
  // the n-th retry is drawn evenly from 0 to backoff * 2^(n-1), at most max_backoff ("full jitter").
  std::uint32_t max_attempts = 5;
  Millis backoff{25};         // Not negative. 0: no pauses.
  Millis max_backoff{2'000};  // At least `backoff`.
  // All calls together may retry this many requests, plus one for every ten calls that succeeded. So a service that is
  // down does not get several times the usual requests.
  std::uint32_t retry_budget = 100;

  Environment environment = process_environment();  // Read only while the client is made.

  // These are for tests. Empty: the system's.
  std::shared_ptr<Clock> clock = {};
  std::shared_ptr<Timers> timers = {};
  std::shared_ptr<Random> random = {};
};

// Since the client was made. Each is exact, but they are not read at one moment.
struct ClientCounts {
  std::uint64_t calls = 0;              // call().
  std::uint64_t requests = 0;           // Sent or attempted.
  std::uint64_t retries = 0;            // Of those, retries for any reason.
  std::uint64_t throttled = 0;          // Answers that asked the client to slow down.
  std::uint64_t in_doubt = 0;           // Requests that may have been executed, but got no usable answer.
  std::uint64_t given_up = 0;           // Calls not retried because the budget or the time was used up.
  std::uint64_t paced = 0;              // Requests held back because others had been throttled.
  std::uint64_t clock_corrections = 0;  // How often the service's time was adopted for signing.
  std::uint64_t damaged = 0;            // Answers whose bytes do not match their checksum. Also counted in in_doubt.
  std::uint64_t false_times = 0;        // Answers with an impossible Date: Reply::false_time.
};

// A Transport, which also does this:
//
// - Retried with pauses until total_timeout, outside the budget: a throttled request (ThrottlingException,
//   ProvisionedThroughputExceededException, RequestLimitExceeded and similar, status 429). The error has DynamoDB's
//   ThrottlingReasons.
// - Retried with pauses, within the budget: a request of which no byte was written. Only if the call is repeatable,
//   also one that got no answer, a 5xx, or an answer whose bytes do not match its x-amz-crc32. After the last retry the
//   reply is an error: unavailable, or in_doubt if one of the requests may have been executed.
// - Retried once, at once: a request refused because of its signature's time, after the service's time was adopted from
//   its Date header. Also a request whose credentials have expired or are unknown, after CredentialsProvider::reject(),
//   if that gives other ones.
// - When throttled, the whole client slows down to 0.7 of the rate at which it was throttled. The rate grows by a
//   twentieth of that each second, and the limit ends after 20 s. A call that would have to wait beyond its
//   total_timeout fails at once (unavailable).
// - In the child of a fork calls fail (misuse): make a new client there.
// - A Date is accepted only within five minutes (plus the time that the answer took) of the signed time. By accepting a
//   signature, a service shows that its clock is that close.
// - Every other answer is the reply, unchanged. Exceptions: 5xx is an error (in_doubt). A refused signature, refused
//   credentials and AccessDenied are errors (misuse) that name the endpoint and the credentials. Expired credentials
//   are unavailable, because new ones may come.
class Client : public Transport {
 public:
  [[nodiscard]] virtual ClientCounts counts() const noexcept = 0;  // Thread-safe.
};

// Connects and searches credentials only at the first call. Throws Exception(misuse) for options out of range, and for
// a region or an endpoint that is missing or malformed; Exception(unavailable) if no thread can be started.
std::unique_ptr<Client> make_client(ClientOptions options = {});

}  // namespace once::aws
