#include <set>

#include <memory_resource>

#include <once/error.hpp>
#include <once/stores/dynamodb_transaction.hpp>

#include "stores/dynamodb/item.hpp"
#include "stores/dynamodb/item_format.hpp"
#include "text/ascii.hpp"
#include "text/json.hpp"

namespace once::stores {

namespace {

using namespace dynamodb;
using JsonKind = text::json::Kind;

struct Wrong {
  std::string what;
};

struct Parts {
  std::string table;
  std::size_t bytes = 0;
};

std::string_view text_in(const text::json::Value& json, std::string_view member) {
  if (json.kind() != JsonKind::string) throw Wrong{std::string(member) + " is not a string"};
  if (json.text().empty()) throw Wrong{std::string(member) + " is empty"};
  return json.text();
}

Item item_in(const text::json::Value& json, std::string_view member) {
  auto item = item_from_json(json);
  if (const Error* error = std::get_if<Error>(&item)) throw Wrong{std::string(member) + ": " + error->message};
  if (std::get<Item>(item).empty()) throw Wrong{std::string(member) + " is empty"};
  return std::get<Item>(std::move(item));
}

Parts read(std::string_view kind, std::string_view json) {
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value object;
  try {
    object = text::json::parse(json, {.exact_numbers = false}, arena, "it");
  } catch (const Exception& malformed) {
    throw Wrong{std::string("it is not JSON: ") + malformed.what()};
  }
  if (object.kind() != JsonKind::object) throw Wrong{"it is not a JSON object"};
  const bool is_put = kind == "Put";
  std::set<std::string_view> missing{"TableName", is_put ? "Item" : "Key"};
  if (kind == "Update") missing.insert("UpdateExpression");
  if (kind == "ConditionCheck") missing.insert("ConditionExpression");
  std::set<std::string_view> known = missing;
  known.insert({"ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues",
                "ReturnValuesOnConditionCheckFailure"});
  Parts parts;
  for (const text::json::Member& pair : object.members()) {
    const auto member = known.find(pair.name);
    if (member == known.end()) {
      throw Wrong{"'" + text::printable(pair.name) + "' is no member of it"};
    }
    if (*member == "Item" || *member == "Key" || *member == "ExpressionAttributeValues") {
      const Item item = item_in(pair.value, *member);
      const std::size_t bytes = item_bytes(item);
      if (*member == "Item" && bytes > max_item_bytes) {
        throw Wrong{"the item has " + std::to_string(bytes) + " bytes; it may have " + std::to_string(max_item_bytes)};
      }
      if (*member == "Key" && item.size() > 2) throw Wrong{"a Key must have one attribute or two"};
      parts.bytes += bytes;
    } else if (*member == "ExpressionAttributeNames") {
      if (pair.value.kind() != JsonKind::object) throw Wrong{std::string(*member) + " is not an object"};
      for (const text::json::Member& name : pair.value.members()) static_cast<void>(text_in(name.value, *member));
    } else {
      const std::string_view text = text_in(pair.value, *member);
      if (*member == "TableName") parts.table = text;
      if (*member == "ReturnValuesOnConditionCheckFailure" && text != "ALL_OLD" && text != "NONE") {
        throw Wrong{std::string(*member) + " is ALL_OLD or NONE"};
      }
    }
    missing.erase(*member);
  }
  if (!missing.empty()) throw Wrong{std::string(*missing.begin()) + " is missing"};
  return parts;
}

}  // namespace

TransactItems& TransactItems::add(std::string_view kind, std::string_view json) {
  std::string name = "write " + std::to_string(names_.size() + 1) + " (" + std::string(kind);
  try {
    if (names_.size() == max_items) {
      throw Wrong{"a transaction has room for " + std::to_string(max_items) + " writes beside the record"};
    }
    const Parts parts = read(kind, json);
    if (bytes_ + parts.bytes > max_bytes) {
      throw Wrong{"the writes have " + std::to_string(bytes_ + parts.bytes) + " bytes together; they may have " +
                  std::to_string(max_bytes)};
    }
    name += " in '" + text::printable(parts.table) + "')";
    names_.push_back(std::move(name));
    bytes_ += parts.bytes;
  } catch (const Wrong& wrong) {
    throw Exception(ErrorKind::misuse, name + "): " + wrong.what);
  }
  if (!json_.empty()) json_ += ',';
  json_.append("{\"").append(kind).append("\":").append(json).append(1, '}');
  return *this;
}

TransactItems& TransactItems::put(std::string_view json) { return add("Put", json); }
TransactItems& TransactItems::update(std::string_view json) { return add("Update", json); }
TransactItems& TransactItems::remove(std::string_view json) { return add("Delete", json); }
TransactItems& TransactItems::condition_check(std::string_view json) { return add("ConditionCheck", json); }

}  // namespace once::stores
