// Principals by verified tokens: who signs, in which way, until when, and for whom.
#include <once/frontends/jwt.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <nlohmann/json.hpp>

#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace jwt_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string base64url(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  std::replace(out.begin(), out.end(), '+', '-');
  std::replace(out.begin(), out.end(), '/', '_');
  out.erase(out.find_last_not_of('=') + 1);
  return out;
}

// What an issuer does, by OpenSSL alone: the library under test has no part in it.
class Signer {
 public:
  static Signer rsa(int bits = 2048) { return Signer(EVP_RSA_gen(static_cast<unsigned>(bits))); }
  static Signer ec(const char* curve) { return Signer(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", curve)); }

  [[nodiscard]] std::string pem() const {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PUBKEY(bio, key_.get());
    BUF_MEM* written = nullptr;
    BIO_get_mem_ptr(bio, &written);
    std::string text(written->data, written->length);
    BIO_free(bio);
    return text;
  }
  [[nodiscard]] json jwk() const {
    if (EVP_PKEY_get_base_id(key_.get()) == EVP_PKEY_RSA) {
      return {{"kty", "RSA"}, {"n", number(OSSL_PKEY_PARAM_RSA_N)}, {"e", number(OSSL_PKEY_PARAM_RSA_E)}};
    }
    return {{"kty", "EC"},
            {"crv", "P-256"},
            {"x", number(OSSL_PKEY_PARAM_EC_PUB_X, 32)},
            {"y", number(OSSL_PKEY_PARAM_EC_PUB_Y, 32)}};
  }
  // One coordinate begins with a zero byte, as in one key of 128.
  [[nodiscard]] bool has_short_coordinate() const {
    return number(OSSL_PKEY_PARAM_EC_PUB_X).size() < 43 || number(OSSL_PKEY_PARAM_EC_PUB_Y).size() < 43;
  }
  [[nodiscard]] std::string sign(const std::string& text) const {
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key_.get());
    std::size_t size = 0;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    EVP_DigestSign(context, nullptr, &size, bytes, text.size());
    std::string out(size, '\0');
    EVP_DigestSign(context, reinterpret_cast<unsigned char*>(out.data()), &size, bytes, text.size());
    out.resize(size);
    EVP_MD_CTX_free(context);
    return EVP_PKEY_get_base_id(key_.get()) == EVP_PKEY_EC ? joined(out) : out;
  }

 private:
  explicit Signer(EVP_PKEY* key) : key_(key, EVP_PKEY_free) {}

  // Both numbers one after the other (RFC 7518, section 3.4), where OpenSSL has them in ASN.1.
  static std::string joined(const std::string& der) {
    const auto* at = reinterpret_cast<const unsigned char*>(der.data());
    ECDSA_SIG* const pair = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size()));
    std::string out(64, '\0');
    auto* const bytes = reinterpret_cast<unsigned char*>(out.data());
    BN_bn2binpad(ECDSA_SIG_get0_r(pair), bytes, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(pair), bytes + 32, 32);
    ECDSA_SIG_free(pair);
    return out;
  }
  [[nodiscard]] std::string number(const char* name, int least = 0) const {
    BIGNUM* found = nullptr;
    EVP_PKEY_get_bn_param(key_.get(), name, &found);
    const int size = std::max(BN_num_bytes(found), least);
    std::string out(static_cast<std::size_t>(size), '\0');
    BN_bn2binpad(found, reinterpret_cast<unsigned char*>(out.data()), size);
    BN_free(found);
    return base64url(out);
  }

  std::shared_ptr<EVP_PKEY> key_;
};

std::string hmac_sha256(const std::string& secret, const std::string& text) {
  std::string out(32, '\0');
  unsigned size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), reinterpret_cast<unsigned char*>(out.data()),
       &size);
  return out;
}

template <class Sign>
std::string token_of(const json& header, const json& claims, Sign sign) {
  const std::string text = base64url(header.dump()) + "." + base64url(claims.dump());
  return text + "." + base64url(sign(text));
}

class Jwt : public ::testing::Test {
 protected:
  Jwt() {
    char name[] = "/tmp/once-jwt-XXXXXX";
    dir = mkdtemp(name);
  }
  ~Jwt() override { std::filesystem::remove_all(dir); }

  std::string file(const std::string& text, const std::string& name = "keys") const {
    const std::string path = dir + "/" + name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return path;
  }
  [[nodiscard]] JwtOptions options(const std::string& keys) const { return {.key_file = file(keys), .clock = clock}; }

  static Who ask(const Principal& principal, const std::string& value, std::string_view header = "Authorization") {
    return principal.who({.method = "POST", .target = "/", .headers = {{header, value}}, .body = {}});
  }
  static Who ask_with(const Principal& principal, const std::string& token) {
    return ask(principal, "Bearer " + token);
  }

  std::string dir;
  std::shared_ptr<once::testing::ManualClock> clock =
      std::make_shared<once::testing::ManualClock>(Time(std::chrono::seconds(2'000'000'000)));
  const Signer alice_idp = Signer::rsa();
  const json rs256{{"alg", "RS256"}, {"typ", "JWT"}};
};

std::string refusal(const JwtOptions& options) {
  try {
    static_cast<void>(jwt_principal(options));
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    return error.what();
  }
  return "was taken";
}

TEST_F(Jwt, ARenewedTokenIsTheSameClient) {
  World world;
  Endpoint endpoint(*world.engine, {.principal = jwt_principal(options(alice_idp.pem()))});
  int runs = 0;
  const auto charge = [&](const json& claims) {
    const std::string value =
        "Bearer " + token_of(rs256, claims, [&](const std::string& text) { return alice_idp.sign(text); });
    return endpoint.run({.method = "POST",
                         .target = "/charges",
                         .headers = {{"Authorization", value}, {"Idempotency-Key", "order-1"}},
                         .body = "{}"},
                        [&](Execution&) { return text_answer(200, "run " + std::to_string(++runs)); });
  };
  EXPECT_EQ(charge({{"sub", "alice"}, {"exp", 2'000'000'100}, {"jti", "1"}}).body, "run 1");
  EXPECT_EQ(charge({{"sub", "alice"}, {"exp", 2'000'003'700}, {"jti", "2"}}).body, "run 1");
  EXPECT_EQ(charge({{"sub", "bob"}, {"exp", 2'000'000'100}}).body, "run 2");
  EXPECT_EQ(charge({{"sub", "alice"}, {"iss", "b"}, {"exp", 2'000'000'100}}).body, "run 3");
  clock->advance(std::chrono::seconds(200));
  const Answer late = charge({{"sub", "alice"}, {"exp", 2'000'000'100}});
  EXPECT_EQ(late.status, 401U);
  EXPECT_THAT(late.body, HasSubstr("urn:once:problem:principal-invalid"));
  EXPECT_THAT(values(late, "WWW-Authenticate"), ElementsAre("Bearer error=\"invalid_token\""));
  EXPECT_EQ(charge({{"sub", "alice"}, {"exp", 2'000'003'700}}).body, "run 1");
  EXPECT_EQ(runs, 3);
}

TEST_F(Jwt, EachKindOfKeyVerifiesItsOwnAlgorithmsOnly) {
  const Signer curve = Signer::ec("P-256");
  const std::string secret(32, 's');
  const json claims{{"sub", "alice"}};
  const auto by_rsa = [&](const std::string& text) { return alice_idp.sign(text); };
  const auto by_curve = [&](const std::string& text) { return curve.sign(text); };
  const auto by_secret = [&](const std::string& text) { return hmac_sha256(secret, text); };
  const auto by_nobody = [](const std::string&) { return std::string(); };
  const auto by_public_key = [&](const std::string& text) { return hmac_sha256(alice_idp.pem(), text); };
  const std::string rs = token_of(rs256, claims, by_rsa);
  const std::string es = token_of({{"alg", "ES256"}}, claims, by_curve);
  const std::string hs = token_of({{"alg", "HS256"}}, claims, by_secret);
  const json secret_jwk{{"kty", "oct"}, {"k", base64url(secret)}};

  const std::vector<std::pair<std::string, std::string>> right{{alice_idp.pem(), rs},
                                                               {alice_idp.jwk().dump(), rs},
                                                               {curve.pem(), es},
                                                               {curve.jwk().dump(), es},
                                                               {secret_jwk.dump(), hs}};
  for (const auto& [keys, fitting] : right) {
    const Principal principal = jwt_principal(options(keys));
    for (const std::string& token :
         {rs, es, hs, token_of({{"alg", "none"}}, claims, by_nobody),
          token_of({{"alg", "HS256"}}, claims, by_public_key), token_of({{"alg", "RS256"}}, claims, by_nobody),
          token_of(json::object(), claims, by_nobody), token_of({{"alg", "RS256"}}, claims, by_curve),
          token_of({{"alg", "ES256"}}, claims, by_rsa),
          token_of({{"alg", "RS256"}, {"crit", {"exp"}}, {"exp", 1}}, claims, by_rsa)}) {
      const Who who = ask_with(principal, token);
      EXPECT_EQ(who.kind == Who::Kind::known, token == fitting) << keys << token;
      EXPECT_EQ(who.kind == Who::Kind::invalid, token != fitting) << keys << token;
    }
  }
  const Who foreign = ask_with(jwt_principal(options(Signer::rsa().pem())), rs);
  EXPECT_EQ(foreign.kind, Who::Kind::invalid);
  EXPECT_THAT(std::string(foreign.why), HasSubstr("not signed with a known key"));
  // What was signed, and nothing else.
  std::string changed = rs;
  changed.replace(changed.find('.') + 1, changed.rfind('.') - changed.find('.') - 1, base64url(R"({"sub":"bob"})"));
  EXPECT_EQ(ask_with(jwt_principal(options(alice_idp.pem())), changed).kind, Who::Kind::invalid);
}

TEST_F(Jwt, ACoordinateMayBeginWithZero) {
  Signer curve = Signer::ec("P-256");
  while (!curve.has_short_coordinate()) curve = Signer::ec("P-256");
  const std::string token =
      token_of({{"alg", "ES256"}}, {{"sub", "alice"}}, [&](const std::string& text) { return curve.sign(text); });
  EXPECT_EQ(ask_with(jwt_principal(options(curve.pem())), token).kind, Who::Kind::known);
  EXPECT_EQ(ask_with(jwt_principal(options(curve.jwk().dump())), token).kind, Who::Kind::known);
}

TEST_F(Jwt, ASetOfKeysIsSearchedByItsIds) {
  const Signer next = Signer::rsa();
  json old_key = alice_idp.jwk();
  old_key["kid"] = "2025";
  old_key["alg"] = "RS256";
  json new_key = next.jwk();
  new_key["kid"] = "2026";
  const json unknown{{"kty", "OKP"}, {"crv", "Ed25519"}, {"x", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}};
  json to_encrypt = next.jwk();
  to_encrypt["use"] = "enc";
  const Principal principal = jwt_principal(options(json{{"keys", {unknown, to_encrypt, old_key, new_key}}}.dump()));
  const json claims{{"sub", "alice"}};
  const auto by_old = [&](const std::string& text) { return alice_idp.sign(text); };
  const auto by_new = [&](const std::string& text) { return next.sign(text); };
  const auto kind = [&](const json& header, auto sign) {
    return ask_with(principal, token_of(header, claims, sign)).kind;
  };
  EXPECT_EQ(kind({{"alg", "RS256"}, {"kid", "2025"}}, by_old), Who::Kind::known);
  EXPECT_EQ(kind({{"alg", "RS256"}, {"kid", "2026"}}, by_new), Who::Kind::known);
  EXPECT_EQ(kind({{"alg", "RS256"}}, by_new), Who::Kind::known);
  EXPECT_EQ(kind({{"alg", "RS256"}, {"kid", "2025"}}, by_new), Who::Kind::invalid);
  EXPECT_EQ(kind({{"alg", "RS256"}, {"kid", "2024"}}, by_old), Who::Kind::invalid);
}

TEST_F(Jwt, ClaimsMustBeTrueNowAndForUs) {
  JwtOptions strict = options(alice_idp.pem());
  strict.issuers = {"https://a", "https://b"};
  strict.audiences = {"pay"};
  const Principal principal = jwt_principal(strict);
  const json right{
      {"sub", "alice"}, {"iss", "https://b"}, {"aud", {"shop", "pay"}}, {"exp", 2'000'000'000}, {"nbf", 2'000'000'000}};
  const auto ask_changed = [&](const json& change) {
    json claims = right;
    claims.merge_patch(change);
    return ask_with(principal, token_of(rs256, claims, [&](const std::string& text) { return alice_idp.sign(text); }));
  };
  for (const json& fine : {json::object(), json{{"aud", "pay"}}, json{{"exp", 1'999'999'970.5}},
                           json{{"nbf", 2'000'000'030}}, json{{"exp", nullptr}}, json{{"nbf", nullptr}}}) {
    EXPECT_EQ(ask_changed(fine).kind, Who::Kind::known) << fine;
  }
  for (const json& wrong : {json{{"exp", 1'999'999'970}}, json{{"exp", "2000000100"}}, json{{"nbf", 2'000'000'031}},
                            json{{"nbf", true}}, json{{"iss", "https://c"}}, json{{"iss", nullptr}},
                            json{{"aud", "shop"}}, json{{"aud", nullptr}}, json{{"aud", {1, "shop"}}},
                            json{{"sub", nullptr}}, json{{"sub", ""}}, json{{"sub", 17}}, json{{"sub", {"alice"}}}}) {
    const Who who = ask_changed(wrong);
    EXPECT_EQ(who.kind, Who::Kind::invalid) << wrong;
    EXPECT_EQ(who.challenge, "Bearer error=\"invalid_token\"");
    EXPECT_THAT(std::string(who.why), HasSubstr("Nothing was carried out"));
  }
  const auto no_object = token_of(rs256, json("alice"), [&](const std::string& text) { return alice_idp.sign(text); });
  EXPECT_EQ(ask_with(principal, no_object).kind, Who::Kind::invalid);
}

TEST_F(Jwt, WhereTheTokenIs) {
  const std::string token =
      token_of(rs256, {{"sub", "alice"}}, [&](const std::string& text) { return alice_idp.sign(text); });
  const Principal usual = jwt_principal(options(alice_idp.pem()));
  EXPECT_EQ(ask(usual, "bEARER  " + token + " ").kind, Who::Kind::known);
  for (const std::string& none : {std::string(), std::string("Basic YTpi"), std::string("Bearer "), token}) {
    const Who who = ask(usual, none);
    EXPECT_EQ(who.kind, Who::Kind::missing) << none;
    EXPECT_EQ(who.challenge, "Bearer");
  }
  EXPECT_EQ(ask(usual, "Bearer x").kind, Who::Kind::invalid);
  EXPECT_EQ(usual
                .who({.method = "POST",
                      .target = "/",
                      .headers = {{"Authorization", "Bearer x"}, {"authorization", "Bearer " + token}},
                      .body = {}})
                .kind,
            Who::Kind::invalid);
  JwtOptions other = options(alice_idp.pem());
  other.header = "X-Token";
  other.claim = "client_id";
  EXPECT_EQ(ask(jwt_principal(other), token, "x-token").kind, Who::Kind::invalid) << "it has no such claim";
  other.claim = "sub";
  EXPECT_EQ(ask(jwt_principal(other), token, "x-token").kind, Who::Kind::known);
  EXPECT_EQ(ask(jwt_principal(other), "Bearer " + token, "x-token").kind, Who::Kind::known);
  EXPECT_EQ(jwt_principal(other).what(), "claim sub of the JWT in X-Token");
}

TEST_F(Jwt, KeysThatCannotBeAreSaid) {
  EXPECT_THAT(refusal({}), HasSubstr("key_file is empty"));
  EXPECT_THAT(refusal({.key_file = dir + "/none"}), HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(refusal(options("hello")), HasSubstr("neither PEM nor a JSON object"));
  EXPECT_THAT(refusal(options("{}")), HasSubstr("has no usable key"));
  EXPECT_THAT(refusal(options(R"({"keys":[{"kty":"OKP"},7]})")), HasSubstr("has no usable key"));
  EXPECT_THAT(refusal(options("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")),
              HasSubstr("has no usable key"));
  EXPECT_THAT(refusal(options(Signer::rsa(1024).pem())), HasSubstr("1024 bits"));
  EXPECT_THAT(refusal(options(json{{"kty", "oct"}, {"k", base64url("secret")}}.dump())), HasSubstr("6 bytes"));
  JwtOptions anew = options(alice_idp.pem());
  anew.claim = "jti";
  EXPECT_THAT(refusal(anew), HasSubstr("new token"));
  anew.claim = "sub";
  anew.leeway = Millis{300'001};
  EXPECT_THAT(refusal(anew), HasSubstr("leeway"));
}

}  // namespace jwt_test
}  // namespace once::http
