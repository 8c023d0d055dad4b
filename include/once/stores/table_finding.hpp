// What a look at a store's table finds: for DynamoDB once/stores/dynamodb_table.hpp, for PostgreSQL
// once/stores/postgresql_schema.hpp.
#pragma once

#include <cstdint>
#include <string>

#include <once/compiler.hpp>

namespace once::stores {

// One thing that was checked.
struct TableFinding {
  // Whether something has to be done.
  enum class Grade : std::uint8_t {
    fine,  // As it should be.
    hint,  // It works, but something could be better, or could not be read.
    lack,  // Records cannot be kept, removed or listed correctly.
  };
  Grade grade = Grade::fine;  // A table with a lack must not be used.
  std::string name = {};      // Of what was checked, one word: "table".
  std::string text = {};      // What was found, and what to do next.
};

}  // namespace once::stores
