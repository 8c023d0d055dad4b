// How a record is written as an item: in once's format, or in those of other libraries.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <once/error.hpp>
#include <once/record.hpp>
#include <once/store.hpp>
#include <once/stores/dynamodb.hpp>

#include "stores/dynamodb/item.hpp"

namespace once::stores::dynamodb {

// A ConditionExpression or FilterExpression, with its names and values.
struct Condition {
  std::string expression;                                  // "#owner = :owner AND #revision = :revision"
  std::vector<std::pair<std::string, std::string>> names;  // {"#owner", "owner"} …
  Item values;                                             // ":owner" …
};

// Pure and thread-safe. Errors are values: misuse if it cannot be written, corrupt if it cannot be read.
class ItemFormat {
 public:
  virtual ~ItemFormat() = default;

  // The primary key of the record with this key: one attribute, or two in a table with a sort key. misuse if this
  // format has none for it.
  [[nodiscard]] virtual std::variant<Item, Error> primary_key(std::string_view key) const = 0;

  // The key of the record in an item with this primary key; corrupt if no record can have it. Ignores the rest of the
  // item.
  [[nodiscard]] virtual std::variant<std::string, Error> key_of(const Item& item) const = 0;

  // The whole item, primary key included. The caller checks its size.
  [[nodiscard]] virtual std::variant<Item, Error> encode(const Record& record) const = 0;

  // corrupt, naming the key and the attribute, if the item is not one of this format.
  [[nodiscard]] std::variant<Record, Error> decode(const Item& item) const;

  // Holds exactly as long as the item is unchanged since it was seen. Names begin with "#c", values with ":c".
  [[nodiscard]] virtual Condition unchanged(const Seen& seen) const = 0;

  // A filter on the server for the query; it may return too much. Empty: no filter. Names begin with "#f", values with
  // ":f".
  [[nodiscard]] virtual std::optional<Condition> filter(const ListQuery& query) const = 0;

  // The attribute of the index of open records for this shard. Empty if other libraries write the table, because then
  // not every open record has the attribute.
  [[nodiscard]] virtual std::optional<std::string> open_partition(std::uint32_t /*shard*/) const {
    return std::nullopt;
  }

  // Whether a result may be written compressed: not if other libraries read the table.
  [[nodiscard]] virtual bool keeps_compressed() const noexcept { return false; }

  // See Capabilities::max_record_bytes.
  [[nodiscard]] virtual std::size_t max_record_bytes() const noexcept = 0;

 private:
  // The record but its key. Throws Malformed.
  [[nodiscard]] virtual Record read(const Item& item) const = 0;
  // Who writes this format: "this store".
  [[nodiscard]] virtual std::string writer() const = 0;
};

// Both throw Exception(misuse) for invalid options. With a sort key, DynamoDbOptions::partition_value must not be
// empty.
std::unique_ptr<ItemFormat> make_native_format(const DynamoDbOptions& options);
std::unique_ptr<ItemFormat> make_powertools_format(const DynamoDbOptions& options);  // powertools_format.cpp

// All of them, to check that they differ and to add their lengths.
std::vector<const std::string*> attribute_names(const DynamoDbAttributes& attributes);

}  // namespace once::stores::dynamodb
