// What batches of all sources share: options made good, keys, and the run of one batch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/keys/key_deriver.hpp>

namespace once::lambda {

// One record, ready to be run.
struct BatchItem {
  std::string id;           // What is reported.
  std::string name;         // Names the record by itself, wherever its key is taken from.
  std::string order;        // Records with one order follow each other. Empty: no order.
  std::optional<Key> key;   // Empty: it has none, or `poison` says why none can be had.
  Fingerprint fingerprint;  // Empty: not compared.
  std::string poison;       // Why the record cannot be read. Empty: it can.
  bool streamed = false;    // It comes again, done or not, if one before it is reported.
  std::string_view json;    // The record's own text.
  std::function<Result(Context&)> work;
};

// Of Begin or Outcome with the kind `error`: only the result could not be fetched from where it was offloaded, and a
// batch does not need it.
bool is_done(const std::shared_ptr<const Record>& record) noexcept;
bool has_failed(const std::shared_ptr<const Record>& record) noexcept;

class Batch {
 public:
  // Throws Exception(misuse) for options that do not fit.
  Batch(Engine& engine, BatchOptions options);

  // Fills key, fingerprint and poison. `name` is the key of KeySource::id, or of deduplication_id where the caller
  // knows it.
  void take_key(BatchItem& item, std::string_view name, std::string_view record, std::string_view payload) const;

  // Runs the items and gives the response.
  [[nodiscard]] std::string run(std::vector<BatchItem> items, const Invocation& invocation) const;

  // Keeps the record for a person, under its own name: its key may be somebody else's, or not to be had. Gives what
  // went wrong; the record must come again then.
  [[nodiscard]] std::optional<std::string> hold(const BatchItem& item, const std::string& why, const Policy& policy,
                                                const std::string& holder) const;

  [[nodiscard]] const BatchOptions& options() const noexcept { return options_; }

 private:
  class Run;

  Engine& engine_;
  BatchOptions options_;
  Policy policy_;
  bool disabled_ = false;                    // ONCE_DISABLED: everything is run, and nothing claimed.
  std::optional<keys::KeyDeriver> deriver_;  // With an expression for the key.
  std::optional<keys::KeyDeriver> checker_;  // With a fingerprint expression only.
};

}  // namespace once::lambda
