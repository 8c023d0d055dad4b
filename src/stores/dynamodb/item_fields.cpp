#include "stores/dynamodb/item_fields.hpp"

#include <utility>

#include "stores/dynamodb/item_format.hpp"
#include "text/ascii.hpp"

namespace once::stores::dynamodb {

const AttributeValue* find_of(const Item& item, const std::string& name, AttributeValue::Type type) {
  const AttributeValue* value = item.find(name);
  if (value != nullptr && value->type != type)
    throw Malformed{name, "is of type " + std::string(to_string(value->type))};
  return value;
}

const AttributeValue& get_of(const Item& item, const std::string& name, AttributeValue::Type type) {
  const AttributeValue* value = find_of(item, name, type);
  if (value == nullptr) throw Malformed{name, "is missing"};
  return *value;
}

std::string find_text(const Item& item, const std::string& name) {
  const AttributeValue* value = item.find(name);
  if (value == nullptr) return {};
  const std::string* text = text_of(*value);
  if (text == nullptr) throw Malformed{name, "is neither S nor B"};
  return *text;
}

void add_text(Item& item, const std::string& name, const std::string& text) {
  if (!text.empty()) item.add(name, text_or_bytes(text));
}

std::int64_t seconds_rounded_up(Time time) noexcept {
  return unix_ms(time) / 1000 + (unix_ms(time) % 1000 > 0 ? 1 : 0);
}

std::variant<Record, Error> ItemFormat::decode(const Item& item) const {
  auto key = key_of(item);
  if (Error* error = std::get_if<Error>(&key)) return std::move(*error);
  try {
    Record record = read(item);
    record.key = std::get<std::string>(std::move(key));
    return record;
  } catch (const Malformed& malformed) {
    return Error{ErrorKind::corrupt, "the item of the key '" + text::printable(std::get<std::string>(key)) +
                                         "' was not written by " + writer() + ": attribute '" + malformed.attribute +
                                         "' " + malformed.why + ". Repair or delete it, or use another dialect"};
  }
}

void PrimaryKey::add(Item& item, std::string id) const {
  if (!sort_key_.empty()) item.add(partition_key_, AttributeValue::s(partition_value_));
  item.add(name(), AttributeValue::s(std::move(id)));
}

std::size_t PrimaryKey::bytes_beside_id() const noexcept {
  return partition_key_.size() + sort_key_.size() + (sort_key_.empty() ? 0 : partition_value_.size());
}

}  // namespace once::stores::dynamodb
