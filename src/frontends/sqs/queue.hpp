// The part of SQS's JSON protocol that a poller uses.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_Operations.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/aws/transport.hpp>
#include <once/error.hpp>
#include <once/time.hpp>

namespace once::sqs {

inline constexpr std::size_t most_received = 10;              // Of one request.
inline constexpr Millis most_visibility{12 * 3'600 * 1'000};  // Of a message, from its receipt.

aws::Call get_queue_url(std::string_view name);
aws::Call get_queue_arn(std::string_view url);
aws::Call get_backlog(std::string_view url);
aws::Call receive(std::string_view url, std::size_t most, Millis wait, Millis visibility);
aws::Call delete_message(std::string_view url, std::string_view receipt_handle);
aws::Call hide_for(std::string_view url, std::string_view receipt_handle, Millis visibility);

// Empty: success. misuse: a retry does not help.
std::optional<Error> problem_of(const aws::Reply& reply, std::string_view queue);

// Read successful replies. Throw Exception(corrupt).
std::string read_queue_url(const aws::Reply& reply);
std::string read_queue_arn(const aws::Reply& reply);
struct QueueBacklog {
  std::uint64_t visible = 0;
  std::uint64_t hidden = 0;  // Received, and not deleted yet.
  std::uint64_t delayed = 0;
  std::string dead_letter_queue = {};  // Its name, or empty.
};
QueueBacklog read_backlog(const aws::Reply& reply);
struct ReceivedMessage {
  std::string id;
  std::string receipt_handle;
  std::string record;  // As in Lambda's event, JSON.
};
std::vector<ReceivedMessage> read_messages(const aws::Reply& reply, std::string_view queue_arn);

}  // namespace once::sqs
