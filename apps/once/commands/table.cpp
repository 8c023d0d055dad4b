// once table: creates, checks, upgrades and deletes the table of a store in DynamoDB, or the schema of one in
// PostgreSQL.
#include "commands/table.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

#include <once/error.hpp>

#include "commands/commands.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "settings/access.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;
using stores::TableFinding;

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

}  // namespace

Json findings_json(const std::vector<TableFinding>& findings) {
  Json out = Json::array();
  for (const TableFinding& finding : findings) {
    out.push_back({{"grade", grade_word(finding.grade)}, {"name", finding.name}, {"text", finding.text}});
  }
  return out;
}

std::string findings_text(const std::vector<TableFinding>& findings) {
  std::string text;
  for (const TableFinding& finding : findings) {
    const std::string_view grade = grade_word(finding.grade);
    text.append(grade).append(6 - grade.size(), ' ').append(finding.name);
    text.append(finding.name.size() < 12 ? 12 - finding.name.size() : 1, ' ').append(finding.text).append("\n");
  }
  return text;
}

bool confirmed(std::string_view kind, const std::string& name) {
  if (isatty(STDIN_FILENO) == 1) write_all(STDERR_FILENO, "Type the " + std::string(kind) + "'s name to delete it: ");
  std::string line;
  std::getline(std::cin, line);
  return line == name;
}

namespace {

struct Kind {
  std::string_view scheme;
  int (*create)(const TableOptions&);
  int (*check)(const TableOptions&);
  int (*upgrade)(const TableOptions&);  // Null: there is nothing to upgrade.
  int (*remove)(const TableOptions&);
  std::vector<std::string_view> flags;  // What only it understands.
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
#if ONCE_AWS
    {"dynamodb:",
     create_dynamodb_table,
     check_dynamodb_table,
     nullptr,
     delete_dynamodb_table,
     {"--tags", "--deletion-protection", "--policy", "--account", "--timeout"}},
#endif
#if ONCE_POSTGRESQL
    {"postgresql:",
     create_postgresql_table,
     check_postgresql_table,
     upgrade_postgresql_table,
     delete_postgresql_table,
     {"--role", "--print-sql"}},
    {"postgres:",
     create_postgresql_table,
     check_postgresql_table,
     upgrade_postgresql_table,
     delete_postgresql_table,
     {"--role", "--print-sql"}},
#endif
  };
  return all;
}

// Runs the action of the store's kind. Throws Exception for other stores, and for a flag of another kind.
int run(const CLI::App& command, TableOptions options, int (*const Kind::*action)(const TableOptions&)) {
  if (options.url.empty()) options.url = variable("ONCE_STORE");
  if (options.url.find("moves_to=") != std::string::npos) misuse("write the URL of one store, without moves_to=");
  const auto kind = std::find_if(kinds().begin(), kinds().end(),
                                 [&](const Kind& each) { return options.url.starts_with(each.scheme); });
  if (kind == kinds().end()) {
    throw Exception(
        ErrorKind::misuse,
        "once table works on tables of DynamoDB and PostgreSQL: name one with --store "
        "dynamodb://TABLE?region=REGION, --store postgresql://USER@HOST/DATABASE, or ONCE_STORE" +
            (options.url.empty() ? std::string() : ", not '" + options.url.substr(0, options.url.find(':') + 1) + "'"));
  }
  StoreOptions store{.url = std::move(options.url), .offload = {}};
  ignore_fallback(store);
  options.url = std::move(store.url);
  for (const Kind& other : kinds()) {
    if (other.create == kind->create) continue;
    for (const std::string_view flag : other.flags) {
      const CLI::Option* const option = command.get_option_no_throw(std::string(flag));
      if (option != nullptr && option->count() > 0) {
        throw Exception(ErrorKind::misuse, std::string(flag) + " is for " + std::string(other.scheme) + " stores");
      }
    }
  }
  if ((*kind).*action == nullptr) {
    throw Exception(ErrorKind::misuse, std::string(kind->scheme) + " stores have no versions to upgrade");
  }
  return ((*kind).*action)(options);
}

}  // namespace

void add_table(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<TableOptions>();
  CLI::App* const table = app.add_subcommand(
      "table", "Create, check, upgrade or delete the table of a store in DynamoDB, the schema of one in PostgreSQL");
  table->require_subcommand(1);
  table->footer(
      "Examples:\n"
      "  once table create --store 'dynamodb://once?region=eu-central-1'\n"
      "  once table create --store postgresql://owner@db.example/pay --role payments\n"
      "  once table check --policy > policy.json");
  const auto add = [&](const char* name, const char* text, int (*const Kind::*action)(const TableOptions&)) {
    CLI::App* const command = table->add_subcommand(name, text);
    command->add_option("--store", options->url,
                        "The store's URL, as in dynamodb://TABLE?region=REGION or\n"
                        "postgresql://USER@HOST/DATABASE?schema=NAME (default: $ONCE_STORE)");
    command->callback([options, action, command, &invocation] {
      invocation.action = [options, action, command] { return run(*command, *options, action); };
    });
    return command;
  };

  CLI::App* const creates = add("create", "Create the table or schema unless it exists", &Kind::create);
  creates->add_option("--tags", options->tags, "DynamoDB: tags of the table: KEY=VALUE ...");
  creates->add_flag("--deletion-protection", options->deletion_protection,
                    "DynamoDB: the table cannot be deleted until this is turned off");
  creates->add_flag("-n,--dry-run", options->dry_run, "Show the requests as JSON, or the SQL, and send nothing");
  creates->add_flag("--json", options->json, "Write JSON");
  creates
      ->add_option("--role", options->roles,
                   "PostgreSQL: a role that may then run operations and look at records,\n"
                   "and has no right to the tables; repeatable")
      ->allow_extra_args(false);
  creates->add_flag("--print-sql", options->print_sql, "PostgreSQL: the same as --dry-run");
  creates->footer(
      "What exists is left as it is. If it does not fit, the exit code is 1.\n\n"
      "Examples:\n"
      "  once table create --store 'dynamodb://once?region=eu-central-1' --tags team=payments\n"
      "  once table create --dry-run | jq .CreateTable\n"
      "  once table create --store 'postgresql://db/pay?schema=pay' --print-sql > V7__once.sql");

  CLI::App* const checks =
      add("check", "List what the table or schema lacks, and which permissions are needed", &Kind::check);
  checks
      ->add_option("--policy", options->policy,
                   "DynamoDB: print only the smallest IAM policy, and send no request: for all commands, or\n"
                   "for a `worker` that only runs operations")
      ->expected(0, 1)
      ->default_str("all")
      ->check(CLI::IsMember({"all", "worker"}));
  checks->add_option("--account", options->account, "DynamoDB: the account in the policy's ARNs (default: any)");
  checks->add_flag("--json", options->json, "Write JSON");
  checks->footer(
      "Changes nothing. Exits with 1 if the table lacks something.\n\n"
      "Examples:\n"
      "  once table check --store 'dynamodb://once?region=eu-central-1'\n"
      "  once table check --policy worker --account 123456789012");

  CLI::App* const upgrades =
      add("upgrade", "PostgreSQL: bring the schema of an older program to this version", &Kind::upgrade);
  upgrades->footer(
      "Older programs may go on using it.\n\n"
      "Examples:\n"
      "  once table upgrade --store postgresql://owner@db.example/pay");

  CLI::App* const deletes = add("delete", "Delete the table or schema with all its records", &Kind::remove);
  deletes->add_flag("--yes", options->yes, "Do not ask for the name of the table or schema");
  deletes->add_flag("-n,--dry-run", options->dry_run, "Show what would be deleted");
  deletes->footer(
      "Without its record, an operation runs again.\n\n"
      "Examples:\n"
      "  once table delete --store 'dynamodb://once?region=eu-central-1' --dry-run");
  for (CLI::App* const command : {creates, deletes}) {
    command->add_option("--timeout", options->timeout, "DynamoDB: how long to wait until the service is done");
  }
}

}  // namespace once::cli
