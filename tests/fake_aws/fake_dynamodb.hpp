// DynamoDB in memory, for tests and benchmarks: its rules, its errors, and faults that the test plans. No thread, no
// network; fake_dynamodb_server.hpp puts it behind HTTP or HTTPS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <once/aws/transport.hpp>
#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/time.hpp>

namespace once::testing {

// The service's answer to one operation.
struct FakeAnswer {
  int status = 200;  // Of HTTP: 200, 400 or 500.
  std::string body;  // JSON, for errors of the service too.
};

// What goes wrong with one call.
struct FakeFault {
  enum class Kind : std::uint8_t {
    none,
    unreachable,         // No connection. On the wire: closed before an answer, nothing executed, like lost_before.
    lost_before,         // The request is lost on its way: nothing is executed, nothing answered.
    lost_after,          // Executed, but the answer is lost.
    half_answer,         // Executed, and the connection breaks in the middle of the answer. In process: lost_after.
    damaged,             // Executed, and a byte of the answer's body is another, which x-amz-crc32 shows. Likewise.
    throttled,           // ProvisionedThroughputExceededException; nothing is executed.
    server_error,        // 500 InternalServerError; nothing is executed.
    server_error_after,  // 500 although it was executed.
    answered,            // `answer` instead; nothing is executed.
  };
  Kind kind = Kind::none;
  bool without_item = false;  // Leaves the item out of the answer to a failed condition, as some emulators do.
  bool held = false;          // The answer (or the loss of it) waits until release(). Executed before it waits.
  bool abrupt = false;        // On the wire: what is closed is reset (RST) instead.
  Millis delay{0};            // On the wire: answered this much later by the host's clock.
  Millis date_off{0};         // On the wire: the Date header is this much ahead of the truth.
  FakeAnswer answer = {};     // For `answered`.
};

// Asked for each call before anything else happens; calls are numbered from 0. Called from the threads of the callers,
// one at a time; it may not call the fake.
struct FakeCall {
  std::string_view operation;
  std::string_view body;
  std::uint64_t number = 0;
};
// What requests are billed as.
// https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html
struct FakeUnits {
  double write = 0;  // For each KB of the larger of the items before and after; at least 1; refused ones likewise.
  double read = 0;   // For each 4 KB, consistently; half of that otherwise.
};
using FakeFaultPlan = std::function<FakeFault(const FakeCall&)>;

// Tables, items and rules of DynamoDB, in memory.
//
// Operations: CreateTable, DescribeTable, DeleteTable, ListTables, UpdateTimeToLive, DescribeTimeToLive,
// UpdateContinuousBackups, DescribeContinuousBackups, PutItem, GetItem, UpdateItem, DeleteItem, Query, Scan,
// TransactWriteItems. All expressions, secondary indexes (always up to date), consumed capacity. Sources: the service's
// developer guide and API reference; differential_test.py holds it against another emulator. What differs from the
// service on purpose:
//   - A parameter it does not know is refused rather than ignored, so that a misspelt one is found. The parameters from
//     before expressions (Expected, AttributeUpdates, KeyConditions ...) are among them.
//   - Tables are there at once, or after as many DescribeTable as set_creation_steps() says.
//   - Expired items stay until expire_now().
//   - No throttling, no denied access, no conflict of transactions, unless the faults say so.
//   - Arithmetic with more than 38 digits is refused, where the service may round.
// Thread-safe: each operation is atomic, and they happen one after another.
class FakeDynamoDb {
 public:
  // `clock` is the service's time. A shared_ptr<ManualClock> makes a test its master.
  explicit FakeDynamoDb(std::shared_ptr<const Clock> clock);
  ~FakeDynamoDb();
  FakeDynamoDb(const FakeDynamoDb&) = delete;
  FakeDynamoDb& operator=(const FakeDynamoDb&) = delete;

  // Carries out one operation, without faults and without being counted.
  FakeAnswer call(std::string_view operation, std::string_view body);

  // A table with on-demand billing and a key of texts; range key if it has a name. For tests that do not care.
  void create_table(std::string_view table, std::string_view hash_key, std::string_view range_key = {});

  // Items of the table whose time to live has passed by the clock are deleted, as the service does it some day (within
  // 48 hours or so). Returns how many; 0 if the table has no TTL.
  std::size_t expire_now(std::string_view table);

  // Tables created from now on are CREATING until DescribeTable has been asked this often, and not usable meanwhile.
  void set_creation_steps(std::size_t steps);

  // What comes in through a transport or server, counted and with faults.
  void set_faults(FakeFaultPlan plan);
  void receive(std::string_view operation, std::string_view body, Callback<void(FakeFault, FakeAnswer)> done);
  [[nodiscard]] std::uint64_t round_trips(std::string_view operation) const;
  [[nodiscard]] std::map<std::string, std::uint64_t> round_trips() const;
  void reset_round_trips();
  // Of all GetItem, PutItem, UpdateItem and DeleteItem so far.
  [[nodiscard]] FakeUnits units() const;

  // Answers that wait: how many, and letting them go in the order of their calls, on this thread.
  [[nodiscard]] std::size_t held() const;
  std::size_t release();
  // Waits until that many answers are held; false after 10 s without.
  bool wait_for_held(std::size_t count);

  [[nodiscard]] Time now() const noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// The fake as what a store needs. What is lost becomes in_doubt, what is unreachable becomes unavailable; throttling
// and 500 come through as the service's answers, since there is no client between that tries again. `threads`: 0: calls
// complete before they return (or in release()). Else on that many threads.
std::shared_ptr<aws::Transport> make_fake_transport(std::shared_ptr<FakeDynamoDb> fake, std::size_t threads = 0);

}  // namespace once::testing
