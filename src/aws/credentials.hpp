// Finds credentials for the built-in client, with network, clock and randomness as arguments.
#pragma once

#include <memory>

#include <once/aws/credentials.hpp>
#include <once/clock.hpp>

#include "aws/http.hpp"

namespace once::aws {

struct CredentialsPorts {
  std::shared_ptr<HttpClient> http;  // For STS, containers and instances. Owned while the provider lives.
  std::shared_ptr<Clock> clock;      // When credentials expire.
  std::shared_ptr<Random> random;    // So that not all processes of a host refresh at once.
};

// default_credentials() over these ports.
std::shared_ptr<CredentialsProvider> make_credentials(CredentialsOptions options, CredentialsPorts ports);

}  // namespace once::aws
