#include "seal/sealing.hpp"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <initializer_list>
#include <limits>
#include <memory>

#include <once/error.hpp>

#include "text/free_by.hpp"
#include "text/netstring.hpp"

namespace once::seals {

namespace {

constexpr std::size_t tag_bytes = 16;
constexpr std::size_t nonce_bytes = 12;
// A seed chooses the key of one text (16 bytes) and its nonce (12 bytes).
constexpr std::size_t seed_key_bytes = 16;
constexpr std::size_t seed_bytes = seed_key_bytes + nonce_bytes;

using Bytes32 = std::array<std::uint8_t, 32>;

std::string_view view(const Bytes32& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::uint8_t* octets(std::string_view bytes) noexcept {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

// A key of its own for each text: so the nonces of GCM, which are short, are never used up.
Bytes32 key_of(const SealKey& key, std::string_view seed) {
  return keyed_hash(key, {"once seal key", seed.substr(0, seed_key_bytes)});
}

std::string associated(const SealKey& key, const Context& context) {
  std::string out;
  for (const std::string_view part :
       {std::string_view("once seal 1"), context.kind, context.name, std::string_view(key.id), context.bound}) {
    text::append_netstring(out, part);
  }
  return out;
}

// Looking an algorithm up costs more instructions than sealing a small record, so that is done once. Never freed: a
// thread may seal until the process ends.
EVP_CIPHER* cipher() {
  static EVP_CIPHER* const found = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  return found;
}

// HMAC-SHA256 without a key yet, to be copied.
const EVP_MAC_CTX* mac() {
  static const EVP_MAC_CTX* const made = []() -> EVP_MAC_CTX* {
    EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    EVP_MAC_CTX* const context = hmac == nullptr ? nullptr : EVP_MAC_CTX_new(hmac);
    std::string digest = "SHA256";
    const std::array<OSSL_PARAM, 2> parameters{
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0), OSSL_PARAM_construct_end()};
    return context != nullptr && EVP_MAC_CTX_set_params(context, parameters.data()) == 1 ? context : nullptr;
  }();
  return made;
}

// AES-256-GCM in one direction. OpenSSL counts in int, so long texts go through in slices.
class Gcm {
 public:
  Gcm(bool seals, const Bytes32& key, std::string_view nonce) : context_(EVP_CIPHER_CTX_new()) {
    expect(context_ != nullptr && cipher() != nullptr &&
           EVP_CipherInit_ex2(context_.get(), cipher(), key.data(), octets(nonce), seals ? 1 : 0, nullptr) == 1);
  }

  void associate(std::string_view bytes) {
    int done = 0;
    expect(EVP_CipherUpdate(context_.get(), nullptr, &done, octets(bytes), static_cast<int>(bytes.size())) == 1);
  }
  void update(std::string& out, std::string_view in) {
    constexpr std::size_t slice = std::size_t{1} << 30U;
    while (!in.empty()) {
      const std::string_view part = in.substr(0, slice);
      const std::size_t at = out.size();
      out.resize(at + part.size());
      int done = 0;
      expect(EVP_CipherUpdate(context_.get(), reinterpret_cast<std::uint8_t*>(out.data() + at), &done, octets(part),
                              static_cast<int>(part.size())) == 1);
      in.remove_prefix(part.size());
    }
  }
  // False when opening: the tag does not fit.
  bool finish() {
    std::array<std::uint8_t, 16> none{};
    int done = 0;
    return EVP_CipherFinal_ex(context_.get(), none.data(), &done) == 1;
  }
  void tag(std::string& out) {
    const std::size_t at = out.size();
    out.resize(at + tag_bytes);
    expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag_bytes), out.data() + at) ==
           1);
  }
  void expect_tag(std::string_view tag) {
    std::string copy(tag);
    expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag_bytes), copy.data()) == 1);
  }

 private:
  static void expect(bool good) {
    if (good) return;
    throw Exception(ErrorKind::unavailable, "OpenSSL has no AES-256-GCM: check its configuration and providers");
  }

  const std::unique_ptr<EVP_CIPHER_CTX, text::FreeBy<EVP_CIPHER_CTX_free>> context_;
};

}  // namespace

std::array<std::uint8_t, 32> keyed_hash(const SealKey& key, std::initializer_list<std::string_view> parts) {
  const std::unique_ptr<EVP_MAC_CTX, text::FreeBy<EVP_MAC_CTX_free>> context(mac() == nullptr ? nullptr
                                                                                              : EVP_MAC_CTX_dup(mac()));
  bool good = context != nullptr && EVP_MAC_init(context.get(), key.bytes.data(), key.bytes.size(), nullptr) == 1;
  const auto add = [&](std::string_view bytes) {
    good = good && EVP_MAC_update(context.get(), octets(bytes), bytes.size()) == 1;
  };
  for (const std::string_view part : parts) {  // As netstrings, without a copy.
    add(std::to_string(part.size()) + ":");
    add(part);
    add(",");
  }
  Bytes32 out{};
  std::size_t length = 0;
  if (!good || EVP_MAC_final(context.get(), out.data(), &length, out.size()) != 1 || length != out.size()) {
    throw Exception(ErrorKind::unavailable, "OpenSSL has no HMAC-SHA256: check its configuration and providers");
  }
  return out;
}

std::string seal(const SealKey& key, const Context& context, std::string_view salt, std::string_view plain) {
  // The seed depends on the associated data too. Otherwise two tags of one nonce could differ, by which GCM's key of
  // tags can be computed: for the same text in two states of a record, or under two ids of one key.
  const std::string beside = associated(key, context);
  const Bytes32 drawn = keyed_hash(key, {"once seal seed", beside, salt, plain});
  const std::string_view seed = view(drawn).substr(0, seed_bytes);
  Gcm gcm(true, key_of(key, seed), seed.substr(seed_key_bytes));
  gcm.associate(beside);
  std::string out;
  out.reserve(key.id.size() + seed_bytes + tag_bytes + plain.size() + 16);
  text::append_netstring(out, key.id);
  text::append_netstring(out, seed);
  gcm.update(out, plain);
  gcm.finish();
  gcm.tag(out);
  return out;
}

std::optional<std::string_view> take_key_id(std::string_view& sealed) {
  const auto id = text::take_netstring(sealed);
  return id && is_seal_key_id(*id) ? id : std::nullopt;
}

bool looks_sealed(std::string_view sealed) {
  if (!take_key_id(sealed)) return false;
  const auto seed = text::take_netstring(sealed);
  return seed && seed->size() == seed_bytes && sealed.size() >= tag_bytes;
}

std::optional<std::string> open(const SealKey& key, const Context& context, std::string_view rest) {
  const auto seed = text::take_netstring(rest);
  if (!seed || seed->size() != seed_bytes || rest.size() < tag_bytes) return std::nullopt;
  Gcm gcm(false, key_of(key, *seed), seed->substr(seed_key_bytes));
  gcm.associate(associated(key, context));
  const std::string_view ciphertext = rest.substr(0, rest.size() - tag_bytes);
  std::string plain;
  plain.reserve(ciphertext.size());
  gcm.update(plain, ciphertext);
  gcm.expect_tag(rest.substr(ciphertext.size()));
  if (!gcm.finish()) return std::nullopt;
  return plain;
}

const SealKey* find(const SealKeys& keys, std::string_view id) noexcept {
  for (const SealKey& key : keys) {
    if (key.id == id) return &key;
  }
  return nullptr;
}

}  // namespace once::seals
