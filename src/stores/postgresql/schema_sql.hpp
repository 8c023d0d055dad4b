// The tables and functions of the store, as SQL. @s@ stands for the quoted name of the schema.
#pragma once

#include <string>
#include <string_view>

namespace once::stores::postgresql {

// What meta says. A program refuses a schema that has none of its functions, and `once table upgrade` brings an older
// one here.
inline constexpr int schema_version = 1;

// "once" in quotes, as SQL writes a name. Throws Exception(misuse) if it cannot be one.
std::string quoted_name(std::string_view name);
// A text in quotes, as SQL writes it.
std::string quoted_text(std::string_view text);

// What brings a schema of version `from` to `from` + 1; 0 is none. Below schema_version.
std::string migration_sql(int from, std::string_view schema);

// Everything that makes a schema, or brings an older one here, as one transaction: for psql and migration tools.
std::string create_sql(std::string_view schema);
// Lets a role run operations and look at records: USAGE and EXECUTE, no table.
std::string grant_sql(std::string_view schema, std::string_view role);
// Drops what the migrations made; the schema too, if nothing else is in it.
std::string drop_sql(std::string_view schema);
// Begins a migration: held to the end of its transaction, so that two programs do not migrate at one time.
std::string lock_sql();

// The calls that the store makes; see the functions. Parameters and results are binary.
std::string write_call(std::string_view schema);
std::string get_call(std::string_view schema);
std::string list_call(std::string_view schema);
std::string sweep_call(std::string_view schema);
std::string about_call(std::string_view schema);

}  // namespace once::stores::postgresql
