#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "core/digest.hpp"
#include "text/free_by.hpp"
#include "text/hex.hpp"

namespace once {

Sha256 sha256_joined(std::initializer_list<std::string_view> parts) {
  // Fetching an algorithm and making a context cost more than a short digest. So the first is done once per process,
  // the second once per thread.
  static const std::unique_ptr<EVP_MD, text::FreeBy<EVP_MD_free>> algorithm(EVP_MD_fetch(nullptr, "SHA256", nullptr));
  thread_local const std::unique_ptr<EVP_MD_CTX, text::FreeBy<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  Sha256 digest;
  unsigned length = 0;
  bool good = algorithm && context && EVP_DigestInit_ex2(context.get(), algorithm.get(), nullptr) == 1;
  for (const std::string_view part : parts) {
    good = good && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  }
  if (!good || EVP_DigestFinal_ex(context.get(), digest.data(), &length) != 1 || length != digest.size()) {
    throw Exception(ErrorKind::unavailable, "OpenSSL has no SHA-256: check its configuration and providers");
  }
  return digest;
}

Sha256 sha256(std::string_view bytes) { return sha256_joined({bytes}); }

std::string to_hex(std::string_view bytes) {
  std::string out(bytes.size() * 2, '0');
  text::put_hex(bytes, out.data());
  return out;
}

Fingerprint::Fingerprint(std::string_view bytes) {
  if (bytes.size() > max_bytes) {
    throw Exception(ErrorKind::misuse, "a fingerprint holds at most 64 bytes, not " + std::to_string(bytes.size()));
  }
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  size_ = static_cast<std::uint8_t>(bytes.size());
}

}  // namespace once
