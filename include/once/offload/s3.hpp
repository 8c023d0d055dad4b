// Large results as objects in S3, or in a compatible server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <once/aws/credentials.hpp>
#include <once/offload.hpp>
#include <once/time.hpp>

namespace once {

// Which bucket, and how it is reached.
struct S3Options {
  std::string bucket = {};  // 3 to 63 lower case letters, digits, '-' and '.'.
  // The prefix of the objects' names: letters, digits and /!-_.*'()= only, at most 512 bytes. A missing '/' at its end
  // is added. Objects outside it are never read or removed, even if a record names one.
  std::string prefix = {};

  std::string region = {};  // Empty: AWS_REGION, AWS_DEFAULT_REGION, or the profile's.
  // A URL. Empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, or S3's in the region.
  std::string endpoint = {};
  // The bucket is in the path instead of the host's name. Empty: only at endpoints that are not AWS's own, and for
  // names with a '.', which no certificate covers.
  std::optional<bool> path_style = {};

  std::string profile = {};  // Of the shared config files. Empty: AWS_PROFILE, or "default".
  std::shared_ptr<aws::CredentialsProvider> credentials = {};  // Empty: default_credentials() with `profile`.
  std::string ca_file = {};  // PEM, the certificates to trust. Empty: AWS_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, or
                             // the system's.
  Millis timeout{60'000};    // For one request with all its bytes. 1 ms to 1 h.
  std::uint32_t max_attempts = 5;  // At most this many requests for one call. 1 to 100.

  aws::Environment environment = aws::process_environment();  // Read only while the offload is made.
};

// One object per result, at s3://BUCKET/PREFIX/HINT-RANDOM. A name is never used twice (128 random bits, and
// If-None-Match). So retries are safe, and no attempt can overwrite another's result. HINT is the beginning of the
// record's key, with '_' for everything but letters, digits, '.' and '-'. S3 checks the bytes that it received against
// their SHA-256. A call needs about twice its bytes of memory.
//
// Retried with growing, random pauses: no answer, 5xx, 409 and 429; then unavailable. Retried at once: after a
// correction of the clock, and with new credentials. A missing object: corrupt. misuse, which says what to do: no such
// bucket, another region, access denied, no credentials. If a process dies before its record is written, an object
// stays that no record names. Add a lifecycle rule to the bucket that removes objects older than the longest retention.
//
// Needs s3:PutObject, s3:GetObject and s3:DeleteObject on BUCKET/PREFIX/*. With s3:ListBucket on the bucket it can
// distinguish a missing object from a forbidden one. Throws Exception(misuse) for options out of range, and for a
// region or an endpoint that is missing or malformed. It connects at the first call. It may be destroyed while calls
// run.
std::shared_ptr<Offload> make_s3_offload(S3Options options);

}  // namespace once
