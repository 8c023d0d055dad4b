// One record to claim: its name and its key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/decide.hpp>
#include <once/fingerprint.hpp>
#include <once/key.hpp>
#include <once/keys/input_filter.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/queues/record.hpp>
#include <once/trace.hpp>

namespace once::queues {

struct KeyedRecord {
  std::string id;           // The reported id.
  std::string name;         // Names the record, independent of its key.
  std::string order;        // Records with the same order run one after another. Empty: no order.
  std::optional<Key> key;   // Empty: no key, or see `poison`.
  std::string label;        // Request::label.
  Fingerprint fingerprint;  // Empty: not compared.
  TracePtr trace = {};      // Of who sent it. Null: none.
  InputPtr input = {};      // Request::input.
  std::string poison;       // Why the record cannot be read, or empty.
  std::string_view json;    // The record's own text.
};

// How records get their keys.
struct KeyRule {
  std::string scope;
  KeySource source = KeySource::id;
  std::string expression;                       // With KeySource::record or payload; empty: all of it.
  std::string fingerprint;                      // Empty: nothing is compared.
  bool required = true;                         // An expression that selects nothing makes poison.
  bool allow_null_parts = false;                // As in keys::Recipe.
  bool keep_input = false;                      // The payload is the input.
  std::vector<std::string> input_without = {};  // Of it.
};

// For a record whose payload is not in it, only where it is: the same record as if its payload were elsewhere. A key or
// a fingerprint that differs between the two would be one of the place, which is new each time the payload is sent.
struct Elsewhere {
  std::string where;  // For people: "s3://bucket/key".
  std::string record;
  std::string payload;
};

class RecordKeys {
 public:
  // Throws Exception(misuse) for an invalid rule.
  explicit RecordKeys(KeyRule rule);

  // Sets key, label, fingerprint, input and poison. `name`: the key of KeySource::id, or of deduplication_id if the
  // caller has it. If the payload is `elsewhere`, a key or fingerprint that needs it makes poison. Thread-safe.
  void take(KeyedRecord& keyed, std::string_view name, std::string_view record, std::string_view payload,
            const std::optional<Elsewhere>& elsewhere = std::nullopt) const;

  [[nodiscard]] const std::string& scope() const noexcept { return scope_; }

 private:
  void derive(KeyedRecord& keyed, std::string_view name, std::string_view record, std::string_view payload) const;
  [[nodiscard]] bool needs_payload(const KeyedRecord& keyed, std::string_view name, const Elsewhere& elsewhere) const;

  const std::string scope_;
  const KeySource source_;
  std::optional<keys::KeyDeriver> deriver_;  // With an expression for the key.
  std::optional<keys::KeyDeriver> checker_;  // With a fingerprint expression only.
  const bool keep_input_;
  const keys::InputFilter input_;
};

}  // namespace once::queues
