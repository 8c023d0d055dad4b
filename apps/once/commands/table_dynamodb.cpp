// once table, for a store in DynamoDB.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/aws/transport.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>
#include <once/stores/dynamodb_table.hpp>

#include "commands/table.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "settings/access.hpp"
#include "stores/open_aws.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;
using stores::DynamoDbOptions;

DynamoDbOptions table_of(const TableOptions& options) { return stores::dynamodb_options(options.url); }

// Waits between two checks of a table, longer each time, and reports it after two seconds.
class Wait {
 public:
  explicit Wait(Millis most) : most_(most) {}

  bool operator()(std::string_view doing) {
    const auto waited = std::chrono::floor<Millis>(system_clock()->uptime() - begun_);
    if (waited >= most_) return false;
    if (waited >= std::chrono::seconds(2)) tell(doing, waited);
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, Millis{1'000});
    return true;
  }
  void end() {
    if (shown_ && on_terminal_) write_all(STDERR_FILENO, "\r\x1b[K");
  }

 private:
  // On a terminal one changing line, elsewhere a line for each change.
  void tell(std::string_view doing, Millis waited) {
    if (on_terminal_) {
      write_all(STDERR_FILENO, "\r\x1b[Konce: " + std::string(doing) + " (" +
                                   show_duration(std::chrono::floor<std::chrono::seconds>(waited)) + ") ...");
    } else if (doing != told_) {
      say(std::string(doing) + " ...");
    }
    told_ = doing;
    shown_ = true;
  }

  const Millis most_;
  const Uptime begun_ = system_clock()->uptime();
  const bool on_terminal_ = isatty(STDERR_FILENO) == 1;
  Millis pause_{100};
  bool shown_ = false;
  std::string told_;
};

// --- create

std::vector<std::pair<std::string, std::string>> tags_of(const TableOptions& options) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& tag : options.tags) {
    const auto equals = tag.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw Exception(ErrorKind::misuse, "--tags: '" + tag + "' is not KEY=VALUE");
    }
    out.emplace_back(tag.substr(0, equals), tag.substr(equals + 1));
  }
  return out;
}

}  // namespace

int create_dynamodb_table(const TableOptions& options) {
  const DynamoDbOptions table = table_of(options);
  const stores::TableSetup setup{.deletion_protection = options.deletion_protection, .tags = tags_of(options)};
  if (options.dry_run) {
    Json requests;
    for (const aws::Call& call : stores::create_table_calls(table, setup)) {
      requests[call.operation] = Json::parse(call.body);
    }
    return print(json_text(requests));
  }
  Wait wait(parse_duration(options.timeout, "--timeout"));
  const auto transport = stores::make_dynamodb_transport(table);
  const stores::Creation creation = stores::create_table(*transport, table, setup, std::ref(wait));
  wait.end();
  if (options.json) {
    constexpr std::array outcomes{"made", "completed", "was_there", "does_not_fit"};
    const Json json{{"outcome", outcomes.at(static_cast<std::size_t>(creation.outcome))},
                    {"findings", findings_json(creation.report.findings)}};
    return print(json_text(json), creation.outcome == stores::Created::does_not_fit ? exit_found_problems : exit_ok);
  }
  const std::string name = "table '" + table.table + "' at " + transport->name();
  switch (creation.outcome) {
    case stores::Created::made:
      return print("created " + name + "\n");
    case stores::Created::completed:
      return print(name + " already existed; its TTL was off and is now on\n");
    case stores::Created::was_there:
      return print(name + " already exists and fits\n");
    case stores::Created::does_not_fit:
      break;
  }
  say(name + " exists but does not fit. Nothing was changed:");
  return print(findings_text(creation.report.findings), exit_found_problems);
}

// --- check

int check_dynamodb_table(const TableOptions& options) {
  DynamoDbOptions table = table_of(options);
  const std::string results = stores::dynamodb_results(options.url);
  table.partition_value = partition_of(table);
  if (!table.sort_key.empty() && table.partition_value.empty()) {
    say("the policy allows all partitions of the table: " + std::string(which_partition));
  }
  std::string region = table.region;
  for (const char* const name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (region.empty()) region = variable(name);
  }
  const std::string expected_arn = stores::table_arn(table, region, options.account);
  if (!options.policy.empty()) {
    const auto whom = options.policy == "worker" ? stores::PolicyFor::worker : stores::PolicyFor::operators;
    return print(stores::least_policy(table, expected_arn, whom, results));
  }
  const auto transport = stores::make_dynamodb_transport(table);
  const stores::TableReport report = stores::check_table(*transport, table);
  const int exit_code = report.fits() ? exit_ok : exit_found_problems;
  const std::string& arn = report.arn.empty() ? expected_arn : report.arn;
  const std::string policy = stores::least_policy(table, arn, stores::PolicyFor::operators, results);
  if (options.json) {
    Json json;
    json["fits"] = report.fits();
    json["exists"] = report.exists;
    json["arn"] = report.exists ? Json(report.arn) : Json(nullptr);
    json["status"] = report.exists ? Json(report.status) : Json(nullptr);
    json["records"] = report.records;
    json["bytes"] = report.bytes;
    json["findings"] = findings_json(report.findings);
    json["policy"] = Json::parse(policy);
    return print(json_text(json), exit_code);
  }
  return print(
      findings_text(report.findings) +
          "\nThe smallest sufficient policy (to run operations only, use OnceRecords and OnceResults alone):\n" +
          policy,
      exit_code);
}

// --- delete

int delete_dynamodb_table(const TableOptions& options) {
  const DynamoDbOptions table = table_of(options);
  Wait wait(parse_duration(options.timeout, "--timeout"));
  const auto transport = stores::make_dynamodb_transport(table);
  const stores::TableReport report = stores::check_table(*transport, table);
  const std::string name = "table '" + table.table + "' at " + transport->name();
  if (!report.exists) {
    say("there is no " + name);
    return exit_usage;
  }
  if (report.deletion_protection) {
    say(name + ": deletion protection is on. Turn it off first: aws dynamodb update-table --table-name " + table.table +
        " --no-deletion-protection-enabled");
    return exit_conflict;
  }
  const std::string what = name + ", with about " + std::to_string(report.records) + " records (" +
                           show_size(report.bytes) + ", counted every six hours)";
  if (options.dry_run) return print("would delete " + what + "\n");
  if (!options.yes) {
    say("this deletes " + what + ", and then each of their operations may run again");
    if (!confirmed("table", table.table)) {
      say("nothing was deleted: add --yes, or type the table's name");
      return exit_usage;
    }
  }
  stores::delete_table(*transport, table, std::ref(wait));
  wait.end();
  return print("deleted " + name + "\n");
}

}  // namespace once::cli
