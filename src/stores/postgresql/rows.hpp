// The only encoder of records to parameters, and of rows back to records.
#pragma once

#include <string>
#include <string_view>

#include <once/record.hpp>
#include <once/store.hpp>
#include <once/stores/sql.hpp>

#include "stores/postgresql/parameters.hpp"

namespace once::stores::postgresql {

enum class Act : std::int16_t { insert = 1, replace = 2, remove = 3 };

// The parameters of write_1. `seen` is null for an insert. clear_allowed: PostgresqlOptions::allow_clear.
Parameters write_parameters(Act act, const Record& record, const Seen* seen, bool clear_allowed);
Parameters remove_parameters(std::string_view key, const Seen& seen);

// Store::finish_statement().
SqlStatement finish_statement(const Record& record, std::string_view schema);

// A row of the table, as a composite value. Throws Exception(corrupt), which names the key, if it is malformed.
Record read_row(std::string_view composite, const std::string& store);

}  // namespace once::stores::postgresql
