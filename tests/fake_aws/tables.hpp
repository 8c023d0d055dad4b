// Tables of the fake: schemas, rows in the order of their keys, secondary indexes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/time.hpp>

#include "fake_aws/value.hpp"

namespace once::testing::fake {

struct KeyPart {
  std::string name = {};
  std::string type = {};  // S, N or B.
};

struct Schema {
  KeyPart hash;
  std::optional<KeyPart> range;

  [[nodiscard]] bool has(std::string_view name) const { return hash.name == name || (range && range->name == name); }
};

// Hash and range key in bytes that compare as they do; for an index those of the table after them.
using RowKey = std::array<std::string, 4>;
using Rows = std::map<RowKey, std::shared_ptr<const Item>>;

struct Index {
  std::string name = {};
  bool global = true;
  Schema schema = {};
  std::string projection = {};             // ALL, KEYS_ONLY or INCLUDE.
  std::vector<std::string> included = {};  // For INCLUDE.
  Rows rows = {};
};

struct Table {
  std::string name = {};
  Schema schema = {};
  nlohmann::json definitions = {};  // AttributeDefinitions, as given.
  std::string billing_mode = {};
  nlohmann::json throughput = {};  // ReadCapacityUnits and WriteCapacityUnits.
  bool protected_from_deletion = false;
  bool recoverable = false;  // Point-in-time recovery is on.
  Time created{};
  std::size_t creation_steps = 0;  // Until it is ACTIVE.
  std::optional<std::string> ttl_attribute = {};
  std::map<std::string, Index, std::less<>> indexes = {};
  Rows rows = {};

  // The key that `key`, an object with exactly the key's attributes, names. Throws Refusal.
  [[nodiscard]] RowKey row_key(const Item& key) const;
  // The key of an item that is to be stored, all of which is checked. Throws Refusal.
  [[nodiscard]] RowKey check_item(const Item& item) const;
  [[nodiscard]] const Index& index(std::string_view index_name) const;  // Throws Refusal.

  [[nodiscard]] std::shared_ptr<const Item> get(const RowKey& key) const;
  // Puts, or deletes with a null pointer. Returns how many indexes have changed.
  std::size_t put(const RowKey& key, std::shared_ptr<const Item> item);

  [[nodiscard]] nlohmann::json describe(std::string_view status) const;
};

// Throws Refusal for what CreateTable refuses.
Table table_from_request(const nlohmann::json& request, Time now);

// Bytes that compare as values of one key type do. Empty if it has another type.
std::optional<std::string> sortable(const Value& value, std::string_view type);

}  // namespace once::testing::fake
