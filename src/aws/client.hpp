// make_client() over a given network, for tests and for sharing one.
#pragma once

#include <memory>

#include <once/aws/client.hpp>

#include "aws/http.hpp"

namespace once::aws {

std::unique_ptr<Client> make_client(ClientOptions options, std::shared_ptr<HttpClient> http);

}  // namespace once::aws
