// once table, for a store in PostgreSQL.
#include <utility>

#include <once/stores/postgresql_schema.hpp>

#include "commands/table.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "stores/open_postgresql.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;
using stores::SchemaChange;
using stores::SchemaReport;

int report_of(const SchemaReport& report, bool as_json) {
  const int exit_code = report.fits() ? exit_ok : exit_found_problems;
  if (!as_json) return print(findings_text(report.findings), exit_code);
  const Json json{{"fits", report.fits()},     {"exists", report.exists}, {"version", report.version},
                  {"records", report.records}, {"bytes", report.bytes},   {"findings", findings_json(report.findings)}};
  return print(json_text(json), exit_code);
}

std::string named(const stores::PostgresqlOptions& options) { return "schema '" + options.schema + "'"; }

}  // namespace

int create_postgresql_table(const TableOptions& options) {
  const stores::PostgresqlOptions where = stores::postgresql_options(options.url);
  if (options.print_sql || options.dry_run) return print(stores::postgresql_schema_sql(where, options.roles));
  const SchemaChange change = stores::create_postgresql_schema(where, options.roles);
  const bool made = change == SchemaChange::made;
  if (options.json && made) return print(json_text(Json{{"outcome", "made"}, {"findings", Json::array()}}));
  if (made) return print("created " + named(where) + "\n");
  const SchemaReport report = stores::check_postgresql_schema(where);
  if (options.json) {
    const Json json{{"outcome", report.fits() ? "was_there" : "does_not_fit"},
                    {"findings", findings_json(report.findings)}};
    return print(json_text(json), report.fits() ? exit_ok : exit_found_problems);
  }
  if (report.fits()) return print(named(where) + " already exists and fits\n");
  say(named(where) + " exists but does not fit:");
  return print(findings_text(report.findings), exit_found_problems);
}

int check_postgresql_table(const TableOptions& options) {
  return report_of(stores::check_postgresql_schema(stores::postgresql_options(options.url)), options.json);
}

int upgrade_postgresql_table(const TableOptions& options) {
  const stores::PostgresqlOptions where = stores::postgresql_options(options.url);
  const SchemaChange change = stores::upgrade_postgresql_schema(where);
  return print(named(where) + (change == SchemaChange::upgraded ? " now has version " : " already has version ") +
               std::to_string(stores::postgresql_schema_version()) + "\n");
}

int delete_postgresql_table(const TableOptions& options) {
  const stores::PostgresqlOptions where = stores::postgresql_options(options.url);
  const SchemaReport report = stores::check_postgresql_schema(where);
  if (!report.exists) {
    say(report.findings.empty() ? "there is no " + named(where) : report.findings.front().text);
    return exit_usage;
  }
  const std::string what =
      named(where) + ", with about " + std::to_string(report.records) + " records (" + show_size(report.bytes) + ")";
  if (options.dry_run) return print("would delete " + what + "\n");
  if (!options.yes) {
    say("this deletes " + what + ", and then each of their operations may run again");
    if (!confirmed("schema", where.schema)) {
      say("nothing was deleted: add --yes, or type the schema's name");
      return exit_usage;
    }
  }
  stores::delete_postgresql_schema(where);
  return print("deleted " + named(where) + "\n");
}

}  // namespace once::cli
