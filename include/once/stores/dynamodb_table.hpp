// The table of a DynamoDB store: making it, checking it, deleting it, and the least policy for its users. For tools and
// for programs that bring their table along; the store itself never changes a table.
//
// The functions that take a transport wait for its answers and must not be called from a completion. They throw
// Exception: misuse where the service refuses (no permission, no such table, what it calls invalid), unavailable where
// it cannot be reached or does not finish in time; each says what to do next. What a failed call has begun stays:
// create_table() called again continues from there.
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

namespace once::stores {

// Whether a table for these options has the index of open records: it does unless the index is turned off, or other
// libraries write the table too (the Powertools dialects), which know nothing of it.
bool wants_open_index(const DynamoDbOptions& options) noexcept;

struct TableSetup {
  bool deletion_protection = false;
  std::vector<std::pair<std::string, std::string>> tags;  // At most 50.
};

// What create_table() sends where there is nothing yet: CreateTable (on-demand billing, primary key, index of open
// records), then UpdateTimeToLive.
std::vector<aws::Call> create_table_calls(const DynamoDbOptions& options, const TableSetup& setup);

// Called between two checks of a table that is not ready: waits a while, at best a second or so. `doing` is for people:
// "the table is CREATING". False gives up.
using Pause = std::function<bool(std::string_view doing)>;

struct TableFinding {
  enum class Grade : std::uint8_t {
    fine,
    hint,  // It works; something could be better, or could not be seen.
    lack,  // Records cannot be kept, or not be removed, or not be listed as they should.
  };
  Grade grade = Grade::fine;
  std::string name;  // "table", "status", "key", "ttl", "index", "billing", "protection", "recovery"
  std::string text;  // What was found, and what to do next.
};

struct TableReport {
  bool exists = false;  // False: `findings` says so, and the rest is empty.
  std::string arn;
  std::string status;         // "ACTIVE"
  std::uint64_t records = 0;  // About: the service counts every six hours.
  std::uint64_t bytes = 0;    // Likewise.
  bool deletion_protection = false;
  std::vector<TableFinding> findings;  // One for each thing that was checked.
  std::optional<StoreTime> time;       // The service's.
  bool false_time = false;             // It reported an impossible one: aws::Reply::false_time.

  [[nodiscard]] bool fits() const noexcept;  // It exists and lacks nothing.
};

// Reads only: DescribeTable, DescribeTimeToLive, DescribeContinuousBackups. What may not be read, or is unknown to the
// endpoint, is a hint; only DescribeTable has to work.
TableReport check_table(aws::Transport& transport, const DynamoDbOptions& options);

enum class Created : std::uint8_t {
  made,          // It is new.
  completed,     // It existed and fitted except for the TTL, which is on now: an earlier call had stopped before.
  was_there,     // It existed and fits. Nothing was changed, and `setup` was ignored.
  does_not_fit,  // It existed, and `report` says what it lacks. Nothing was changed.
};

struct Creation {
  Created outcome = Created::made;
  TableReport report;  // Empty if `made`.
};

// Makes the table unless it is there, and waits until it can be used.
Creation create_table(aws::Transport& transport, const DynamoDbOptions& options, const TableSetup& setup,
                      const Pause& pause);

// Deletes the table with all its records and waits until it is gone. misuse if there is none, or deletion protection
// is on.
void delete_table(aws::Transport& transport, const DynamoDbOptions& options, const Pause& pause);

enum class PolicyFor : std::uint8_t {
  worker,     // Runs operations: claims, renews, finishes, replays.
  operators,  // That, and what `once ls`, `stats`, `sweep` and `doctor` need: listing, and looking at the table.
};

// An IAM policy (a JSON document) that allows exactly what the store does. `arn` is the table's: TableReport::arn, or
// table_arn(). `results`: where the results are that are too large for the table, "BUCKET/PREFIX" of S3, or empty.
std::string least_policy(const DynamoDbOptions& options, std::string_view arn, PolicyFor whom,
                         std::string_view results = {});

// "arn:aws:dynamodb:eu-central-1:123456789012:table/once", or options.table if that is an ARN. An empty region or
// account becomes "*", which IAM takes for any.
std::string table_arn(const DynamoDbOptions& options, std::string_view region, std::string_view account);

}  // namespace once::stores
