// Key expressions for the events of AWS services, for IdempotentOptions::key and for batches. Each selects what is the
// same in every delivery of an event. From an event of another kind it selects nothing (no key).
//
//   once::lambda::idempotent(engine, {.key = std::string(once::lambda::recipes::event_bridge.key)}, work)
//
// docs/lambda-events.md says for each what AWS promises, and what changes in a second delivery. The example events are
// in tests/lambda/events.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <once/compiler.hpp>

namespace once::lambda::recipes {

// What an expression is over. Records of a batch are operations of their own, because a retry may have other batches.
enum class Over : std::uint8_t {
  event,    // For once::lambda::idempotent().
  record,   // KeySource::record of once::sqs::batch(), once::streams::batch() and once::kafka::batch().
  payload,  // KeySource::payload of the same, and of `once sqs`.
};

// The expressions for one service's events.
struct Recipe {
  std::string_view name = {};         // "EventBridge". Its example event is tests/lambda/events/<file>.json.
  std::string_view file = {};         // "event_bridge".
  std::string_view key = {};          // JMESPath.
  std::string_view fingerprint = {};  // JMESPath. Empty: the key is enough.
  Over over = Over::event;            // What the expressions are over.
};

// The event's id, which retries and replays from an archive keep (AWS, "EventBridge event structure").
inline constexpr Recipe event_bridge{"EventBridge", "event_bridge", "\"detail-type\" && id && [source, id]",
                                     "[\"detail-type\", detail]"};

// Lambda gets one message at a time (AWS, "Invoking Lambda functions with Amazon SNS notifications").
inline constexpr Recipe sns{"SNS", "sns", "Records[?Sns.MessageId].Sns.[TopicArn, MessageId]", "Records[].Sns.Message"};

// Notifications have no id. The sequencer distinguishes the writes of one object. Events without one (restores,
// tagging, life cycle) have the time and the request that caused them (AWS, "Event message structure"). `null` stands
// for a part that an event may lack: see keys::Recipe::allow_null_parts.
inline constexpr Recipe s3{
    "S3", "s3",
    "Records[?s3.object.key].[s3.bucket.name, s3.object.key, s3.object.versionId || `null`, eventName, "
    "s3.object.sequencer || `null`, eventTime, responseElements.\"x-amz-request-id\"]",
    ""};

// eventID is unique within its stream.
inline constexpr Recipe dynamodb_stream{"DynamoDB stream", "dynamodb_stream", "eventID && [eventSourceARN, eventID]",
                                        "", Over::record};

// Shard and sequence number.
inline constexpr Recipe kinesis{"Kinesis stream", "kinesis", "eventID && [eventSourceARN, eventID]", "", Over::record};

// Every delivery of a message has its id. A message that is sent twice has two ids.
inline constexpr Recipe sqs{"SQS", "sqs", "messageId && [eventSourceARN, messageId]", "", Over::record};

// The sender's id of a message. The queue itself detects duplicates for only five minutes.
inline constexpr Recipe sqs_fifo{"SQS FIFO", "sqs_fifo",
                                 "attributes.MessageDeduplicationId && [eventSourceARN, attributes.MessageGroupId, "
                                 "attributes.MessageDeduplicationId]",
                                 "", Over::record};

// A notification of SNS in a queue's message. SNS may deliver a notification more than once, each time as another
// message, with another message id. With raw message delivery the body has no ids: use a field of it.
inline constexpr Recipe sns_in_sqs{"SNS in SQS", "sns_in_sqs", "TopicArn && MessageId && [TopicArn, MessageId]",
                                   "Message", Over::payload};

// Amazon MSK and other Kafkas. The offsets of a topic that was made again repeat, its timestamps do not. The cluster is
// not in the record: a function of two clusters needs a name for each (BatchOptions::name), or KeySource::id.
inline constexpr Recipe kafka{"Kafka", "kafka", "topic && [topic, partition, offset, timestamp]", "", Over::record};

// For a task whose Parameters add "once": {"execution.$": "$$.Execution.Id", "state.$": "$$.State.Name", "entered.$":
// "$$.State.EnteredTime"}, and in a Map state "item.$": "$$.Map.Item.Index". Retries of the state keep all of them.
inline constexpr Recipe step_functions{"Step Functions", "step_functions",
                                       "once.execution && once.[execution, state, entered, item || `null`]", "input"};

// For work that returns the proxy response itself. once::lambda::http() does more: it reads the header's name in any
// case, answers errors, and knows all the ways in which AWS distinguishes clients.
//
// These expressions identify the client by values that AWS has verified and that a retry has again. They do not use
// Authorization: its token is renewed, or its signature is new for each request, so a retry would run again. An event
// without such a value selects nothing. If your clients have another stable value, such as headers."x-api-key", write
// an expression with it.
//
// A Lambda authorizer's principalId, the subject of a user pool, the id of an API key.
inline constexpr Recipe rest_api{
    "API Gateway REST API", "rest_api",
    "resource && (headers.\"Idempotency-Key\" || headers.\"idempotency-key\") && "
    "(requestContext.authorizer.principalId || requestContext.authorizer.claims.sub || "
    "requestContext.identity.apiKeyId) && [httpMethod, path, "
    "requestContext.authorizer.principalId || requestContext.authorizer.claims.sub || "
    "requestContext.identity.apiKeyId, headers.\"Idempotency-Key\" || "
    "headers.\"idempotency-key\"]",
    "[httpMethod, not_null(multiValueQueryStringParameters, `null`), not_null(body, `null`)]"};
// Issuer and subject of a JWT authorizer.
inline constexpr Recipe http_api{
    "API Gateway HTTP API", "http_api",
    "rawPath && headers.\"idempotency-key\" && requestContext.authorizer.jwt.claims.sub && "
    "[requestContext.http.method, rawPath, requestContext.authorizer.jwt.claims.[iss, "
    "sub], headers.\"idempotency-key\"]",
    "[not_null(rawQueryString, `null`), not_null(body, `null`)]"};
// The user that signed the request (IAM). For an assumed role that is its session, which has another name after a
// restart.
inline constexpr Recipe function_url{"Function URL", "function_url",
                                     "rawPath && headers.\"idempotency-key\" && "
                                     "requestContext.authorizer.iam.userArn && [requestContext.http.method, rawPath, "
                                     "requestContext.authorizer.iam.userArn, headers.\"idempotency-key\"]",
                                     http_api.fingerprint};
// The user whom the load balancer has signed in.
inline constexpr Recipe alb{"Load balancer", "alb",
                            "requestContext.elb && headers.\"idempotency-key\" && headers.\"x-amzn-oidc-identity\" && "
                            "[httpMethod, path, headers.\"x-amzn-oidc-identity\", headers.\"idempotency-key\"]",
                            "[httpMethod, not_null(queryStringParameters, `null`), not_null(body, `null`)]"};

// The principal that VPC Lattice has authenticated, which needs an auth policy (AWS_IAM). Of an assumed role it is the
// session, as for function URLs. Version 1 has it in a header, with the rest of the identity.
inline constexpr Recipe vpc_lattice_v1{
    "VPC Lattice, version 1", "vpc_lattice_v1",
    "raw_path && headers.\"idempotency-key\" && headers.\"x-amzn-lattice-identity\" && [method, raw_path, "
    "headers.\"x-amzn-lattice-identity\", headers.\"idempotency-key\"]",
    "[method, not_null(query_string_parameters, `null`), not_null(body, `null`)]"};
// Version 2 has the principal in the event itself.
inline constexpr Recipe vpc_lattice_v2{"VPC Lattice, version 2", "vpc_lattice_v2",
                                       "requestContext.serviceArn && headers.\"idempotency-key\"[0] && "
                                       "requestContext.identity.principal && [method, path, "
                                       "requestContext.identity.principal, headers.\"idempotency-key\"[0]]",
                                       "[method, not_null(queryStringParameters, `null`), not_null(body, `null`)]"};

// Those above, in their order.
inline constexpr std::array<Recipe, 16> all{event_bridge,    sns,        s3,
                                            dynamodb_stream, kinesis,    sqs,
                                            sqs_fifo,        sns_in_sqs, kafka,
                                            step_functions,  rest_api,   http_api,
                                            function_url,    alb,        vpc_lattice_v1,
                                            vpc_lattice_v2};

}  // namespace once::lambda::recipes
