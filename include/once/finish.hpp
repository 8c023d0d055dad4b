// How a finish or a step of a claim ended.
#pragma once

#include <cstdint>
#include <memory>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

// What became of a finish or a step.
struct Finish {
  // Whether the record was written, and whose it is otherwise.
  enum class Kind : std::uint8_t {
    recorded,    // Durable.
    superseded,  // The claim was lost and another result is stored. Give the caller that one: `record` has it.
    lost,        // The claim was lost and no result is stored. `record`: the present one, or null.
    unrecorded,  // Not written yet: `error` says why. The engine keeps trying while the lease lives.
    declined,    // complete() with a companion that was refused. `error`, unavailable: one of its conditions did not
               // hold; misuse: it can never be written. Nothing was or will be written. The claim is still ours: finish
               // it otherwise.
  };
  Kind kind = Kind::recorded;  // Says what `record` and `error` are.
  // recorded: the record as written. Its result may be offloaded or compressed (expand(), once/engine/compression.hpp).
  // Empty after a release that removed the record.
  std::shared_ptr<const Record> record = {};
  Error error = {};  // unrecorded, declined: why. lost: why the present record could not be read, if so.
};

using FinishDone = Callback<void(Finish&&)>;  // Called once, from any thread. Must not block and must not throw.

}  // namespace once
