// The schema of a PostgreSQL store: create it, bring it to this version, check it and its server, delete it. For tools,
// and for programs that create their own schema. The store itself never changes a schema.
//
// All functions block; do not call them from a completion. They throw Exception, whose text says what to do next.
// misuse: the server refuses (no permission, a schema of a newer version). unavailable: it cannot be reached. Each
// change is one transaction: it is done as a whole, or not at all. Two programs that call at one time take turns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <once/stores/postgresql.hpp>
#include <once/stores/table_finding.hpp>

namespace once::stores {

// The version that this program makes and brings older ones to. A schema keeps the functions that older programs call,
// so programs of several versions may use it.
int postgresql_schema_version() noexcept;

// SQL that makes the schema with tables and functions and lets `roles` use them, as create_postgresql_schema() does:
// for psql, Flyway and the like.
std::string postgresql_schema_sql(const PostgresqlOptions& options, const std::vector<std::string>& roles);

// What became of a schema.
enum class SchemaChange : std::uint8_t {
  made,       // It is new, or its tables and functions are.
  upgraded,   // It had an older version.
  was_there,  // Nothing of its version was changed.
};

// Makes the schema, or its tables and functions in one that is there. An older version stays as it is: was_there.
// `roles` may then run operations and look at records, through the functions: they get USAGE of the schema and EXECUTE
// of its functions, and no right to a table. Needs the right to create in the database, or in the schema.
SchemaChange create_postgresql_schema(const PostgresqlOptions& options, const std::vector<std::string>& roles);

// Brings the schema to this version. misuse if there is none, or a newer one.
SchemaChange upgrade_postgresql_schema(const PostgresqlOptions& options);

// Drops the tables with all records, the functions, and the schema if nothing else is in it. misuse if there is none.
void delete_postgresql_schema(const PostgresqlOptions& options);

// What check_postgresql_schema() found.
struct SchemaReport {
  bool exists = false;        // False: `findings` says so, and the rest is empty.
  int version = 0;            // 0: not known.
  std::uint64_t records = 0;  // As the server's statistics estimate it.
  std::uint64_t bytes = 0;    // With indexes.
  // One for each thing that was checked: "schema", "functions", "server", "primary", "fsync", "commit", "standby",
  // "isolation", "snapshot", "bloat". What the role may not see is a hint.
  std::vector<TableFinding> findings = {};

  [[nodiscard]] bool fits() const noexcept;  // It exists and lacks nothing.
};

// Only reads.
SchemaReport check_postgresql_schema(const PostgresqlOptions& options);

// How large the table of records is.
struct SchemaSize {
  std::uint64_t records = 0;  // As the server's statistics estimate it, expired ones included.
  std::uint64_t bytes = 0;    // With indexes, dead rows and free pages.
};
// Only reads. Any role that may use the schema can ask. misuse if there is none.
SchemaSize postgresql_size(const PostgresqlOptions& options);

}  // namespace once::stores
