// Seal keys that AWS KMS encrypted: the file of keys alone opens nothing, and who may use the keys is said by IAM.
//
//   $ once seal-key new --kms alias/once seal.keys
//
// asks KMS for a data key of 32 bytes and appends it, encrypted, to the file. Each program that opens a store with the
// file asks KMS to decrypt it, once, and keeps the key in its memory
// (https://docs.aws.amazon.com/kms/latest/developerguide/data-keys.html).
#pragma once

#include <memory>
#include <string>

#include <once/aws/credentials.hpp>
#include <once/aws/transport.hpp>
#include <once/seal.hpp>
#include <once/time.hpp>

namespace once {

// How KMS is reached.
struct KmsOptions {
  std::string region = {};  // Empty: that of the KMS key's ARN, else AWS_REGION, AWS_DEFAULT_REGION, or the profile's.
  std::string endpoint = {};  // A URL. Empty: AWS_ENDPOINT_URL_KMS, AWS_ENDPOINT_URL, the profile's, or the service's.
  std::string profile = {};   // Of the shared config files. Empty: AWS_PROFILE, or "default".
  std::shared_ptr<aws::CredentialsProvider> credentials = {};  // Empty: default_credentials() with `profile`.
  std::string ca_file = {};                                    // PEM, the certificates to trust. Empty: the system's.
  Millis timeout{5'000};                                       // For one request. At least 1 ms.
  Millis total_timeout{15'000};                                // For a call with its retries. At least `timeout`.
  std::shared_ptr<aws::Transport> transport = {};              // Instead of all above: a client of service "kms".
};

// Asks KMS (Decrypt) for the keys of parse_seal_keys() and its like, one request for each. The id of the seal key is
// the encryption context ("once-seal-key"), so a key does not open under another id. Needs kms:Decrypt on the KMS key.
// The function blocks, is thread-safe, and throws Exception:
// - misuse: no region or credentials; not allowed (AccessDenied); no such KMS key, or a disabled one.
// - corrupt: KMS does not open the bytes under this id and KMS key, or gives no key of 32 bytes.
// - unavailable: KMS is not reached, throttles, or gives no whole answer.
SealKeyUnwrapper kms_unwrapper(KmsOptions options = {});

// Asks KMS (GenerateDataKeyWithoutPlaintext) for a new key and returns its line of the file of keys. `kms_key`: an id,
// an ARN or an alias ("alias/once"). Needs kms:GenerateDataKeyWithoutPlaintext. Throws as above, and Exception(misuse)
// for an unfit id.
std::string new_kms_seal_key(const std::string& id, const std::string& kms_key, KmsOptions options = {});

}  // namespace once
