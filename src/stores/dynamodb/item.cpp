#include "stores/dynamodb/item.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <tuple>

#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/utf8.hpp"

namespace once::stores::dynamodb {

namespace {

using Type = AttributeValue::Type;
using JsonKind = text::json::Kind;
using JsonValue = text::json::Value;

constexpr int max_depth = 32;

// What is malformed, and where. Thrown and caught only in this file.
struct BadAnswer {
  std::string what;
};

std::string from_base64(std::string_view text) {
  auto bytes = text::decode_base64(text);
  if (!bytes) throw BadAnswer{"not base64"};
  return *std::move(bytes);
}

template <class Append>
void append_list(std::string& out, std::string_view type, const auto& list, Append append) {
  out += "{\"";
  out += type;
  out += "\":[";
  bool first = true;
  for (const auto& element : list) {
    if (!std::exchange(first, false)) out += ',';
    append(element);
  }
  out += "]}";
}

std::string_view text_in(const JsonValue& json, const char* what) {
  if (json.kind() != JsonKind::string) throw BadAnswer{std::string(what) + " is not a string"};
  return json.text();
}

// Empty if it is not an array.
std::span<const JsonValue> elements_of(const JsonValue& json) noexcept {
  return json.kind() == JsonKind::array ? json.elements() : std::span<const JsonValue>();
}

Item read_item(const JsonValue& json, int depth);

AttributeValue read_value(const JsonValue& json, int depth) {
  if (depth > max_depth) throw BadAnswer{"nested deeper than 32"};
  if (json.kind() != JsonKind::object || json.members().size() != 1) {
    throw BadAnswer{"an attribute value is not an object of one member such as {\"S\":\"text\"}"};
  }
  const text::json::Member& pair = json.members().front();
  const std::string_view type = pair.name;
  AttributeValue value;
  const auto array = [&] {
    if (pair.value.kind() != JsonKind::array) throw BadAnswer{std::string(type) + " is not an array"};
    return pair.value.elements();
  };
  const auto set = [&](Type as) {
    value.type = as;
    for (const JsonValue& element : array()) {
      const std::string_view text = text_in(element, "an element of a set");
      value.set.push_back(as == Type::bs ? from_base64(text) : std::string(text));
    }
  };
  if (type == "S") {
    value.type = Type::s;
    value.text = text_in(pair.value, "S");
  } else if (type == "N") {
    value.type = Type::n;
    value.text = text_in(pair.value, "N");
  } else if (type == "B") {
    value.type = Type::b;
    value.text = from_base64(text_in(pair.value, "B"));
  } else if (type == "BOOL") {
    value.type = Type::boolean;
    if (pair.value.kind() != JsonKind::boolean) throw BadAnswer{"BOOL is not true or false"};
    value.flag = pair.value.truth();
  } else if (type == "NULL") {
    value.type = Type::null;
  } else if (type == "M") {
    value.type = Type::m;
    value.map = read_item(pair.value, depth + 1);
  } else if (type == "L") {
    value.type = Type::l;
    for (const JsonValue& element : array()) value.list.push_back(read_value(element, depth + 1));
  } else if (type == "SS") {
    set(Type::ss);
  } else if (type == "NS") {
    set(Type::ns);
  } else if (type == "BS") {
    set(Type::bs);
  } else {
    throw BadAnswer{"'" + std::string(type) + "' is no type of an attribute value"};
  }
  return value;
}

Item read_item(const JsonValue& json, int depth) {
  if (json.kind() != JsonKind::object) throw BadAnswer{"an item is not an object"};
  Item item;
  item.reserve(json.members().size());
  for (const auto& [name, value] : json.members()) {
    try {
      item.add(std::string(name), read_value(value, depth));
    } catch (BadAnswer& malformed) {
      malformed.what = "attribute '" + std::string(name) + "': " + malformed.what;
      throw;
    }
  }
  return item;
}

std::optional<Item> read_optional_item(const JsonValue& object, std::string_view name) {
  const JsonValue found = object.member(name);
  if (found.is_null()) return std::nullopt;
  return read_item(found, 1);
}

std::string optional_text(const JsonValue& object, std::string_view name) {
  const JsonValue found = object.member(name);
  return found.kind() == JsonKind::string ? std::string(found.text()) : std::string();
}

double capacity_of(const JsonValue& json) {
  double units = 0;
  for (const JsonValue& element : elements_of(json)) units += capacity_of(element);
  if (const JsonValue number = json.member("CapacityUnits"); number.kind() == JsonKind::number) {
    const std::string_view text = number.text();
    double value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{}) units = value;
  }
  return units;
}

// The attributes of a KeySchema: partition key, sort key.
std::pair<std::string, std::string> read_schema(const JsonValue& object) {
  std::pair<std::string, std::string> names;
  for (const JsonValue& part : elements_of(object.member("KeySchema"))) {
    if (part.kind() != JsonKind::object) continue;
    (optional_text(part, "KeyType") == "RANGE" ? names.second : names.first) = optional_text(part, "AttributeName");
  }
  return names;
}

ServiceAnswer::Table read_table(const JsonValue& object) {
  ServiceAnswer::Table table;
  std::tie(table.partition_key, table.sort_key) = read_schema(object);
  table.status = optional_text(object, "TableStatus");
  for (const JsonValue& definition : elements_of(object.member("AttributeDefinitions"))) {
    if (definition.kind() != JsonKind::object) continue;
    const std::string name = optional_text(definition, "AttributeName");
    if (name == table.partition_key) table.partition_type = optional_text(definition, "AttributeType");
    if (name == table.sort_key) table.sort_type = optional_text(definition, "AttributeType");
  }
  for (const JsonValue& index : elements_of(object.member("GlobalSecondaryIndexes"))) {
    if (index.kind() != JsonKind::object) continue;
    table.indexes.push_back({.name = optional_text(index, "IndexName"),
                             .partition_key = read_schema(index).first,
                             .status = optional_text(index, "IndexStatus"),
                             .projection = optional_text(index.member("Projection"), "ProjectionType")});
  }
  if (optional_text(object, "MultiRegionConsistency") == "STRONG") return table;
  for (const JsonValue& replica : elements_of(object.member("Replicas"))) {
    if (replica.kind() != JsonKind::object) continue;
    table.eventual += (table.eventual.empty() ? "replicated with " : ", ") + optional_text(replica, "RegionName");
  }
  if (table.eventual.empty() && optional_text(object, "GlobalTableVersion") == "2017.11.29") {
    table.eventual = "a global table of version 2017.11.29";
  }
  return table;
}

ServiceAnswer read_answer(const JsonValue& object) {
  ServiceAnswer answer;
  answer.item = read_optional_item(object, "Item");
  answer.attributes = read_optional_item(object, "Attributes");
  answer.last_key = read_optional_item(object, "LastEvaluatedKey");
  const std::string type = optional_text(object, "__type");
  answer.error_type = type.substr(type.rfind('#') + 1);
  answer.message = optional_text(object, "message");
  if (answer.message.empty()) answer.message = optional_text(object, "Message");
  for (const JsonValue& element : elements_of(object.member("Items"))) answer.items.push_back(read_item(element, 1));
  for (const JsonValue& reason : elements_of(object.member("CancellationReasons"))) {
    if (reason.kind() != JsonKind::object) throw BadAnswer{"a cancellation reason is no object"};
    answer.reasons.push_back(
        {optional_text(reason, "Code"), optional_text(reason, "Message"), read_optional_item(reason, "Item")});
  }
  answer.capacity_units = capacity_of(object.member("ConsumedCapacity"));
  if (const JsonValue table = object.member("Table"); table.kind() == JsonKind::object)
    answer.table = read_table(table);
  return answer;
}

template <class Read>
auto parse(std::string_view json, const char* what, Read read)
    -> std::variant<decltype(read(std::declval<const JsonValue&>())), Error> {
  // Room for the tree of a usual answer, because allocations are the main cost.
  std::array<std::byte, 8 * 1024> room;  // NOLINT(*-member-init): written before it is read.
  std::pmr::monotonic_buffer_resource arena(room.data(), room.size());
  try {
    return read(text::json::parse(json, {.exact_numbers = false}, arena, "it"));
  } catch (const BadAnswer& malformed) {
    return Error{ErrorKind::corrupt, std::string(what) + " is malformed: " + malformed.what};
  } catch (const Exception& no_json) {
    return Error{ErrorKind::corrupt, std::string(what) + " is malformed: " + no_json.what()};
  }
}

std::size_t number_bytes(std::string_view digits) noexcept {
  const std::size_t significant = static_cast<std::size_t>(
      std::count_if(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }));
  return (significant + 1) / 2 + 1 + (digits.starts_with('-') ? 1 : 0);
}

std::size_t value_bytes(const AttributeValue& value) noexcept {
  std::size_t sum = 0;
  switch (value.type) {
    case Type::s:
    case Type::b:
      return value.text.size();
    case Type::n:
      return number_bytes(value.text);
    case Type::boolean:
    case Type::null:
      return 1;
    case Type::m:
      return 3 + item_bytes(value.map) + value.map.size();
    case Type::l:
      for (const AttributeValue& element : value.list) sum += 1 + value_bytes(element);
      return 3 + sum;
    case Type::ns:
      for (const std::string& element : value.set) sum += number_bytes(element);
      return sum;
    case Type::ss:
    case Type::bs:
      for (const std::string& element : value.set) sum += element.size();
      return sum;
  }
  return sum;
}

}  // namespace

void Item::add(std::string name, AttributeValue value) { attributes_.push_back({std::move(name), std::move(value)}); }
void Item::reserve(std::size_t attributes) { attributes_.reserve(attributes); }

const AttributeValue* Item::find(std::string_view name) const noexcept {
  for (const Attribute& attribute : attributes_) {
    if (attribute.name == name) return &attribute.value;
  }
  return nullptr;
}

bool operator==(const Item& a, const Item& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Attribute& attribute) {
           const AttributeValue* other = b.find(attribute.name);
           return other != nullptr && *other == attribute.value;
         });
}

bool operator==(const AttributeValue& a, const AttributeValue& b) {
  return a.type == b.type && a.flag == b.flag && a.text == b.text && a.set == b.set && a.list == b.list &&
         a.map == b.map;
}

AttributeValue AttributeValue::s(std::string text) {
  AttributeValue value;
  value.type = Type::s;
  value.text = std::move(text);
  return value;
}
AttributeValue AttributeValue::n(std::string digits) {
  AttributeValue value = s(std::move(digits));
  value.type = Type::n;
  return value;
}
AttributeValue AttributeValue::n(std::int64_t number) { return n(std::to_string(number)); }
AttributeValue AttributeValue::b(std::string bytes) {
  AttributeValue value = s(std::move(bytes));
  value.type = Type::b;
  return value;
}
AttributeValue AttributeValue::boolean(bool flag) {
  AttributeValue value;
  value.type = Type::boolean;
  value.flag = flag;
  return value;
}
AttributeValue AttributeValue::l(std::vector<AttributeValue> list) {
  AttributeValue value;
  value.type = Type::l;
  value.list = std::move(list);
  return value;
}
AttributeValue AttributeValue::m(Item map) {
  AttributeValue value;
  value.type = Type::m;
  value.map = std::move(map);
  return value;
}

std::string_view to_string(Type type) noexcept {
  switch (type) {
    case Type::s:
      return "S";
    case Type::n:
      return "N";
    case Type::b:
      return "B";
    case Type::boolean:
      return "BOOL";
    case Type::null:
      return "NULL";
    case Type::m:
      return "M";
    case Type::l:
      return "L";
    case Type::ss:
      return "SS";
    case Type::ns:
      return "NS";
    case Type::bs:
      return "BS";
  }
  return "?";
}

void append_json(std::string& out, const AttributeValue& value) {
  const auto type = to_string(value.type);
  switch (value.type) {
    case Type::s:
    case Type::n:
      out += value.type == Type::s ? R"({"S":)" : R"({"N":)";
      text::json::append_quoted(out, value.text);
      out += '}';
      return;
    case Type::b:
      out += "{\"B\":\"";
      text::append_base64(out, value.text);
      out += "\"}";
      return;
    case Type::boolean:
      out += value.flag ? R"({"BOOL":true})" : R"({"BOOL":false})";
      return;
    case Type::null:
      out += R"({"NULL":true})";
      return;
    case Type::m:
      out += "{\"M\":";
      append_json(out, value.map);
      out += '}';
      return;
    case Type::l:
      return append_list(out, type, value.list, [&](const AttributeValue& element) { append_json(out, element); });
    case Type::ss:
    case Type::ns:
      return append_list(out, type, value.set,
                         [&](const std::string& element) { text::json::append_quoted(out, element); });
    case Type::bs:
      return append_list(out, type, value.set, [&](const std::string& element) {
        out += '"';
        text::append_base64(out, element);
        out += '"';
      });
  }
}

void append_json(std::string& out, const Item& item) {
  out += '{';
  bool first = true;
  for (const Attribute& attribute : item) {
    if (!std::exchange(first, false)) out += ',';
    text::json::append_quoted(out, attribute.name);
    out += ':';
    append_json(out, attribute.value);
  }
  out += '}';
}

std::variant<Item, Error> item_from_json(std::string_view json) {
  return parse(json, "the item", [](const JsonValue& document) { return read_item(document, 1); });
}

std::variant<Item, Error> item_from_json(const text::json::Value& json) {
  try {
    return read_item(json, 1);
  } catch (const BadAnswer& malformed) {
    return Error{ErrorKind::corrupt, "the item is malformed: " + malformed.what};
  }
}

std::variant<ServiceAnswer, Error> answer_from_json(std::string_view json) {
  if (json.empty()) return ServiceAnswer{};
  return parse(json, "the service's answer", [](const JsonValue& document) {
    if (document.kind() != JsonKind::object) throw BadAnswer{"it is not a JSON object"};
    return read_answer(document);
  });
}

std::size_t item_bytes(const Item& item) noexcept {
  std::size_t sum = 0;
  for (const Attribute& attribute : item) sum += attribute.name.size() + value_bytes(attribute.value);
  return sum;
}

bool is_readable_text(std::string_view bytes) noexcept {
  const auto control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F;
  };
  return std::none_of(bytes.begin(), bytes.end(), control) && text::valid_utf8(bytes);
}

AttributeValue text_or_bytes(std::string bytes) {
  return is_readable_text(bytes) ? AttributeValue::s(std::move(bytes)) : AttributeValue::b(std::move(bytes));
}

const std::string* text_of(const AttributeValue& value) noexcept {
  return value.type == Type::s || value.type == Type::b ? &value.text : nullptr;
}

}  // namespace once::stores::dynamodb
