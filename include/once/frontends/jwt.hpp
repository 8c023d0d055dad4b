// Identifies a client by a verified claim of a JSON Web Token (RFC 7519). A client with a renewed token is the same
// client, and no client can pretend to be another.
//
//   once::http::Options options{.principal = once::http::jwt_principal(
//       {.key_file = "/etc/once/jwks.json", .issuers = {"https://login.example"}, .audiences = {"pay"}})};
//
// An invalid token is 401 principal-invalid: expired, not yet valid, for another audience, with another key or
// algorithm. Nothing was run, and the same request with a new token is the same operation. Without a token: 401
// principal-missing. Both have WWW-Authenticate: Bearer (RFC 6750).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <once/clock.hpp>
#include <once/frontends/http/principal.hpp>
#include <once/time.hpp>

namespace once::http {

// Which tokens are accepted, and which claim names the client.
struct JwtOptions {
  // The signer's key: a PEM file with a public key, or a JSON file with a JWK or a JWKS (RFC 7517), at most 1 MiB. Read
  // once; `once proxy` reads it again at SIGHUP.
  // - RSA from 2048 bits (RS256 to RS512, PS256 to PS512)
  // - elliptic curves (ES256 on P-256, ES384 on P-384, ES512 on P-521)
  // - secrets from 32 bytes (HS256 to HS512), only as a JWK
  // A key is used only for the algorithms of its own type, and only for `alg` if it has one. So a token cannot choose
  // how it is checked. Other keys in a JWKS are skipped.
  std::string key_file = {};

  // The claim that names the client, a string. With the issuer it is the principal, because `sub` is unique only for
  // its issuer. It must not change with each token, as jti, iat and sid do.
  std::string claim = "sub";

  std::string header = "Authorization";  // "Bearer TOKEN"; other headers may have only the token.

  std::vector<std::string> issuers = {};    // One of them must be `iss`. Empty: any issuer with the key.
  std::vector<std::string> audiences = {};  // One of them must be in `aud`. Empty: not checked.

  // Tolerance for `exp` and `nbf`, because clocks differ. 0 to 5 min.
  Millis leeway{30'000};

  std::shared_ptr<const Clock> clock = {};  // Null: the system's.

  friend bool operator==(const JwtOptions&, const JwtOptions&) = default;
};

// Throws Exception(misuse), which names the member, for invalid options, such as a file that cannot be read or has no
// usable key.
Principal jwt_principal(const JwtOptions& options);

}  // namespace once::http
