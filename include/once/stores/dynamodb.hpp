// A store in a table of Amazon DynamoDB, or of a compatible server: durable, and shared by any number of machines.
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
  native,  // Every field of a record: docs/stores/dynamodb.md has the table.
  // These write as Powertools for AWS Lambda does in that language. The fields of once (owner, token …) are in
  // attributes that it ignores.
  powertools_python,
  powertools_typescript,
  powertools_java,
  powertools_dotnet,
};

// The names of an item's attributes, except those of its primary key. 1 to 255 bytes each, all different.
struct DynamoDbAttributes {
  // These hold the member of Record, Result or Failure with this name, if nothing else is said.
  std::string status = "status";  // Record::state.
  std::string owner = "owner";
  std::string token = "token";
  std::string attempt = "attempt";
  std::string revision = "revision";
  std::string lease_until = "lease_until";  // UTC milliseconds, as all times. Absent: released.
  std::string expiration = "expiration";    // The table's TTL attribute: whole seconds.
  std::string expires_at = "expires_at";    // Absent: never.
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
  std::string data_bytes = "data_bytes";        // Result::size.
  std::string data_sha256 = "data_sha256";      // Result::digest.
  std::string error_code = "error_code";        // Failure::code.
  std::string error_message = "error_message";  // Failure::message.
  std::string on_lapse = "on_lapse";
  std::string expected_until = "expected_until";
  std::string label = "label";
  std::string history = "history";
  std::string input = "input";  // The payload, if the caller asked to keep it.
  std::string input_bytes = "input_bytes";
  std::string key = "key";    // The whole key, if it is too long for the primary key.
  std::string open = "open";  // The partition key of the index of open records.

  // These are of the Powertools dialects only.
  std::string in_progress_expiration = "in_progress_expiration";  // Record::lease_until. 0: released.
  std::string validation = "validation";                          // Record::fingerprint, as the library writes it.
  std::string result = "result";  // The result's exact JSON, if the library's form would lose it.
};

// Which table, how it is reached, and how records are written to it.
struct DynamoDbOptions {
  std::string table = {};  // Its name, or its ARN for a table of another account. It must exist: `once table create`.

  // Where the table is. Empty: where AWS's tools find it (AWS_REGION, AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL, the
  // profile).
  std::string region = {};
  std::string endpoint = {};  // "http://127.0.0.1:8000"

  // A profile of the config and credentials files. Empty: AWS_PROFILE, otherwise "default".
  std::string profile = {};

  // Empty: found where AWS's tools find them.
  std::shared_ptr<aws::CredentialsProvider> credentials = {};

  std::string ca_file = {};  // PEM: the certificates to trust. Empty: AWS_CA_BUNDLE, or the system's.

  Millis request_timeout{3'000};     // For one request. 100 ms to 1 min.
  Millis operation_timeout{10'000};  // For an operation with its retries. request_timeout to 10 min.

  // Sends the calls. Empty: the built-in client, made from the seven members above. Otherwise those are ignored.
  std::shared_ptr<aws::Transport> transport = {};

  DynamoDbDialect dialect = DynamoDbDialect::native;  // The same for all users of a table.

  // The primary key. Both attributes are of type S. With a sort key, all records have one value of the partition key,
  // as in Powertools' composite mode. Items with other values may be anything.
  std::string partition_key = "id";
  std::string sort_key = {};  // Empty: the table has none.
  // With a sort key. Empty: "idempotency#" and AWS_LAMBDA_FUNCTION_NAME, as in Powertools.
  std::string partition_value = {};

  DynamoDbAttributes attributes = {};  // The same for all users of a table.

  // The index of open records (in progress, failed, unknown): a global one, partition key attributes.open of type S,
  // projecting all attributes. list() with one of those states reads it, and no completed records. The index is
  // eventually consistent, so a list may miss the newest writes.
  enum class UseIndex : std::uint8_t { if_there, always, never };  // if_there: asks DescribeTable once.
  UseIndex use_index = UseIndex::if_there;                         // Powertools dialects have no index.
  std::string index = "open";                                      // Its name.
  // How many partitions of the index open records are spread over. 1 to 64, the same for all users of a table.
  std::uint32_t index_shards = 8;

  // Reads the record again if a refused write returns none: it was removed, or the endpoint does not know
  // ReturnValuesOnConditionCheckFailure. Otherwise the record is taken as removed, and a refused insert without a
  // record fails.
  bool consistent_fallback = true;

  // Bytes. A refused write is billed as a write of the record in the way, so replaying a large result by an insert
  // costs twenty times a read. After an insert was refused by a record larger than this, inserts read first. They do so
  // until the reads have cost as much as the refused write: 4 reads for each KB, up to 2000. Each such read costs a new
  // operation one more round trip. 0: after any record; SIZE_MAX: never.
  std::size_t read_first_over = std::size_t{4} * 1024;

  // The table may be a replica of a global table with eventual consistency, because the records of one key are used in
  // one region only. Without it claims in such a table are refused, as in two regions the same key would be claimed
  // twice: before its first insert the store calls DescribeTable. Where that is not permitted, it does not know.
  bool allow_eventual = false;

  // Asks the service to report what each request consumed: DynamoDbStatus::capacity_units. It does not report refused
  // writes, which cost as much as others.
  bool count_capacity = false;

  // Measures the time since the service's last answer.
  std::shared_ptr<Clock> clock = system_clock();
};

// Opens the store; sends nothing. Throws Exception(misuse) for an option out of range, and the exceptions of
// aws::make_client().
//
// Guarantees. Each write is one conditional request, and durable when it is acknowledged. get() is strongly consistent.
// A refused write returns the record in the way, in the same answer.
//
// Threads. Completions come from threads of the transport, from threads that wait in a blocking call of this store, or
// before an operation returns. Any number of operations may run; none uses a thread. In the child of a fork the
// built-in transport fails as misuse: open the store again there.
//
// Time. The service's, from the Date header of its answers: exact to half a second, and better after some answers.
// Store::time() is empty before the first one. A Date that contradicts the accepted signature is ignored
// (aws::Reply::false_time). A Date that contradicts earlier answers is ignored until two more agree with it.
//
// Failures.
// - unavailable: not reached, throttled, or the table is being changed.
// - in_doubt: an answer was lost, or was a 5xx.
// - misuse: no credentials, no permission, no such table, another primary key, or anything else that the service
//   refuses as invalid. The message says what to do.
// - corrupt: the item was not written by this store. The message names it.
//
// Sizes. Records of up to about 398 KB (Capabilities::max_record_bytes), because the service limits an item to 400 KiB
// with the names of its attributes. The largest result leaves room for 256 steps; a thousand steps cost 12 KB more.
//
// list() and sweep() read the whole table, page by page, except for lists that the index of open records serves.
// sweep() continues where the last one stopped. A table with TTL on the attribute `expiration` needs no sweeps: the
// service deletes expired items free of charge, usually within two days.
//
// The destructor waits for running operations, for at most operation_timeout with the built-in client. In a completion
// it returns at once.
std::unique_ptr<Store> make_dynamodb_store(DynamoDbOptions options);

// DynamoDbOptions::transport, or the built-in client made from the options.
std::shared_ptr<aws::Transport> make_dynamodb_transport(const DynamoDbOptions& options);

// Since the store was opened.
struct DynamoDbStatus {
  std::string table = {};               // As in the options.
  std::string endpoint = {};            // The transport's name.
  std::uint64_t calls = 0;              // Of the transport. Its retries are not counted.
  std::uint64_t false_times = 0;        // Answers whose Date was impossible, and was ignored.
  double capacity_units = 0;            // Read and write units together; 0 without count_capacity.
  std::optional<bool> uses_index = {};  // Empty: not asked yet.
};

// Empty if `store` is not from make_dynamodb_store(). Throws only std::bad_alloc; thread-safe.
std::optional<DynamoDbStatus> dynamodb_status(const Store& store);

}  // namespace once::stores
