#include "fake_aws/operations.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fake_aws/expression.hpp"
#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

using nlohmann::json;

constexpr std::size_t largest_item_bytes = 400 * 1024;
constexpr std::size_t largest_page_bytes = 1024 * 1024;
constexpr std::size_t most_in_transaction = 100;
constexpr std::size_t largest_transaction_bytes = 4 * 1024 * 1024;
constexpr std::chrono::minutes token_lifetime{10};

const json* optional_member(const json& request, std::string_view name) {
  const auto found = request.find(name);
  return found == request.end() || found->is_null() ? nullptr : &*found;
}

const json& member(const json& request, std::string_view name) {
  const json* found = optional_member(request, name);
  if (found == nullptr) {
    std::string where(name);
    where[0] = static_cast<char>(where[0] + ('a' - 'A'));
    invalid("1 validation error detected: Value null at '" + where +
            "' failed to satisfy constraint: Member must not be null");
  }
  return *found;
}

std::string text(const json& request, std::string_view name, std::string_view otherwise) {
  const json* found = optional_member(request, name);
  if (found == nullptr) return std::string(otherwise);
  if (!found->is_string()) malformed("Expected a text as " + std::string(name));
  return found->get<std::string>();
}

bool flag(const json& request, std::string_view name, bool otherwise = false) {
  const json* found = optional_member(request, name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) malformed("Expected true or false as " + std::string(name));
  return found->get<bool>();
}

std::optional<std::int64_t> number(const json& request, std::string_view name, std::int64_t least, std::int64_t most) {
  const json* found = optional_member(request, name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number_integer()) malformed("Expected a whole number as " + std::string(name));
  const auto value = found->get<std::int64_t>();
  if (value < least || value > most) {
    std::string where(name);
    where[0] = static_cast<char>(where[0] + ('a' - 'A'));
    invalid("1 validation error detected: Value '" + std::to_string(value) + "' at '" + where +
            "' failed to satisfy constraint: Member must have value " +
            (value < least ? "greater than or equal to " + std::to_string(least)
                           : "less than or equal to " + std::to_string(most)));
  }
  return value;
}

std::string one_of(const json& request, std::string_view name, std::string_view otherwise,
                   const std::set<std::string, std::less<>>& choices) {
  std::string value = text(request, name, otherwise);
  if (!choices.contains(value)) {
    std::string where(name);
    where[0] = static_cast<char>(where[0] + ('a' - 'A'));
    std::string list;
    for (const auto& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    invalid("1 validation error detected: Value '" + value + "' at '" + where +
            "' failed to satisfy constraint: Member must satisfy enum value set: [" + list + "]");
  }
  return value;
}

// What the service would pass over, the fake points at.
void refuse_unknown(const json& request, std::string_view operation, const std::set<std::string, std::less<>>& known) {
  for (const auto& [name, value] : request.items()) {
    if (!known.contains(name)) {
      invalid("The fake knows no parameter '" + name + "' of " + std::string(operation) +
              ": misspelt, or from the time before expressions?");
    }
  }
}

std::string capacity_wanted(const json& request) {
  return one_of(request, "ReturnConsumedCapacity", "NONE", {"INDEXES", "NONE", "TOTAL"});
}

double write_units(std::size_t bytes) { return static_cast<double>(std::max<std::size_t>(1, (bytes + 1023) / 1024)); }
double read_units(std::size_t bytes, bool consistent) {
  const auto units = static_cast<double>(std::max<std::size_t>(1, (bytes + 4095) / 4096));
  return consistent ? units : units / 2;
}

json capacity(const std::string& table, double units, double index_units, const std::string& wanted) {
  json out = {{"TableName", table}, {"CapacityUnits", units + index_units}};
  if (wanted == "INDEXES") out["Table"] = {{"CapacityUnits", units}};
  return out;
}

// The names at the top that a condition looks at.
void collect_names(const Operand& operand, std::set<std::string>& names) {
  if (!operand.path.empty()) names.insert(std::get<std::string>(operand.path.front()));
  for (const auto& part : operand.parts) collect_names(part, names);
}
void collect_names(const Condition& condition, std::set<std::string>& names) {
  for (const auto& operand : condition.operands) collect_names(operand, names);
  for (const auto& part : condition.conditions) collect_names(part, names);
}

[[noreturn]] void condition_failed(const Item* item) {
  Refusal refusal{.type = std::string(service_namespace) + "ConditionalCheckFailedException",
                  .message = "The conditional request failed"};
  if (item != nullptr) refusal.more["Item"] = to_json(*item);
  throw refusal;
}

Item key_of(const Schema& schema, const Item& item) {
  Item out;
  out.emplace(schema.hash.name, item.find(schema.hash.name)->second);
  if (schema.range) out.emplace(schema.range->name, item.find(schema.range->name)->second);
  return out;
}

}  // namespace

// One conditional write: parsed first, then looked at, then done, so that a transaction can look at all before it does
// any.
struct Operations::Write {
  enum class Kind { put, update, erase, check };
  Kind kind = Kind::put;
  Table* table = nullptr;
  RowKey key;
  Item given;  // The whole item of a put, else its key.
  std::optional<Update> update;
  std::optional<Condition> condition;
  bool item_on_failure = false;
  // After outcome():
  std::shared_ptr<const Item> before;
  std::shared_ptr<const Item> after;

  void outcome() {
    before = table->get(key);
    static const Item nothing;
    if (condition && !condition->holds(before ? *before : nothing)) {
      condition_failed(item_on_failure ? before.get() : nullptr);
    }
    if (kind == Kind::check) {
      after = before;
    } else if (kind == Kind::put) {
      after = std::make_shared<const Item>(given);
    } else if (kind == Kind::update) {
      Item item = before ? *before : given;
      if (update) item = update->apply(item);
      if (size_bytes(item) > largest_item_bytes) {
        invalid("Item size to update has exceeded the maximum allowed size");
      }
      static_cast<void>(table->check_item(item));
      after = std::make_shared<const Item>(std::move(item));
    }
  }

  [[nodiscard]] double units() const {
    return write_units(std::max(before ? size_bytes(*before) : 0, after ? size_bytes(*after) : 0));
  }

  // Returns how many indexes have changed.
  [[nodiscard]] std::size_t commit() const { return kind == Kind::check ? 0 : table->put(key, after); }
};

// What Query and Scan have in common.
struct Operations::Page {
  Table* table = nullptr;
  const Index* index = nullptr;
  Rows::const_iterator first;
  Rows::const_iterator end;  // Not looked at any more.
  bool backwards = false;
  std::optional<Condition> filter;
  std::vector<Path> projection;
  std::function<bool(const RowKey&)> skips = [](const RowKey&) { return false; };  // Rows that are not read at all.

  [[nodiscard]] const Rows& rows() const { return index != nullptr ? index->rows : table->rows; }
  [[nodiscard]] const Schema& schema() const { return index != nullptr ? index->schema : table->schema; }
};

json Operations::carry_out(std::string_view operation, const json& request) {
  static const std::map<std::string, Handler, std::less<>> handlers = {
      {"CreateTable", &Operations::create_table},
      {"DescribeTable", &Operations::describe_table},
      {"DeleteTable", &Operations::delete_table},
      {"ListTables", &Operations::list_tables},
      {"UpdateTimeToLive", &Operations::update_time_to_live},
      {"DescribeTimeToLive", &Operations::describe_time_to_live},
      {"UpdateContinuousBackups", &Operations::update_continuous_backups},
      {"DescribeContinuousBackups", &Operations::describe_continuous_backups},
      {"PutItem", &Operations::put_item},
      {"GetItem", &Operations::get_item},
      {"UpdateItem", &Operations::update_item},
      {"DeleteItem", &Operations::delete_item},
      {"Query", &Operations::query},
      {"Scan", &Operations::scan},
      {"TransactWriteItems", &Operations::transact_write_items},
  };
  const auto found = handlers.find(operation);
  if (found == handlers.end()) {
    throw Refusal{.type = std::string(coral_namespace) + "UnknownOperationException",
                  .message = "The fake knows no operation '" + std::string(operation) + "'"};
  }
  if (!request.is_object()) malformed("Expected a JSON object as the request");
  return (this->*found->second)(request);
}

// --- Tables

Table& Operations::any_table(Request request) {
  member(request, "TableName");
  const std::string name = text(request, "TableName", "");
  const auto found = tables_.find(name);
  if (found == tables_.end()) {
    refuse("ResourceNotFoundException", "Requested resource not found: Table: " + name + " not found");
  }
  return found->second;
}

Table& Operations::usable_table(Request request) {
  member(request, "TableName");
  const auto found = tables_.find(text(request, "TableName", ""));
  if (found == tables_.end() || found->second.creation_steps > 0) {
    refuse("ResourceNotFoundException", "Requested resource not found");
  }
  return found->second;
}

json Operations::create_table(Request request) {
  refuse_unknown(request, "CreateTable",
                 {"AttributeDefinitions", "BillingMode", "DeletionProtectionEnabled", "GlobalSecondaryIndexes",
                  "KeySchema", "LocalSecondaryIndexes", "OnDemandThroughput", "ProvisionedThroughput", "ResourcePolicy",
                  "SSESpecification", "StreamSpecification", "TableClass", "TableName", "Tags", "WarmThroughput"});
  Table table = table_from_request(request, clock_->now());
  if (tables_.contains(table.name)) {
    refuse("ResourceInUseException", "Table already exists: " + table.name);
  }
  table.creation_steps = creation_steps_;
  json out = {{"TableDescription", table.describe("CREATING")}};
  const std::string name = table.name;
  tables_.emplace(name, std::move(table));
  return out;
}

json Operations::describe_table(Request request) {
  refuse_unknown(request, "DescribeTable", {"TableName"});
  Table& table = any_table(request);
  json out = {{"Table", table.describe(table.creation_steps > 0 ? "CREATING" : "ACTIVE")}};
  if (table.creation_steps > 0) --table.creation_steps;
  return out;
}

json Operations::delete_table(Request request) {
  refuse_unknown(request, "DeleteTable", {"TableName"});
  const Table& table = any_table(request);
  if (table.protected_from_deletion) {
    invalid(
        "Resource cannot be deleted as it is currently protected against deletion. Disable deletion protection first.");
  }
  if (table.creation_steps > 0) {
    refuse("ResourceInUseException",
           "Attempt to change a resource which is still in use: Table is being created: " + table.name);
  }
  json out = {{"TableDescription", table.describe("DELETING")}};
  tables_.erase(tables_.find(table.name));
  return out;
}

json Operations::list_tables(Request request) {
  refuse_unknown(request, "ListTables", {"ExclusiveStartTableName", "Limit"});
  const auto limit = static_cast<std::size_t>(number(request, "Limit", 1, 100).value_or(100));
  auto at = tables_.upper_bound(text(request, "ExclusiveStartTableName", ""));
  json out = {{"TableNames", json::array()}};
  for (; at != tables_.end() && out["TableNames"].size() < limit; ++at) out["TableNames"].push_back(at->first);
  if (at != tables_.end()) out["LastEvaluatedTableName"] = out["TableNames"].back();
  return out;
}

json Operations::update_time_to_live(Request request) {
  refuse_unknown(request, "UpdateTimeToLive", {"TableName", "TimeToLiveSpecification"});
  const json& specification = member(request, "TimeToLiveSpecification");
  member(specification, "AttributeName");
  member(specification, "Enabled");
  const std::string attribute = text(specification, "AttributeName", "");
  const bool enabled = flag(specification, "Enabled");
  Table& table = any_table(request);
  if (attribute.empty()) {
    invalid(
        "1 validation error detected: Value '' at 'timeToLiveSpecification.attributeName' failed to satisfy "
        "constraint: Member must have length greater than or equal to 1");
  }
  if (enabled && table.ttl_attribute == attribute) invalid("TimeToLive is already enabled");
  if (!enabled && !table.ttl_attribute) invalid("TimeToLive is already disabled");
  if (table.ttl_attribute && table.ttl_attribute != attribute) {
    invalid("TimeToLive is active on a different AttributeName: current AttributeName is " + *table.ttl_attribute);
  }
  table.ttl_attribute = enabled ? std::optional(attribute) : std::nullopt;
  return {{"TimeToLiveSpecification", specification}};
}

json Operations::describe_time_to_live(Request request) {
  refuse_unknown(request, "DescribeTimeToLive", {"TableName"});
  const Table& table = any_table(request);
  json description = {{"TimeToLiveStatus", table.ttl_attribute ? "ENABLED" : "DISABLED"}};
  if (table.ttl_attribute) description["AttributeName"] = *table.ttl_attribute;
  return {{"TimeToLiveDescription", description}};
}

json Operations::update_continuous_backups(Request request) {
  refuse_unknown(request, "UpdateContinuousBackups", {"PointInTimeRecoverySpecification", "TableName"});
  const json& specification = member(request, "PointInTimeRecoverySpecification");
  member(specification, "PointInTimeRecoveryEnabled");
  const bool enabled = flag(specification, "PointInTimeRecoveryEnabled");
  const json name = {{"TableName", member(request, "TableName")}};
  describe_continuous_backups(name);  // Refuses a table that is not there.
  any_table(name).recoverable = enabled;
  return describe_continuous_backups(name);
}

json Operations::describe_continuous_backups(Request request) {
  refuse_unknown(request, "DescribeContinuousBackups", {"TableName"});
  member(request, "TableName");
  const auto found = tables_.find(text(request, "TableName", ""));
  if (found == tables_.end()) {  // Unlike everywhere else.
    refuse("TableNotFoundException", "Table not found: " + text(request, "TableName", ""));
  }
  const char* status = found->second.recoverable ? "ENABLED" : "DISABLED";
  return {{"ContinuousBackupsDescription",
           {{"ContinuousBackupsStatus", "ENABLED"},
            {"PointInTimeRecoveryDescription", {{"PointInTimeRecoveryStatus", status}}}}}};
}

std::size_t Operations::expire_now(std::string_view name) {
  const auto found = tables_.find(name);
  if (found == tables_.end() || !found->second.ttl_attribute) return 0;
  Table& table = found->second;
  const auto now = std::chrono::floor<std::chrono::seconds>(clock_->now()).time_since_epoch().count();
  const auto second = [](std::int64_t value) { return Decimal::parse(std::to_string(value)); };
  // What expired more than five years ago is taken for a mistake and stays, says "Using time to live".
  const auto oldest = second(now - std::int64_t{5} * 365 * 24 * 3600);
  std::vector<RowKey> expired;
  for (const auto& [key, item] : table.rows) {
    const auto attribute = item->find(*table.ttl_attribute);
    const auto* at = attribute == item->end() ? nullptr : attribute->second.as<Decimal>();
    if (at != nullptr && *at <= second(now) && *at >= oldest) expired.push_back(key);
  }
  for (const auto& key : expired) table.put(key, nullptr);
  return expired.size();
}

// --- Single items

Operations::Write Operations::prepare(Request request, std::string_view kind) {
  Write write;
  write.kind = kind == "Put"      ? Write::Kind::put
               : kind == "Update" ? Write::Kind::update
               : kind == "Delete" ? Write::Kind::erase
                                  : Write::Kind::check;
  const bool is_put = write.kind == Write::Kind::put;
  const bool is_update = write.kind == Write::Kind::update;
  member(request, "TableName");
  write.item_on_failure =
      one_of(request, "ReturnValuesOnConditionCheckFailure", "NONE", {"ALL_OLD", "NONE"}) == "ALL_OLD";
  write.given = item_from_json(member(request, is_put ? "Item" : "Key"), is_put ? "Item" : "Key");

  Placeholders placeholders(request, is_update
                                         ? std::vector<std::string_view>{"UpdateExpression", "ConditionExpression"}
                                         : std::vector<std::string_view>{"ConditionExpression"});
  if (is_update && optional_member(request, "UpdateExpression") != nullptr) {
    write.update = parse_update(text(request, "UpdateExpression", ""), placeholders);
  }
  if (optional_member(request, "ConditionExpression") != nullptr) {
    write.condition = parse_condition(text(request, "ConditionExpression", ""), "ConditionExpression", placeholders);
  } else if (write.kind == Write::Kind::check) {
    member(request, "ConditionExpression");
  }
  placeholders.check_all_used();
  if (is_put && size_bytes(write.given) > largest_item_bytes)
    invalid("Item size has exceeded the maximum allowed size");

  write.table = &usable_table(request);
  write.key = is_put ? write.table->check_item(write.given) : write.table->row_key(write.given);
  if (write.update) {
    for (const auto& step : write.update->steps) {
      const auto& name = std::get<std::string>(step.path.front());
      if (write.table->schema.has(name)) {
        invalid("One or more parameter values were invalid: Cannot update attribute " + name +
                ". This attribute is part of the key");
      }
    }
  }
  return write;
}

json Operations::write_one(Request request, std::string_view kind) {
  const std::string wanted = capacity_wanted(request);
  one_of(request, "ReturnItemCollectionMetrics", "NONE", {"NONE", "SIZE"});
  const std::string returned =
      one_of(request, "ReturnValues", "NONE", {"ALL_NEW", "ALL_OLD", "NONE", "UPDATED_NEW", "UPDATED_OLD"});
  if (kind != "Update" && returned != "NONE" && returned != "ALL_OLD") {
    invalid("ReturnValues can only be ALL_OLD or NONE");
  }
  Write write = prepare(request, kind);
  try {
    write.outcome();
  } catch (const Refusal&) {
    units_.write += write.units();
    throw;
  }
  units_.write += write.units();
  const std::size_t indexes = write.commit();

  json out = json::object();
  std::vector<Path> paths;
  if (returned.starts_with("UPDATED_") && write.update) {
    for (const auto& step : write.update->steps) paths.push_back(step.path);
  }
  const Item* shown = returned.ends_with("_OLD") ? write.before.get()
                      : returned == "NONE"       ? nullptr
                                                 : write.after.get();
  if (shown != nullptr && (returned.starts_with("ALL_") || !paths.empty())) {
    const Item attributes = paths.empty() ? *shown : project(*shown, paths);
    if (!attributes.empty()) out["Attributes"] = to_json(attributes);
  }
  if (wanted != "NONE") {
    out["ConsumedCapacity"] = capacity(write.table->name, write.units(), static_cast<double>(indexes), wanted);
  }
  return out;
}

json Operations::put_item(Request request) {
  refuse_unknown(
      request, "PutItem",
      {"ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues", "Item", "ReturnConsumedCapacity",
       "ReturnItemCollectionMetrics", "ReturnValues", "ReturnValuesOnConditionCheckFailure", "TableName"});
  return write_one(request, "Put");
}

json Operations::update_item(Request request) {
  refuse_unknown(request, "UpdateItem",
                 {"ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues", "Key",
                  "ReturnConsumedCapacity", "ReturnItemCollectionMetrics", "ReturnValues",
                  "ReturnValuesOnConditionCheckFailure", "TableName", "UpdateExpression"});
  return write_one(request, "Update");
}

json Operations::delete_item(Request request) {
  refuse_unknown(
      request, "DeleteItem",
      {"ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues", "Key", "ReturnConsumedCapacity",
       "ReturnItemCollectionMetrics", "ReturnValues", "ReturnValuesOnConditionCheckFailure", "TableName"});
  return write_one(request, "Delete");
}

json Operations::get_item(Request request) {
  refuse_unknown(request, "GetItem",
                 {"ConsistentRead", "ExpressionAttributeNames", "Key", "ProjectionExpression", "ReturnConsumedCapacity",
                  "TableName"});
  const std::string wanted = capacity_wanted(request);
  Placeholders placeholders(request, {});
  std::vector<Path> projection;
  if (optional_member(request, "ProjectionExpression") != nullptr) {
    projection = parse_projection(text(request, "ProjectionExpression", ""), placeholders);
  }
  placeholders.check_all_used();
  const Item key = item_from_json(member(request, "Key"), "Key");
  const Table& table = usable_table(request);
  const auto item = table.get(table.row_key(key));
  json out = json::object();
  if (item) out["Item"] = to_json(projection.empty() ? *item : project(*item, projection));
  const double units = read_units(item ? size_bytes(*item) : 0, flag(request, "ConsistentRead"));
  units_.read += units;
  if (wanted != "NONE") {
    out["ConsumedCapacity"] = capacity(table.name, units, 0, wanted);
  }
  return out;
}

// --- Query and Scan

namespace {

const std::set<std::string, std::less<>> query_parameters = {"ConsistentRead",
                                                             "ExclusiveStartKey",
                                                             "ExpressionAttributeNames",
                                                             "ExpressionAttributeValues",
                                                             "FilterExpression",
                                                             "IndexName",
                                                             "KeyConditionExpression",
                                                             "Limit",
                                                             "ProjectionExpression",
                                                             "ReturnConsumedCapacity",
                                                             "ScanIndexForward",
                                                             "Select",
                                                             "TableName"};
const std::set<std::string, std::less<>> scan_parameters = {"ConsistentRead",
                                                            "ExclusiveStartKey",
                                                            "ExpressionAttributeNames",
                                                            "ExpressionAttributeValues",
                                                            "FilterExpression",
                                                            "IndexName",
                                                            "Limit",
                                                            "ProjectionExpression",
                                                            "ReturnConsumedCapacity",
                                                            "Segment",
                                                            "Select",
                                                            "TableName",
                                                            "TotalSegments"};

// The one value of the hash key, and what the range key must satisfy.
struct KeyCondition {
  std::string hash;
  std::optional<Condition> range;
};

KeyCondition key_condition(const Condition& condition, const Schema& schema) {
  std::vector<const Condition*> parts;
  if (condition.comparison == "AND") {
    parts = {&condition.conditions[0], &condition.conditions[1]};
  } else {
    parts = {&condition};
  }
  KeyCondition out;
  bool has_hash = false;
  for (const Condition* part : parts) {
    static const std::set<std::string, std::less<>> allowed = {"=", "<", "<=", ">", ">=", "BETWEEN", "begins_with"};
    const bool plain = allowed.contains(part->comparison) && part->operands[0].kind == Operand::Kind::path &&
                       part->operands[0].path.size() == 1 &&
                       std::all_of(part->operands.begin() + 1, part->operands.end(),
                                   [](const Operand& operand) { return operand.kind == Operand::Kind::value; });
    if (!plain) {
      invalid("Invalid operator used in KeyConditionExpression: " + part->comparison);
    }
    const auto& name = std::get<std::string>(part->operands[0].path.front());
    const bool is_hash = name == schema.hash.name;
    if (!is_hash && !(schema.range && schema.range->name == name)) {
      invalid("Query condition missed key schema element: " +
              (has_hash && schema.range ? schema.range->name : schema.hash.name));
    }
    const KeyPart& key = is_hash ? schema.hash : *schema.range;
    for (std::size_t i = 1; i < part->operands.size(); ++i) {
      if (part->operands[i].value.kind() != key.type) {
        invalid("One or more parameter values were invalid: Condition parameter type does not match schema type");
      }
      const auto bytes = sortable(part->operands[i].value, key.type);
      if (bytes->empty()) {
        invalid(
            "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an "
            "empty string value. Key: " +
            name);
      }
    }
    if (is_hash) {
      if (part->comparison != "=" || has_hash) invalid("Query key condition not supported");
      has_hash = true;
      out.hash = *sortable(part->operands[1].value, key.type);
    } else {
      if (out.range) invalid("KeyConditionExpressions must only contain one condition per key");
      out.range = *part;
    }
  }
  if (!has_hash) invalid("Query condition missed key schema element: " + schema.hash.name);
  return out;
}

std::size_t segment_of(const std::string& hash, std::size_t segments) {
  std::uint64_t sum = 14'695'981'039'346'656'037U;  // FNV-1a: the same on every machine.
  for (const char c : hash) sum = (sum ^ static_cast<unsigned char>(c)) * 1'099'511'628'211U;
  return static_cast<std::size_t>((sum ^ sum >> 32) % segments);
}

// Where a page starts: the place of ExclusiveStartKey.
RowKey start_key(const json& given, const Table& table, const Index* index) {
  const Item item = item_from_json(given, "ExclusiveStartKey");
  std::set<std::string> wanted = {table.schema.hash.name};
  if (table.schema.range) wanted.insert(table.schema.range->name);
  if (index != nullptr) {
    wanted.insert(index->schema.hash.name);
    if (index->schema.range) wanted.insert(index->schema.range->name);
  }
  const auto part = [&item](const KeyPart& key) {
    const auto found = item.find(key.name);
    const auto bytes = found == item.end() ? std::nullopt : sortable(found->second, key.type);
    if (!bytes) invalid("The provided starting key is invalid");
    return *bytes;
  };
  if (item.size() != wanted.size()) invalid("The provided starting key is invalid");
  RowKey primary{part(table.schema.hash), table.schema.range ? part(*table.schema.range) : "", "", ""};
  if (index == nullptr) return primary;
  return {part(index->schema.hash), index->schema.range ? part(*index->schema.range) : "", primary[0], primary[1]};
}

}  // namespace

json Operations::read_page(Page& page, Request request) {
  const std::string wanted = capacity_wanted(request);
  const bool consistent = flag(request, "ConsistentRead");
  const bool counts_only = text(request, "Select", "") == "COUNT";
  const auto limit = static_cast<std::size_t>(number(request, "Limit", 1, INT32_MAX).value_or(INT32_MAX));
  if (consistent && page.index != nullptr && page.index->global) {
    invalid("Consistent reads are not supported on global secondary indexes");
  }
  std::set<std::string> shown;  // Of an index that has not all attributes.
  if (page.index != nullptr && page.index->projection != "ALL") {
    shown.insert(page.index->included.begin(), page.index->included.end());
    for (const Schema* schema : std::array<const Schema*, 2>{&page.table->schema, &page.index->schema}) {
      shown.insert(schema->hash.name);
      if (schema->range) shown.insert(schema->range->name);
    }
  }

  json items = json::array();
  std::size_t scanned = 0;
  std::size_t count = 0;
  std::size_t bytes = 0;
  const Item* last = nullptr;
  auto at = page.first;
  while (at != page.end && scanned < limit && bytes <= largest_page_bytes) {
    const auto row = page.backwards ? std::prev(at) : at;
    at = page.backwards ? row : std::next(at);
    if (page.skips(row->first)) continue;
    last = row->second.get();
    ++scanned;
    Item reduced;
    const Item* item = last;
    if (!shown.empty()) {
      for (const auto& [name, value] : *last) {
        if (shown.contains(name)) reduced.emplace(name, value);
      }
      item = &reduced;
    }
    bytes += size_bytes(*item);
    if (page.filter && !page.filter->holds(*item)) continue;
    ++count;
    if (!counts_only) items.push_back(to_json(page.projection.empty() ? *item : project(*item, page.projection)));
  }
  json out = {{"Count", count}, {"ScannedCount", scanned}};
  if (!counts_only) out["Items"] = std::move(items);
  // With a limit the service does not look whether there is more: a full page always says where it ended.
  if (last != nullptr && (at != page.end || scanned == limit)) {
    Item key = key_of(page.table->schema, *last);
    if (page.index != nullptr) key.merge(key_of(page.index->schema, *last));
    out["LastEvaluatedKey"] = to_json(key);
  }
  if (wanted != "NONE") {
    out["ConsumedCapacity"] = capacity(page.table->name, read_units(bytes, consistent), 0, wanted);
  }
  return out;
}

json Operations::query(Request request) {
  refuse_unknown(request, "Query", query_parameters);
  if (optional_member(request, "KeyConditionExpression") == nullptr) {
    invalid("Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.");
  }
  Placeholders placeholders(request, {"FilterExpression", "KeyConditionExpression"});
  Page page;
  if (optional_member(request, "FilterExpression") != nullptr) {
    page.filter = parse_condition(text(request, "FilterExpression", ""), "FilterExpression", placeholders);
  }
  if (optional_member(request, "ProjectionExpression") != nullptr) {
    page.projection = parse_projection(text(request, "ProjectionExpression", ""), placeholders);
  }
  const Condition condition =
      parse_condition(text(request, "KeyConditionExpression", ""), "KeyConditionExpression", placeholders);
  placeholders.check_all_used();
  page.table = &usable_table(request);
  if (optional_member(request, "IndexName") != nullptr) page.index = &page.table->index(text(request, "IndexName", ""));
  const KeyCondition key = key_condition(condition, page.schema());
  if (page.filter) {
    std::set<std::string> names;
    collect_names(*page.filter, names);
    for (const auto& name : names) {
      if (page.schema().has(name)) {
        invalid("Filter Expression can only contain non-primary key attributes: Primary key attribute: " + name);
      }
    }
  }

  page.backwards = !flag(request, "ScanIndexForward", true);
  const Rows& rows = page.rows();
  const auto in_range = [&key](const Rows::value_type& row) { return !key.range || key.range->holds(*row.second); };
  // The rows of one hash key are sorted by the range key, and each condition is true of one stretch of them.
  auto first = rows.lower_bound(RowKey{key.hash, "", "", ""});
  while (first != rows.end() && first->first[0] == key.hash && !in_range(*first)) ++first;
  auto last = first;
  while (last != rows.end() && last->first[0] == key.hash && in_range(*last)) ++last;
  if (const json* given = optional_member(request, "ExclusiveStartKey")) {
    const RowKey start = start_key(*given, *page.table, page.index);
    if (start[0] != key.hash)
      invalid("The provided starting key is outside query boundaries based on provided conditions");
    const auto before = [](const Rows::value_type& row, const RowKey& bound) { return row.first < bound; };
    if (page.backwards) {
      last = std::lower_bound(first, last, start, before);
    } else {
      first = std::lower_bound(first, last, start, before);
      if (first != last && first->first == start) ++first;
    }
  }
  page.first = page.backwards ? last : first;
  page.end = page.backwards ? first : last;
  return read_page(page, request);
}

json Operations::scan(Request request) {
  refuse_unknown(request, "Scan", scan_parameters);
  Placeholders placeholders(request, {"FilterExpression"});
  Page page;
  if (optional_member(request, "FilterExpression") != nullptr) {
    page.filter = parse_condition(text(request, "FilterExpression", ""), "FilterExpression", placeholders);
  }
  if (optional_member(request, "ProjectionExpression") != nullptr) {
    page.projection = parse_projection(text(request, "ProjectionExpression", ""), placeholders);
  }
  placeholders.check_all_used();
  const auto segments = number(request, "TotalSegments", 1, 1'000'000);
  const auto segment = number(request, "Segment", 0, 999'999);
  if (segments && !segment) {
    invalid(
        "The Segment parameter is required but was not present in the request when parameter TotalSegments is present");
  }
  if (segment && !segments) {
    invalid(
        "The TotalSegments parameter is required but was not present in the request when Segment parameter is present");
  }
  if (segments && *segment >= *segments) {
    invalid("The Segment parameter is zero-based and must be less than parameter TotalSegments: Segment: " +
            std::to_string(*segment) + " is not less than TotalSegments: " + std::to_string(*segments));
  }
  page.table = &usable_table(request);
  if (optional_member(request, "IndexName") != nullptr) page.index = &page.table->index(text(request, "IndexName", ""));
  if (segments) {
    page.skips = [total = static_cast<std::size_t>(*segments), mine = static_cast<std::size_t>(*segment)](
                     const RowKey& key) { return segment_of(key[0], total) != mine; };
  }
  const Rows& rows = page.rows();
  page.first = rows.begin();
  page.end = rows.end();
  if (const json* given = optional_member(request, "ExclusiveStartKey")) {
    page.first = rows.upper_bound(start_key(*given, *page.table, page.index));
  }
  return read_page(page, request);
}

// --- Transactions

json Operations::transact_write_items(Request request) {
  refuse_unknown(request, "TransactWriteItems",
                 {"ClientRequestToken", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics", "TransactItems"});
  const std::string wanted = capacity_wanted(request);
  const json& parts = member(request, "TransactItems");
  if (!parts.is_array() || parts.empty() || parts.size() > most_in_transaction) {
    invalid(
        "1 validation error detected: Value at 'transactItems' failed to satisfy constraint: Member must have length "
        "from 1 to 100");
  }
  const std::string token = text(request, "ClientRequestToken", "");
  const std::size_t digest = std::hash<std::string>()(parts.dump());
  const Time now = clock_->now();
  std::erase_if(done_, [now](const auto& entry) { return entry.second.at + token_lifetime < now; });
  if (token.size() > 36) {
    invalid("1 validation error detected: Value '" + token +
            "' at 'clientRequestToken' failed to satisfy constraint: Member must have length less than or equal to 36");
  }
  if (const auto found = done_.find(token); !token.empty() && found != done_.end()) {
    if (found->second.request_digest != digest) {
      refuse("IdempotentParameterMismatchException",
             "The request uses the same client token as a previous, but non-identical request. Do not reuse a client "
             "token with different requests, unless the requests are identical");
    }
    json out = json::object();
    if (wanted != "NONE") {  // What was written once is only read again.
      for (const auto& [name, units] : found->second.read_units) {
        out["ConsumedCapacity"].push_back(capacity(name, units, 0, wanted));
      }
    }
    return out;
  }

  std::vector<Write> writes;
  std::set<std::pair<std::string, RowKey>> seen;
  for (const auto& part : parts) {
    if (!part.is_object() || part.size() != 1) {
      invalid("TransactItems can only contain one of Check, Put, Update or Delete");
    }
    const std::string& kind = part.begin().key();
    const json& single = part.begin().value();
    const bool known = kind == "Put" || kind == "Update" || kind == "Delete" || kind == "ConditionCheck";
    if (!known) invalid("TransactItems can only contain one of Check, Put, Update or Delete");
    std::set<std::string, std::less<>> parameters = {"ConditionExpression", "ExpressionAttributeNames",
                                                     "ExpressionAttributeValues", "ReturnValuesOnConditionCheckFailure",
                                                     "TableName"};
    parameters.insert(kind == "Put" ? "Item" : "Key");
    if (kind == "Update") {
      parameters.insert("UpdateExpression");
      member(single, "UpdateExpression");
    }
    refuse_unknown(single, kind, parameters);
    writes.push_back(prepare(single, kind));
    if (!seen.emplace(writes.back().table->name, writes.back().key).second) {
      invalid("Transaction request cannot include multiple operations on one item");
    }
  }

  json reasons = json::array();
  std::string codes;
  bool cancelled = false;
  std::size_t bytes = 0;
  for (auto& write : writes) {
    json reason = {{"Code", "None"}};
    try {
      write.outcome();
    } catch (const Refusal& refusal) {
      cancelled = true;
      reason = refusal.more;
      reason["Code"] =
          refusal.type.ends_with("#ConditionalCheckFailedException") ? "ConditionalCheckFailed" : "ValidationError";
      reason["Message"] = refusal.message;
    }
    bytes += std::max(write.before ? size_bytes(*write.before) : 0, write.after ? size_bytes(*write.after) : 0);
    codes += (codes.empty() ? "" : ", ") + reason["Code"].get<std::string>();
    reasons.push_back(std::move(reason));
  }
  if (cancelled) {
    throw Refusal{
        .type = std::string(service_namespace) + "TransactionCanceledException",
        .message = "Transaction cancelled, please refer cancellation reasons for specific reasons [" + codes + "]",
        .more = {{"CancellationReasons", reasons}}};
  }

  if (bytes > largest_transaction_bytes) invalid("Transaction request cannot exceed 4 MB");

  std::map<std::string, std::pair<double, double>> units;
  std::map<std::string, double> reads;
  for (const auto& write : writes) {
    auto& sum = units[write.table->name];
    reads[write.table->name] += 2 * read_units(write.after ? size_bytes(*write.after) : 0, true);
    sum.first += 2 * write.units();
    sum.second += 2 * static_cast<double>(write.commit());
  }
  json out = json::object();
  if (wanted != "NONE") {
    for (const auto& [name, sum] : units)
      out["ConsumedCapacity"].push_back(capacity(name, sum.first, sum.second, wanted));
  }
  if (!token.empty()) done_[token] = {.request_digest = digest, .read_units = reads, .at = now};
  return out;
}

}  // namespace once::testing::fake
