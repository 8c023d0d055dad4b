// The built-in client of a service with a JSON protocol, such as DynamoDB: finds the service and the credentials,
// signs, sends, and repeats requests that may be repeated.
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

struct ClientOptions {
  std::string service = "dynamodb";                 // In host names, variables and signatures.
  std::string target_prefix = "DynamoDB_20120810";  // X-Amz-Target is this, '.' and the operation.
  std::string content_type = "application/x-amz-json-1.0";

  std::string region;    // Empty: AWS_REGION, AWS_DEFAULT_REGION, or the profile's.
  std::string endpoint;  // A URL. Empty: AWS_ENDPOINT_URL_<SERVICE>, AWS_ENDPOINT_URL, the profile's, or the service's.
  std::string profile;   // Of the shared config files. Empty: AWS_PROFILE, or "default".
  std::shared_ptr<CredentialsProvider> credentials;  // Empty: default_credentials() with `profile`.
  std::string ca_file;  // PEM, the certificates to trust. Empty: AWS_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, or the
                        // system's.

  Millis timeout{5'000};         // For one request, connecting and waiting for a connection included. At least 1 ms.
  Millis total_timeout{15'000};  // No request of a call begins later than this after the call. At least `timeout`.
  std::size_t max_connections = 64;

  // At most this many requests for one call: 1 to 100. The pause before the n-th repetition is drawn evenly from 0 to
  // backoff * 2^(n-1), at most max_backoff ("full jitter").
  std::uint32_t max_attempts = 5;
  Millis backoff{25};
  Millis max_backoff{2'000};
  // All calls together may repeat this many requests, plus one for each ten calls that succeeded. So a service that is
  // down does not get several times as many requests as one that is up.
  std::uint32_t retry_budget = 100;

  Environment environment = process_environment();  // Asked only while the client is made.

  // For tests. Empty: the system's.
  std::shared_ptr<Clock> clock;
  std::shared_ptr<Timers> timers;
  std::shared_ptr<Random> random;
};

// Since the client was made. Each is exact by itself; they are not read at one moment.
struct ClientCounts {
  std::uint64_t calls = 0;              // call().
  std::uint64_t requests = 0;           // Sent, or tried to be.
  std::uint64_t retries = 0;            // Of those, repetitions for whatever reason.
  std::uint64_t throttled = 0;          // Answers that asked us to slow down.
  std::uint64_t in_doubt = 0;           // Requests that may have been executed, but have no good answer.
  std::uint64_t given_up = 0;           // Calls that would have been repeated, had the budget or the time allowed it.
  std::uint64_t paced = 0;              // Requests held back because others had been throttled.
  std::uint64_t clock_corrections = 0;  // How often the service's time was taken over for signing.
  std::uint64_t damaged = 0;            // Answers whose bytes were not those of their checksum. Counted in in_doubt.
  std::uint64_t false_times = 0;        // Answers with a Date that could not be: Reply::false_time.
};

// What the Transport's contract says, and:
//
// - Repeated, with pauses and within the budget: a request of which no byte was written; a throttled one
//   (ThrottlingException, ProvisionedThroughputExceededException, RequestLimitExceeded and their like, status 429);
//   and, only if the call is repeatable, one that got no answer, a 5xx, or an answer whose bytes do not match its
//   x-amz-crc32. If that does not help, the reply is an error: unavailable, or in_doubt if any of the requests may have
//   been executed.
// - Repeated once, at once: a request that was refused because of the time of its signature, after the service's time
//   was taken over from its Date header (and remembered); one whose credentials have expired or are unknown, after
//   CredentialsProvider::reject(), if there are other ones then.
// - Throttled, the client slows down as a whole: all its calls together continue at 0.7 of the rate at which they were
// throttled, and a twentieth of that rate faster each second, until the limit ends after 20 s. A call that would have
// to wait beyond its total_timeout fails at once (unavailable).
// - In the child of a fork calls fail (misuse): make another client there.
// - A Date counts only within five minutes, and the time that the answer took, of the time that was signed: by
// accepting a signature, a service shows that its clock is that close.
// - Every other answer is the reply as it came, except 5xx (an error, in_doubt), and refusals of the signature or the
//   credentials and AccessDenied: these are errors (misuse) that say which endpoint and whose credentials. For expired
//   credentials the error is unavailable: there may be new ones any time.
class Client : public Transport {
 public:
  [[nodiscard]] virtual ClientCounts counts() const noexcept = 0;
};

// It connects and looks for credentials only at the first call. Throws Exception(misuse) for options
// out of range and for a region or an endpoint that is missing or malformed, Exception(unavailable) if no thread can be
// started.
std::unique_ptr<Client> make_client(ClientOptions options = {});

}  // namespace once::aws
