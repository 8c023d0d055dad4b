// For each record of a queue or a stream: its key, what to do if no retry helps, and how it ended.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <once/compiler.hpp>

namespace once::queues {

// Where the key of a record comes from.
enum class KeySource : std::uint8_t {
  // SQS: the message id. Streams: the stream's ARN and the event id, because two streams can have the same id.
  id,
  // SQS FIFO queues: queue, group and MessageDeduplicationId. So one message of the sender is one operation for as long
  // as its result is kept. The queue itself remembers the id for only five minutes.
  deduplication_id,
  // The option `key` is JMESPath over the record, as in a Lambda event: "powertools_json(body).order_id". For SQS it
  // must not be empty: receiptHandle and ApproximateReceiveCount change with each receipt.
  record,
  // The option `key` is JMESPath over the record's content: the body of an SQS message, the decoded data of a Kinesis
  // record, the member `dynamodb` of a DynamoDB record ("NewImage.order_id.S").
  payload,
};

// What to do with a record that no retry can help.
enum class OnDeadEnd : std::uint8_t {
  // It comes again until the queue or the stream moves it to its dead-letter queue.
  leave,
  // Keep it for an operator, then count it as done. Its JSON becomes the step "record" of an unknown record, which does
  // not expire. The key is the record's id, in the scope of its keys + "/parked". `once ls --state unknown` finds it.
  // If it cannot be kept (no store, no room), it is left.
  park,
};

// How one record ended.
enum class RecordEnd : std::uint8_t {
  executed,        // The work ran, its result is durable.
  replayed,        // An earlier attempt did it.
  duplicate,       // Another record of this batch with the same key was done.
  unrecorded,      // The work ran, but its result could not be written. In a batch it counts as done.
  unprotected,     // The work ran without a claim, because the policy says so.
  failed,          // The work threw.
  stored_failure,  // An earlier attempt failed, and its failure was stored.
  conflict,        // Another attempt is running it.
  mismatch,        // Its key was used with another payload.
  poison,          // It cannot be read, has no key although the policy requires one, or the work threw PoisonRecord.
  unknown,         // An earlier attempt began it, and its outcome is not known.
  lost,            // The work ran but lost its claim, and no result is stored.
  error,           // The store failed, or the stored record cannot be read. The work did not run.
  blocked,         // Not begun: an earlier record of its order, or with its key, failed. See also lambda::Order.
  out_of_time,     // Not begun: the invocation ends too soon.
};

std::string_view to_string(RecordEnd end) noexcept;  // "executed" …

// The work throws it for a record that no retry can help. The option `on_poison` decides about the record.
// Policy::on_throw decides about its claim, as for every exception; a poller releases it.
class PoisonRecord : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace once::queues
