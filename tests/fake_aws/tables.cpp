#include "fake_aws/tables.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

using nlohmann::json;

constexpr std::size_t longest_hash_key_bytes = 2048;
constexpr std::size_t longest_range_key_bytes = 1024;
constexpr std::string_view arn_prefix = "arn:aws:dynamodb:local:000000000000:table/";

std::size_t key_bytes(const Value& value) { return size_bytes(value); }

[[noreturn]] void bad_parameter(const std::string& what) {
  invalid("One or more parameter values were invalid: " + what);
}

// A part of the table's own key.
std::string key_bytes_of(const KeyPart& part, const Item& item, bool is_range) {
  const auto found = item.find(part.name);
  if (found == item.end()) bad_parameter("Missing the key " + part.name + " in the item");
  auto bytes = sortable(found->second, part.type);
  if (!bytes) {
    bad_parameter("Type mismatch for key " + part.name + " expected: " + part.type +
                  " actual: " + std::string(found->second.kind()));
  }
  if (bytes->empty()) {
    invalid(
        "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty " +
        std::string(part.type == "S" ? "string" : "binary") + " value. Key: " + part.name);
  }
  if (key_bytes(found->second) > (is_range ? longest_range_key_bytes : longest_hash_key_bytes)) {
    bad_parameter(is_range ? "Aggregated size of all range keys has exceeded the size limit of 1024 bytes"
                           : "Size of hashkey has exceeded the maximum size limit of2048 bytes");
  }
  return *std::move(bytes);
}

// An item's place in an index; empty if it lacks the index's key. `item` was checked.
std::optional<RowKey> index_key(const Index& index, const Item& item, const RowKey& key) {
  const auto part = [&item](const KeyPart& wanted) -> std::optional<std::string> {
    const auto found = item.find(wanted.name);
    return found == item.end() ? std::nullopt : sortable(found->second, wanted.type);
  };
  auto hash = part(index.schema.hash);
  if (!hash) return std::nullopt;
  auto range = index.schema.range ? part(*index.schema.range) : std::string();
  if (!range) return std::nullopt;
  return RowKey{*std::move(hash), *std::move(range), key[0], key[1]};
}

void check_index_key(const Index& index, const KeyPart& part, const Item& item, bool is_range) {
  const auto found = item.find(part.name);
  if (found == item.end()) return;
  const auto bytes = sortable(found->second, part.type);
  if (!bytes) {
    bad_parameter("Type mismatch for Index Key " + part.name + " Expected: " + part.type +
                  " Actual: " + std::string(found->second.kind()) + " IndexName: " + index.name);
  }
  if (bytes->empty()) {
    invalid(
        "One or more parameter values are not valid. A value specified for a secondary index key is not supported. The "
        "AttributeValue for a key attribute cannot contain an empty " +
        std::string(part.type == "S" ? "string" : "binary") + " value. IndexName: " + index.name +
        ", IndexKey: " + part.name);
  }
  if (key_bytes(found->second) > (is_range ? longest_range_key_bytes : longest_hash_key_bytes)) {
    bad_parameter(is_range ? "Aggregated size of all range keys has exceeded the size limit of 1024 bytes"
                           : "Size of hashkey has exceeded the maximum size limit of2048 bytes");
  }
}

const json& member(const json& object, std::string_view name, std::string_view where) {
  const auto found = object.find(name);
  if (found == object.end()) {
    invalid("1 validation error detected: Value null at '" + std::string(where) +
            "' failed to satisfy constraint: Member must not be null");
  }
  return *found;
}

std::string text_member(const json& object, std::string_view name, std::string_view where) {
  const json& value = member(object, name, where);
  if (!value.is_string()) malformed("Expected a text as " + std::string(name));
  return value.get<std::string>();
}

Schema schema_from(const json& key_schema, const json& definitions) {
  if (!key_schema.is_array() || key_schema.empty() || key_schema.size() > 2) {
    invalid("1 validation error detected: Value at 'keySchema' failed to satisfy constraint: Member must have length " +
            std::string(key_schema.empty() ? "greater than or equal to 1" : "less than or equal to 2"));
  }
  Schema out;
  for (std::size_t i = 0; i < key_schema.size(); ++i) {
    KeyPart part{.name = text_member(key_schema[i], "AttributeName", "keySchema.1.member.attributeName")};
    const std::string type = text_member(key_schema[i], "KeyType", "keySchema.1.member.keyType");
    if (type != (i == 0 ? "HASH" : "RANGE")) {
      invalid(i == 0 ? "Invalid KeySchema: The first KeySchemaElement is not a HASH key type"
                     : "Invalid KeySchema: The second KeySchemaElement is not a RANGE key type");
    }
    for (const auto& definition : definitions) {
      if (text_member(definition, "AttributeName", "attributeDefinitions.1.member.attributeName") == part.name) {
        part.type = text_member(definition, "AttributeType", "attributeDefinitions.1.member.attributeType");
      }
    }
    if (part.type.empty()) {
      bad_parameter("Some index key attributes are not defined in AttributeDefinitions. Keys: [" + part.name +
                    "], AttributeDefinitions: " + definitions.dump());
    }
    if (part.type != "S" && part.type != "N" && part.type != "B") {
      invalid(
          "1 validation error detected: Value '" + part.type +
          "' at 'attributeDefinitions.1.member.attributeType' failed to satisfy constraint: Member must satisfy enum "
          "value set: [B, N, S]");
    }
    if (i == 0) {
      out.hash = std::move(part);
    } else {
      if (part.name == out.hash.name)
        invalid("Both the Hash Key and the Range Key element in the KeySchema have the same name");
      out.range = std::move(part);
    }
  }
  return out;
}

void add_indexes(Table& table, const json& request, bool global) {
  const auto found = request.find(global ? "GlobalSecondaryIndexes" : "LocalSecondaryIndexes");
  if (found == request.end()) return;
  const std::string where = global ? "globalSecondaryIndexes.1.member." : "localSecondaryIndexes.1.member.";
  if (!found->is_array()) malformed("Expected a list of secondary indexes");
  if (found->empty()) {
    bad_parameter(std::string("List of ") + (global ? "GlobalSecondaryIndexes" : "LocalSecondaryIndexes") +
                  " is empty");
  }
  for (const auto& given : *found) {
    Index index{.name = text_member(given, "IndexName", where + "indexName"), .global = global};
    if (index.name.size() < 3) {
      invalid("1 validation error detected: Value '" + index.name + "' at '" + where +
              "indexName' failed to satisfy constraint: Member must have length greater than or equal to 3");
    }
    index.schema = schema_from(member(given, "KeySchema", where + "keySchema"), table.definitions);
    if (!global && (index.schema.hash.name != table.schema.hash.name || !index.schema.range)) {
      bad_parameter("Index KeySchema does not have a range key, or another hash key than the table, for index: " +
                    index.name);
    }
    const json& projection = member(given, "Projection", where + "projection");
    index.projection = projection.value("ProjectionType", "");
    if (index.projection != "ALL" && index.projection != "KEYS_ONLY" && index.projection != "INCLUDE") {
      bad_parameter("Unknown ProjectionType: " + (index.projection.empty() ? "null" : index.projection));
    }
    index.included = projection.value("NonKeyAttributes", std::vector<std::string>());
    if ((index.projection == "INCLUDE") == index.included.empty()) {
      bad_parameter(
          "ProjectionType is " + index.projection + ", " +
          (index.included.empty() ? "but NonKeyAttributes is not specified" : "but NonKeyAttributes is specified"));
    }
    const std::string name = index.name;
    if (!table.indexes.emplace(name, std::move(index)).second) bad_parameter("Duplicate index name: " + name);
  }
}

json describe_schema(const Schema& schema) {
  json out = json::array({{{"AttributeName", schema.hash.name}, {"KeyType", "HASH"}}});
  if (schema.range) out.push_back({{"AttributeName", schema.range->name}, {"KeyType", "RANGE"}});
  return out;
}

std::size_t rows_bytes(const Rows& rows) {
  std::size_t sum = 0;
  for (const auto& row : rows) sum += size_bytes(*row.second);
  return sum;
}

}  // namespace

std::optional<std::string> sortable(const Value& value, std::string_view type) {
  if (value.kind() != type) return std::nullopt;
  if (const auto* text = value.as<std::string>()) return *text;
  if (const auto* bytes = value.as<Bytes>()) return bytes->bytes;
  return value.as<Decimal>()->sortable();
}

RowKey Table::row_key(const Item& key) const {
  const std::size_t parts = schema.range ? 2 : 1;
  const auto fits = [&key](const KeyPart& part) {
    const auto found = key.find(part.name);
    return found != key.end() && found->second.kind() == part.type;
  };
  if (key.size() != parts || !fits(schema.hash) || (schema.range && !fits(*schema.range))) {
    invalid("The provided key element does not match the schema");
  }
  return {key_bytes_of(schema.hash, key, false), schema.range ? key_bytes_of(*schema.range, key, true) : "", "", ""};
}

RowKey Table::check_item(const Item& item) const {
  RowKey key{key_bytes_of(schema.hash, item, false), schema.range ? key_bytes_of(*schema.range, item, true) : "", "",
             ""};
  for (const auto& [index_name, index] : indexes) {
    check_index_key(index, index.schema.hash, item, false);
    if (index.schema.range) check_index_key(index, *index.schema.range, item, true);
  }
  return key;
}

const Index& Table::index(std::string_view index_name) const {
  const auto found = indexes.find(index_name);
  if (found == indexes.end()) invalid("The table does not have the specified index: " + std::string(index_name));
  return found->second;
}

std::shared_ptr<const Item> Table::get(const RowKey& key) const {
  const auto found = rows.find(key);
  return found == rows.end() ? nullptr : found->second;
}

std::size_t Table::put(const RowKey& key, std::shared_ptr<const Item> item) {
  const auto old = get(key);
  std::size_t changed = 0;
  for (auto& [index_name, index] : indexes) {
    const auto before = old ? index_key(index, *old, key) : std::nullopt;
    const auto after = item ? index_key(index, *item, key) : std::nullopt;
    if (before && before != after) index.rows.erase(*before);
    if (after) index.rows.insert_or_assign(*after, item);
    if (before || after) ++changed;
  }
  if (item) {
    rows.insert_or_assign(key, std::move(item));
  } else {
    rows.erase(key);
  }
  return changed;
}

json Table::describe(std::string_view status) const {
  const std::string arn = std::string(arn_prefix) + name;
  json out = {{"TableName", name},
              {"TableStatus", status},
              {"TableArn", arn},
              {"TableId", "00000000-0000-0000-0000-000000000000"},
              {"CreationDateTime", static_cast<double>(created.time_since_epoch().count()) / 1000},
              {"KeySchema", describe_schema(schema)},
              {"AttributeDefinitions", definitions},
              {"ItemCount", rows.size()},
              {"TableSizeBytes", rows_bytes(rows)},
              {"DeletionProtectionEnabled", protected_from_deletion},
              {"ProvisionedThroughput", throughput}};
  out["ProvisionedThroughput"]["NumberOfDecreasesToday"] = 0;
  if (billing_mode == "PAY_PER_REQUEST") out["BillingModeSummary"] = {{"BillingMode", billing_mode}};
  for (const auto& [index_name, index] : indexes) {
    json described = {{"IndexName", index_name},
                      {"IndexArn", arn + "/index/" + index_name},
                      {"KeySchema", describe_schema(index.schema)},
                      {"Projection", {{"ProjectionType", index.projection}}},
                      {"ItemCount", index.rows.size()},
                      {"IndexSizeBytes", rows_bytes(index.rows)}};
    if (!index.included.empty()) described["Projection"]["NonKeyAttributes"] = index.included;
    if (index.global) {
      described["IndexStatus"] = status;
      described["ProvisionedThroughput"] = out["ProvisionedThroughput"];
    }
    out[index.global ? "GlobalSecondaryIndexes" : "LocalSecondaryIndexes"].push_back(std::move(described));
  }
  return out;
}

Table table_from_request(const json& request, Time now) {
  Table table{.name = text_member(request, "TableName", "tableName"), .created = now};
  const bool named_well = table.name.size() >= 3 && table.name.size() <= 255 &&
                          std::all_of(table.name.begin(), table.name.end(), [](char c) {
                            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                                   c == '_' || c == '-' || c == '.';
                          });
  if (!named_well) {
    invalid("1 validation error detected: Value '" + table.name +
            "' at 'tableName' failed to satisfy constraint: Member must have 3 to 255 characters of a-z, A-Z, 0-9, _, "
            "- and .");
  }
  table.definitions = member(request, "AttributeDefinitions", "attributeDefinitions");
  if (!table.definitions.is_array()) malformed("Expected a list as AttributeDefinitions");
  table.schema = schema_from(member(request, "KeySchema", "keySchema"), table.definitions);
  add_indexes(table, request, true);
  add_indexes(table, request, false);

  std::set<std::string> used;
  const auto use = [&used](const Schema& schema) {
    used.insert(schema.hash.name);
    if (schema.range) used.insert(schema.range->name);
  };
  use(table.schema);
  for (const auto& [name, index] : table.indexes) use(index.schema);
  if (used.size() != table.definitions.size()) {
    bad_parameter(
        "Number of attributes in KeySchema does not exactly match number of attributes defined in "
        "AttributeDefinitions");
  }

  table.billing_mode = request.value("BillingMode", "PROVISIONED");
  table.protected_from_deletion = request.value("DeletionProtectionEnabled", false);
  table.throughput = {{"ReadCapacityUnits", 0}, {"WriteCapacityUnits", 0}};
  const auto throughput = request.find("ProvisionedThroughput");
  if (table.billing_mode == "PROVISIONED") {
    if (throughput == request.end())
      bad_parameter("ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode is PROVISIONED");
    table.throughput = *throughput;
  } else if (table.billing_mode != "PAY_PER_REQUEST") {
    invalid("1 validation error detected: Value '" + table.billing_mode +
            "' at 'billingMode' failed to satisfy constraint: Member must satisfy enum value set: [PROVISIONED, "
            "PAY_PER_REQUEST]");
  } else if (throughput != request.end()) {
    bad_parameter(
        "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST");
  }
  return table;
}

}  // namespace once::testing::fake
