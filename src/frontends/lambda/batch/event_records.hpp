// The records of an event, each with its original text, because keys are never taken from rewritten JSON.
#pragma once

#include <memory_resource>
#include <string_view>
#include <vector>

#include "text/json.hpp"

namespace once::lambda {

struct EventRecord {
  std::string_view text;  // The original text.
  text::json::Value
      lenient;  // Of two members with one name, has the last. For values that are needed even if the record is invalid.
};

struct EventRecords {
  std::vector<EventRecord> records;
  // From EventBridge Pipes, as a bare array. It names records differently in batchItemFailures: by messageId or eventID
  // (AWS, "Amazon EventBridge Pipes batching and concurrency").
  bool piped = false;
};

// The elements of `Records`, or of the event if it is an array. Trees live in the arena. `service` is for messages:
// "SQS". Throws FunctionError unless it is an array of objects.
EventRecords event_records(std::string_view event, std::pmr::memory_resource& arena, std::string_view service);

// The elements of the arrays in `records`, in their order: {"records":{"orders-0":[{...}]}}; or of the event if it is
// an array. `event` is set to its tree.
EventRecords grouped_records(std::string_view event, std::pmr::memory_resource& arena, std::string_view service,
                             text::json::Value& tree);

// The text of an object's member, or empty. `object` is valid JSON.
std::string_view member_text(std::string_view object, std::string_view name);

// Throws errors::invalid_event, with what to do about it.
[[noreturn]] void refuse_batch(std::string_view service, std::string_view why);

}  // namespace once::lambda
