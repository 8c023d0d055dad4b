#include "frontends/sqs/queue.hpp"

#include <initializer_list>
#include <utility>

#include "aws/service_error.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"

namespace once::sqs {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;

// Values are JSON already.
std::string object_of(std::initializer_list<std::pair<std::string_view, std::string>> members) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    if (out.size() > 1) out += ',';
    out += json::quoted(name) + ":" + value;
  }
  return out + "}";
}

std::string seconds_of(Millis span) { return std::to_string(std::chrono::ceil<std::chrono::seconds>(span).count()); }

Value parse_reply(const aws::Reply& reply, std::pmr::memory_resource& arena) {
  try {
    const Value tree = json::parse(reply.body, {.unique_names = false, .exact_numbers = false, .lone_surrogates = true},
                                   arena, "the answer");
    if (tree.kind() == Kind::object) return tree;
  } catch (const Exception& error) {
    throw Exception(ErrorKind::corrupt, std::string("the answer of SQS cannot be read: ") + error.what());
  }
  throw Exception(ErrorKind::corrupt, "the answer of SQS is not a JSON object");
}

std::string text_in(const Value& object, std::string_view name) {
  const Value value = object.member(name);
  if (value.kind() != Kind::string || value.text().empty()) {
    throw Exception(ErrorKind::corrupt, "the answer of SQS has no '" + std::string(name) + "'");
  }
  return std::string(value.text());
}

// {"StringValue":"t-1","DataType":"String"} -> {"stringValue":"t-1","dataType":"String"}
std::string lambda_attributes(const Value& attributes) {
  std::string out = "{";
  if (attributes.kind() == Kind::object) {
    for (const json::Member& member : attributes.members()) {
      if (out.size() > 1) out += ',';
      out += json::quoted(member.name) + ":{";
      bool first = true;
      for (const auto& [theirs, lambdas] : {std::pair<std::string_view, std::string_view>{"StringValue", "stringValue"},
                                            {"BinaryValue", "binaryValue"},
                                            {"DataType", "dataType"}}) {
        const Value value = member.value.member(theirs);
        if (value.is_null()) continue;
        out += (first ? "" : ",") + json::quoted(lambdas) + ":" + json::written(value);
        first = false;
      }
      out += '}';
    }
  }
  return out + "}";
}

}  // namespace

aws::Call get_queue_url(std::string_view name) {
  return {.operation = "GetQueueUrl", .body = object_of({{"QueueName", json::quoted(name)}}), .repeatable = true};
}

aws::Call get_queue_arn(std::string_view url) {
  return {.operation = "GetQueueAttributes",
          .body = object_of({{"QueueUrl", json::quoted(url)}, {"AttributeNames", R"(["QueueArn"])"}}),
          .repeatable = true};
}

aws::Call get_backlog(std::string_view url) {
  return {.operation = "GetQueueAttributes",
          .body = object_of({{"QueueUrl", json::quoted(url)}, {"AttributeNames", R"(["All"])"}}),
          .repeatable = true};
}

aws::Call receive(std::string_view url, std::size_t most, Millis wait, Millis visibility) {
  // Not repeatable: messages of a lost answer are hidden for a while, and a new request gets the next ones.
  return {.operation = "ReceiveMessage",
          .body = object_of({{"QueueUrl", json::quoted(url)},
                             {"MaxNumberOfMessages", std::to_string(most)},
                             {"WaitTimeSeconds", seconds_of(wait)},
                             {"VisibilityTimeout", seconds_of(visibility)},
                             // The old and the present name.
                             {"AttributeNames", R"(["All"])"},
                             {"MessageSystemAttributeNames", R"(["All"])"},
                             {"MessageAttributeNames", R"(["All"])"}}),
          .repeatable = false};
}

aws::Call delete_message(std::string_view url, std::string_view receipt_handle) {
  return {.operation = "DeleteMessage",
          .body = object_of({{"QueueUrl", json::quoted(url)}, {"ReceiptHandle", json::quoted(receipt_handle)}}),
          .repeatable = true};
}

aws::Call hide_for(std::string_view url, std::string_view receipt_handle, Millis visibility) {
  return {.operation = "ChangeMessageVisibility",
          .body = object_of({{"QueueUrl", json::quoted(url)},
                             {"ReceiptHandle", json::quoted(receipt_handle)},
                             {"VisibilityTimeout", seconds_of(visibility)}}),
          .repeatable = true};
}

std::optional<Error> problem_of(const aws::Reply& reply, std::string_view queue) {
  if (reply.error) return reply.error;
  if (reply.status >= 200 && reply.status < 300) return std::nullopt;
  const aws::ServiceError told = aws::read_service_error({.status = reply.status, .headers = {}, .body = reply.body});
  const std::string what = "SQS refused (" + std::to_string(reply.status) + " " + told.code +
                           (told.message.empty() ? "" : ": " + told.message) + ") for the queue '" +
                           std::string(queue) + "'";
  // The names of the JSON protocol, and those of the query protocol that some servers keep.
  if (told.code == "QueueDoesNotExist" || told.code == "AWS.SimpleQueueService.NonExistentQueue") {
    return Error{ErrorKind::misuse, what + ". Check the name, region and account; the queue may have been deleted."};
  }
  if (told.code == "OverLimit" || told.code == "KmsThrottled" || told.code == "RequestThrottled") {
    return Error{ErrorKind::unavailable, what};
  }
  return Error{ErrorKind::misuse, what};
}

std::string read_queue_url(const aws::Reply& reply) {
  std::pmr::monotonic_buffer_resource arena;
  return text_in(parse_reply(reply, arena), "QueueUrl");
}

std::string read_queue_arn(const aws::Reply& reply) {
  std::pmr::monotonic_buffer_resource arena;
  return text_in(parse_reply(reply, arena).member("Attributes"), "QueueArn");
}

QueueBacklog read_backlog(const aws::Reply& reply) {
  std::pmr::monotonic_buffer_resource arena;
  const Value attributes = parse_reply(reply, arena).member("Attributes");
  const auto number = [&](const char* name) {
    const std::string text = text_in(attributes, name);
    const auto value = text::parse_whole<std::uint64_t>(text);
    if (!value) throw Exception(ErrorKind::corrupt, std::string("the answer of SQS has no number for ") + name);
    return *value;
  };
  QueueBacklog backlog{.visible = number("ApproximateNumberOfMessages"),
                       .hidden = number("ApproximateNumberOfMessagesNotVisible"),
                       .delayed = number("ApproximateNumberOfMessagesDelayed"),
                       .dead_letter_queue = {}};
  if (const Value redrive = attributes.member("RedrivePolicy"); redrive.kind() == Kind::string) {
    std::pmr::monotonic_buffer_resource inner;
    aws::Reply policy;
    policy.body = redrive.text();
    const std::string arn = text_in(parse_reply(policy, inner), "deadLetterTargetArn");
    backlog.dead_letter_queue = arn.substr(arn.rfind(':') + 1);
  }
  return backlog;
}

std::vector<ReceivedMessage> read_messages(const aws::Reply& reply, std::string_view queue_arn) {
  std::pmr::monotonic_buffer_resource arena;
  const Value messages = parse_reply(reply, arena).member("Messages");
  std::vector<ReceivedMessage> out;
  if (messages.kind() != Kind::array) return out;
  for (const Value& each : messages.elements()) {
    const Value system = each.member("Attributes");
    ReceivedMessage received{
        .id = text_in(each, "MessageId"), .receipt_handle = text_in(each, "ReceiptHandle"), .record = {}};
    received.record = object_of({{"messageId", json::quoted(received.id)},
                                 {"receiptHandle", json::quoted(received.receipt_handle)},
                                 {"body", json::written(each.member("Body"))},
                                 {"attributes", system.kind() == Kind::object ? json::written(system) : "{}"},
                                 {"messageAttributes", lambda_attributes(each.member("MessageAttributes"))},
                                 {"eventSource", R"("aws:sqs")"},
                                 {"eventSourceARN", json::quoted(queue_arn)}});
    out.push_back(std::move(received));
  }
  return out;
}

}  // namespace once::sqs
