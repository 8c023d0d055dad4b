#include "stores/dynamodb/item.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>

#include <openssl/evp.h>
#include <simdjson.h>

namespace once::stores::dynamodb {

void append_base64(std::string& out, std::string_view bytes) {
  if (bytes.empty()) return;
  const std::size_t before = out.size();
  const std::size_t size = (bytes.size() + 2) / 3 * 4;
  out.resize(before + size + 1);  // EVP_EncodeBlock ends with a NUL.
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data() + before),
                  reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(before + size);
}

std::optional<std::string> bytes_of_base64(std::string_view text) {
  if (text.empty()) return std::string();
  const bool shape = text.size() % 4 == 0 && std::all_of(text.begin(), text.end(), [](char c) {
                       return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
                              c == '/' || c == '=';
                     });
  if (!shape) return std::nullopt;
  std::string out(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  const std::size_t pads = text.size() - std::min(text.find_last_not_of('=') + 1, text.size());
  if (size < 0 || pads > 2) return std::nullopt;
  out.resize(static_cast<std::size_t>(size) - pads);
  return out;
}

namespace {

using Type = AttributeValue::Type;
namespace dom = simdjson::dom;

constexpr int max_depth = 32;

// What is malformed, and where: thrown and caught within this file only.
struct BadAnswer {
  std::string what;
};

std::string from_base64(std::string_view text) {
  auto bytes = bytes_of_base64(text);
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

std::string_view text_in(const dom::element& json, const char* what) {
  std::string_view text;
  if (json.get_string().get(text) != simdjson::SUCCESS) throw BadAnswer{std::string(what) + " is not a string"};
  return text;
}

Item read_item(const dom::element& json, int depth);

AttributeValue read_value(const dom::element& json, int depth) {
  if (depth > max_depth) throw BadAnswer{"nested deeper than 32"};
  dom::object object;
  if (json.get_object().get(object) != simdjson::SUCCESS || object.size() != 1) {
    throw BadAnswer{"an attribute value is not an object of one member such as {\"S\":\"text\"}"};
  }
  const dom::key_value_pair pair = *object.begin();
  const std::string_view type = pair.key;
  AttributeValue value;
  const auto array = [&] {
    dom::array out;
    if (pair.value.get_array().get(out) != simdjson::SUCCESS) throw BadAnswer{std::string(type) + " is not an array"};
    return out;
  };
  const auto set = [&](Type as) {
    value.type = as;
    for (const dom::element element : array()) {
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
    if (pair.value.get_bool().get(value.flag) != simdjson::SUCCESS) throw BadAnswer{"BOOL is not true or false"};
  } else if (type == "NULL") {
    value.type = Type::null;
  } else if (type == "M") {
    value.type = Type::m;
    value.map = read_item(pair.value, depth + 1);
  } else if (type == "L") {
    value.type = Type::l;
    for (const dom::element element : array()) value.list.push_back(read_value(element, depth + 1));
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

Item read_item(const dom::element& json, int depth) {
  dom::object object;
  if (json.get_object().get(object) != simdjson::SUCCESS) throw BadAnswer{"an item is not an object"};
  Item item;
  item.reserve(object.size());
  for (const dom::key_value_pair pair : object) {
    try {
      item.add(std::string(pair.key), read_value(pair.value, depth));
    } catch (BadAnswer& malformed) {
      malformed.what = "attribute '" + std::string(pair.key) + "': " + malformed.what;
      throw;
    }
  }
  return item;
}

std::optional<Item> read_optional_item(const dom::object& object, std::string_view name) {
  dom::element found;
  if (object[name].get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
  return read_item(found, 1);
}

std::string optional_text(const dom::object& object, std::string_view name) {
  std::string_view text;
  return object[name].get_string().get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

double capacity_of(const dom::element& json) {
  double units = 0;
  dom::array array;
  if (json.get_array().get(array) == simdjson::SUCCESS) {
    for (const dom::element element : array) units += capacity_of(element);
  } else if (json["CapacityUnits"].get_double().get(units) != simdjson::SUCCESS) {
    units = 0;
  }
  return units;
}

// The attributes of a KeySchema: partition key, sort key.
std::pair<std::string, std::string> read_schema(const dom::object& object) {
  std::pair<std::string, std::string> names;
  dom::array schema;
  if (object["KeySchema"].get_array().get(schema) != simdjson::SUCCESS) return names;
  for (const dom::element element : schema) {
    dom::object part;
    if (element.get_object().get(part) != simdjson::SUCCESS) continue;
    (optional_text(part, "KeyType") == "RANGE" ? names.second : names.first) = optional_text(part, "AttributeName");
  }
  return names;
}

ServiceAnswer::Table read_table(const dom::object& object) {
  ServiceAnswer::Table table;
  std::tie(table.partition_key, table.sort_key) = read_schema(object);
  table.status = optional_text(object, "TableStatus");
  dom::array list;
  if (object["AttributeDefinitions"].get_array().get(list) == simdjson::SUCCESS) {
    for (const dom::element element : list) {
      dom::object definition;
      if (element.get_object().get(definition) != simdjson::SUCCESS) continue;
      const std::string name = optional_text(definition, "AttributeName");
      if (name == table.partition_key) table.partition_type = optional_text(definition, "AttributeType");
      if (name == table.sort_key) table.sort_type = optional_text(definition, "AttributeType");
    }
  }
  if (object["GlobalSecondaryIndexes"].get_array().get(list) == simdjson::SUCCESS) {
    for (const dom::element element : list) {
      dom::object index;
      if (element.get_object().get(index) != simdjson::SUCCESS) continue;
      dom::object projection;
      const bool projects = index["Projection"].get_object().get(projection) == simdjson::SUCCESS;
      table.indexes.push_back({.name = optional_text(index, "IndexName"),
                               .partition_key = read_schema(index).first,
                               .status = optional_text(index, "IndexStatus"),
                               .projection = projects ? optional_text(projection, "ProjectionType") : std::string()});
    }
  }
  return table;
}

ServiceAnswer read_answer(const dom::object& object) {
  ServiceAnswer answer;
  answer.item = read_optional_item(object, "Item");
  answer.attributes = read_optional_item(object, "Attributes");
  answer.last_key = read_optional_item(object, "LastEvaluatedKey");
  const std::string type = optional_text(object, "__type");
  answer.error_type = type.substr(type.rfind('#') + 1);
  answer.message = optional_text(object, "message");
  if (answer.message.empty()) answer.message = optional_text(object, "Message");
  dom::array list;
  if (object["Items"].get_array().get(list) == simdjson::SUCCESS) {
    for (const dom::element element : list) answer.items.push_back(read_item(element, 1));
  }
  if (object["CancellationReasons"].get_array().get(list) == simdjson::SUCCESS) {
    for (const dom::element element : list) {
      dom::object reason;
      if (element.get_object().get(reason) != simdjson::SUCCESS) throw BadAnswer{"a cancellation reason is no object"};
      answer.reasons.push_back(
          {optional_text(reason, "Code"), optional_text(reason, "Message"), read_optional_item(reason, "Item")});
    }
  }
  dom::element capacity;
  if (object["ConsumedCapacity"].get(capacity) == simdjson::SUCCESS) answer.capacity_units = capacity_of(capacity);
  dom::object table;
  if (object["Table"].get_object().get(table) == simdjson::SUCCESS) answer.table = read_table(table);
  return answer;
}

// One parser for each thread keeps its buffers; a large document's are not kept.
template <class Read>
auto parse(std::string_view json, const char* what, Read read)
    -> std::variant<decltype(read(std::declval<const dom::element&>())), Error> {
  constexpr std::size_t keep_bytes = std::size_t{1} << 20U;
  static thread_local dom::parser kept;
  dom::parser once_only;
  dom::parser& parser = json.size() > keep_bytes ? once_only : kept;
  try {
    dom::element document;
    const auto failed = parser.parse(json.data(), json.size()).get(document);
    if (failed != simdjson::SUCCESS) throw BadAnswer{simdjson::error_message(failed)};
    return read(document);
  } catch (const BadAnswer& malformed) {
    return Error{ErrorKind::corrupt, std::string(what) + " is malformed: " + malformed.what};
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

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += '"';
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, done, i - done);
    done = i + 1;
    out += '\\';
    if (byte == '\n') {
      out += 'n';
    } else if (byte == '"' || byte == '\\') {
      out += text[i];
    } else {
      out += "u00";
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
  }
  out.append(text, done);
  out += '"';
}

void append_json(std::string& out, const AttributeValue& value) {
  const auto type = to_string(value.type);
  switch (value.type) {
    case Type::s:
    case Type::n:
      out += "{\"";
      out += type;
      out += "\":";
      append_json_string(out, value.text);
      out += '}';
      return;
    case Type::b:
      out += "{\"B\":\"";
      append_base64(out, value.text);
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
      return append_list(out, type, value.set, [&](const std::string& element) { append_json_string(out, element); });
    case Type::bs:
      return append_list(out, type, value.set, [&](const std::string& element) {
        out += '"';
        append_base64(out, element);
        out += '"';
      });
  }
}

void append_json(std::string& out, const Item& item) {
  out += '{';
  bool first = true;
  for (const Attribute& attribute : item) {
    if (!std::exchange(first, false)) out += ',';
    append_json_string(out, attribute.name);
    out += ':';
    append_json(out, attribute.value);
  }
  out += '}';
}

std::variant<AttributeValue, Error> value_from_json(std::string_view json) {
  return parse(json, "the attribute value", [](const dom::element& document) { return read_value(document, 1); });
}

std::variant<Item, Error> item_from_json(std::string_view json) {
  return parse(json, "the item", [](const dom::element& document) { return read_item(document, 1); });
}

std::variant<ServiceAnswer, Error> answer_from_json(std::string_view json) {
  if (json.empty()) return ServiceAnswer{};
  return parse(json, "the service's answer", [](const dom::element& document) {
    dom::object object;
    if (document.get_object().get(object) != simdjson::SUCCESS) throw BadAnswer{"it is not a JSON object"};
    return read_answer(object);
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
  return std::none_of(bytes.begin(), bytes.end(), control) && is_utf8(bytes);
}

bool is_utf8(std::string_view bytes) noexcept { return simdjson::validate_utf8(bytes.data(), bytes.size()); }

AttributeValue text_or_bytes(std::string bytes) {
  return is_readable_text(bytes) ? AttributeValue::s(std::move(bytes)) : AttributeValue::b(std::move(bytes));
}

const std::string* text_of(const AttributeValue& value) noexcept {
  return value.type == Type::s || value.type == Type::b ? &value.text : nullptr;
}

}  // namespace once::stores::dynamodb
