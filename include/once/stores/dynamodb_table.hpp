// The table of a DynamoDB store: create it, check it, delete it, and get the least policy for its users. For tools, and
// for programs that create their own table. The store itself never changes a table.
//
// Functions with a transport block; do not call them from a completion. They throw Exception, whose text says what to
// do next. misuse: the service refuses (no permission, no such table, an invalid request). unavailable: it cannot be
// reached, or does not finish in time. A failed call undoes nothing: call create_table() again to continue.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/aws/transport.hpp>
#include <once/clock.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/table_finding.hpp>

namespace once::stores {

// Whether a table for these options has the index of open records. It does not if the index is turned off, or with a
// Powertools dialect, because those libraries do not write the index.
bool wants_open_index(const DynamoDbOptions& options) noexcept;

// What a new table gets besides its key and index.
struct TableSetup {
  bool deletion_protection = false;                            // It cannot be deleted before this is turned off.
  std::vector<std::pair<std::string, std::string>> tags = {};  // At most 50.
};

// What create_table() sends if there is no table: CreateTable (on-demand billing, primary key, index of open records),
// then UpdateTimeToLive.
std::vector<aws::Call> create_table_calls(const DynamoDbOptions& options, const TableSetup& setup);

// Called between two checks of a table that is not ready. Wait there, for about a second. `doing` is for people: "the
// table is CREATING". Return false to give up.
using Pause = std::function<bool(std::string_view doing)>;

// What check_table() found.
struct TableReport {
  bool exists = false;               // False: `findings` says so, and the rest is empty.
  std::string arn = {};              // For least_policy().
  std::string status = {};           // "ACTIVE"
  std::uint64_t records = 0;         // Approximate: the service counts every six hours.
  std::uint64_t bytes = 0;           // Likewise.
  bool deletion_protection = false;  // delete_table() is refused then.
  // One for each thing that was checked: "table", "status", "key", "ttl", "index", "billing", "protection", "recovery";
  // of a global table also "replicas".
  std::vector<TableFinding> findings = {};
  std::optional<StoreTime> time = {};  // The service's.
  bool false_time = false;             // Its time was impossible: aws::Reply::false_time.

  [[nodiscard]] bool fits() const noexcept;  // It exists and lacks nothing.
};

// Only reads: DescribeTable, DescribeTimeToLive, DescribeContinuousBackups. Only DescribeTable must work. If another is
// not permitted or not known to the endpoint, that is a hint.
TableReport check_table(aws::Transport& transport, const DynamoDbOptions& options);

// What create_table() did.
enum class Created : std::uint8_t {
  made,          // It is new.
  completed,     // It existed and fits, but its TTL was off (an earlier call had stopped there). Now it is on.
  was_there,     // It existed and fits. Nothing was changed, and `setup` was ignored.
  does_not_fit,  // It existed, and does not fit: see `report`. Nothing was changed.
};

// How create_table() ended.
struct Creation {
  Created outcome = Created::made;  // does_not_fit: the table cannot be used with these options.
  TableReport report = {};          // Empty if `made`.
};

// Creates the table unless it exists, and waits until it can be used.
Creation create_table(aws::Transport& transport, const DynamoDbOptions& options, const TableSetup& setup,
                      const Pause& pause);

// Deletes the table with all its records, and waits for the end of that. misuse if there is no table, or deletion
// protection is on.
void delete_table(aws::Transport& transport, const DynamoDbOptions& options, const Pause& pause);

// What the owner of a policy may do.
enum class PolicyFor : std::uint8_t {
  worker,     // Runs operations: claims, renews, finishes, replays.
  operators,  // Also what `once ls`, `stats`, `sweep` and `doctor` need: list records, describe the table.
};

// An IAM policy (a JSON document) that allows exactly what the store does. `arn`: the table's, from TableReport::arn or
// table_arn(). `results`: "BUCKET/PREFIX" of S3 for results that are too large for the table, or empty.
std::string least_policy(const DynamoDbOptions& options, std::string_view arn, PolicyFor whom,
                         std::string_view results = {});

// "arn:aws:dynamodb:eu-central-1:123456789012:table/once", or options.table if that is an ARN. An empty region or
// account becomes "*", which IAM takes for any.
std::string table_arn(const DynamoDbOptions& options, std::string_view region, std::string_view account);

}  // namespace once::stores
