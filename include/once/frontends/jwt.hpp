// Whose an idempotency key is, by a verified claim of a JSON Web Token (RFC 7519): a client that has renewed its token
// is the same client, and no client can claim to be another.
//
//   once::http::Options options{.principal = once::http::jwt_principal(
//       {.key_file = "/etc/once/jwks.json", .issuers = {"https://login.example"}, .audiences = {"pay"}})};
//
// A token that is expired, not yet valid, for another audience, or signed by another key or in another way is 401
// principal-invalid, as the service itself would answer: nothing was run, and the same request with a new token is the
// same operation. Without a token: 401 principal-missing. Both with WWW-Authenticate: Bearer (RFC 6750).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <once/clock.hpp>
#include <once/frontends/http/principal.hpp>
#include <once/time.hpp>

namespace once::http {

struct JwtOptions {
  // Who signs: a PEM file with a public key, or a JSON file with a JWK or a JWKS (RFC 7517), at most 1 MiB. RSA of
  // 2048 bits and more (RS256 to RS512, PS256 to PS512), elliptic curves (ES256 on P-256, ES384 on P-384, ES512 on
  // P-521), and secrets of 32 bytes and more (HS256 to HS512), which only a JWK can be. A key is used only for the
  // algorithms of its own kind, and only for one if its `alg` says so. So a token cannot choose how it is checked. Keys
  // of other kinds in a JWKS are skipped. Read once: `once proxy` reads it again at SIGHUP.
  std::string key_file;

  // The claim that names the client, a string. Together with the issuer it is the principal, because `sub` is unique
  // for its issuer only. It must not be one that changes with each token (jti, iat, sid).
  std::string claim = "sub";

  std::string header = "Authorization";  // "Bearer TOKEN"; other headers may have the token alone.

  std::vector<std::string> issuers;    // One of them must be `iss`. Empty: any issuer with the key.
  std::vector<std::string> audiences;  // One of them must be in `aud`. Empty: not checked.

  // For `exp` and `nbf`, because clocks differ. 0 to 5 min.
  Millis leeway{30'000};

  std::shared_ptr<const Clock> clock;  // Null: the system's.

  friend bool operator==(const JwtOptions&, const JwtOptions&) = default;
};

// Throws Exception(misuse) that names the member for invalid options, such as a file that cannot be read or has no
// usable key.
Principal jwt_principal(const JwtOptions& options);

}  // namespace once::http
