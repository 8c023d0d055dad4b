// A view of a key with its hash, computed once for the shard and for the table in it.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace once {

struct HashedKey {
  explicit HashedKey(std::string_view bytes) noexcept : key(bytes), hash(std::hash<std::string_view>{}(bytes)) {}
  HashedKey(std::string_view bytes, std::size_t known_hash) noexcept : key(bytes), hash(known_hash) {}

  // Uses other bits than the table in the shard.
  [[nodiscard]] std::size_t shard(std::size_t shards) const noexcept { return hash / 64 % shards; }

  std::string_view key;
  std::size_t hash;

  friend bool operator==(const HashedKey& a, const HashedKey& b) noexcept { return a.hash == b.hash && a.key == b.key; }

  struct Hash {
    std::size_t operator()(const HashedKey& name) const noexcept { return name.hash; }
  };
};

}  // namespace once
