// Hash functions by the names that the dialects have for them.
#pragma once

#include <openssl/evp.h>

#include <memory>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

namespace once::keys {

class Hash {
 public:
  // See Recipe::hash. Throws Exception(misuse).
  Hash(Dialect dialect, std::string_view name);

  // 1 to 64 bytes. Thread-safe.
  [[nodiscard]] std::string operator()(std::string_view text) const;

 private:
  struct Free {
    void operator()(EVP_MD* md) const noexcept { EVP_MD_free(md); }
  };
  std::unique_ptr<EVP_MD, Free> algorithm_;
};

}  // namespace once::keys
