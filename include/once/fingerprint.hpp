// The fingerprint: a digest of the payload. It detects a key that is used with another payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <once/compiler.hpp>

namespace once {

using Sha256 = std::array<std::uint8_t, 32>;  // The 32 bytes of a digest.

// SHA-256 of the bytes (OpenSSL). Thread-safe. Throws Exception(unavailable) if the library does not provide it.
Sha256 sha256(std::string_view bytes);

std::string to_hex(std::string_view bytes);  // Lower case, two digits a byte.
// 64 digits.
inline std::string to_hex(const Sha256& digest) {
  return to_hex({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

// 0 to 64 bytes, kept inline. Empty: not checked. once uses the 32 bytes of a SHA-256. Records of other libraries have
// other digests, some of them as text.
class Fingerprint {
 public:
  static constexpr std::size_t max_bytes = 64;  // Room for a SHA-256 in hexadecimal digits.

  Fingerprint() = default;
  // The 32 bytes of the digest.
  explicit Fingerprint(const Sha256& digest)
      : Fingerprint(std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())) {}
  explicit Fingerprint(std::string_view bytes);  // Throws Exception(misuse) over max_bytes.

  // The SHA-256, also of an empty payload.
  static Fingerprint of(std::string_view payload) { return Fingerprint(sha256(payload)); }

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }  // Payloads are not compared.
  // A view into this fingerprint.
  [[nodiscard]] std::string_view bytes() const noexcept { return {bytes_.data(), size_}; }
  [[nodiscard]] std::string hex() const { return to_hex(bytes()); }  // Two digits a byte.

  friend bool operator==(const Fingerprint& a, const Fingerprint& b) noexcept { return a.bytes() == b.bytes(); }

 private:
  std::array<char, max_bytes> bytes_{};
  std::uint8_t size_ = 0;
};

}  // namespace once
