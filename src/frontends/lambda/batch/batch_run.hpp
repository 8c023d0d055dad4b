// Shared by batches of all sources: completed options, keys, and the run of one batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/batch.hpp>

#include "queues/keyed_record.hpp"

namespace once::lambda {

// One record, ready to be run.
struct BatchItem : queues::KeyedRecord {
  bool streamed = false;   // It comes again, even if done, if an earlier one is reported.
  std::string identifier;  // JSON, the itemIdentifier of batchItemFailures. Empty: `id`, as a string.
  std::function<Result(Context&)> work;
};

class Batch {
 public:
  // Throws Exception(misuse) for invalid options.
  Batch(Engine& engine, BatchOptions options);

  // As RecordKeys::take(), if anything is claimed.
  void take_key(BatchItem& item, std::string_view name, std::string_view record, std::string_view payload,
                const std::optional<queues::Elsewhere>& elsewhere = std::nullopt) const;

  // What the source can send again.
  enum class Again : std::uint8_t {
    records,  // Those in batchItemFailures.
    batch,    // Only all records: throws FunctionError(records_failed) if one is reported.
  };

  // Runs the items and returns the response.
  [[nodiscard]] std::string run(std::vector<BatchItem> items, const Invocation& invocation,
                                Again again = Again::records) const;

  [[nodiscard]] const BatchOptions& options() const noexcept { return options_; }

  [[nodiscard]] bool holds() const noexcept {
    return policy_.on_lapse == OnLapse::hold || policy_.on_throw == OnThrow::hold;
  }

 private:
  class Run;

  Engine& engine_;
  BatchOptions options_;
  Policy policy_;
  bool disabled_ = false;  // ONCE_DISABLED: everything runs, nothing is claimed.
  std::optional<queues::RecordKeys> keys_;
};

}  // namespace once::lambda
