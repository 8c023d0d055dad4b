// Shared by the parts of the store: calls of the service, and the answers of operations.
#pragma once

#include <atomic>
#include <condition_variable>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/aws/client.hpp>
#include <once/error.hpp>
#include <once/store.hpp>
#include <once/stores/dynamodb.hpp>

#include "platform/learnt_clock.hpp"
#include "stores/dynamodb/item_format.hpp"

namespace once::stores::dynamodb {

// `"ConditionExpression":"…"` under any name, then the names and values of all conditions.
void append_conditions(std::string& body,
                       std::initializer_list<std::pair<std::string_view, const Condition*>> conditions);

// A reply, read: either an answer or an error.
struct Outcome {
  bool condition_failed = false;
  bool cancelled = false;  // A transaction: answer.reasons.
  ServiceAnswer answer;
  std::optional<Error> error;
};

enum class Access : std::uint8_t { read, write };

// Of a table for which ServiceAnswer::Table::eventual is set.
inline constexpr std::string_view eventual_advice =
    ", eventually consistent: two regions can claim the same key at the same time, and both run. Use multi-Region "
    "strong "
    "consistency, or one region's replica alone and allow_eventual=1 in the store's URL";

// Used by completions: it outlives the store if one of them destroys that.
class Service {
 public:
  Service(const DynamoDbOptions& options, aws::Transport& transport);

  [[nodiscard]] const DynamoDbOptions& options() const noexcept { return options_; }
  [[nodiscard]] const ItemFormat& format() const noexcept { return *format_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const Condition& absent() const noexcept { return absent_; }
  // The beginning of every request: an open brace, the table, whether to report the capacity.
  [[nodiscard]] const std::string& table() const noexcept { return table_; }
  // For requests that consume no capacity.
  [[nodiscard]] const std::string& name_only() const noexcept { return name_only_; }

  [[nodiscard]] Error named(Error error) const {
    error.message = name_ + ": " + error.message;
    return error;
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept { return store_clock_.at(options_.clock->uptime()); }

  // Running operations, and whether this thread is in a completion.
  void begin() noexcept {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  void end() noexcept {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0) none_under_way_.notify_all();
  }
  void wait() noexcept {
    std::unique_lock lock(mutex_);
    none_under_way_.wait(lock, [&] { return under_way_ == 0; });
  }
  [[nodiscard]] bool in_completion() const noexcept;
  // Ends an operation.
  template <class Done, class Value>
  void complete(Done& done, Value value) noexcept {
    {
      const Completing here{this, completing};
      completing = &here;
      done(std::move(value));
      done = nullptr;  // It may own the last reference to the store, which then must not wait for this operation.
      completing = here.outer;
    }
    end();
  }

  // Sends one call, and calls `then` with the outcome. The body of a good answer is parsed on request.
  void call(std::shared_ptr<Service> self, std::string_view operation, std::string body, Access access, bool wanted,
            Callback<void(Outcome, std::optional<StoreTime>)> then);

  // DescribeTable, also for `index`: one call for all that wait for it.
  void describe(const std::shared_ptr<Service>& self, Callback<void(const Outcome&)> then);
  // Whether the table was described, may not be described, or may be eventually consistent.
  [[nodiscard]] bool knows_replicas() const noexcept { return knows_replicas_; }

  // Whether an insert should read first: see DynamoDbOptions::read_first_over. Uses up one of the saved reads.
  bool reads_first() noexcept {
    std::uint32_t left = reads_first_.load(std::memory_order_relaxed);
    while (left > 0 && !reads_first_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
    }
    return left > 0;
  }
  // This item was in the way of an insert.
  void met(const Item& item) noexcept;

  // Whether the table has the index of open records.
  enum class Index : std::uint8_t { not_asked, there, absent };
  std::atomic<Index> index{Index::not_asked};

  // Where the last sweep stopped. Empty: at the end, or never begun. If the number of pages stopped it, its lap over
  // the table takes several calls, all with the same `now`.
  struct Lap {
    std::optional<Item> position;
    bool goes_on = false;
    Time now{};
  };
  std::mutex lap_mutex;
  Lap lap;

  [[nodiscard]] DynamoDbStatus status() const;

 private:
  struct Completing {
    const Service* service;
    const Completing* outer;
  };
  static thread_local const Completing* completing;

  void described(const Outcome& outcome);
  Outcome outcome_of(const aws::Reply& reply, Access access, bool wanted);

  const DynamoDbOptions options_;
  aws::Transport& transport_;  // The store's, which waits for running operations.
  const std::unique_ptr<ItemFormat> format_;
  const std::string name_;
  std::string table_;
  std::string name_only_;
  Condition absent_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> false_times_{0};

  LearntClock store_clock_;
  std::atomic<double> capacity_units_{0};

  std::mutex mutex_;
  std::condition_variable none_under_way_;
  std::size_t under_way_ = 0;

  std::vector<Callback<void(const Outcome&)>> waiting_for_description_;  // Guarded by mutex_.

  std::atomic<bool> knows_replicas_;
  std::atomic<std::uint32_t> reads_first_{0};  // How many of the next inserts read first.
};

using ServicePtr = std::shared_ptr<Service>;

// Each ends an operation: with an error that names the table, …
void fail(const ServicePtr& service, Done& done, Error error);
// … for a record that this store can never keep, …
void cannot_keep(const ServicePtr& service, Done& done, Error error);
// … with the record in the item of `key`, as an answer of this status.
void give(const ServicePtr& service, Done& done, AnswerStatus status, const std::string& key,
          const std::optional<Item>& item, std::optional<StoreTime> time);

// GetItem. `then` gets the item, or empty.
void read_item(const ServicePtr& service, const Item& primary_key,
               Callback<void(Outcome, std::optional<StoreTime>)> then);

}  // namespace once::stores::dynamodb
