// How a finish or a step of a claim ended.
#pragma once

#include <cstdint>
#include <memory>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

struct Finish {
  enum class Kind : std::uint8_t {
    recorded,    // Durable.
    superseded,  // The claim was lost and a result is stored: `record` has it, and it is what the caller must be given.
    lost,        // The claim was lost and no result is stored. `record` is what stands there, if anything does.
    unrecorded,  // Not written yet: `error` says why. The engine keeps trying while the lease lives.
    declined,  // complete() with a companion: `error` says what of the companion was refused. unavailable: a condition
               // of its did not hold; misuse: it can never be written. Nothing was written, nor will be. The claim is
               // still ours: finish it otherwise.
  };
  Kind kind = Kind::recorded;
  // recorded: as written, so that its result may be elsewhere or compressed (expand(), once/engine/compression.hpp);
  // empty after a release that left nothing.
  std::shared_ptr<const Record> record;
  Error error;
};

using FinishDone = Callback<void(Finish)>;

}  // namespace once
