// DynamoDB's items and answers, and their JSON ("DynamoDB JSON",
// https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_AttributeValue.html).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <once/error.hpp>

#include "text/json.hpp"

namespace once::stores::dynamodb {

struct Attribute;
struct AttributeValue;

// Attributes by name, in the order of adding. Names must be unique; that is not checked.
class Item {
 public:
  void add(std::string name, AttributeValue value);
  [[nodiscard]] const AttributeValue* find(std::string_view name) const noexcept;  // Null: no such attribute.

  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] const Attribute* begin() const noexcept;
  [[nodiscard]] const Attribute* end() const noexcept;
  void reserve(std::size_t attributes);

  // The same attributes in any order.
  friend bool operator==(const Item& a, const Item& b);

 private:
  std::vector<Attribute> attributes_;
};

// A value of one of DynamoDB's ten types. Only what belongs to `type` is used.
struct AttributeValue {
  enum class Type : std::uint8_t { s, n, b, boolean, null, m, l, ss, ns, bs };

  Type type = Type::null;
  bool flag = false;                 // boolean
  std::string text;                  // s: UTF-8. n: a number as unchanged text. b: any bytes (base64 only in JSON).
  std::vector<std::string> set;      // ss, ns, bs: like text.
  std::vector<AttributeValue> list;  // l
  Item map;                          // m

  static AttributeValue s(std::string text);
  static AttributeValue n(std::string digits);
  static AttributeValue n(std::int64_t number);
  static AttributeValue b(std::string bytes);
  static AttributeValue boolean(bool flag);
  static AttributeValue l(std::vector<AttributeValue> list);
  static AttributeValue m(Item map);

  friend bool operator==(const AttributeValue& a, const AttributeValue& b);  // Numbers are compared as text.
};

struct Attribute {
  std::string name;
  AttributeValue value;
};

inline bool Item::empty() const noexcept { return attributes_.empty(); }
inline std::size_t Item::size() const noexcept { return attributes_.size(); }
inline const Attribute* Item::begin() const noexcept { return attributes_.data(); }
inline const Attribute* Item::end() const noexcept { return attributes_.data() + attributes_.size(); }

std::string_view to_string(AttributeValue::Type type) noexcept;  // "S", "BOOL" ...

// Appends JSON. Texts must be UTF-8, otherwise the service refuses the request.
void append_json(std::string& out, const AttributeValue& value);  // {"S":"text"}
void append_json(std::string& out, const Item& item);             // {"id":{"S":"text"}}

// One item from JSON. corrupt, with the place, if it is malformed or nested deeper than DynamoDB's 32 levels.
std::variant<Item, Error> item_from_json(std::string_view json);
std::variant<Item, Error> item_from_json(const text::json::Value& json);

// An item's size as the service counts it, of at most 400 KiB: names in UTF-8 and values; a number as half its digits
// and a byte or two; 3 bytes for a list or map and 1 for each element
// (https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html).
std::size_t item_bytes(const Item& item) noexcept;
inline constexpr std::size_t max_item_bytes = std::size_t{400} * 1024;

// The parts of the service's answers that a store reads, for all operations.
struct ServiceAnswer {
  std::optional<Item> item;        // "Item": of GetItem, and of a failed condition.
  std::optional<Item> attributes;  // "Attributes": of ReturnValues.
  std::vector<Item> items;         // "Items": of Query and Scan.
  std::optional<Item> last_key;    // "LastEvaluatedKey".
  std::string error_type;          // "__type" after its '#': "ConditionalCheckFailedException". Empty: none.
  std::string message;             // "message" or "Message".
  double capacity_units = 0;       // "ConsumedCapacity", summed up.

  struct Reason {
    std::string code;  // "None", "ConditionalCheckFailed" ...
    std::string message;
    std::optional<Item> item;
  };
  std::vector<Reason> reasons;  // "CancellationReasons" of TransactWriteItems, one for each of its writes.

  struct Table {
    std::string partition_key;
    std::string sort_key;        // Empty: none.
    std::string partition_type;  // "S", "N", "B"
    std::string sort_type;
    struct Index {
      std::string name;
      std::string partition_key;
      std::string status;      // "ACTIVE" …; empty if the endpoint does not report it.
      std::string projection;  // "ALL" …
    };
    std::vector<Index> indexes;  // Global ones.
    std::string status;          // "ACTIVE"
    std::string eventual;  // How another region can claim the same key: "replicated with us-east-1". Empty: it cannot.
  };
  std::optional<Table> table;  // "Table": of DescribeTable.
};

// corrupt if the body is not a JSON object, or an item in it is malformed. An empty body is an empty answer.
std::variant<ServiceAnswer, Error> answer_from_json(std::string_view json);

// Whether these bytes can be a readable S: UTF-8 without control characters except tab and line ends.
bool is_readable_text(std::string_view bytes) noexcept;

// S if they are readable text, otherwise B. text_of() reads both; empty for other types.
AttributeValue text_or_bytes(std::string bytes);
const std::string* text_of(const AttributeValue& value) noexcept;

}  // namespace once::stores::dynamodb
