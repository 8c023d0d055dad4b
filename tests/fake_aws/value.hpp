// Attribute values and items, as the service keeps them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "fake_aws/decimal.hpp"

namespace once::testing::fake {

struct Value;
using Item = std::map<std::string, Value, std::less<>>;
using List = std::vector<Value>;

struct Bytes {
  std::string bytes;
  friend auto operator<=>(const Bytes&, const Bytes&) = default;
};

// The kinds in the order of Value::kind().
struct Value {
  std::variant<std::string, Decimal, Bytes, bool, std::nullptr_t, Item, List, std::set<std::string>, std::set<Decimal>,
               std::set<Bytes>>
      held;

  // "S", "N", "B", "BOOL", "NULL", "M", "L", "SS", "NS", "BS".
  [[nodiscard]] std::string_view kind() const noexcept;
  template <class T>
  [[nodiscard]] const T* as() const noexcept {
    return std::get_if<T>(&held);
  }
  template <class T>
  [[nodiscard]] T* as() noexcept {
    return std::get_if<T>(&held);
  }
  friend bool operator==(const Value&, const Value&);
};

// Throw Refusal where the service refuses.
Value value_from_json(const nlohmann::json& json);
Item item_from_json(const nlohmann::json& json, std::string_view what);
nlohmann::json to_json(const Value& value);
nlohmann::json to_json(const Item& item);

// As the service counts them: "DynamoDB item sizes and formats" in its developer guide.
std::size_t size_bytes(const Value& value);
std::size_t size_bytes(const Item& item);

// Empty unless both are of one kind that has an order: S, N or B.
std::optional<std::strong_ordering> compare(const Value& left, const Value& right);

std::string base64(std::string_view bytes);

}  // namespace once::testing::fake
