// AWS credentials, found as AWS's own tools find them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/time.hpp>

namespace once::aws {

struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;   // Secret: never logged, never in an error.
  std::string session_token;       // Empty: none. Secret as well.
  std::optional<Time> expires_at;  // UTC. Empty: they do not expire.
  std::string source;              // For people: "environment", "profile dev in ~/.aws/credentials".
};

struct CredentialsAnswer {
  std::shared_ptr<const Credentials> credentials;  // Null: see `error`, which names every place that was tried.
  Error error;
};

// Thread-safe; `done` is called exactly once, at once if good credentials are at hand.
class CredentialsProvider {
 public:
  virtual ~CredentialsProvider() = default;
  virtual void get(Callback<void(CredentialsAnswer)> done) = 0;
  // The service said that these are expired: the next get() looks again.
  virtual void reject(const Credentials& credentials) = 0;
};

}  // namespace once::aws
