// The only encoder of records to parameters, and of rows back to records.
#pragma once

#include <string>
#include <string_view>

#include <once/record.hpp>
#include <once/store.hpp>

#include "stores/postgresql/parameters.hpp"

namespace once::stores::postgresql {

enum class Act : std::int16_t { insert = 1, replace = 2, remove = 3 };

// The parameters of write_1. `seen` is null for an insert.
Parameters write_parameters(Act act, const Record& record, const Seen* seen);
Parameters remove_parameters(std::string_view key, const Seen& seen);

// A row of the table, as a composite value. Throws Exception(corrupt), which names the key, if it is malformed.
Record read_row(std::string_view composite, const std::string& store);

}  // namespace once::stores::postgresql
