// A file of many certificates to trust, of which only those are decoded that a handshake asks for.
#pragma once

#include <string>

struct ssl_ctx_st;

namespace once::tls {

// Makes the context trust the certificates in a PEM file. Decoding each of a system's 145 takes 27 ms, which is most of
// what a short process does; here they are kept by the name that they are for, which takes a thirteenth of
// that.
//
// False if the file cannot be read, has no certificate, or one of no certificate's shape: OpenSSL's queue of errors
// says which. Once for a context. What else is in the file, such as comments and revocation lists, is not looked at.
bool trust_bundle(ssl_ctx_st* context, const std::string& path);

}  // namespace once::tls
