// An SQS message as Lambda writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/queues/message.hpp>
#include <once/queues/record.hpp>

#include "queues/keyed_record.hpp"

namespace once::sqs {

// Throws Exception(misuse) for a record that cannot be read strictly: names that occur twice, a body that is not a
// string. Message::json is `record`.
Message read_message(std::string_view record);

// For a message whose payload lies in S3, also within a notification of SNS. Empty for others.
std::optional<queues::Elsewhere> payload_elsewhere(const Message& message);

// The name of KeySource::deduplication_id: the queue's name, the group and the deduplication id, joined without
// collisions. The group is in it because a queue may deduplicate by group (DeduplicationScope), which the message does
// not show. A sender that repeats a message repeats its group.
std::string deduplication_name(const Message& message);

// Whether the key is still the same when the message was moved back from a dead-letter queue. Then it is a new message:
// its id and receipt handle differ, and its attributes may, except the group. A key that reads one of these, in any
// way, does not survive. Throws Exception(misuse) for a key that is no JMESPath.
bool survives_redrive(queues::KeySource source, std::string_view key);

// Throws Exception(misuse) unless the key survives a redrive: under OnLapse::hold and OnThrow::hold, an unknown message
// that is dead-lettered and moved back would run again.
void check_hold(queues::KeySource source, std::string_view key);

// Throws Exception(misuse) for keys that differ for each receipt of a message, because the record contains the receipt.
void check_key(queues::KeySource source, std::string_view key);

}  // namespace once::sqs
