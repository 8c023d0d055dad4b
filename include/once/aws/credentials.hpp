// AWS credentials, found where AWS's own tools find them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/time.hpp>

namespace once::aws {

// The keys that requests are signed with.
struct Credentials {
  std::string access_key_id = {};       // Not secret: it stands in each request.
  std::string secret_access_key = {};   // Secret: never logged, never in an error.
  std::string session_token = {};       // Empty: none. Secret as well.
  std::optional<Time> expires_at = {};  // UTC. Empty: they do not expire.
  std::string source = {};              // For people: "environment", "profile dev in ~/.aws/credentials".
};

// What CredentialsProvider::get() gives.
struct CredentialsAnswer {
  std::shared_ptr<const Credentials> credentials = {};  // Null: see `error`, which names every place that was tried.
  Error error = {};  // misuse: the setup is wrong. unavailable: a later try may succeed.
};

// Thread-safe. `done` is called exactly once; inside get() if valid credentials are cached.
class CredentialsProvider {
 public:
  virtual ~CredentialsProvider() = default;
  // Gives credentials that are valid now, or searches for them. Does not block.
  virtual void get(Callback<void(CredentialsAnswer)> done) = 0;
  // The service reported these as expired: the next get() searches again.
  virtual void reject(const Credentials& credentials) = 0;
};

// Always returns these.
std::shared_ptr<CredentialsProvider> static_credentials(Credentials credentials);

// A variable's value; empty if it is not set. Thread-safe. Tests pass their own function.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
// A copy of the process's own, as it is now.
Environment process_environment();

// Where default_credentials() looks.
struct CredentialsOptions {
  // A profile of the shared config and credentials files. Empty: AWS_PROFILE, otherwise "default". If set, environment
  // variables with credentials are ignored.
  std::string profile = {};
  // Read each time credentials are searched.
  Environment environment = process_environment();
};

// The credentials that AWS's own tools would use. Uses the first place that is set up. If that fails, it is an error,
// so a slow service never leads to another identity.
//
//  1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
//  2. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME (a service account in EKS), by STS.
//  3. The profile in ~/.aws/config and ~/.aws/credentials (or AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE): a role to
//     assume (source_profile, credential_source, web_identity_token_file), keys, or a credential_process.
//     IAM Identity Center (SSO) is not supported; the error names the alternative.
//  4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, with AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or _TOKEN (ECS,
//     EKS Pod Identity).
//  5. The instance's metadata (EC2, IMDSv2 only), unless AWS_EC2_METADATA_DISABLED is "true".
//
// No file is read before the first get(). Credentials that expire are fetched again 5 to 10 minutes before (or at half
// of the remaining time, if that is less), once for all callers. The thread that fetches them ends afterwards. Until
// they expire, callers get the old ones. The destructor drops running requests: their `done` gets an error. In the
// child of a fork it searches anew, for the child alone.
std::shared_ptr<CredentialsProvider> default_credentials(CredentialsOptions options = {});

}  // namespace once::aws
