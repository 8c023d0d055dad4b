// A certificate authority that lives as long as the process, and what it signs for servers and clients of the tests.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "fake_aws/fake_dynamodb_server.hpp"

#include "text/free_by.hpp"

namespace once::testing::fake {

using Key = std::unique_ptr<EVP_PKEY, text::FreeBy<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, text::FreeBy<X509_free>>;

// The parts of it. They throw Exception(misuse) if OpenSSL cannot.
Key make_key();
// Not signed yet; `name` is its CN. Valid from and until so many seconds from now.
Certificate make_certificate(const char* name, EVP_PKEY* key, long from_s, long until_s);
void extend(X509* certificate, X509* issuer, int nid, const char* value);
void sign(X509* certificate, X509* issuer, EVP_PKEY* key);
std::string pem(X509* certificate);

struct Authority {
  explicit Authority(const char* name);
  Key key;
  Certificate certificate;
};

// Gives the context a key and a certificate made now. Returns the authority's certificate as PEM.
std::string equip(SSL_CTX* context, FakeServerOptions::Certificate kind);

}  // namespace once::testing::fake
