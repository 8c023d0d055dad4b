// Large results as objects in S3, or in a server that speaks its protocol.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <once/aws/credentials.hpp>
#include <once/offload.hpp>
#include <once/time.hpp>

namespace once {

struct S3Options {
  std::string bucket;  // 3 to 63 lower case letters, digits, '-' and '.'.
  // The prefix of the objects' names: letters, digits and /!-_.*'()= only, at most 512 bytes. A '/' is added unless it
  // is there. Only objects below it are ever read or removed, whatever a record says.
  std::string prefix;

  std::string region;    // Empty: AWS_REGION, AWS_DEFAULT_REGION, or the profile's.
  std::string endpoint;  // A URL. Empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, or S3's in the region.
  // The bucket is in the path instead of the host's name. Empty: only where it must be, at endpoints that are not AWS's
  // own, and for names with a '.', which no certificate covers.
  std::optional<bool> path_style;

  std::string profile;  // Of the shared config files. Empty: AWS_PROFILE, or "default".
  std::shared_ptr<aws::CredentialsProvider> credentials;  // Empty: default_credentials() with `profile`.
  std::string ca_file;  // PEM, the certificates to trust. Empty: AWS_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, or the
                        // system's.
  Millis timeout{60'000};          // For one request with all its bytes. 1 ms to 1 h.
  std::uint32_t max_attempts = 5;  // At most this many requests for one call, with growing pauses between. 1 to 100.

  aws::Environment environment = aws::process_environment();  // Asked only while the offload is made.
};

// One object for each result, PREFIX/HINT-RANDOM, at the location s3://BUCKET/PREFIX/HINT-RANDOM: a name is never used
// twice (128 random bits, and If-None-Match), so that sending again is safe, and no attempt at an operation can
// overwrite another's result. HINT is the beginning of the record's key, with '_' for what is not a letter, a digit,
// '.' or '-'. S3 checks the bytes it got against their SHA-256. A call needs about twice its bytes of memory.
//
// Repeated, with pauses of full jitter: no answer, 5xx, 409 and 429; if that does not help: unavailable. Repeated at
// once: after a correction of the clock, and with other credentials. A missing object: corrupt. misuse, saying what to
// do: no such bucket, another region, access denied, no credentials.
// An object that no record names (the process died before its record was written) stays: let a lifecycle rule of the
// bucket remove objects older than the longest retention.
//
// Needs s3:PutObject, s3:GetObject and s3:DeleteObject on BUCKET/PREFIX/*; with s3:ListBucket on the bucket a missing
// object is distinguished from one that may not be read. Throws Exception(misuse) for options out of range and for a
// region or an endpoint that is missing or malformed. Nothing is connected before the first call; running calls keep
// what they need when it is destroyed.
std::shared_ptr<Offload> make_s3_offload(S3Options options);

}  // namespace once
