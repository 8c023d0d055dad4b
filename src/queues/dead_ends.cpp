#include "queues/dead_ends.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <once/error.hpp>

namespace once::queues {

namespace {

constexpr std::string_view kept_step = "record";

bool has_step(const Record& record, std::string_view name) {
  return std::ranges::any_of(record.steps, [&](const Step& step) { return step.name == name; });
}

}  // namespace

std::optional<std::string> park(Engine& engine, const std::string& scope, const KeyedRecord& keyed,
                                const std::string& why, const Policy& policy, const std::string& holder) {
  // The size of a record without its step, with failure and texts of greatest length. Above the store's limit a finish
  // drops the steps, and this step is all that matters.
  constexpr std::size_t room_for_the_rest = std::size_t{9} * 1024;
  const std::size_t most = engine.options().store->capabilities().max_record_bytes;
  if (keyed.json.size() + room_for_the_rest > most) {
    return "it is too large to keep: " + std::to_string(keyed.json.size()) + " bytes, in a store for records of " +
           std::to_string(most);
  }
  // Keeping may be retried under any policy, because it does not act.
  Policy keeping = policy;
  keeping.on_lapse = OnLapse::takeover;
  keeping.on_stored_failure = OnStoredFailure::replay;
  try {
    Begin begin = engine.begin(Request{.key = Key(scope + "/parked", keyed.name),
                                       .fingerprint = {},
                                       .policy = keeping,
                                       .holder = holder,
                                       .label = keyed.label,
                                       .label_from_payload = true});
    switch (begin.kind) {
      case Begin::Kind::claimed:
        break;
      case Begin::Kind::replayed:
      case Begin::Kind::stored_failure:
      case Begin::Kind::unknown:
        if (has_step(*begin.record, kept_step)) return std::nullopt;  // Kept before, perhaps decided since.
        return "the record of that name in the scope " + scope +
               "/parked does not hold it: after `once resolve --as released` this one can be parked";
      case Begin::Kind::mismatch:
      case Begin::Kind::conflict:
        return "another attempt is parking it now";
      case Begin::Kind::error:
        return begin.error.message;
    }
    Finish kept;
    if (!begin.claim.step(kept_step)) kept = begin.claim.add_step(std::string(kept_step), std::string(keyed.json));
    if (kept.kind == Finish::Kind::recorded) {
      kept = begin.claim.hold(why);
      if (kept.kind == Finish::Kind::recorded) return std::nullopt;
    } else {
      begin.claim.release("the record could not be parked");
    }
    return kept.error.message.empty() ? "the claim was lost" : kept.error.message;
  } catch (const Exception& error) {  // The name makes no valid key.
    return error.what();
  }
}

}  // namespace once::queues
