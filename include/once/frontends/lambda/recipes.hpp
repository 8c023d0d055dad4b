// What is one event, for the services that call functions: key expressions for IdempotentOptions::key and for batches.
// Each selects what a second delivery of the same event has in common with the first, and nothing that differs between
// them; and selects nothing (no key) from events of another kind.
//
//   once::lambda::idempotent(engine, {.key = std::string(once::lambda::recipes::event_bridge.key)}, work)
//
// docs/lambda-events.md says for each what AWS promises, and what changes when an event comes again. The example events
// are in tests/lambda/events.
#pragma once

#include <array>
#include <string_view>

#include <once/compiler.hpp>

namespace once::lambda::recipes {

struct Recipe {
  std::string_view name;         // "EventBridge". Its example event is tests/lambda/events/<file>.json.
  std::string_view file;         // "event_bridge".
  std::string_view key;          // JMESPath.
  std::string_view fingerprint;  // JMESPath; empty: the key says all.

  // The expression is over one record of a batch (once::sqs::batch and the like), not over the whole event: how
  // records are put into batches may change with a retry.
  bool per_record = false;
};

// An id of its own, which retries and replays from an archive keep (AWS, "EventBridge event structure").
inline constexpr Recipe event_bridge{"EventBridge", "event_bridge", "\"detail-type\" && id && [source, id]",
                                     "[\"detail-type\", detail]"};

// Lambda gets one message at a time (AWS, "Invoking Lambda functions with Amazon SNS notifications").
inline constexpr Recipe sns{"SNS", "sns", "Records[?Sns.MessageId].Sns.[TopicArn, MessageId]", "Records[].Sns.Message"};

// Notifications have no id. The sequencer tells the writes of one object apart; events that have none (restores,
// tagging, life cycle) have the time and the request that caused them (AWS, "Event message structure").
inline constexpr Recipe s3{"S3", "s3",
                           "Records[?s3.object.key].[s3.bucket.name, s3.object.key, s3.object.versionId, eventName, "
                           "s3.object.sequencer, eventTime, responseElements.\"x-amz-request-id\"]",
                           ""};

// eventID is unique within its stream.
inline constexpr Recipe dynamodb_stream{"DynamoDB stream", "dynamodb_stream", "eventID && [eventSourceARN, eventID]",
                                        "", true};

// Shard and sequence number.
inline constexpr Recipe kinesis{"Kinesis stream", "kinesis", "eventID && [eventSourceARN, eventID]", "", true};

// Every delivery of a message keeps its id; what is sent twice has two.
inline constexpr Recipe sqs{"SQS", "sqs", "messageId && [eventSourceARN, messageId]", "", true};

// What the sender says is one message, where the queue itself looks for duplicates for five minutes only.
inline constexpr Recipe sqs_fifo{"SQS FIFO", "sqs_fifo",
                                 "attributes.MessageDeduplicationId && [eventSourceARN, attributes.MessageGroupId, "
                                 "attributes.MessageDeduplicationId]",
                                 "", true};

// Of a task whose Parameters add "once": {"execution.$": "$$.Execution.Id", "state.$": "$$.State.Name", "entered.$":
// "$$.State.EnteredTime"}, and in a Map state "item.$": "$$.Map.Item.Index". Retries of the state keep all of them.
inline constexpr Recipe step_functions{"Step Functions", "step_functions",
                                       "once.execution && once.[execution, state, entered, item]", "input"};

// For work that gives the proxy response itself. once::lambda::http() does more: the header's name in any case, answers
// in place of errors, and all the ways in which AWS tells clients apart. Whose key it is counts here by what AWS has
// checked and a retry has again: never by Authorization, which holds a token that is renewed or a signature that is
// made for each request, so that a retry would run a second time. An event without that selects nothing. Where clients
// have something else that stays the same, write an expression of your own with it, such as headers."x-api-key".
//
// A Lambda authorizer's principalId, the subject of a user pool, the id of an API key.
inline constexpr Recipe rest_api{"API Gateway REST API", "rest_api",
                                 "resource && (headers.\"Idempotency-Key\" || headers.\"idempotency-key\") && "
                                 "(requestContext.authorizer.principalId || requestContext.authorizer.claims.sub || "
                                 "requestContext.identity.apiKeyId) && [httpMethod, path, "
                                 "requestContext.authorizer.principalId || requestContext.authorizer.claims.sub || "
                                 "requestContext.identity.apiKeyId, headers.\"Idempotency-Key\" || "
                                 "headers.\"idempotency-key\"]",
                                 "[httpMethod, multiValueQueryStringParameters, body]"};
// Issuer and subject of a JWT authorizer.
inline constexpr Recipe http_api{
    "API Gateway HTTP API", "http_api",
    "rawPath && headers.\"idempotency-key\" && requestContext.authorizer.jwt.claims.sub && "
    "[requestContext.http.method, rawPath, requestContext.authorizer.jwt.claims.[iss, "
    "sub], headers.\"idempotency-key\"]",
    "[rawQueryString, body]"};
// The user that has signed (IAM). Of an assumed role that is its session, which has another name after a restart.
inline constexpr Recipe function_url{"Function URL", "function_url",
                                     "rawPath && headers.\"idempotency-key\" && "
                                     "requestContext.authorizer.iam.userArn && [requestContext.http.method, rawPath, "
                                     "requestContext.authorizer.iam.userArn, headers.\"idempotency-key\"]",
                                     http_api.fingerprint};
// The user whom the load balancer has signed in.
inline constexpr Recipe alb{"Load balancer", "alb",
                            "requestContext.elb && headers.\"idempotency-key\" && headers.\"x-amzn-oidc-identity\" && "
                            "[httpMethod, path, headers.\"x-amzn-oidc-identity\", headers.\"idempotency-key\"]",
                            "[httpMethod, queryStringParameters, body]"};

inline constexpr std::array<Recipe, 12> all{event_bridge,   sns,      s3,       dynamodb_stream, kinesis, sqs, sqs_fifo,
                                            step_functions, rest_api, http_api, function_url,    alb};

}  // namespace once::lambda::recipes
