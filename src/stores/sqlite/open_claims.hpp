// The claims that this process made and has not finished: by how much their finishes may make the file grow.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "stores/sqlite/operation.hpp"

namespace once::stores::sqlite {

class OpenClaims {
 public:
  // Of all of them.
  [[nodiscard]] std::uint64_t growth() const noexcept { return growth_; }
  // By about how much more a write makes the file grow.
  [[nodiscard]] std::uint64_t growth_of(const Operation& operation) const;
  // It was written.
  void written(const Operation& operation);
  // Others may end what has lapsed, and a transaction of the user's may have. Not each call looks at all of them.
  void forget_lapsed(Time now);

 private:
  struct Claim {
    std::uint64_t growth;
    Time until;
  };
  struct Hash {
    std::size_t operator()(const Owner& owner) const noexcept {  // They are random.
      std::size_t hash = 0;
      std::memcpy(&hash, owner.bytes.data(), sizeof hash);
      return hash;
    }
  };
  void keep(const Record& record);
  void forget(const Owner& owner);

  std::unordered_map<Owner, Claim, Hash> claims_;
  std::uint64_t growth_ = 0;
  Time look_at_{};
};

// Whether it makes a claim. A record that ended elsewhere may be inserted too, by a copy or an import.
[[nodiscard]] bool is_claim(const Operation& operation) noexcept;
[[nodiscard]] bool is_finish(const Operation& operation) noexcept;

}  // namespace once::stores::sqlite
