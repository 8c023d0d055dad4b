// A message of an SQS queue, from Lambda or from the queue itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/time.hpp>
#include <once/trace.hpp>

namespace once::sqs {

// Its texts are as SQS has them. https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
struct Message {
  // A message attribute of the sender.
  struct Attribute {
    std::string name = {};   // Unique in its message.
    std::string type = {};   // "String", "Number", "Binary", or one of these with '.' and more.
    std::string value = {};  // Binary: the bytes.
  };

  std::string id = {};                // MessageId: stays when the queue delivers it again; a redrive gives a new one.
  std::string body = {};              // UTF-8.
  std::string receipt_handle = {};    // New with each receipt.
  std::string queue_arn = {};         // Ends with ".fifo" for FIFO queues.
  std::string group_id = {};          // MessageGroupId, or empty. In standard queues it does not order messages.
  std::string deduplication_id = {};  // FIFO queues only.
  std::uint32_t receive_count = 0;    // How often it was received, from 1. 0: not known.
  Time sent{};                        // The epoch: not known.
  std::vector<Attribute> attributes = {};  // As they stand in `json`.
  std::string xray = {};                   // AWSTraceHeader, or empty.
  std::string_view json = {};              // The record as a Lambda event has it. Valid during the call.

  // Where the payload lies if an extended client has put it into S3: the SQS and SNS Extended Client Libraries, and
  // others with their format. The body is then only a pointer to it, or a notification of SNS with one. Key and
  // fingerprint cannot be taken from such a payload, and the work must fetch it. Empty: the payload is the body.
  struct S3Payload {
    std::string bucket = {};  // Empty: the attributes say that the payload is in S3, and the body does not say where.
    std::string key = {};     // Of the object.
  };
  [[nodiscard]] std::optional<S3Payload> s3_payload() const;  // Empty: the body is the payload.

  // Whether the message is from a FIFO queue, by queue_arn.
  [[nodiscard]] bool is_fifo() const noexcept { return std::string_view(queue_arn).ends_with(".fifo"); }
  // The sender's trace: its attributes traceparent and tracestate, otherwise X-Ray's. Null: none.
  [[nodiscard]] TracePtr trace() const;
  [[nodiscard]] const Attribute* attribute(std::string_view name) const noexcept;  // Null: no such attribute.
};

}  // namespace once::sqs
