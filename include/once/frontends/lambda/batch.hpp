// Batches out of queues and streams: each record is an operation of its own, and only those that failed come again.
//
//   once::lambda::run(once::sqs::batch(engine, {.name = "orders"}, [](const once::sqs::Message& message,
//                                                                     once::Context& context) {
//     charge(message.body, context.derived_key("card"));
//   }));
//
// The event source mapping must have FunctionResponseTypes ReportBatchItemFailures. Without it the platform does not
// look at the response, takes every record for done, and those that failed are gone (AWS, "Handling errors for an SQS
// event source", "Configuring Lambda to process batch records with Kinesis").
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <once/codec.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/invocation.hpp>
#include <once/policy.hpp>
#include <once/queues/message.hpp>
#include <once/queues/record.hpp>
#include <once/result.hpp>
#include <once/time.hpp>

namespace once::lambda {

// Streams: which records follow each other strictly. Lambda asks again for everything from the first reported record of
// the batch on, whatever happened to later ones, so that those of other orders are replayed then. One without a key
// would run again: it is not begun (`blocked`) once a record before it is reported.
enum class Order : std::uint8_t {
  key,    // Kinesis: the partition key. DynamoDB: the item's key. As the platform itself keeps it.
  shard,  // The whole batch, one after another.
  none,
};

// Views are valid during the call.
struct RecordEvent {
  queues::RecordEnd end{};
  bool reported = false;  // It is among the batchItemFailures, and comes again.
  bool held = false;      // It is kept for a person.
  std::string_view id;    // Message id or sequence number: what is reported.
  std::string_view key;   // The stored key of its operation. Empty: it has none.
  std::string_view why;   // For people. Empty where the end says all.
};

// Called once a record, from whichever thread, several at once; must not block and must not throw. The engine's
// observer is told of claims, results and store errors besides.
using RecordObserver = std::function<void(const RecordEvent&)>;

struct BatchOptions {
  // As in IdempotentOptions: what the keys live in.
  std::string name;      // Empty: _HANDLER. Without '/'.
  std::string function;  // Empty: AWS_LAMBDA_FUNCTION_NAME.
  std::string scope;     // In place of EngineOptions::scope/FUNCTION/NAME.

  queues::KeySource key_source = queues::KeySource::id;
  std::string key;          // With KeySource::payload or record; empty: all of it, but for KeySource::record of SQS.
                            // Otherwise empty.
  std::string fingerprint;  // What a duplicate must have in common with the first, over the payload if that is the key
                            // source, or else over the record. Empty: nothing is compared.

  // Records at work at one time: 1 to 1000. Threads are started as they are needed, and end with the invocation.
  std::size_t parallel = 10;
  // No record is begun with less than this left of the invocation: 0 to 15 min. Longer than one record may take.
  Millis margin{1'000};

  queues::OnDeadEnd on_poison = queues::OnDeadEnd::report;
  queues::OnDeadEnd on_mismatch = queues::OnDeadEnd::report;
  queues::OnDeadEnd on_unknown = queues::OnDeadEnd::report;
  Order order = Order::key;  // Streams. Messages of a FIFO queue follow each other within their group, others do not.

  // What it leaves open is the engine's. What neither says: OnConflict::fail, and OnMissingKey::refuse, so that a
  // record without a key, or without anything that `fingerprint` could compare, is poison. Where the invocation has a
  // deadline the lease is what is left of it: within_deadline(). Nobody is waited for into the margin.
  std::optional<Policy> policy;
  std::optional<Environment> environment;  // As in IdempotentOptions. Disabled, all records run unprotected.
  RecordObserver observer;
};

namespace detail {

// What a handler gives, as the result that is kept for its operation.
template <class Handle, class Subject>
Result handled(Handle& handle, const Subject& subject, Context& context) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::is_invocable_v<Handle&, const Subject&, Context&>) {
      return handle(subject, context);
    } else {
      static_assert(std::is_invocable_v<Handle&, const Subject&>,
                    "once: the handler of a batch must be callable as handler(const Record&, once::Context&) or "
                    "handler(const Record&), with once::sqs::Message or once::streams::Change");
      return handle(subject);
    }
  };
  using Value = std::remove_cvref_t<decltype(call())>;
  if constexpr (std::is_void_v<Value>) {
    call();
    return {};
  } else {
    static_assert(std::is_same_v<Value, std::string>, "once: the handler of a batch returns void or std::string");
    return Result::inlined(call());
  }
}

}  // namespace detail

}  // namespace once::lambda

namespace once::sqs {

using lambda::BatchOptions;
using queues::KeySource;
using queues::OnDeadEnd;
using PoisonMessage = queues::PoisonRecord;

using MessageWork = std::function<Result(const Message&, Context&)>;

// The same as batch() below for a handler without its type.
lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work);

// A handler for the events of a queue. `handler` is called as handler(message) or handler(message, context), returns
// void or std::string (kept as the operation's result), and is called by several threads at once. What it throws fails
// its message, and no other.
//
// - Records run side by side, up to BatchOptions::parallel. In a FIFO queue those of one group follow each other, and
//   after a failure the rest of the group is reported without being begun. Records with one key in a batch run once.
// - Reported, so that they come again: those whose handler threw, which somebody else is at, whose claim was lost, for
//   which the store did not answer, which could not be begun in time. Not reported: done, now or before.
// - Without batch items an event gives an empty list. One that is none of SQS, or is no JSON: FunctionError of
//   errors::invalid_event, before anything is run.
//
// The engine must outlive the handler. Throws Exception(misuse) for options that do not fit, and without a scope.
template <class Handle>
lambda::Handler batch(Engine& engine, BatchOptions options, Handle handler) {
  return batch_of(engine, std::move(options),
                  [handler = std::move(handler)](const Message& message, Context& context) mutable {
                    return lambda::detail::handled(handler, message, context);
                  });
}

}  // namespace once::sqs

namespace once::streams {

using lambda::BatchOptions;
using lambda::Order;
using queues::KeySource;
using queues::OnDeadEnd;
using PoisonChange = queues::PoisonRecord;

// A record of Kinesis Data Streams or of DynamoDB Streams.
// https://docs.aws.amazon.com/lambda/latest/dg/with-kinesis.html, with-ddb.html
struct Change {
  enum class Source : std::uint8_t { kinesis, dynamodb };
  Source source = Source::kinesis;
  std::string event_id;
  std::string event_name;  // DynamoDB: "INSERT", "MODIFY", "REMOVE".
  std::string stream_arn;
  std::string sequence_number;

  std::string partition_key;  // Kinesis.
  std::string data;           // Kinesis: the bytes. Aggregates of the Kinesis Producer Library are one record.

  // DynamoDB: JSON with DynamoDB's types, {"id":{"N":"101"}}. Empty: the stream does not carry it. Views into `json`.
  std::string_view keys;
  std::string_view new_image;
  std::string_view old_image;

  std::string_view json;  // The record as the event has it. Valid during the call, like the views above.
};

using ChangeWork = std::function<Result(const Change&, Context&)>;

lambda::Handler batch_of(Engine& engine, BatchOptions options, ChangeWork work);

// The same as once::sqs::batch() for the events of a stream of Kinesis or DynamoDB: the records of one order
// (BatchOptions::order) follow each other, and after a failure the rest of it is reported. Set
// MaximumRetryAttempts or a maximum age and a destination for failures in the event source mapping: a record that fails
// for ever holds up its shard until then.
template <class Handle>
lambda::Handler batch(Engine& engine, BatchOptions options, Handle handler) {
  return batch_of(engine, std::move(options),
                  [handler = std::move(handler)](const Change& change, Context& context) mutable {
                    return lambda::detail::handled(handler, change, context);
                  });
}

}  // namespace once::streams
