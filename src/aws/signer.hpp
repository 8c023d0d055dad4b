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
// that is derived for a day and credentials, so that a signature costs four short digests.
class Signer {
 public:
  // As they stand in the signature's scope: "dynamodb", "s3", "sts"; "eu-central-1". "s3" has rules of its own: its
  // path is signed as it is sent, where other services get it normalised and encoded once more, and it wants
  // X-Amz-Content-Sha256.
  Signer(std::string service, std::string region);
  ~Signer();
  Signer(const Signer&) = delete;
  Signer& operator=(const Signer&) = delete;

  // Sets Host, X-Amz-Date, X-Amz-Security-Token (with a session token), X-Amz-Content-Sha256 (s3) and Authorization, in
  // place of what was there under these names, so a request can be signed again. All headers are signed but those that
  // proxies change (User-Agent, Connection, Expect, Transfer-Encoding, Accept-Encoding, X-Amzn-Trace-Id), so a request
  // must not be changed afterwards. `request.target` is encoded as uri_encode() does it: a server encodes what it
  // decoded in just this way before it compares. `now` is the service's time: it refuses a request that is more than 5
  // (S3: 15) minutes off.
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

// Everything but A-Z a-z 0-9 - . _ ~ becomes %XX, upper case; '/' as well, unless `keep_slash`.
std::string uri_encode(std::string_view bytes, bool keep_slash = false);

// What Host says: brackets around an IPv6 address, the port unless it is the scheme's own.
std::string host_header(const HttpRequest& request);

}  // namespace once::aws
