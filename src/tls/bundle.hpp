// A file of many trusted certificates, which are decoded only when a handshake needs them.
#pragma once

#include <string>

struct ssl_ctx_st;

namespace once::tls {

// Makes the context trust the certificates in a PEM file. Decoding all of a system's 145 takes 27 ms, most of a short
// process's time. Here they are kept by subject name, which takes a thirteenth of that.
//
// False if the file cannot be read, has no certificate, or a malformed one: OpenSSL's error queue says which. Call it
// once for a context. Other contents, such as comments and revocation lists, are ignored.
bool trust_bundle(ssl_ctx_st* context, const std::string& path);

}  // namespace once::tls
