// The records of an event, each with its own text: keys are taken from what came, never from what was written anew.
#pragma once

#include <memory_resource>
#include <string_view>
#include <vector>

#include "text/json.hpp"

namespace once::lambda {

struct EventRecord {
  std::string_view text;      // As the event has it.
  text::json::Value lenient;  // Of two members with one name the last; for what must be known even if the text is bad.
};

// The members of `Records`. Trees live in the arena. `service` is for messages: "SQS". Throws FunctionError for what is
// no JSON object with an array of objects in it.
std::vector<EventRecord> event_records(std::string_view event, std::pmr::memory_resource& arena,
                                       std::string_view service);

// The text of an object's member, or empty. `object` is valid JSON.
std::string_view member_text(std::string_view object, std::string_view name);

// errors::invalid_event, with what to do about it.
[[noreturn]] void refuse_batch(std::string_view service, std::string_view why);

}  // namespace once::lambda
