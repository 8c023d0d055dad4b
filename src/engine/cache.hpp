// Completed records kept in the process; the least recently used is dropped first.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <once/record.hpp>

#include "platform/hashed_key.hpp"

namespace once {

class Cache {
 public:
  // Both limits are split evenly between the shards. Each shard holds at least one record.
  Cache(std::size_t max_records, std::size_t max_bytes);

  [[nodiscard]] bool enabled() const noexcept { return max_records_ > 0; }
  [[nodiscard]] std::shared_ptr<const Record> find(const std::string& key);
  void put(const std::shared_ptr<const Record>& record);  // No effect if its bytes are compressed or offloaded.
  void remove(const std::string& key);

 private:
  using Order = std::list<std::shared_ptr<const Record>>;
  struct Shard {
    std::mutex mutex;
    Order order;                                                            // Most recently used first.
    std::unordered_map<HashedKey, Order::iterator, HashedKey::Hash> index;  // Views into the records.
    std::size_t bytes = 0;
  };
  static constexpr std::size_t shards = 16;

  Shard& shard_of(const HashedKey& name) noexcept { return shards_[name.shard(shards)]; }
  static void drop(Shard& shard, Order::iterator entry);

  std::size_t max_records_;  // A shard.
  std::size_t max_bytes_;    // A shard.
  std::array<Shard, shards> shards_;
};

}  // namespace once
