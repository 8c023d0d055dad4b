// Hash functions by the dialects' names.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

#include "text/free_by.hpp"

namespace once::keys {

class Hash {
 public:
  // See Recipe::hash. Throws Exception(misuse).
  Hash(Dialect dialect, std::string_view name);

  // 1 to 64 bytes.
  class Digest {
   public:
    operator std::string_view() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), size_}; }

   private:
    friend class Hash;
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes_{};
    unsigned size_ = 0;
  };

  // Thread-safe.
  [[nodiscard]] Digest operator()(std::string_view text) const;

 private:
  std::unique_ptr<EVP_MD, text::FreeBy<EVP_MD_free>> algorithm_;
};

}  // namespace once::keys
