#include <once/frontends/jwt.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <cjose/cjose.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <nlohmann/json.hpp>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "platform/file.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"

namespace once::http {

namespace {

using nlohmann::json;

constexpr std::size_t most_bytes = std::size_t{1024} * 1024;
constexpr std::size_t least_rsa_bits = 2048;    // RFC 7518, section 3.3.
constexpr std::size_t least_secret_bits = 256;  // RFC 7518, section 3.2.

constexpr std::string_view challenge = "Bearer";
constexpr std::string_view invalid_challenge = "Bearer error=\"invalid_token\"";

constexpr std::string_view why_malformed =
    "The token is not a signed JWT that can be verified. Nothing was carried out.";
constexpr std::string_view why_signature = "The token is not signed with a known key. Nothing was carried out.";
constexpr std::string_view why_time =
    "The token has expired, or is not valid yet. Nothing was carried out. Send the same request again with a new "
    "token.";
constexpr std::string_view why_foreign =
    "The token is from another issuer, or for another audience. Nothing was carried out.";
constexpr std::string_view why_claim =
    "The token lacks the claim that says who the client is. Nothing was carried out.";

[[noreturn]] void refuse_member(const std::string& what) {
  throw Exception(ErrorKind::misuse, "http::JwtOptions::" + what);
}

struct Release {
  void operator()(cjose_jwk_t* key) const { cjose_jwk_release(key); }
  void operator()(cjose_jws_t* token) const { cjose_jws_release(token); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

struct JwtKey {
  Owned<cjose_jwk_t> key;
  std::string id;         // Empty: none.
  std::string algorithm;  // The only algorithm that it is for. Empty: all of its type.
};

std::string_view family_of(std::string_view algorithm) noexcept {
  return algorithm.size() == 5 ? algorithm.substr(0, 2) : std::string_view();
}

// A token's algorithm is accepted only if the key is made for it.
bool is_for(const JwtKey& key, std::string_view algorithm) {
  if (!key.algorithm.empty() && key.algorithm != algorithm) return false;
  const std::string_view family = family_of(algorithm);
  cjose_err error{};
  switch (cjose_jwk_get_kty(key.key.get(), &error)) {
    case CJOSE_JWK_KTY_RSA:
      return family == "RS" || family == "PS";
    case CJOSE_JWK_KTY_OCT:
      return family == "HS";
    case CJOSE_JWK_KTY_EC:
      break;
  }
  switch (cjose_jwk_EC_get_curve(key.key.get(), &error)) {
    case CJOSE_JWK_EC_P_256:
      return algorithm == "ES256";
    case CJOSE_JWK_EC_P_384:
      return algorithm == "ES384";
    case CJOSE_JWK_EC_P_521:
      return algorithm == "ES512";
    default:
      return false;
  }
}

std::vector<std::uint8_t> number_of(const EVP_PKEY* key, const char* parameter) {
  BIGNUM* found = nullptr;
  if (EVP_PKEY_get_bn_param(key, parameter, &found) != 1) return {};
  const Owned<BIGNUM> number(found);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(BN_num_bytes(number.get())));
  BN_bn2bin(number.get(), bytes.data());
  return bytes;
}

// Null: an unknown type.
Owned<cjose_jwk_t> key_of_pem(const std::string& text) {
  const Owned<BIO> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const Owned<EVP_PKEY> read(bio ? PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  cjose_err error{};
  if (!read) return nullptr;
  if (EVP_PKEY_get_base_id(read.get()) == EVP_PKEY_RSA) {
    auto modulus = number_of(read.get(), OSSL_PKEY_PARAM_RSA_N);
    auto exponent = number_of(read.get(), OSSL_PKEY_PARAM_RSA_E);
    cjose_jwk_rsa_keyspec spec{};
    spec.n = modulus.data();
    spec.nlen = modulus.size();
    spec.e = exponent.data();
    spec.elen = exponent.size();
    return Owned<cjose_jwk_t>(cjose_jwk_create_RSA_spec(&spec, &error));
  }
  std::array<char, 64> group{};
  if (EVP_PKEY_get_base_id(read.get()) != EVP_PKEY_EC ||
      EVP_PKEY_get_utf8_string_param(read.get(), OSSL_PKEY_PARAM_GROUP_NAME, group.data(), group.size(), nullptr) !=
          1) {
    return nullptr;
  }
  cjose_jwk_ec_keyspec spec{};
  switch (OBJ_sn2nid(group.data())) {
    case NID_X9_62_prime256v1:
      spec.crv = CJOSE_JWK_EC_P_256;
      break;
    case NID_secp384r1:
      spec.crv = CJOSE_JWK_EC_P_384;
      break;
    case NID_secp521r1:
      spec.crv = CJOSE_JWK_EC_P_521;
      break;
    default:
      return nullptr;
  }
  auto x = number_of(read.get(), OSSL_PKEY_PARAM_EC_PUB_X);
  auto y = number_of(read.get(), OSSL_PKEY_PARAM_EC_PUB_Y);
  spec.x = x.data();
  spec.xlen = x.size();
  spec.y = y.data();
  spec.ylen = y.size();
  return Owned<cjose_jwk_t>(cjose_jwk_create_EC_spec(&spec, &error));
}

std::string text_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void refuse_weak(const JwtKey& key, const std::string& file) {
  cjose_err error{};
  const std::size_t bits = cjose_jwk_get_keysize(key.key.get(), &error);
  const cjose_jwk_kty_t kind = cjose_jwk_get_kty(key.key.get(), &error);
  if (kind == CJOSE_JWK_KTY_RSA && bits < least_rsa_bits) {
    refuse_member("key_file " + file + " has an RSA key of " + std::to_string(bits) +
                  " bits; it must have at least 2048");
  }
  if (kind == CJOSE_JWK_KTY_OCT && bits < least_secret_bits) {
    refuse_member("key_file " + file + " has a secret of " + std::to_string(bits / 8) +
                  " bytes; it must have at least 32");
  }
}

std::vector<JwtKey> keys_of(const std::string& file) {
  if (file.empty()) refuse_member("key_file is empty: name a file with a public key (PEM), a JWK or a JWKS");
  std::string text;
  const int failed = read_file(file, most_bytes, text);
  if (failed == EFBIG) refuse_member("key_file " + file + " is larger than 1 MiB");
  if (failed != 0) refuse_member("key_file " + file + " cannot be read: " + std::system_category().message(failed));
  std::vector<JwtKey> keys;
  if (text.find("-----BEGIN") != std::string::npos) {
    JwtKey key{.key = key_of_pem(text), .id = {}, .algorithm = {}};
    if (key.key) keys.push_back(std::move(key));
  } else {
    const json read = json::parse(text, nullptr, false);
    if (!read.is_object()) refuse_member("key_file " + file + " is neither PEM nor a JSON object");
    const auto set = read.find("keys");
    const json all = set != read.end() && set->is_array() ? *set : json::array({read});
    for (const json& each : all) {
      if (!each.is_object()) continue;
      if (const std::string use = text_at(each, "use"); !use.empty() && use != "sig") continue;
      const std::string one = each.dump();
      cjose_err error{};
      JwtKey key{.key = Owned<cjose_jwk_t>(cjose_jwk_import(one.data(), one.size(), &error)),
                 .id = text_at(each, "kid"),
                 .algorithm = text_at(each, "alg")};
      if (key.key) keys.push_back(std::move(key));
    }
  }
  for (const JwtKey& key : keys) refuse_weak(key, file);
  if (keys.empty()) {
    refuse_member("key_file " + file +
                  " has no usable key: a public RSA key, one on P-256, P-384 or P-521, or a secret in a JWK");
  }
  return keys;
}

Who invalid_token(std::string_view why) {
  return {.kind = Who::Kind::invalid, .name = {}, .why = why, .challenge = invalid_challenge};
}

class Verifier {
 public:
  explicit Verifier(const JwtOptions& options)
      : options_(options), keys_(keys_of(options.key_file)), clock_(options.clock ? options.clock : system_clock()) {}

  [[nodiscard]] Who who(const Request& request) const {
    std::string_view value;
    std::size_t lines = 0;
    for (const HeaderView& header : request.headers) {
      if (!same_name(header.name, options_.header)) continue;
      value = text::trim(header.value);
      ++lines;
    }
    if (lines > 1) return invalid_token(why_malformed);
    constexpr std::string_view scheme = "Bearer ";
    const bool is_bearer = same_name(value.substr(0, scheme.size()), scheme);
    if (is_bearer) value = text::trim(value.substr(scheme.size()));
    // Other schemes in Authorization are other credentials.
    if (value.empty() || (!is_bearer && same_name(options_.header, "Authorization"))) {
      return {.kind = Who::Kind::missing, .name = {}, .why = {}, .challenge = challenge};
    }
    return who_has(value);
  }

 private:
  [[nodiscard]] Who who_has(std::string_view text) const {
    cjose_err error{};
    const Owned<cjose_jws_t> token(cjose_jws_import(text.data(), text.size(), &error));
    if (!token) return invalid_token(why_malformed);
    if (!is_signed(token.get())) return invalid_token(why_signature);
    std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    if (!cjose_jws_get_plaintext(token.get(), &bytes, &size, &error)) return invalid_token(why_malformed);
    const json claims = json::parse(bytes, bytes + size, nullptr, false);
    if (!claims.is_object()) return invalid_token(why_malformed);
    if (!is_in_time(claims)) return invalid_token(why_time);
    const std::string issuer = text_at(claims, "iss");
    if (!options_.issuers.empty() && std::ranges::find(options_.issuers, issuer) == options_.issuers.end()) {
      return invalid_token(why_foreign);
    }
    if (!options_.audiences.empty() && !is_for_us(claims)) return invalid_token(why_foreign);
    const std::string claim = text_at(claims, options_.claim.c_str());
    if (claim.empty()) return invalid_token(why_claim);
    return {.kind = Who::Kind::known,
            .name = std::to_string(issuer.size()) + ':' + issuer + claim,
            .why = {},
            .challenge = {}};
  }

  [[nodiscard]] bool is_signed(cjose_jws_t* token) const {
    cjose_err error{};
    cjose_header_t* const header = cjose_jws_get_protected(token);
    const auto said = [&](const char* name) {
      const char* const text = cjose_header_get(header, name, &error);
      return std::string(text == nullptr ? "" : text);
    };
    // Extensions that must be understood (RFC 7515, section 4.1.11): none are supported.
    if (char* const critical = cjose_header_get_raw(header, "crit", &error); critical != nullptr) {
      cjose_get_dealloc()(critical);
      return false;
    }
    const std::string algorithm = said("alg");
    const std::string id = said("kid");
    return std::ranges::any_of(keys_, [&](const JwtKey& key) {
      if (!id.empty() && !key.id.empty() && id != key.id) return false;
      return is_for(key, algorithm) && cjose_jws_verify(token, key.key.get(), &error);
    });
  }

  // Dates are seconds, with or without a fraction (RFC 7519, section 2).
  [[nodiscard]] bool is_in_time(const json& claims) const {
    const double now = std::chrono::duration<double>(clock_->now().time_since_epoch()).count();
    const double leeway = std::chrono::duration<double>(options_.leeway).count();
    const auto is_fine = [&](const char* name, auto accepts) {
      const auto found = claims.find(name);
      return found == claims.end() || (found->is_number() && accepts(found->get<double>()));
    };
    return is_fine("exp", [&](double at) { return now < at + leeway; }) &&
           is_fine("nbf", [&](double at) { return now >= at - leeway; });
  }

  [[nodiscard]] bool is_for_us(const json& claims) const {
    const auto found = claims.find("aud");
    if (found == claims.end()) return false;
    const auto is_ours = [&](const json& one) {
      return one.is_string() &&
             std::ranges::find(options_.audiences, one.get_ref<const std::string&>()) != options_.audiences.end();
    };
    return found->is_array() ? std::ranges::any_of(*found, is_ours) : is_ours(*found);
  }

  const JwtOptions options_;
  const std::vector<JwtKey> keys_;
  const std::shared_ptr<const Clock> clock_;
};

}  // namespace

Principal jwt_principal(const JwtOptions& options) {
  if (options.claim.empty()) refuse_member("claim is empty: name the claim that says who the client is, such as sub");
  if (!text::is_token(options.header)) refuse_member("header is not a valid header name: '" + options.header + "'");
  for (const std::string_view anew : {"jti", "iat", "exp", "nbf", "sid"}) {
    if (options.claim == anew) {
      refuse_member("claim is " + options.claim +
                    ", which differs in every new token, so that a retry would run twice: use sub");
    }
  }
  if (options.leeway < Millis{0} || options.leeway > std::chrono::minutes(5))
    refuse_member("leeway must be 0 to 5 min");
  auto verifier = std::make_shared<const Verifier>(options);
  return Principal::source("claim " + options.claim + " of the JWT in " + options.header, {options.header},
                           [verifier = std::move(verifier)](const Request& request) { return verifier->who(request); });
}

}  // namespace once::http
