#include "queues/keyed_record.hpp"

#include <utility>

#include <once/error.hpp>

namespace once::queues {

RecordKeys::RecordKeys(KeyRule rule)
    : scope_(std::move(rule.scope)), source_(rule.source), keep_input_(rule.keep_input), input_(rule.input_without) {
  if (source_ == KeySource::record || source_ == KeySource::payload) {
    deriver_.emplace(keys::Recipe{.scope = scope_,
                                  .expression = std::move(rule.expression),
                                  .fingerprint = std::move(rule.fingerprint),
                                  .hash = {},
                                  .require_key = rule.required,
                                  .allow_null_parts = rule.allow_null_parts});
    return;
  }
  if (!rule.expression.empty()) {
    throw Exception(ErrorKind::misuse, "the option `key` needs KeySource::record or KeySource::payload");
  }
  if (!rule.fingerprint.empty()) {
    checker_.emplace(keys::Recipe{.scope = scope_,
                                  .fingerprint = std::move(rule.fingerprint),
                                  .require_key = rule.required,
                                  .allow_null_parts = rule.allow_null_parts});
  }
}

void RecordKeys::derive(KeyedRecord& keyed, std::string_view name, std::string_view record,
                        std::string_view payload) const {
  if (deriver_) {
    keys::Derived derived = deriver_->derive(source_ == KeySource::payload ? payload : record);
    keyed.key = std::move(derived.key);
    keyed.label = std::move(derived.label);
    keyed.fingerprint = derived.fingerprint;
  } else {
    keyed.key.emplace(scope_, name);
    keyed.label = name;
    if (checker_) keyed.fingerprint = checker_->fingerprint(record);
  }
}

bool RecordKeys::needs_payload(const KeyedRecord& keyed, std::string_view name, const Elsewhere& elsewhere) const {
  if (!deriver_ && !checker_) return false;
  if (!keyed.key || (checker_ && keyed.fingerprint.empty())) return true;  // It may be in the payload.
  KeyedRecord moved;
  derive(moved, name, elsewhere.record, elsewhere.payload);
  return moved.key != keyed.key || !(moved.fingerprint == keyed.fingerprint);
}

void RecordKeys::take(KeyedRecord& keyed, std::string_view name, std::string_view record, std::string_view payload,
                      const std::optional<Elsewhere>& elsewhere) const {
  try {
    derive(keyed, name, record, payload);
    if (elsewhere && needs_payload(keyed, name, *elsewhere)) {
      throw Exception(ErrorKind::misuse, "the record has only where its payload is");
    }
    if (keep_input_) keyed.input = input_(payload);
  } catch (const Exception& error) {
    keyed.key.reset();
    keyed.poison = error.what();
    if (elsewhere) {
      keyed.poison = "the payload is not in the message but in " + elsewhere->where +
                     ", so no key or fingerprint can be taken from it: take both from what the message itself has, "
                     "such as its id or an attribute (" +
                     keyed.poison + ")";
    }
  }
}

}  // namespace once::queues
