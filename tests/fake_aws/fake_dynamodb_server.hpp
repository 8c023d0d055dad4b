// A FakeDynamoDb behind HTTP or HTTPS, on 127.0.0.1 unless told otherwise: checks every signature, and goes wrong on
// the wire as planned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <once/time.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {

// Who may call. Signatures are checked by AWS Signature Version 4 as its specification has it, with code that has
// nothing to do with once's own signer.
struct FakeAccessKey {
  std::string access_key_id = {};
  std::string secret_access_key = {};
  std::string session_token = {};       // Not empty: has to be sent, and to be signed.
  std::optional<Time> expires_at = {};  // From then on: ExpiredTokenException.
};

struct FakeServerOptions {
  std::string address = "127.0.0.1";     // IPv4. Another only in a network of the test's own: there is no protection.
  std::uint16_t port = 0;                // 0: one that is free.
  std::vector<FakeAccessKey> keys = {};  // Empty: signatures are not looked at.
  std::string region = {};               // Not empty: signatures for another are refused.

  bool tls = false;
  enum class Certificate : std::uint8_t { good, wrong_name, expired };
  Certificate certificate = Certificate::good;  // Good for 127.0.0.1 and localhost.

  // Not empty: every request is answered with 200 and this body; nothing is checked, counted or carried out. For
  // benchmarks of clients.
  std::string fixed_answer = {};
  bool crc32 = true;  // Sends x-amz-crc32, as the service does.
};

// One thread, HTTP/1.1 with keep-alive, requests up to 16 MiB with a Content-Length. The time in Date headers and of
// signatures (5 minutes either way) is that of the fake; certificates go by the host's.
//
// Refuses as the service does, with status 400: MissingAuthenticationTokenException, IncompleteSignatureException,
// UnrecognizedClientException (unknown key, or another session token), ExpiredTokenException, InvalidSignatureException
// (also for a time too far off: "Signature expired ..." or "Signature not yet current ...").
class FakeDynamoDbServer {
 public:
  // Throws Exception (misuse) if it cannot listen there.
  explicit FakeDynamoDbServer(std::shared_ptr<FakeDynamoDb> fake, FakeServerOptions options = {});
  ~FakeDynamoDbServer();  // Closes all connections. Not from the server's own thread.
  FakeDynamoDbServer(const FakeDynamoDbServer&) = delete;
  FakeDynamoDbServer& operator=(const FakeDynamoDbServer&) = delete;

  [[nodiscard]] std::string url() const;  // "https://127.0.0.1:8000"
  [[nodiscard]] std::uint16_t port() const noexcept;
  // PEM file with the certificate that signed the server's; empty without TLS. Removed by the destructor.
  [[nodiscard]] std::string ca_file() const;

  // The keys that count from now on.
  void set_keys(std::vector<FakeAccessKey> keys);

  struct Counts {
    std::uint64_t connections = 0;  // Accepted so far.
    std::uint64_t open = 0;         // Now.
    std::uint64_t requests = 0;     // Read whole.
    std::uint64_t refused = 0;      // Of those, for their signature.
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace once::testing
