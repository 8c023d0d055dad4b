#include "seal/sealing.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

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
       {std::string_view("once seal 1"), context.kind, context.name, std::string_view(key.id)}) {
    text::append_netstring(out, part);
  }
  return out;
}

// AES-256-GCM in one direction. OpenSSL counts in int, so long texts go through in slices.
class Gcm {
 public:
  Gcm(bool seals, const Bytes32& key, std::string_view nonce) : context_(EVP_CIPHER_CTX_new()) {
    expect(context_ != nullptr && EVP_CipherInit_ex2(context_.get(), EVP_aes_256_gcm(), key.data(), octets(nonce),
                                                     seals ? 1 : 0, nullptr) == 1);
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
  std::string text;
  for (const std::string_view part : parts) text::append_netstring(text, part);
  Bytes32 out{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()), octets(text), text.size(), out.data(),
           &length) == nullptr ||
      length != out.size()) {
    throw Exception(ErrorKind::unavailable, "OpenSSL has no HMAC-SHA256: check its configuration and providers");
  }
  return out;
}

std::string seal(const SealKey& key, const Context& context, std::string_view salt, std::string_view plain) {
  const Bytes32 drawn = keyed_hash(key, {"once seal seed", context.kind, context.name, salt, plain});
  const std::string_view seed = view(drawn).substr(0, seed_bytes);
  Gcm gcm(true, key_of(key, seed), seed.substr(seed_key_bytes));
  gcm.associate(associated(key, context));
  std::string out;
  out.reserve(key.id.size() + seed_bytes + tag_bytes + plain.size() + 16);
  text::append_netstring(out, key.id);
  text::append_netstring(out, seed);
  gcm.update(out, plain);
  gcm.finish();
  gcm.tag(out);
  return out;
}

std::optional<std::string_view> take_key_id(std::string_view& sealed) { return text::take_netstring(sealed); }

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
