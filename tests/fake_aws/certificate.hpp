// A certificate authority that lives as long as the process, and what it signs for a server of the tests.
#pragma once

#include <openssl/ssl.h>

#include <string>

#include "fake_aws/fake_dynamodb_server.hpp"

namespace once::testing::fake {

// Gives the context a key and a certificate made now. Returns the authority's certificate as PEM.
std::string equip(SSL_CTX* context, FakeServerOptions::Certificate kind);

}  // namespace once::testing::fake
