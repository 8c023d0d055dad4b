// What all formats read and write alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <once/stores/dynamodb.hpp>
#include <once/time.hpp>

#include "stores/dynamodb/item.hpp"

namespace once::stores::dynamodb {

// What is wrong with an item. Thrown by what reads it, and caught in the format's decode().
struct Malformed {
  std::string attribute;
  std::string why;  // "is missing"
};

// Null if it is not there. Throws Malformed for another type.
const AttributeValue* find_of(const Item& item, const std::string& name, AttributeValue::Type type);
// The same of what must be there.
const AttributeValue& get_of(const Item& item, const std::string& name, AttributeValue::Type type);
// S or B; empty if it is not there. Throws Malformed.
std::string find_text(const Item& item, const std::string& name);

// Unless it is empty.
void add_text(Item& item, const std::string& name, const std::string& text);

// Whole seconds, not before the time itself: an item must not be deleted early.
std::int64_t seconds_rounded_up(Time time) noexcept;

// The primary key of a table: the attribute that says which record it is, and the store's own value before it in a
// table with a sort key.
class PrimaryKey {
 public:
  explicit PrimaryKey(const DynamoDbOptions& options)
      : partition_key_(options.partition_key), sort_key_(options.sort_key), partition_value_(options.partition_value) {}

  void add(Item& item, std::string id) const;
  [[nodiscard]] const std::string& name() const noexcept { return sort_key_.empty() ? partition_key_ : sort_key_; }
  // https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html
  [[nodiscard]] std::size_t max_bytes() const noexcept { return sort_key_.empty() ? 2048 : 1024; }
  // "store#", where several stores share a table. Empty: none do.
  [[nodiscard]] std::string prefix() const { return sort_key_.empty() ? std::string() : partition_value_ + "#"; }
  // Of names and the store's value, in each item.
  [[nodiscard]] std::size_t bytes_beside_id() const noexcept;

 private:
  std::string partition_key_;
  std::string sort_key_;  // Empty: the table has none.
  std::string partition_value_;
};

}  // namespace once::stores::dynamodb
