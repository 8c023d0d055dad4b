// One sealed text: AES-256-GCM with a key and a nonce that are derived from what is sealed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/seal.hpp>

namespace once::seals {

// What is sealed belongs to this context, and opens in no other.
struct Context {
  std::string_view kind;   // "record" or "object".
  std::string_view name;   // A record's key.
  std::string_view bound;  // What stands beside it in the clear, and must be as it was.
};

// A netstring with the key's id, a netstring with the seed, the ciphertext, its tag of 16 bytes. `salt` makes equal
// texts look different, and is not needed to open. Throws Exception(unavailable) if OpenSSL has no AES-256-GCM.
std::string seal(const SealKey& key, const Context& context, std::string_view salt, std::string_view plain);

// Takes the key's id off the front of a sealed text. Empty if it is malformed.
std::optional<std::string_view> take_key_id(std::string_view& sealed);

// `rest`: what take_key_id() left. Empty: it was sealed with another key, in another context, or was changed.
std::optional<std::string> open(const SealKey& key, const Context& context, std::string_view rest);

// Whether it has the parts of a sealed text, by whatever key.
bool looks_sealed(std::string_view sealed);

// HMAC-SHA256 of the parts, each with its length before it.
std::array<std::uint8_t, 32> keyed_hash(const SealKey& key, std::initializer_list<std::string_view> parts);

// Throws Exception(misuse) unless there is a key, and each id is well formed and unique.
void check(const SealKeys& keys);

// Null: unknown.
const SealKey* find(const SealKeys& keys, std::string_view id) noexcept;

}  // namespace once::seals
