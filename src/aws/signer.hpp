// AWS Signature Version 4 in the Authorization header:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <once/aws/credentials.hpp>
#include <once/time.hpp>

#include "aws/http.hpp"

namespace once::aws {

// Signs the requests of one service in one region. Thread-safe: one signer serves all connections. It keeps the key
// derived for a day and credentials, so a signature costs four short digests.
class Signer {
 public:
  // As in the signature's scope: "dynamodb", "s3", "sts"; "eu-central-1". "s3" has its own rules: its path is signed as
  // sent (for other services normalised and encoded again), and it needs X-Amz-Content-Sha256.
  Signer(std::string service, std::string region);
  ~Signer();
  Signer(const Signer&) = delete;
  Signer& operator=(const Signer&) = delete;

  // Sets Host, X-Amz-Date, X-Amz-Security-Token (with a session token), X-Amz-Content-Sha256 (s3) and Authorization.
  // Replaces earlier ones, so a request can be signed again. All headers are signed except those that proxies change
  // (User-Agent, Connection, Expect, Transfer-Encoding, Accept-Encoding, X-Amzn-Trace-Id). So do not change a request
  // afterwards. Encode all of `request.target` but '/' and is_unreserved() (text/percent.hpp): a server decodes it, and
  // encodes it in this way before it compares. `now` is the service's time, which may differ by at most 5 minutes
  // (S3: 15).
  //
  // Throws Exception(misuse) for a target that does not begin with '/' or that has a fragment, and
  // Exception(unavailable) if OpenSSL fails.
  void sign(HttpRequest& request, const Credentials& credentials, Time now);

 private:
  struct DayKey;
  class Keys;

  const std::string service_;
  const std::string region_;
  const bool s3_;
  const std::unique_ptr<Keys> keys_;
};

// The value of Host: brackets around an IPv6 address, the port unless it is the scheme's default.
std::string host_header(const HttpRequest& request);

}  // namespace once::aws
