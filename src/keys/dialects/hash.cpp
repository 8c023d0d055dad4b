#include "keys/dialects/hash.hpp"

#include <algorithm>
#include <array>
#include <once/error.hpp>
#include <utility>

#include "text/ascii.hpp"

namespace once::keys {

namespace {

using Names = std::pair<std::string_view, const char*>;  // A name, and OpenSSL's.

constexpr std::array<Names, 6> common{{{"md5", "MD5"},
                                       {"sha1", "SHA1"},
                                       {"sha224", "SHA224"},
                                       {"sha256", "SHA256"},
                                       {"sha384", "SHA384"},
                                       {"sha512", "SHA512"}}};

// hashlib.algorithms_guaranteed, except shake_128 and shake_256, whose hexdigest() needs a length.
constexpr std::array<Names, 6> python_names{{{"sha3_224", "SHA3-224"},
                                             {"sha3_256", "SHA3-256"},
                                             {"sha3_384", "SHA3-384"},
                                             {"sha3_512", "SHA3-512"},
                                             {"blake2b", "BLAKE2B-512"},
                                             {"blake2s", "BLAKE2S-256"}}};

// The algorithms of MessageDigest.getInstance() in the JDK, in lower case. Without MD2, which OpenSSL does not have.
constexpr std::array<Names, 14> java{{{"md5", "MD5"},
                                      {"sha", "SHA1"},
                                      {"sha1", "SHA1"},
                                      {"sha-1", "SHA1"},
                                      {"sha-224", "SHA224"},
                                      {"sha-256", "SHA256"},
                                      {"sha-384", "SHA384"},
                                      {"sha-512", "SHA512"},
                                      {"sha-512/224", "SHA512-224"},
                                      {"sha-512/256", "SHA512-256"},
                                      {"sha3-224", "SHA3-224"},
                                      {"sha3-256", "SHA3-256"},
                                      {"sha3-384", "SHA3-384"},
                                      {"sha3-512", "SHA3-512"}}};

template <class Table>
const char* find(const Table& table, std::string_view name) {
  const auto* const entry = std::ranges::find(table, name, &Names::first);
  return entry == table.end() ? nullptr : entry->second;
}

[[noreturn]] void refuse_hash(std::string_view name, Dialect dialect, const std::string& instead) {
  throw Exception(ErrorKind::misuse, "unknown hash " + text::quoted(name) + " for " + std::string(to_string(dialect)) +
                                         " keys: " + instead);
}

std::string openssl_name(Dialect dialect, std::string_view name) {
  switch (dialect) {
    case Dialect::native:
      if (name.empty() || name == "sha256") return "SHA256";
      if (name == "md5") return "MD5";
      refuse_hash(name, dialect, "use sha256 or md5");
    case Dialect::powertools_python:
      if (name.empty()) return "MD5";
      if (const char* found = find(common, name)) return found;
      if (const char* found = find(python_names, name)) return found;
      refuse_hash(name, dialect, "use an attribute of hashlib such as md5, sha256, sha3_256, blake2b");
    case Dialect::powertools_typescript:
      if (name.empty()) return "MD5";
      if (const char* found = find(common, name)) return found;
      // OpenSSL's table of names has aliases such as RSA-SHA256; other names may still be fetched.
      if (const EVP_MD* known = EVP_get_digestbyname(std::string(name).c_str())) return EVP_MD_get0_name(known);
      return std::string(name);
    case Dialect::powertools_java:
      if (const char* found = find(common, name)) return found;
      if (const char* found = find(java, text::lower(name))) return found;
      return "MD5";
    case Dialect::powertools_dotnet:
      if (name.empty() || text::lower(name) == "md5") return "MD5";
      refuse_hash(name, dialect, "Powertools for .NET uses md5 whatever is configured; leave the hash out");
  }
  return {};
}

}  // namespace

Hash::Hash(Dialect dialect, std::string_view name)
    : algorithm_(EVP_MD_fetch(nullptr, openssl_name(dialect, name).c_str(), nullptr)) {
  // An extendable-output function has no fixed length.
  const bool usable = algorithm_ && EVP_MD_get_size(algorithm_.get()) > 0 &&
                      (EVP_MD_get_flags(algorithm_.get()) & EVP_MD_FLAG_XOF) == 0;
  if (!usable) refuse_hash(name, dialect, "this OpenSSL does not have it; use md5 or sha256");
}

Hash::Digest Hash::operator()(std::string_view text) const {
  // Making a context costs more than a short digest.
  thread_local const std::unique_ptr<EVP_MD_CTX, text::FreeBy<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  Digest digest;
  if (!context || EVP_DigestInit_ex2(context.get(), algorithm_.get(), nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), text.data(), text.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.bytes_.data(), &digest.size_) != 1) {
    throw Exception(ErrorKind::unavailable, "OpenSSL could not hash: check its configuration and providers");
  }
  return digest;
}

}  // namespace once::keys
