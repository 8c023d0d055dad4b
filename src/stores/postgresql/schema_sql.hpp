// The tables and functions of the store, as SQL. @s@ stands for the quoted name of the schema.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <once/gate.hpp>

namespace once::stores::postgresql {

// What meta says. A program refuses a schema that has none of its functions, and `once table upgrade` brings an older
// one here.
inline constexpr int schema_version = 2;

// What programs call: those who may run operations need EXECUTE of each. With the types, where two have one name.
inline constexpr std::array<std::string_view, 8> functions = {
    "get_1",
    "write_1",
    "list_1",
    "sweep_1",
    "about_1",
    "finish_1",
    "finish_or_raise(text, text, bytea, text, interval)",
    "finish_or_raise(text, text, text, text, interval)",
};

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

// The mark of the gate as text (once/gate.hpp), or NULL.
std::string gate_mark_sql(std::string_view schema);
// Sets the mark, with the trigger that holds every program to it. In a transaction.
std::string gate_sql(std::string_view schema, const GateMark& mark);
// Lets this transaction write through the gate `filling`.
std::string let_fill_sql(const GateMark& filling);

// The calls that the store makes; see the functions. Parameters and results are binary.
std::string write_call(std::string_view schema);
// write_1 for any client library: parameters and results as text. One row: whether it was written, the time, the number
// of the transaction, and the record in the way as hexadecimal digits of its binary form.
std::string local_write_call(std::string_view schema);
std::string finish_call(std::string_view schema);  // Parameters as text, for any client library.
std::string get_call(std::string_view schema);
std::string list_call(std::string_view schema);
std::string sweep_call(std::string_view schema);
std::string about_call(std::string_view schema);

// A COMMIT that raises an error, Failure::is_other_transaction(), and commits nothing if `unless`, a condition in SQL,
// holds then; and that is synchronous whatever was set since the record was written. In one trip: a COMMIT is not
// executed after a statement that failed.
std::string commit_sql(std::string_view unless);

}  // namespace once::stores::postgresql
