// What is said of each record of a queue or a stream: what its key is, what becomes of one that no retry mends, and how
// it ended.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <once/compiler.hpp>

namespace once::queues {

// What names the operation of a record.
enum class KeySource : std::uint8_t {
  // SQS: the message id. Streams: the event id, with the stream's ARN before it, as two streams can give one id.
  id,
  // SQS FIFO queues: queue, group and MessageDeduplicationId, so that what the sender calls one message is one
  // operation for as long as results are kept, and not only for the five minutes that the queue remembers it.
  deduplication_id,
  // The option `key` is JMESPath over the record, as a Lambda event has it: "powertools_json(body).order_id". For SQS
  // it
  // must not be empty: a record has another receiptHandle and ApproximateReceiveCount with each receipt.
  record,
  // The option `key` is JMESPath over what the record carries: the body of an SQS message, the data of a Kinesis record
  // (decoded), the member `dynamodb` of a DynamoDB record ("NewImage.order_id.S").
  payload,
};

// What becomes of a record that trying again will not mend.
enum class OnDeadEnd : std::uint8_t {
  // It comes again until the queue or the stream gives it up: a dead-letter queue then has it.
  report,
  // It counts as done, and is kept for a person first: its JSON is the step "record" of a record with outcome unknown,
  // which never expires, under the record's id in the scope of its keys + "/held". `once ls --state unknown` finds it.
  // A
  // record that cannot be kept, for want of a store or of room, is reported.
  hold,
};

// How it ended with one record.
enum class RecordEnd : std::uint8_t {
  executed,        // The work ran, its result is durable.
  replayed,        // It was done before.
  duplicate,       // Another record of this batch has the same key, and was done.
  unrecorded,      // The work ran, its result could not be written. In a batch it counts as done.
  unprotected,     // The work ran without a claim, because policy says so.
  failed,          // The work threw.
  stored_failure,  // It failed before, and policy keeps failures.
  conflict,        // Another caller is at it now.
  mismatch,        // Its key was used with another payload.
  poison,          // It cannot be read, has no key where policy wants one, or the work threw PoisonRecord.
  unknown,         // It was started before, and nobody knows how that ended.
  lost,            // The work ran and lost its claim; no result is stored.
  store_error,     // The store did not answer. Nothing was run.
  blocked,         // Not begun: a record before it in its order, or with its key, failed. Or see lambda::Order.
  out_of_time,     // Not begun: the invocation ends too soon.
};

std::string_view to_string(RecordEnd end) noexcept;

// Thrown by the work for a record that no other attempt will mend: the option `on_poison` says what becomes of it. Its
// claim gets what Policy::on_throw says, as with every exception; a poller releases it.
class PoisonRecord : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace once::queues
