#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>

#include <once/error.hpp>
#include <once/stores/dynamodb_table.hpp>

#include "aws/endpoint.hpp"
#include "platform/wait.hpp"
#include "stores/dynamodb/service.hpp"

namespace once::stores {

namespace {

using Json = nlohmann::ordered_json;
using Grade = TableFinding::Grade;

// The permissions of the store's calls, by resource. A test compares them with the calls in the sources.
constexpr std::array worker_actions{"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:DeleteItem",
                                    "dynamodb:DescribeTable"};
constexpr std::array look_actions{"dynamodb:DescribeTimeToLive", "dynamodb:DescribeContinuousBackups"};
constexpr std::array results_actions{"s3:GetObject", "s3:PutObject", "s3:DeleteObject"};

// The answer of one call.
struct TableAnswer {
  Json json;               // An object, also for an error of the service.
  std::string error_type;  // "ResourceNotFoundException". Empty: success.
  std::string message;
  std::optional<StoreTime> time;
  bool false_time = false;
};

std::string text_at(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& member(const Json& json, const char* name) {
  static const Json nothing = Json::object();
  const auto found = json.find(name);
  return found == json.end() ? nothing : *found;
}

std::uint64_t number_at(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

bool flag_at(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

std::string body_of(const DynamoDbOptions& options) { return Json{{"TableName", options.table}}.dump(); }

// "table 'once' at https://…"
std::string place(const aws::Transport& transport, const DynamoDbOptions& options) {
  return "table '" + options.table + "' at " + transport.name();
}

bool means_absent(const TableAnswer& answer) { return answer.error_type == "ResourceNotFoundException"; }

// The endpoint does not know the call: some emulators have no TTL or backups.
bool means_unknown(const TableAnswer& answer) { return answer.error_type == "UnknownOperationException"; }

bool means_denied(const TableAnswer& answer) {
  return answer.error_type == "AccessDeniedException" || answer.error_type == "AccessDenied";
}

TableAnswer call(aws::Transport& transport, const DynamoDbOptions& options, aws::Call call) {
  const std::string what = call.operation + " of " + place(transport, options) + ": ";
  // A transport's errors name its endpoint and the operation.
  const std::string table = "table '" + options.table + "': ";
  const auto reply =
      wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) { transport.call(std::move(call), std::move(done)); });
  if (reply.error) throw Exception(reply.error->kind, table + reply.error->message);
  TableAnswer answer{.json = Json::parse(reply.body, nullptr, false),
                     .error_type = {},
                     .message = {},
                     .time = reply.time,
                     .false_time = reply.false_time};
  const bool understood = answer.json.is_object();
  if (reply.status == 200 && understood) return answer;
  if (understood) {
    const std::string type = text_at(answer.json, "__type");
    answer.error_type = type.substr(type.rfind('#') == std::string::npos ? 0 : type.rfind('#') + 1);
    answer.message = text_at(answer.json, "message");
    if (answer.message.empty()) answer.message = text_at(answer.json, "Message");
  }
  if (reply.status >= 500 && !means_unknown(answer)) {
    throw Exception(ErrorKind::unavailable, what + "HTTP " + std::to_string(reply.status) + " " + answer.error_type +
                                                " " + answer.message + ". Try again");
  }
  if (answer.error_type.empty()) {
    throw Exception(ErrorKind::misuse, what + "HTTP " + std::to_string(reply.status) +
                                           " and nothing that DynamoDB sends. Is this its endpoint?");
  }
  return answer;
}

// Throws the service's refusal.
[[noreturn]] void refuse(const aws::Transport& transport, const DynamoDbOptions& options, const char* operation,
                         const TableAnswer& answer) {
  const std::string what = std::string(operation) + " of " + place(transport, options) + ": ";
  if (means_absent(answer)) {
    throw Exception(ErrorKind::misuse, what +
                                           "there is no such table there. Look at its name, the region, the endpoint "
                                           "and whose credentials these are; `once table create` makes it");
  }
  if (means_denied(answer)) {
    throw Exception(ErrorKind::misuse,
                    what + answer.message + ". The permission dynamodb:" + operation + " on this table is missing");
  }
  for (const char* const busy : {"LimitExceededException", "ThrottlingException", "ResourceInUseException"}) {
    if (answer.error_type == busy) {
      throw Exception(ErrorKind::unavailable, what + answer.message + ". Try again in a while");
    }
  }
  throw Exception(ErrorKind::misuse, what + answer.error_type + ": " + answer.message);
}

// A primary key or an index's key, as in CreateTable and DescribeTable: "id" or "pk, sk".
std::string schema_text(const Json& schema) {
  std::string out;
  for (const char* const kind : {"HASH", "RANGE"}) {
    for (const Json& part : schema) {
      if (text_at(part, "KeyType") != kind) continue;
      if (!out.empty()) out += ", ";
      out += text_at(part, "AttributeName");
    }
  }
  return out;
}

std::string type_of(const Json& table, const std::string& attribute) {
  for (const Json& definition : member(table, "AttributeDefinitions")) {
    if (text_at(definition, "AttributeName") == attribute) return text_at(definition, "AttributeType");
  }
  return {};
}

const Json* index_of(const Json& table, const std::string& name) {
  for (const Json& index : member(table, "GlobalSecondaryIndexes")) {
    if (text_at(index, "IndexName") == name) return &index;
  }
  return nullptr;
}

Json key_schema(const DynamoDbOptions& options) {
  Json schema = Json::array({{{"AttributeName", options.partition_key}, {"KeyType", "HASH"}}});
  if (!options.sort_key.empty()) schema.push_back({{"AttributeName", options.sort_key}, {"KeyType", "RANGE"}});
  return schema;
}

class TableCheck {
 public:
  TableCheck(const Json& table, const DynamoDbOptions& options, TableReport& report)
      : table_(table), options_(options), report_(report) {}

  void look_at_status() {
    if (report_.status == "ACTIVE" || report_.status == "UPDATING") {
      add(Grade::fine, "status", report_.status);
    } else {
      add(Grade::lack, "status", report_.status + ": it cannot be used now");
    }
  }

  void look_at_key() {
    const std::string wanted = schema_text(key_schema(options_));
    const std::string there = schema_text(member(table_, "KeySchema"));
    if (there != wanted) {
      add(Grade::lack, "key",
          "the primary key is " + there + ", not " + wanted +
              ". A table's key cannot be changed: use another table, or give the store the names that this one has");
      return;
    }
    for (const Json& part : member(table_, "KeySchema")) {
      const std::string name = text_at(part, "AttributeName");
      if (const std::string type = type_of(table_, name); type != "S") {
        add(Grade::lack, "key", "'" + name + "' is of type " + type + ", not S. Use another table");
        return;
      }
    }
    add(Grade::fine, "key", wanted);
  }

  void look_at_index() {
    const Json* const index = index_of(table_, options_.index);
    if (!wants_open_index(options_)) {
      add(Grade::fine, "index", "none is needed: open records are found by reading the table");
      return;
    }
    const std::string name = "'" + options_.index + "'";
    if (index == nullptr) {
      add(Grade::lack, "index",
          "there is no index " + name + " on '" + options_.attributes.open +
              "': listing open records reads the whole table. Add it with aws dynamodb update-table, as `once table "
              "create --dry-run` has it, or do without it");
      return;
    }
    const std::string key = schema_text(member(*index, "KeySchema"));
    const std::string projection = text_at(member(*index, "Projection"), "ProjectionType");
    const std::string status = text_at(*index, "IndexStatus");
    if (key != options_.attributes.open || type_of(table_, key) != "S") {
      add(Grade::lack, "index", name + " is on " + key + ", not on '" + options_.attributes.open + "' of type S");
    } else if (projection != "ALL") {
      add(Grade::lack, "index", name + " projects " + projection + ", not ALL: delete the index and create it again");
    } else if (!status.empty() && status != "ACTIVE") {
      add(Grade::lack, "index", name + " is " + status + ": wait until it is ACTIVE");
    } else {
      add(Grade::fine, "index", name + " on " + key);
    }
  }

  // With eventual consistency each region accepts a claim of the same key.
  void look_at_replicas() {
    const Json& replicas = member(table_, "Replicas");
    const bool old = text_at(table_, "GlobalTableVersion") == "2017.11.29";
    if (!old && (!replicas.is_array() || replicas.empty())) return;
    std::string regions;
    for (const Json& replica : replicas) {
      regions += (regions.empty() ? "" : ", ") + text_at(replica, "RegionName");
    }
    const std::string where = regions.empty() ? "a global table of version 2017.11.29" : "replicated with " + regions;
    if (is_strongly_replicated()) {
      add(Grade::hint, "replicas",
          where +
              ", strongly consistent: no key runs in two regions. Such a table has no transactions, so no "
              "commit_with(), and no TTL");
      return;
    }
    add(options_.allow_eventual ? Grade::hint : Grade::lack, "replicas",
        where + std::string(dynamodb::eventual_advice) +
            (options_.allow_eventual ? ". It is allowed: allow_eventual is set" : ""));
  }

  void look_at_billing() {
    if (text_at(member(table_, "BillingModeSummary"), "BillingMode") == "PAY_PER_REQUEST") {
      add(Grade::fine, "billing", "on demand");
    } else {
      add(Grade::hint, "billing", "provisioned: calls beyond its capacity are throttled, and wait");
    }
  }

  void look_at_protection() {
    report_.deletion_protection = flag_at(table_, "DeletionProtectionEnabled");
    add(report_.deletion_protection ? Grade::fine : Grade::hint, "protection",
        report_.deletion_protection
            ? "deletion protection is on"
            : "deletion protection is off: if the table is deleted, every operation can run again");
  }

  // Whether it is off and can be turned on.
  bool look_at_ttl(const TableAnswer& answer) {
    if (could_not_see(answer, "ttl", "dynamodb:DescribeTimeToLive")) return false;
    const Json& ttl = member(answer.json, "TimeToLiveDescription");
    const std::string status = text_at(ttl, "TimeToLiveStatus");
    const std::string attribute = text_at(ttl, "AttributeName");
    const std::string& wanted = options_.attributes.expiration;
    if (status != "ENABLED" && status != "ENABLING" && is_strongly_replicated()) {
      add(Grade::hint, "ttl", "multi-Region strong consistency has none: expired records stay until `once sweep`");
      return false;
    }
    if (status != "ENABLED" && status != "ENABLING") {
      add(Grade::lack, "ttl",
          "it is off, so expired records stay until `once sweep`. Turn it on for '" + wanted +
              "': once table create, or aws dynamodb update-time-to-live");
      return status == "DISABLED";
    }
    if (attribute != wanted) {
      add(Grade::lack, "ttl",
          "it is on '" + attribute + "', not on '" + wanted +
              "'. Turn it off, wait an hour and turn it on for the other attribute, or give the store this one's name");
    } else {
      add(Grade::fine, "ttl", "on " + wanted);
    }
    return false;
  }

  void look_at_recovery(const TableAnswer& answer) {
    if (could_not_see(answer, "recovery", "dynamodb:DescribeContinuousBackups")) return;
    const Json& backups = member(answer.json, "ContinuousBackupsDescription");
    const bool on =
        text_at(member(backups, "PointInTimeRecoveryDescription"), "PointInTimeRecoveryStatus") == "ENABLED";
    add(on ? Grade::fine : Grade::hint, "recovery",
        on ? "point-in-time recovery is on"
           : "point-in-time recovery is off: a lost or damaged table cannot be restored");
  }

 private:
  [[nodiscard]] bool is_strongly_replicated() const { return text_at(table_, "MultiRegionConsistency") == "STRONG"; }
  void add(Grade grade, const char* name, std::string text) {
    report_.findings.push_back({grade, name, std::move(text)});
  }
  bool could_not_see(const TableAnswer& answer, const char* name, const std::string& permission) {
    if (answer.error_type.empty()) return false;
    std::string why = answer.message;
    if (means_denied(answer)) why = "the permission " + permission + " is missing";
    if (means_unknown(answer)) why = "this endpoint does not support it";
    add(Grade::hint, name, "could not be seen: " + why);
    return true;
  }

  const Json& table_;
  const DynamoDbOptions& options_;
  TableReport& report_;
};

// A call that may be forbidden or unknown: misuse is also an answer.
TableAnswer try_to_look(aws::Transport& transport, const DynamoDbOptions& options, const char* operation) {
  try {
    return call(transport, options, {operation, body_of(options), true});
  } catch (const Exception& error) {
    if (error.kind() != ErrorKind::misuse) throw;
    return {.json = {}, .error_type = "Misuse", .message = error.what(), .time = {}, .false_time = false};
  }
}

TableAnswer describe(aws::Transport& transport, const DynamoDbOptions& options) {
  TableAnswer answer = call(transport, options, {"DescribeTable", body_of(options), true});
  if (!answer.error_type.empty() && !means_absent(answer)) refuse(transport, options, "DescribeTable", answer);
  return answer;
}

// Waits until the table and its indexes can be used.
void wait_until_active(aws::Transport& transport, const DynamoDbOptions& options, const Pause& pause) {
  for (;;) {
    const TableAnswer answer = describe(transport, options);
    std::string status = "not there yet";  // A new table may be visible only after a moment.
    if (!means_absent(answer)) {
      const Json& table = member(answer.json, "Table");
      status = text_at(table, "TableStatus");
      if (status == "ACTIVE") {
        for (const Json& index : member(table, "GlobalSecondaryIndexes")) {
          const std::string of_index = text_at(index, "IndexStatus");
          if (!of_index.empty() && of_index != "ACTIVE") {
            status = "waiting for its index '" + text_at(index, "IndexName") + "', which is " + of_index;
          }
        }
      }
    }
    if (status == "ACTIVE") return;
    if (!pause("the table is " + status)) {
      throw Exception(ErrorKind::unavailable, place(transport, options) + " is " + status +
                                                  " still. It goes on by itself: do the same again to wait for it");
    }
  }
}

void turn_on_ttl(aws::Transport& transport, const DynamoDbOptions& options) {
  TableAnswer answer = call(transport, options, create_table_calls(options, {}).back());
  // Another `create` was faster: the result is the same.
  const bool is_on =
      answer.error_type == "ValidationException" && answer.message.find("already enabled") != std::string::npos;
  if (!answer.error_type.empty() && !is_on && !means_unknown(answer)) {
    refuse(transport, options, "UpdateTimeToLive", answer);
  }
}

struct Look {
  TableReport report;
  bool ttl_is_off = false;  // And can be turned on, because no other attribute has it.
};

Look look_at(aws::Transport& transport, const DynamoDbOptions& options) {
  Look look;
  TableReport& report = look.report;
  const TableAnswer described = describe(transport, options);
  report.time = described.time;
  report.false_time = described.false_time;
  if (means_absent(described)) {
    report.findings.push_back(
        {Grade::lack, "table", "there is no " + place(transport, options) + ": make it with once table create"});
    return look;
  }
  const Json& table = member(described.json, "Table");
  report.exists = true;
  report.arn = text_at(table, "TableArn");
  report.status = text_at(table, "TableStatus");
  report.records = number_at(table, "ItemCount");
  report.bytes = number_at(table, "TableSizeBytes");
  report.findings.push_back(
      {Grade::fine, "table", report.arn.empty() ? place(transport, options) : report.arn + " at " + transport.name()});
  TableCheck check(table, options, report);
  check.look_at_status();
  check.look_at_key();
  look.ttl_is_off = check.look_at_ttl(try_to_look(transport, options, "DescribeTimeToLive"));
  check.look_at_replicas();
  check.look_at_index();
  check.look_at_billing();
  check.look_at_protection();
  check.look_at_recovery(try_to_look(transport, options, "DescribeContinuousBackups"));
  return look;
}

}  // namespace

bool wants_open_index(const DynamoDbOptions& options) noexcept {
  return options.use_index != DynamoDbOptions::UseIndex::never && options.dialect == DynamoDbDialect::native;
}

std::vector<aws::Call> create_table_calls(const DynamoDbOptions& options, const TableSetup& setup) {
  Json create{{"TableName", options.table}, {"BillingMode", "PAY_PER_REQUEST"}, {"KeySchema", key_schema(options)}};
  Json& attributes = create["AttributeDefinitions"] = Json::array();
  for (const Json& part : create["KeySchema"]) {
    attributes.push_back({{"AttributeName", part["AttributeName"]}, {"AttributeType", "S"}});
  }
  if (wants_open_index(options)) {
    attributes.push_back({{"AttributeName", options.attributes.open}, {"AttributeType", "S"}});
    create["GlobalSecondaryIndexes"] =
        Json::array({{{"IndexName", options.index},
                      {"KeySchema", Json::array({{{"AttributeName", options.attributes.open}, {"KeyType", "HASH"}}})},
                      {"Projection", {{"ProjectionType", "ALL"}}}}});
  }
  if (setup.deletion_protection) create["DeletionProtectionEnabled"] = true;
  for (const auto& [key, value] : setup.tags) create["Tags"].push_back({{"Key", key}, {"Value", value}});
  const Json ttl{{"TableName", options.table},
                 {"TimeToLiveSpecification", {{"AttributeName", options.attributes.expiration}, {"Enabled", true}}}};
  // Not repeatable: the second answer would be an error.
  return {{"CreateTable", create.dump(), false}, {"UpdateTimeToLive", ttl.dump(), false}};
}

bool TableReport::fits() const noexcept {
  return exists && std::none_of(findings.begin(), findings.end(),
                                [](const TableFinding& finding) { return finding.grade == Grade::lack; });
}

TableReport check_table(aws::Transport& transport, const DynamoDbOptions& options) {
  return look_at(transport, options).report;
}

Creation create_table(aws::Transport& transport, const DynamoDbOptions& options, const TableSetup& setup,
                      const Pause& pause) {
  bool made = false;
  if (means_absent(describe(transport, options))) {
    const TableAnswer answer = call(transport, options, create_table_calls(options, setup).front());
    made = answer.error_type.empty();
    // In use: another process is creating it now.
    if (!made && answer.error_type != "ResourceInUseException") refuse(transport, options, "CreateTable", answer);
  }
  wait_until_active(transport, options, pause);
  if (made) {
    turn_on_ttl(transport, options);
    return {};
  }
  Look look = look_at(transport, options);
  const auto lacks = std::count_if(look.report.findings.begin(), look.report.findings.end(),
                                   [](const TableFinding& finding) { return finding.grade == Grade::lack; });
  if (lacks == (look.ttl_is_off ? 1 : 0)) {
    if (!look.ttl_is_off) return {Created::was_there, std::move(look.report)};
    turn_on_ttl(transport, options);
    return {Created::completed, check_table(transport, options)};
  }
  return {Created::does_not_fit, std::move(look.report)};
}

void delete_table(aws::Transport& transport, const DynamoDbOptions& options, const Pause& pause) {
  const TableAnswer answer = call(transport, options, {"DeleteTable", body_of(options), false});
  if (answer.error_type == "ValidationException" && answer.message.find("protect") != std::string::npos) {
    throw Exception(ErrorKind::misuse, place(transport, options) +
                                           ": deletion protection is on. Turn it off first: aws dynamodb "
                                           "update-table --no-deletion-protection-enabled");
  }
  if (!answer.error_type.empty()) refuse(transport, options, "DeleteTable", answer);
  while (!means_absent(describe(transport, options))) {
    if (!pause("the table is DELETING")) {
      throw Exception(ErrorKind::unavailable, place(transport, options) + " is DELETING still. It goes on by itself");
    }
  }
}

std::string least_policy(const DynamoDbOptions& options, std::string_view arn, PolicyFor whom,
                         std::string_view results) {
  const std::string table(arn);
  const bool composite = !options.sort_key.empty();
  Json statements = Json::array();
  const auto allow = [&](const char* sid, Json actions, std::string resource) {
    statements.push_back(
        {{"Sid", sid}, {"Effect", "Allow"}, {"Action", std::move(actions)}, {"Resource", std::move(resource)}});
    return &statements.back();
  };
  // It does not restrict calls without a key, such as DescribeTable.
  const auto keep_to_partition = [&](Json* statement) {
    if (!composite || options.partition_value.empty()) return;
    (*statement)["Condition"] = {{"ForAllValues:StringEquals", {{"dynamodb:LeadingKeys", {options.partition_value}}}}};
  };
  keep_to_partition(allow("OnceRecords", worker_actions, table));
  if (!results.empty()) {
    const std::string partition = table.substr(0, table.find(":dynamodb:"));
    allow("OnceResults", results_actions, partition + ":s3:::" + std::string(results) + "/*");
  }
  if (whom == PolicyFor::operators) {
    Json actions = Json::array({composite ? "dynamodb:Query" : "dynamodb:Scan"});
    for (const char* const action : look_actions) actions.push_back(action);
    keep_to_partition(allow("OnceTable", std::move(actions), table));
    if (wants_open_index(options)) {
      allow("OnceIndex", Json::array({"dynamodb:Query"}), table + "/index/" + options.index);
    }
  }
  return Json{{"Version", "2012-10-17"}, {"Statement", std::move(statements)}}.dump(2) + "\n";
}

std::string table_arn(const DynamoDbOptions& options, std::string_view region, std::string_view account) {
  if (options.table.starts_with("arn:")) return options.table;
  return "arn:" + aws::partition_of(region) + ":dynamodb:" + std::string(region.empty() ? "*" : region) + ":" +
         std::string(account.empty() ? "*" : account) + ":table/" + options.table;
}

}  // namespace once::stores
