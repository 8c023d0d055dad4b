// The store in a table of Amazon DynamoDB, or of a server that speaks its protocol: durable and shared by any number of
// machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <once/aws/credentials.hpp>
#include <once/aws/transport.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>

namespace once::stores {

// How records are written as items.
enum class DynamoDbDialect : std::uint8_t {
  native,                 // Every field of a record: docs/stores/dynamodb.md has the table.
  powertools_python,      // As Powertools for AWS Lambda writes and reads them, in each of its four languages, with our
  powertools_typescript,  // owner, token and the like in attributes that it ignores.
  powertools_java,
  powertools_dotnet,
};

// The names of an item's attributes, but for those of its primary key. 1 to 255 bytes each, all different.
struct DynamoDbAttributes {
  std::string status = "status";
  std::string owner = "owner";
  std::string token = "token";
  std::string attempt = "attempt";
  std::string revision = "revision";
  std::string lease_until = "lease_until";
  std::string expiration = "expiration";  // The table's TTL attribute: whole seconds.
  std::string expires_at = "expires_at";
  std::string created_at = "created_at";
  std::string finished_at = "finished_at";
  std::string fingerprint = "fingerprint";
  std::string holder = "holder";
  std::string note = "note";
  std::string steps = "steps";
  std::string data = "data";  // The result's bytes.
  std::string content_type = "content_type";
  std::string placement = "placement";
  std::string location = "location";
  std::string data_bytes = "data_bytes";
  std::string data_sha256 = "data_sha256";
  std::string error_code = "error_code";
  std::string error_message = "error_message";
  std::string key = "key";    // The whole key, where it is too long for the primary key.
  std::string open = "open";  // Of the index of open records.
  // The Powertools dialects only.
  std::string in_progress_expiration = "in_progress_expiration";
  std::string validation = "validation";
  std::string result = "result";  // The result's JSON, where the library's own form loses it.
};

struct DynamoDbOptions {
  std::string table;  // Its name, or its ARN for one of another account. It must exist: `once table create`.

  // Where it is, with the built-in client. Empty: as AWS's tools find it (AWS_REGION, AWS_ENDPOINT_URL_DYNAMODB,
  // AWS_ENDPOINT_URL, the profile).
  std::string region;
  std::string endpoint;  // "http://127.0.0.1:8000"

  // Of the config and credentials files. Empty: AWS_PROFILE, else "default".
  std::string profile;

  // Empty: found as AWS's tools find them.
  std::shared_ptr<aws::CredentialsProvider> credentials;

  // What sends the calls. Empty: the built-in client, made of the five above, which are not used otherwise.
  std::shared_ptr<aws::Transport> transport;

  // For one request, and for an operation with everything that is sent again. 100 ms to 1 min; 100 ms to 10 min.
  Millis request_timeout{3'000};
  Millis operation_timeout{10'000};

  DynamoDbDialect dialect = DynamoDbDialect::native;

  // The primary key. Both attributes are of type S. With a sort key, all records are under one value of the partition
  // key, as in Powertools' composite mode, and the table may hold other items under other values.
  std::string partition_key = "id";
  std::string sort_key;  // Empty: the table has none.
  std::string
      partition_value;  // With a sort key. Empty: "idempotency#" and AWS_LAMBDA_FUNCTION_NAME, as Powertools has it.

  DynamoDbAttributes attributes;

  // The index of open records (in progress, failed, unknown): a global one, partition key attributes.open of type S,
  // projecting all attributes. list() with one of those states asks it and reads no completed records; it may lag
  // behind by a moment, so what was just written may be missing from a list.
  enum class UseIndex : std::uint8_t { if_there, always, never };  // if_there: as DescribeTable says, asked once.
  UseIndex use_index = UseIndex::if_there;
  std::string index = "open";
  // Over how many partitions of the index open records are spread. 1 to 64; all users of a table must agree on it.
  std::uint32_t index_shards = 8;

  // Reads the record again where a refused write comes back without it (endpoints that do not know
  // ReturnValuesOnConditionCheckFailure). Without: such a refusal is an error.
  bool consistent_fallback = true;

  // Asks the service to tell what each request consumed: DynamoDbStatus::capacity_units.
  bool count_capacity = false;

  // For round trips of answers: what turns the service's whole seconds into a time that goes on between answers.
  std::shared_ptr<Clock> clock = system_clock();
};

// Opens the store; sends nothing. Throws Exception(misuse) for an option out of range.
std::unique_ptr<Store> make_dynamodb_store(DynamoDbOptions options);

}  // namespace once::stores
