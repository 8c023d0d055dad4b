// Batches of queues and streams: each record is its own operation, and only failed ones come again.
//
//   once::lambda::run(once::sqs::batch(engine, {.name = "orders"}, [](const once::sqs::Message& message,
//                                                                     once::Context& context) {
//     charge(message.body, context.derived_key("card"));
//   }));
//
// The event source mapping must have FunctionResponseTypes ReportBatchItemFailures. Without it the platform ignores the
// response and counts every record as done, so failed records are lost (AWS, "Handling errors for an SQS event source",
// "Configuring Lambda to process batch records with Kinesis", "Configuring error handling controls for Kafka event
// sources").
//
// Batches of EventBridge Pipes are taken too: the same records as a bare array. The pipe must invoke the function with
// REQUEST_RESPONSE, and needs no setting for partial failures (AWS, "Amazon EventBridge Pipes batching and
// concurrency").
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
#include <once/trace.hpp>

namespace once::lambda {

// Streams: which records run strictly in order. Lambda sends everything again from the first reported record of the
// batch, so later records of other orders are replayed. A record without a key would run again, so it is not begun
// (`blocked`) after an earlier record is reported.
enum class Order : std::uint8_t {
  key,    // Kinesis: the partition key. DynamoDB: the item's key. Kafka: the key within its partition; records without
          // one are in order among themselves. The platform itself keeps this order.
  shard,  // One by one: the whole batch of a stream, each partition of Kafka.
  none,   // None: records run in any order, several at once.
};

// How one record of a batch ended. Views are valid during the call.
struct RecordEvent {
  queues::RecordEnd end{};    // Whether the work ran, and why not.
  bool reported = false;      // It is in batchItemFailures, and comes again.
  bool parked = false;        // It is kept for an operator: see OnDeadEnd::park.
  std::string_view id = {};   // The reported message id, sequence number, event id, or Kafka's "orders-0/15".
  std::string_view key = {};  // The stored key of its operation, or empty.
  std::string_view why = {};  // For people. Empty if `end` is enough.
};

// Called once per record, from any thread, by several at once. Must not block and must not throw. Claims, results and
// store errors are reported to the engine's observer.
using RecordObserver = std::function<void(const RecordEvent&)>;

// How the records of a batch are run.
struct BatchOptions {
  // The scope of the keys, as in IdempotentOptions.
  std::string name = {};      // Empty: _HANDLER. Without '/'.
  std::string function = {};  // Empty: AWS_LAMBDA_FUNCTION_NAME.
  std::string scope = {};     // Instead of EngineOptions::scope/FUNCTION/NAME.

  queues::KeySource key_source = queues::KeySource::id;  // Where the key of a record comes from.
  std::string key = {};  // JMESPath, with KeySource::payload or record. Empty: all of it, which KeySource::record of
                         // SQS does not allow.
  std::string fingerprint = {};   // What a duplicate must have in common with the first one: JMESPath over the payload
                                  // if that is the key source, otherwise over the record. Empty: nothing is compared.
  bool allow_null_parts = false;  // In both: see keys::Recipe.

  // Fields that are left out of the record's input, as "card.number": see once/keys/input_filter.hpp. With
  // Policy::keep_input the input is the record's content, as with KeySource::payload. A parked record is kept whole.
  std::vector<std::string> input_without = {};

  // Records that run at once: 1 to 1000. Threads start as needed, and end with the invocation.
  std::size_t parallel = 10;
  // No record is begun with less than this left of the invocation: 0 to 15 min. Longer than one record may take.
  Millis margin{1'000};

  // These say what becomes of a record that ended as poison, as a mismatch, or as unknown. leave: it is reported.
  queues::OnDeadEnd on_poison = queues::OnDeadEnd::leave;
  queues::OnDeadEnd on_mismatch = queues::OnDeadEnd::leave;
  queues::OnDeadEnd on_unknown = queues::OnDeadEnd::leave;

  Order order = Order::key;  // For streams. FIFO queues keep the order within a group, standard queues none.

  // Empty members: the engine's. Default of on_conflict: fail. Default of on_missing_key: refuse, so a record without a
  // key, or from which `fingerprint` selects nothing, is poison. The lease is the time until the invocation's deadline,
  // if there is one: within_deadline(). A wait for another attempt ends before the margin.
  std::optional<Policy> policy = {};
  std::optional<Environment> environment = {};  // As in IdempotentOptions. Disabled, all records run unprotected.
  RecordObserver observer = {};                 // Empty: not called.
};

namespace detail {

// The return value of a handler, as the operation's result.
template <class Handle, class Subject>
Result handled(Handle& handle, const Subject& subject, Context& context) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::is_invocable_v<Handle&, const Subject&, Context&>) {
      return handle(subject, context);
    } else {
      static_assert(std::is_invocable_v<Handle&, const Subject&>,
                    "once: the handler of a batch must be callable as handler(const Record&, once::Context&) or "
                    "handler(const Record&), with once::sqs::Message, once::streams::Change or "
                    "once::kafka::Message");
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
using PoisonMessage = queues::PoisonRecord;  // Thrown for a message that no retry can help: see OnDeadEnd.

// What batch() makes of its handler. Called by several threads at once.
using MessageWork = std::function<Result(const Message&, Context&)>;

// The same as batch() below, for a handler without its type.
lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work);

// A handler for the events of a queue. `handler` is called as handler(message) or handler(message, context), by several
// threads at once. It returns void or std::string (stored as the operation's result). An exception fails only its own
// message.
//
// - Up to BatchOptions::parallel records run at once. In a FIFO queue the records of a group run in order, and after a
//   failure the rest of the group is reported without being begun. Records with the same key in a batch run once.
// - Reported, so that they come again: the handler threw, another attempt runs it, its claim was lost, the store did
//   not answer, or it could not begin in time. Not reported: done, now or earlier.
// - An event without records gives an empty list. An event that is not from SQS, or not JSON, throws FunctionError of
//   errors::invalid_event before anything runs.
//
// The engine must outlive the handler. Throws Exception(misuse) for invalid options, and without a scope.
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
using PoisonChange = queues::PoisonRecord;  // Thrown for a record that no retry can help: see OnDeadEnd.

// A record of Kinesis Data Streams or of DynamoDB Streams.
// https://docs.aws.amazon.com/lambda/latest/dg/with-kinesis.html, with-ddb.html
struct Change {
  // Which service the record is from.
  enum class Source : std::uint8_t {
    kinesis,   // A data stream of Kinesis.
    dynamodb,  // The stream of a DynamoDB table.
  };
  Source source = Source::kinesis;   // Says which of the other members are set.
  std::string event_id = {};         // "eventID": unique in its stream.
  std::string event_name = {};       // DynamoDB: "INSERT", "MODIFY", "REMOVE".
  std::string stream_arn = {};       // "eventSourceARN".
  std::string sequence_number = {};  // Grows within a shard: decimal digits, too many for a number.

  std::string partition_key = {};  // Kinesis.
  std::string data = {};           // Kinesis: the bytes. Aggregates of the Kinesis Producer Library are one record.

  // DynamoDB: JSON with DynamoDB's types, {"id":{"N":"101"}}. Empty: not in the stream. Views into `json`.
  std::string_view keys = {};       // The item's key.
  std::string_view new_image = {};  // The item after the change.
  std::string_view old_image = {};  // The item before it.

  std::string_view json = {};  // The record as in the event. Valid during the call, like the views above.
};

// What batch() makes of its handler. Called by several threads at once.
using ChangeWork = std::function<Result(const Change&, Context&)>;

// The same as batch() below, for a handler without its type.
lambda::Handler batch_of(Engine& engine, BatchOptions options, ChangeWork work);

// The same as once::sqs::batch(), for the events of a Kinesis or DynamoDB stream. The records of one order
// (BatchOptions::order) run in order, and after a failure the rest of it is reported. In the event source mapping set
// MaximumRetryAttempts or a maximum age, and a destination for failures: a record that always fails blocks its shard
// until then.
template <class Handle>
lambda::Handler batch(Engine& engine, BatchOptions options, Handle handler) {
  return batch_of(engine, std::move(options),
                  [handler = std::move(handler)](const Change& change, Context& context) mutable {
                    return lambda::detail::handled(handler, change, context);
                  });
}

}  // namespace once::streams

namespace once::kafka {

using lambda::BatchOptions;
using lambda::Order;
using queues::KeySource;
using queues::OnDeadEnd;
using PoisonMessage = queues::PoisonRecord;  // One that ends without its work: see OnDeadEnd.

// A record of Amazon MSK or another Kafka. https://docs.aws.amazon.com/lambda/latest/dg/with-msk.html
struct Message {
  // Kafka allows any name, several times.
  struct Header {
    std::string name = {};   // As it was sent.
    std::string value = {};  // The bytes.
  };
  std::string cluster = {};     // The ARN of the MSK cluster, otherwise the bootstrap servers as the event has them.
  std::string topic = {};       // Its name.
  std::uint32_t partition = 0;  // Of the topic, from 0.
  std::uint64_t offset = 0;     // In the partition.
  Time timestamp{};             // As the producer or the broker has set it.
  std::optional<std::string> key = {};    // The bytes, or empty.
  std::optional<std::string> value = {};  // The bytes. Empty: a tombstone.
  std::vector<Header> headers = {};       // In their order.
  std::string_view json = {};             // The record as in the event. Valid during the call.

  [[nodiscard]] const Header* header(std::string_view name) const noexcept;  // The first; null: none.
  // The producer's trace, from its headers traceparent and tracestate. Null: none.
  [[nodiscard]] TracePtr trace() const;
};

using MessageWork = std::function<Result(const Message&, Context&)>;  // What batch() makes of its handler.

// For batch().
lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work);

// The same as once::sqs::batch(), for the events of a Kafka cluster. Differences:
//
// - KeySource::id: cluster, topic, partition, offset and timestamp. The offsets of a topic that was made again repeat,
//   its timestamps do not. KeySource::payload: the value; of a tombstone, `null`. There is no deduplication id.
// - The records of one order (BatchOptions::order) run in order, and after a failure the rest of it is reported.
// - Partial failures need provisioned mode, FunctionResponseTypes ReportBatchItemFailures, and a limit of attempts or
//   age with a destination for failures: a record that always fails blocks its partition until then.
// - EventBridge Pipes cannot repeat single records of Kafka. If one is to come again, the handler throws FunctionError
//   of errors::records_failed, and the whole batch comes again.
template <class Handle>
lambda::Handler batch(Engine& engine, BatchOptions options, Handle handler) {
  return batch_of(engine, std::move(options),
                  [handler = std::move(handler)](const Message& message, Context& context) mutable {
                    return lambda::detail::handled(handler, message, context);
                  });
}

}  // namespace once::kafka
