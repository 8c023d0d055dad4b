// once table: what its commands share, and those for each kind of store.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <once/stores/table_finding.hpp>

namespace once::cli {

struct TableOptions {
  std::string url;  // Of the store; never empty.
  std::vector<std::string> tags;
  bool deletion_protection = false;
  std::string timeout = "10m";
  std::string policy;
  std::string account;
  std::vector<std::string> roles;
  bool print_sql = false;
  bool yes = false;
  bool dry_run = false;
  bool json = false;
};

nlohmann::ordered_json findings_json(const std::vector<stores::TableFinding>& findings);
std::string findings_text(const std::vector<stores::TableFinding>& findings);

// Whether the user typed the name of what is to be deleted; `kind` is "table" or "schema".
bool confirmed(std::string_view kind, const std::string& name);

int create_dynamodb_table(const TableOptions& options);
int check_dynamodb_table(const TableOptions& options);
int delete_dynamodb_table(const TableOptions& options);

int create_postgresql_table(const TableOptions& options);
int check_postgresql_table(const TableOptions& options);
int upgrade_postgresql_table(const TableOptions& options);
int delete_postgresql_table(const TableOptions& options);

}  // namespace once::cli
