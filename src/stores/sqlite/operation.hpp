// What callers ask the writer for, and how they get their answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <once/store.hpp>

#include "platform/home.hpp"
#include "stores/sqlite/rows.hpp"

namespace once::stores::sqlite {

struct Operation {
  enum class Kind : std::uint8_t { insert, replace, remove, sweep };

  Operation* next = nullptr;
  Kind kind = Kind::insert;
  RecordPtr record;  // remove: only its key.
  Encoded encoded;
  Seen seen;
  Done done;
  std::shared_ptr<Home> home;  // Where it is completed; null: on the writer's thread.
  Answer answer;

  // sweep
  Time now{};
  std::size_t limit = 0;
  Callback<void(SweepAnswer)> swept;
  SweepAnswer sweep_answer;
  bool is_second_try = false;  // After room was made for the log.
};
using OperationPtr = std::unique_ptr<Operation>;
using Group = std::vector<OperationPtr>;

// Gives the answers that are in the operations, and leaves the group empty. Whoever has a home gets all that is its own
// there, by one message; the rest is completed here, after these. In the child of a completion that forks none is
// completed any more: the parent does that.
void finish(Group& group);

}  // namespace once::stores::sqlite
