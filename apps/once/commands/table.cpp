// once table: creates, checks and deletes the table of a DynamoDB store.
#include <unistd.h>

#include <CLI/CLI.hpp>
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
#include <once/stores/open_dynamodb.hpp>

#include "commands/commands.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/supervise.hpp"
#include "settings/access.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;
using stores::DynamoDbOptions;
using stores::TableFinding;

struct TableOptions {
  std::string url;
  std::vector<std::string> tags;
  bool deletion_protection = false;
  std::string timeout = "10m";
  std::string policy;
  std::string account;
  bool yes = false;
  bool dry_run = false;
  bool json = false;
};

std::string url_of(const TableOptions& options) {
  std::string url = options.url.empty() ? variable("ONCE_STORE") : options.url;
  if (!url.starts_with("dynamodb:")) {
    throw Exception(ErrorKind::misuse,
                    "once table works on tables of DynamoDB: name one with --store dynamodb://TABLE?region=REGION or "
                    "ONCE_STORE" +
                        (url.empty() ? "" : ", not '" + url + "'"));
  }
  return url;
}

DynamoDbOptions table_of(const TableOptions& options) {
  const std::string url = url_of(options);
  return stores::dynamodb_options(url);
}

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

std::string_view grade_word(TableFinding::Grade grade) {
  switch (grade) {
    case TableFinding::Grade::fine:
      return "fine";
    case TableFinding::Grade::hint:
      return "hint";
    case TableFinding::Grade::lack:
      return "lack";
  }
  return {};
}

Json findings_json(const stores::TableReport& report) {
  Json out = Json::array();
  for (const TableFinding& finding : report.findings) {
    out.push_back({{"grade", grade_word(finding.grade)}, {"name", finding.name}, {"text", finding.text}});
  }
  return out;
}

std::string findings_text(const stores::TableReport& report) {
  std::string text;
  for (const TableFinding& finding : report.findings) {
    const std::string_view grade = grade_word(finding.grade);
    text.append(grade).append(6 - grade.size(), ' ').append(finding.name);
    text.append(finding.name.size() < 12 ? 12 - finding.name.size() : 1, ' ').append(finding.text).append("\n");
  }
  return text;
}

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

int create(const TableOptions& options) {
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
                    {"findings", findings_json(creation.report)}};
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
  return print(findings_text(creation.report), exit_found_problems);
}

// --- check

int check(const TableOptions& options) {
  DynamoDbOptions table = table_of(options);
  const std::string results = stores::dynamodb_results(url_of(options));
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
    json["findings"] = findings_json(report);
    json["policy"] = Json::parse(policy);
    return print(json_text(json), exit_code);
  }
  return print(
      findings_text(report) +
          "\nThe smallest sufficient policy (to run operations only, use OnceRecords and OnceResults alone):\n" +
          policy,
      exit_code);
}

// --- delete

// Whether the user typed the table's name.
bool confirmed(const std::string& name) {
  if (isatty(STDIN_FILENO) == 1) write_all(STDERR_FILENO, "Type the table's name to delete it: ");
  std::string line;
  std::getline(std::cin, line);
  return line == name;
}

int remove(const TableOptions& options) {
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
    if (!confirmed(table.table)) {
      say("nothing was deleted: add --yes, or type the table's name");
      return exit_usage;
    }
  }
  stores::delete_table(*transport, table, std::ref(wait));
  wait.end();
  return print("deleted " + name + "\n");
}

}  // namespace

void add_table(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<TableOptions>();
  CLI::App* const table = app.add_subcommand("table", "Create, check or delete the table of a DynamoDB store");
  table->require_subcommand(1);
  table->footer(
      "Examples:\n"
      "  once table create --store 'dynamodb://once?region=eu-central-1'\n"
      "  once table check --policy > policy.json");
  const auto add = [&](const char* name, const char* text, int (*action)(const TableOptions&)) {
    CLI::App* const command = table->add_subcommand(name, text);
    command->add_option("--store", options->url,
                        "The store's URL, as in dynamodb://TABLE?region=REGION (default: $ONCE_STORE)");
    command->callback(
        [options, action, &invocation] { invocation.action = [options, action] { return action(*options); }; });
    return command;
  };

  CLI::App* const creates = add("create", "Create the table, with TTL and index, unless it exists", create);
  creates->add_option("--tags", options->tags, "Tags of the table: KEY=VALUE ...");
  creates->add_flag("--deletion-protection", options->deletion_protection,
                    "The table cannot be deleted until this is turned off");
  creates->add_flag("-n,--dry-run", options->dry_run, "Show the requests as JSON, and send nothing");
  creates->add_flag("--json", options->json, "Write JSON");
  creates->footer(
      "An existing table is left as it is. If it does not fit, the exit code is 1.\n\n"
      "Examples:\n"
      "  once table create --store 'dynamodb://once?region=eu-central-1' --tags team=payments\n"
      "  once table create --dry-run | jq .CreateTable");

  CLI::App* const checks = add("check", "List what the table lacks, and which permissions are needed", check);
  checks
      ->add_option("--policy", options->policy,
                   "Print only the smallest IAM policy, and send no request: for all commands, or\n"
                   "for a `worker` that only runs operations")
      ->expected(0, 1)
      ->default_str("all")
      ->check(CLI::IsMember({"all", "worker"}));
  checks->add_option("--account", options->account, "The account in the policy's ARNs (default: any)");
  checks->add_flag("--json", options->json, "Write JSON");
  checks->footer(
      "Changes nothing. Exits with 1 if the table lacks something.\n\n"
      "Examples:\n"
      "  once table check --store 'dynamodb://once?region=eu-central-1'\n"
      "  once table check --policy worker --account 123456789012");

  CLI::App* const deletes = add("delete", "Delete the table with all its records", remove);
  deletes->add_flag("--yes", options->yes, "Do not ask for the table's name");
  deletes->add_flag("-n,--dry-run", options->dry_run, "Show what would be deleted");
  deletes->footer(
      "Without its record, an operation runs again.\n\n"
      "Examples:\n"
      "  once table delete --store 'dynamodb://once?region=eu-central-1' --dry-run");
  for (CLI::App* const command : {creates, deletes}) {
    command->add_option("--timeout", options->timeout, "How long to wait until the service is done")
        ->capture_default_str();
  }
}

}  // namespace once::cli
