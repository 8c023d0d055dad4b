// Operations for the writer, and how callers get the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <once/store.hpp>

#include "platform/completion_loop.hpp"
#include "stores/sqlite/rows.hpp"

namespace once::stores::sqlite {

class WritableFile;

struct Operation {
  enum class Kind : std::uint8_t { insert, replace, remove, sweep, cut_log, act };

  Operation* next = nullptr;
  Kind kind = Kind::insert;
  RecordPtr record;  // remove: only its key.
  Encoded encoded;
  Seen seen;
  std::shared_ptr<const Companion> companion;  // replace: written with it. Null: none.
  Done done;
  std::shared_ptr<CompletionLoop> completes_on;  // Where it completes. Null: on the writer's thread.
  Answer answer;
  bool is_settled = false;  // The answer stands, and the operation is not carried out again.

  // sweep, cut_log and act, which are not part of a group.
  Time now{};
  std::size_t limit = 0;
  Callback<void(SweepAnswer)> swept;
  SweepAnswer sweep_answer;
  std::function<void(WritableFile&)> act;  // In a transaction of its own.
  bool is_second_try = false;              // After room was made for the log.
};
using OperationPtr = std::unique_ptr<Operation>;
using Group = std::vector<OperationPtr>;

// Completes the operations with their answers, and empties the group. Each loop gets its operations in one message; the
// others complete here, after these. If a completion forks, the child completes none: the parent does.
void finish(Group& group);

}  // namespace once::stores::sqlite
