#include "engine/cache.hpp"

#include <algorithm>

#include <once/store.hpp>

#include "engine/core.hpp"

namespace once {

Cache::Cache(std::size_t max_records, std::size_t max_bytes)
    : max_records_((max_records + shards - 1) / shards), max_bytes_(max_bytes / shards) {}

std::shared_ptr<const Record> Cache::find(const std::string& key) {
  const HashedKey name(key);
  Shard& shard = shard_of(name);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.index.find(name);
  if (found == shard.index.end()) return nullptr;
  shard.order.splice(shard.order.begin(), shard.order, found->second);
  return *found->second;
}

void Cache::put(const std::shared_ptr<const Record>& record) {
  if (!enabled() || EngineCore::must_fetch(record->result)) return;
  const std::size_t bytes = record_bytes(*record);
  const HashedKey name(record->key);
  Shard& shard = shard_of(name);
  const std::lock_guard lock(shard.mutex);
  if (const auto found = shard.index.find(name); found != shard.index.end()) drop(shard, found->second);
  if (bytes > max_bytes_) return;
  shard.order.push_front(record);
  shard.index.emplace(name, shard.order.begin());
  shard.bytes += bytes;
  while (shard.order.size() > max_records_ || shard.bytes > max_bytes_) drop(shard, std::prev(shard.order.end()));
}

void Cache::remove(const std::string& key) {
  const HashedKey name(key);
  Shard& shard = shard_of(name);
  const std::lock_guard lock(shard.mutex);
  if (const auto found = shard.index.find(name); found != shard.index.end()) drop(shard, found->second);
}

void Cache::drop(Shard& shard, Order::iterator entry) {
  shard.bytes -= record_bytes(**entry);
  shard.index.erase(HashedKey((*entry)->key));
  shard.order.erase(entry);
}

}  // namespace once
