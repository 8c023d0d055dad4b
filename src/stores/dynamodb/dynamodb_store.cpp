#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <once/aws/client.hpp>
#include <once/error.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>

#include "stores/dynamodb/item_format.hpp"

namespace once::stores {

namespace {

using namespace dynamodb;

constexpr std::size_t max_page = 10'000;
// A sweep looks at so many items a request, deletes so many at a time, and makes so many requests a call.
constexpr std::size_t sweep_page = 1'000;
constexpr std::size_t sweep_deletes = 16;
constexpr int sweep_pages = 50;

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, "dynamodb store: " + what); }

void check(const DynamoDbOptions& o) {
  if (o.table.empty()) refuse("the table's name is missing");
  std::vector<const std::string*> names = attribute_names(o.attributes);
  names.push_back(&o.partition_key);
  if (!o.sort_key.empty()) names.push_back(&o.sort_key);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i]->empty() || names[i]->size() > 255 || !is_readable_text(*names[i])) {
      refuse("an attribute's name must have 1 to 255 bytes of UTF-8, not '" + printable(*names[i]) + "'");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (*names[i] == *names[j]) refuse("two attributes have the name '" + printable(*names[i]) + "'");
    }
  }
  if (o.sort_key.empty() && !o.partition_value.empty()) {
    refuse("a partition value is for tables with a sort key: name the sort key as well");
  }
  if (o.partition_value.size() > 2048 || !is_readable_text(o.partition_value)) {
    refuse("the partition value must be at most 2048 bytes of UTF-8");
  }
  if (o.index_shards < 1 || o.index_shards > 64) {
    refuse("the index has 1 to 64 shards, not " + std::to_string(o.index_shards));
  }
  if (o.index.empty()) refuse("the name of the index is empty: leave it at 'open', or use no index");
  if (o.request_timeout < Millis{100} || o.request_timeout > Millis{60'000})
    refuse("a request's timeout is 100ms to 1m");
  if (o.operation_timeout < o.request_timeout || o.operation_timeout > Millis{600'000}) {
    refuse("an operation's timeout is at least that of a request, and at most 10m");
  }
  if (!o.clock) refuse("the clock is missing");
}

DynamoDbOptions completed(DynamoDbOptions options) {
  check(options);
  if (!options.sort_key.empty() && options.partition_value.empty()) {
    const char* function = std::getenv("AWS_LAMBDA_FUNCTION_NAME");  // NOLINT(concurrency-mt-unsafe)
    options.partition_value = std::string("idempotency#") + (function == nullptr ? "" : function);
  }
  return options;
}

std::unique_ptr<ItemFormat> make_format(const DynamoDbOptions& options) {
  return options.dialect == DynamoDbDialect::native ? make_native_format(options) : make_powertools_format(options);
}

// `"ConditionExpression":"…"` under any name, then the names and values of all conditions.
void append_conditions(std::string& body,
                       std::initializer_list<std::pair<std::string_view, const Condition*>> conditions) {
  std::string names;
  Item values;
  for (const auto& [what, condition] : conditions) {
    if (condition == nullptr) continue;
    body += ",\"";
    body += what;
    body += "\":";
    append_json_string(body, condition->expression);
    for (const auto& [placeholder, name] : condition->names) {
      if (!names.empty()) names += ',';
      append_json_string(names, placeholder);
      names += ':';
      append_json_string(names, name);
    }
    for (const Attribute& value : condition->values) values.add(value.name, value.value);
  }
  if (!names.empty()) body += ",\"ExpressionAttributeNames\":{" + names + "}";
  if (!values.empty()) {
    body += ",\"ExpressionAttributeValues\":";
    append_json(body, values);
  }
}

// A reply, read: either an answer or an error.
struct Outcome {
  bool condition_failed = false;
  bool cancelled = false;  // A transaction: answer.reasons.
  ServiceAnswer answer;
  std::optional<Error> error;
};

enum class Kind : std::uint8_t { read, write };

// What people can do about a refusal by the service. The kinds are about what the caller can do.
Error error_of(const ServiceAnswer& answer, int status, Kind kind, const std::string& table) {
  const std::string& type = answer.error_type;
  const auto is = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  const auto said = [&](std::string_view advice) {
    std::string text = type.empty() ? "status " + std::to_string(status) : type;
    if (!answer.message.empty()) text += ": " + answer.message;
    if (!advice.empty()) text += " (" + std::string(advice) + ")";
    return text;
  };
  const auto has = [&](std::string_view part) { return answer.message.find(part) != std::string::npos; };
  if (is({"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling",
          "TransactionConflictException", "ReplicatedWriteConflictException", "LimitExceededException"}) ||
      status == 429) {
    return {ErrorKind::unavailable, said("")};
  }
  if (type == "TransactionInProgressException") return {ErrorKind::in_doubt, said("")};  // An earlier try of the same.
  if (is({"ExpiredTokenException", "RequestExpired"})) return {ErrorKind::unavailable, said("renew the credentials")};
  if (status >= 500) return {kind == Kind::write ? ErrorKind::in_doubt : ErrorKind::unavailable, said("")};
  if (type == "ResourceNotFoundException") {
    return {ErrorKind::misuse,
            said("is '" + table + "' the table's name, and the region right? `once table create` makes a table")};
  }
  if (type == "AccessDeniedException") {
    return {ErrorKind::misuse, said("`once table check` prints the policy that is needed")};
  }
  if (type == "ValidationException" &&
      (has("does not match the schema") || has("Missing the key") || has("Type mismatch for key"))) {
    return {ErrorKind::misuse, said("the table's primary key is another than the store was told; `once table check` "
                                    "compares them")};
  }
  return {ErrorKind::misuse, said("")};
}

// What completions need: it outlives the store if that is destroyed in one of them.
class Core {
 public:
  Core(const DynamoDbOptions& options, aws::Transport& transport)
      : options_(options), transport_(transport), format_(make_format(options)), name_("dynamodb:" + options.table) {
    name_only_ = "{\"TableName\":";
    append_json_string(name_only_, options.table);
    table_ = name_only_;
    if (options.count_capacity) table_ += ",\"ReturnConsumedCapacity\":\"TOTAL\"";
    absent_ = {
        .expression = "attribute_not_exists(#c_key)", .names = {{"#c_key", options.partition_key}}, .values = {}};
  }

  [[nodiscard]] const DynamoDbOptions& options() const noexcept { return options_; }
  [[nodiscard]] const ItemFormat& format() const noexcept { return *format_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const Condition& absent() const noexcept { return absent_; }
  // The beginning of every request: an open brace, the table, whether to tell the capacity.
  [[nodiscard]] const std::string& table() const noexcept { return table_; }
  // Of those that consume none.
  [[nodiscard]] const std::string& name_only() const noexcept { return name_only_; }

  [[nodiscard]] Error named(Error error) const {
    error.message = name_ + ": " + error.message;
    return error;
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept {
    const std::lock_guard lock(clock_mutex_);
    return store_clock_.at(options_.clock->uptime());
  }

  // Operations under way, and the completion that this thread is in.
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
  [[nodiscard]] bool in_completion() const noexcept {
    for (const Completing* at = completing; at != nullptr; at = at->outer) {
      if (at->core == this) return true;
    }
    return false;
  }
  // Ends an operation.
  template <class Done, class Value>
  void complete(Done& done, Value value) noexcept {
    {
      const Completing here{this, completing};
      completing = &here;
      done(std::move(value));
      completing = here.outer;
    }
    done = nullptr;  // What it holds may be a reference to the store.
    end();
  }

  // Sends one call. `then` is called with what came of it; the body of a good answer is read if it is wanted.
  void call(std::shared_ptr<Core> self, std::string_view operation, std::string body, Kind kind, bool wanted,
            Callback<void(Outcome, std::optional<StoreTime>)> then) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    body += '}';
    transport_.call({.operation = std::string(operation), .body = std::move(body), .repeatable = kind == Kind::read},
                    [self = std::move(self), kind, wanted, sent = options_.clock->uptime(),
                     then = std::move(then)](aws::Reply reply) mutable {
                      if (reply.time) self->learn(*reply.time, sent);
                      then(self->outcome_of(reply, kind, wanted), reply.time);
                    });
  }

  // Whether the index of open records is there, once that is known.
  enum class Index : std::uint8_t { not_asked, there, absent };
  std::atomic<Index> index{Index::not_asked};

  // Where the last sweep stopped; empty: at the end or never begun. If it was for the number of pages, its lap over the
  // table is done in several calls, which all have the same `now`.
  struct Lap {
    std::optional<Item> position;
    bool goes_on = false;
    Time now{};
  };
  std::mutex lap_mutex;
  Lap lap;

  [[nodiscard]] DynamoDbStatus status() const {
    DynamoDbStatus status{.table = options_.table, .endpoint = transport_.name(), .calls = calls_.load()};
    const std::lock_guard lock(clock_mutex_);
    status.capacity_units = capacity_units_;
    if (index != Index::not_asked) status.uses_index = index == Index::there;
    return status;
  }

 private:
  struct Completing {
    const Core* core;
    const Completing* outer;
  };
  static thread_local const Completing* completing;

  void learn(StoreTime told, Uptime sent) noexcept {
    const std::lock_guard lock(clock_mutex_);
    store_clock_.learn(told, sent, options_.clock->uptime());
  }

  Outcome outcome_of(const aws::Reply& reply, Kind kind, bool wanted) {
    Outcome outcome;
    if (reply.error) {
      outcome.error = *reply.error;
      if (kind == Kind::read && outcome.error->kind == ErrorKind::in_doubt)
        outcome.error->kind = ErrorKind::unavailable;
      return outcome;
    }
    const bool good = reply.status == 200;
    const bool is_json = reply.body.starts_with('{');
    if (!is_json || !good || wanted || options_.count_capacity) {
      auto read = answer_from_json(reply.body);
      if (const Error* error = std::get_if<Error>(&read); error != nullptr || !is_json) {
        return unreadable(reply, kind, error != nullptr ? error->message : "it is no JSON object");
      }
      outcome.answer = std::get<ServiceAnswer>(std::move(read));
      if (options_.count_capacity) {
        const std::lock_guard lock(clock_mutex_);
        capacity_units_ += outcome.answer.capacity_units;
      }
    }
    if (good) return outcome;
    if (outcome.answer.error_type == "ConditionalCheckFailedException") {
      outcome.condition_failed = true;
    } else if (outcome.answer.error_type == "TransactionCanceledException") {
      outcome.cancelled = true;
    } else {
      outcome.error = error_of(outcome.answer, reply.status, kind, options_.table);
    }
    return outcome;
  }

  // What came is not DynamoDB's, or was damaged on the way.
  static Outcome unreadable(const aws::Reply& reply, Kind kind, const std::string& why) {
    Outcome outcome;
    outcome.error = Error{kind == Kind::write ? ErrorKind::in_doubt : ErrorKind::unavailable,
                          "status " + std::to_string(reply.status) + " with an answer that cannot be read (" + why +
                              "): does the endpoint speak DynamoDB's protocol?"};
    return outcome;
  }

  const DynamoDbOptions options_;
  aws::Transport& transport_;  // The store's, which waits for the operations under way.
  const std::unique_ptr<ItemFormat> format_;
  const std::string name_;
  std::string table_;
  std::string name_only_;
  Condition absent_;
  std::atomic<std::uint64_t> calls_{0};

  mutable std::mutex clock_mutex_;
  StoreClock store_clock_;
  double capacity_units_ = 0;

  std::mutex mutex_;
  std::condition_variable none_under_way_;
  std::size_t under_way_ = 0;
};

thread_local const Core::Completing* Core::completing = nullptr;

using CorePtr = std::shared_ptr<Core>;

void fail(const CorePtr& core, Done& done, Error error) {
  error = core->named(std::move(error));
  core->complete(done, Answer::fail(error.kind, std::move(error.message)));
}

void cannot_keep(const CorePtr& core, Done& done, Error error) {
  core->complete(done, Answer::cannot_keep(core->named(std::move(error)).message));
}

// The record in an item that was asked for by `key`, as an answer of this status.
void give(const CorePtr& core, Done& done, Answer::Status status, const std::string& key,
          const std::optional<Item>& item, std::optional<StoreTime> time) {
  Answer answer;
  answer.status = status;
  answer.time = time;
  if (item) {
    auto record = core->format().decode(*item);
    if (Error* error = std::get_if<Error>(&record)) return fail(core, done, std::move(*error));
    answer.record = share(std::get<Record>(std::move(record)));
    if (answer.record->key != key) {
      return fail(core, done,
                  {ErrorKind::corrupt,
                   "the item of the key '" + printable(key) + "' holds the record of another: repair or delete it"});
    }
  }
  core->complete(done, std::move(answer));
}

// GetItem. `then` gets the item, or nothing.
void read_item(const CorePtr& core, const Item& primary_key, Callback<void(Outcome, std::optional<StoreTime>)> then) {
  std::string body = core->table();
  body += ",\"ConsistentRead\":true,\"Key\":";
  append_json(body, primary_key);
  core->call(core, "GetItem", std::move(body), Kind::read, true, std::move(then));
}

// PutItem or DeleteItem.
struct Write {
  std::string_view operation;
  std::string body;  // Without the closing brace.
  std::string key;
  bool is_insert = false;
  Done done;
};

void send(const CorePtr& core, Write write, int tries = 0);

// The condition did not hold, but the answer has no item: it is looked for.
void look_for_item(const CorePtr& core, Write write, int tries) {
  const auto primary_key = core->format().primary_key(write.key);
  if (const Error* error = std::get_if<Error>(&primary_key)) return fail(core, write.done, *error);
  read_item(core, std::get<Item>(primary_key),
            [core, tries, write = std::move(write)](Outcome outcome, std::optional<StoreTime> time) mutable {
              if (outcome.error) return fail(core, write.done, *std::move(outcome.error));
              if (outcome.answer.item || !write.is_insert) {
                return give(core, write.done, Answer::Status::refused, write.key, outcome.answer.item, time);
              }
              // It was removed in between, and nothing is never in an insert's way.
              constexpr int most_tries = 10;
              if (tries == most_tries) {
                return fail(core, write.done, {ErrorKind::unavailable, "what is in the way comes and goes"});
              }
              send(core, std::move(write), tries + 1);
            });
}

void send(const CorePtr& core, Write write, int tries) {
  std::string body = write.is_insert ? write.body : std::move(write.body);
  const std::string_view operation = write.operation;
  core->call(core, operation, std::move(body), Kind::write, false,
             [core, tries, write = std::move(write)](Outcome outcome, std::optional<StoreTime> time) mutable {
               if (outcome.error) {
                 // Its own measure is stricter, so this is a limit that the service has changed.
                 const bool too_large = outcome.answer.error_type == "ValidationException" &&
                                        outcome.answer.message.find("Item size") != std::string::npos;
                 return (too_large ? cannot_keep : fail)(core, write.done, *std::move(outcome.error));
               }
               if (!outcome.condition_failed) {
                 return give(core, write.done, Answer::Status::done, write.key, std::nullopt, time);
               }
               if (outcome.answer.item) {
                 return give(core, write.done, Answer::Status::refused, write.key, outcome.answer.item, time);
               }
               if (core->options().consistent_fallback) return look_for_item(core, std::move(write), tries);
               if (write.is_insert) {
                 return fail(core, write.done,
                             {ErrorKind::misuse,
                              "the endpoint does not tell which record is in the way "
                              "(ReturnValuesOnConditionCheckFailure): turn consistent_fallback on"});
               }
               give(core, write.done, Answer::Status::refused, write.key, std::nullopt, time);
             });
}

void append_write_condition(std::string& body, const Condition& condition) {
  append_conditions(body, {{"ConditionExpression", &condition}});
  body += ",\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"";
}

// TransactWriteItems of a record and the user's own writes.
struct Transaction {
  std::string body;  // Without the closing brace.
  std::string key;
  Seen seen;
  std::shared_ptr<const Companion> companion;  // `items` is a part of it.
  const TransactItems* items = nullptr;
  Done done;
};

// The user's writes were refused. That the record would have been refused as well need not show in the answer, as the
// service says nowhere that it looks at every condition: the record is read, so that a lost claim is not told as a
// refused write, nor a transaction that had happened before as one that has not.
void decline(const CorePtr& core, Transaction transaction, Error why) {
  const auto primary_key = core->format().primary_key(transaction.key);
  if (const Error* error = std::get_if<Error>(&primary_key)) return fail(core, transaction.done, *error);
  read_item(core, std::get<Item>(primary_key),
            [core, why = std::move(why), transaction = std::move(transaction)](Outcome outcome,
                                                                               std::optional<StoreTime> time) mutable {
              if (outcome.error) {
                return fail(core, transaction.done,
                            {ErrorKind::unavailable,
                             why.message + "; and then the record could not be read: " + outcome.error->message});
              }
              std::optional<Item>& item = outcome.answer.item;
              if (item) {
                const auto record = core->format().decode(*item);
                const Record* found = std::get_if<Record>(&record);
                if (found != nullptr && found->owner == transaction.seen.owner &&
                    found->revision == transaction.seen.revision) {
                  why = core->named(std::move(why));
                  return core->complete(transaction.done, Answer::decline(why.kind, std::move(why.message)));
                }
              }
              give(core, transaction.done, Answer::Status::refused, transaction.key, item, time);
            });
}

// Nothing was written: because of the record, which comes first, or of one of the writes behind it.
void end_cancelled(const CorePtr& core, Transaction transaction, ServiceAnswer answer, std::optional<StoreTime> time) {
  using Reason = ServiceAnswer::Reason;
  const auto passes = [](const Reason& reason) {
    return reason.code == "TransactionConflict" || reason.code == "ProvisionedThroughputExceeded" ||
           reason.code == "ThrottlingError";
  };
  const auto said = [](const Reason& reason) {
    return reason.message.empty() ? reason.code : reason.code + ": " + reason.message;
  };
  std::vector<Reason>& reasons = answer.reasons;
  if (reasons.size() != transaction.items->size() + 1) {
    return decline(core, std::move(transaction), {ErrorKind::misuse, answer.error_type + ": " + answer.message});
  }
  const Reason& own = reasons.front();
  if (own.code == "ConditionalCheckFailed") {
    if (own.item || !core->options().consistent_fallback) {
      return give(core, transaction.done, Answer::Status::refused, transaction.key, own.item, time);
    }
    return look_for_item(core,
                         {.operation = {}, .body = {}, .key = transaction.key, .done = std::move(transaction.done)}, 0);
  }
  if (own.code != "None") {
    return fail(core, transaction.done,
                {passes(own) ? ErrorKind::unavailable : ErrorKind::misuse, "the record: " + said(own)});
  }
  const Reason* passing = nullptr;
  for (std::size_t i = 1; i < reasons.size(); ++i) {
    const Reason& reason = reasons[i];
    if (reason.code == "None") continue;
    if (passes(reason)) {
      passing = &reason;
      continue;
    }
    // A condition may hold another time, all else is wrong with the write itself.
    const ErrorKind kind = reason.code == "ConditionalCheckFailed" ? ErrorKind::unavailable : ErrorKind::misuse;
    Error why{kind, transaction.items->name(i - 1) + ": " + said(reason)};
    return decline(core, std::move(transaction), std::move(why));
  }
  fail(core, transaction.done,
       {ErrorKind::unavailable, passing == nullptr ? answer.error_type + ": " + answer.message : said(*passing)});
}

void transact(const CorePtr& core, Transaction transaction) {
  std::string body = std::move(transaction.body);
  core->call(core, "TransactWriteItems", std::move(body), Kind::write, false,
             [core, transaction = std::move(transaction)](Outcome outcome, std::optional<StoreTime> time) mutable {
               if (outcome.cancelled) {
                 return end_cancelled(core, std::move(transaction), std::move(outcome.answer), time);
               }
               if (!outcome.error) {
                 return give(core, transaction.done, Answer::Status::done, transaction.key, std::nullopt, time);
               }
               // The record alone was good enough to be inserted: it is for what comes with it.
               if (outcome.error->kind == ErrorKind::misuse) {
                 return decline(core, std::move(transaction), *std::move(outcome.error));
               }
               fail(core, transaction.done, *std::move(outcome.error));
             });
}

// Reads pages of the table, or of this store's partition of it.
void scan(const CorePtr& core, const std::optional<Condition>& filter, std::size_t limit,
          const std::optional<Item>& from, Callback<void(Outcome)> then) {
  const DynamoDbOptions& options = core->options();
  std::string body = core->table() + ",\"ConsistentRead\":true,\"Limit\":" + std::to_string(limit);
  if (from) {
    body += ",\"ExclusiveStartKey\":";
    append_json(body, *from);
  }
  Condition partition{
      .expression = "#k_partition = :k_partition", .names = {{"#k_partition", options.partition_key}}, .values = {}};
  partition.values.add(":k_partition", AttributeValue::s(options.partition_value));
  const bool composite = !options.sort_key.empty();
  append_conditions(body, {{"KeyConditionExpression", composite ? &partition : nullptr},
                           {"FilterExpression", filter ? &*filter : nullptr}});
  core->call(core, composite ? "Query" : "Scan", std::move(body), Kind::read, true,
             [then = std::move(then)](Outcome outcome, std::optional<StoreTime>) mutable { then(std::move(outcome)); });
}

// The primary key of an item, for going on behind it.
Item primary_key_of(const DynamoDbOptions& options, const Item& item) {
  Item key;
  for (const std::string* name : {&options.partition_key, &options.sort_key}) {
    if (name->empty()) continue;
    if (const AttributeValue* value = item.find(*name)) key.add(*name, *value);
  }
  return key;
}

// A place in a list: "t" and the key of the last item in the table, or "i", the shard of the index, ':' and that key or
// nothing.
struct Cursor {
  std::optional<std::uint32_t> shard;
  std::optional<Item> key;
};

std::string to_text(const Cursor& cursor) {
  std::string text = cursor.shard ? "i" + std::to_string(*cursor.shard) + ":" : "t";
  if (cursor.key) append_json(text, *cursor.key);
  return text;
}

std::optional<Cursor> cursor_from_text(std::string_view text, const CorePtr& core) {
  const DynamoDbOptions& options = core->options();
  Cursor cursor;
  const char kind = text.front();
  text.remove_prefix(1);
  if (kind == 'i') {
    std::uint32_t shard = 0;
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos || colon < 1 || colon > 2) return std::nullopt;
    for (const char c : text.substr(0, colon)) {
      if (c < '0' || c > '9') return std::nullopt;
      shard = shard * 10 + static_cast<std::uint32_t>(c - '0');
    }
    if (shard >= options.index_shards || !core->format().open_partition(shard)) return std::nullopt;
    cursor.shard = shard;
    text.remove_prefix(colon + 1);
    if (text.empty()) return cursor;
  } else if (kind != 't') {
    return std::nullopt;
  }
  auto read = item_from_json(text);
  if (std::holds_alternative<Error>(read)) return std::nullopt;
  cursor.key = std::get<Item>(std::move(read));
  std::vector<const std::string*> names{&options.partition_key};
  if (!options.sort_key.empty()) names.push_back(&options.sort_key);
  if (cursor.shard) names.push_back(&options.attributes.open);
  if (cursor.key->size() != names.size()) return std::nullopt;
  for (const std::string* name : names) {
    const AttributeValue* value = cursor.key->find(*name);
    if (value == nullptr || value->type != AttributeValue::Type::s || value->text.empty()) return std::nullopt;
    if (!options.sort_key.empty() && name == &options.partition_key && value->text != options.partition_value) {
      return std::nullopt;
    }
    if (name == &options.attributes.open && value->text != core->format().open_partition(*cursor.shard)) {
      return std::nullopt;
    }
  }
  return cursor;
}

using ListDone = Callback<void(ListPage)>;

void fail(const CorePtr& core, ListDone& done, Error error) {
  ListPage page;
  page.error = core->named(std::move(error));
  core->complete(done, std::move(page));
}

// One page of a list: one request.
void give_page(const CorePtr& core, const ListQuery& query, Outcome outcome, std::optional<std::uint32_t> shard,
               ListDone& done) {
  if (outcome.error) return fail(core, done, *std::move(outcome.error));
  ListPage page;
  for (const Item& item : outcome.answer.items) {
    auto key = core->format().key_of(item);
    if (Error* error = std::get_if<Error>(&key)) return fail(core, done, std::move(*error));
    if (!std::get<std::string>(key).starts_with(query.key_prefix)) continue;
    auto record = core->format().decode(item);
    if (Error* error = std::get_if<Error>(&record)) return fail(core, done, std::move(*error));
    Record& found = std::get<Record>(record);
    if (query.state && found.state != *query.state) continue;
    if (query.expired_at && !is_expired(found.expires_at, *query.expired_at)) continue;
    page.records.push_back(std::move(found));
  }
  if (outcome.answer.last_key) {
    page.cursor = to_text({shard, std::move(outcome.answer.last_key)});
  } else if (shard && *shard + 1 < core->options().index_shards) {
    page.cursor = to_text({*shard + 1, std::nullopt});
  }
  core->complete(done, std::move(page));
}

void list_table(const CorePtr& core, ListQuery query, const std::optional<Item>& from, ListDone done) {
  const auto filter = core->format().filter(query);
  const std::size_t limit = query.limit;
  scan(core, filter, limit, from, [core, query = std::move(query), done = std::move(done)](Outcome outcome) mutable {
    give_page(core, query, std::move(outcome), std::nullopt, done);
  });
}

void list_index(const CorePtr& core, ListQuery query, std::uint32_t shard, const std::optional<Item>& from,
                ListDone done) {
  const DynamoDbOptions& options = core->options();
  std::string body = core->table() + ",\"Limit\":" + std::to_string(query.limit) + ",\"IndexName\":";
  append_json_string(body, options.index);
  if (from) {
    body += ",\"ExclusiveStartKey\":";
    append_json(body, *from);
  }
  Condition open{.expression = "#k_open = :k_open", .names = {{"#k_open", options.attributes.open}}, .values = {}};
  open.values.add(":k_open", AttributeValue::s(core->format().open_partition(shard).value_or("")));
  const auto filter = core->format().filter(query);
  append_conditions(body, {{"KeyConditionExpression", &open}, {"FilterExpression", filter ? &*filter : nullptr}});
  core->call(core, "Query", std::move(body), Kind::read, true,
             [core, query = std::move(query), shard, done = std::move(done)](Outcome outcome,
                                                                             std::optional<StoreTime>) mutable {
               give_page(core, query, std::move(outcome), shard, done);
             });
}

// Asks whether the table has the index; a table that may not be described is one without.
void find_index(const CorePtr& core, Callback<void()> then) {
  core->call(core, "DescribeTable", core->name_only(), Kind::read, true,
             [core, then = std::move(then)](const Outcome& outcome, std::optional<StoreTime>) mutable {
               const DynamoDbOptions& options = core->options();
               const auto usable = [&](const ServiceAnswer::Table::Index& index) {
                 return index.name == options.index && index.partition_key == options.attributes.open &&
                        (index.status.empty() || index.status == "ACTIVE") &&
                        (index.projection.empty() || index.projection == "ALL");
               };
               const auto& table = outcome.answer.table;
               const bool there = table && std::any_of(table->indexes.begin(), table->indexes.end(), usable);
               const bool answered = table || (outcome.error && outcome.error->kind == ErrorKind::misuse);
               if (answered) core->index = there ? Core::Index::there : Core::Index::absent;
               then();
             });
}

// One call of sweep(). Everything of it happens in one completion after the other.
class Sweep : public std::enable_shared_from_this<Sweep> {
 public:
  Sweep(CorePtr core, Time now, std::size_t limit, Callback<void(SweepAnswer)> done)
      : core_(std::move(core)), now_(now), limit_(limit), done_(std::move(done)) {}

  void start() {
    {
      const std::lock_guard lock(core_->lap_mutex);
      lap_ = core_->lap;
    }
    if (lap_.goes_on && lap_.now != now_) lap_ = {};
    whole_ = !lap_.position || lap_.goes_on;
    read();
  }

 private:
  void read() {
    if (answer_.removed >= limit_ || pages_ == sweep_pages) {
      answer_.more = true;
      lap_.goes_on = whole_ && answer_.removed < limit_;
      lap_.now = now_;
      return finish();
    }
    ++pages_;
    ListQuery query;
    query.expired_at = now_;
    scan(core_, core_->format().filter(query), sweep_page, lap_.position,
         [self = shared_from_this()](Outcome outcome) { self->take(std::move(outcome)); });
  }

  void take(Outcome outcome) {
    if (outcome.error) {
      answer_.error = core_->named(*std::move(outcome.error));
      lap_ = {};
      return finish();
    }
    items_ = std::move(outcome.answer.items);
    end_ = std::move(outcome.answer.last_key);
    next_ = 0;
    remove();
  }

  // Deletes some of the page, all at once.
  void remove() {
    std::vector<Record> expired;
    while (next_ < items_.size() && expired.size() < sweep_deletes && answer_.removed + expired.size() < limit_) {
      const Item& item = items_[next_++];
      auto read = core_->format().decode(item);
      if (Error* error = std::get_if<Error>(&read)) {
        if (!answer_.error) answer_.error = core_->named(std::move(*error));  // And on to the others.
        continue;
      }
      Record& record = std::get<Record>(read);
      if (is_expired(record.expires_at, now_)) expired.push_back(std::move(record));
    }
    if (expired.empty()) return next_page();
    {
      const std::lock_guard lock(mutex_);
      waiting_ = expired.size();
    }
    for (const Record& record : expired) remove(record);
  }

  void remove(const Record& record) {
    auto key = core_->format().primary_key(record.key);
    if (Error* error = std::get_if<Error>(&key)) return removed(std::move(*error), false);
    std::string body = core_->table() + ",\"Key\":";
    append_json(body, std::get<Item>(key));
    const Condition condition = core_->format().unchanged({.owner = record.owner, .revision = record.revision});
    append_conditions(body, {{"ConditionExpression", &condition}});
    core_->call(core_, "DeleteItem", std::move(body), Kind::write, false,
                [self = shared_from_this()](Outcome outcome, std::optional<StoreTime>) {
                  const bool gone = !outcome.error && !outcome.condition_failed;
                  self->removed(std::move(outcome.error), gone);
                });
  }

  void removed(std::optional<Error> error, bool gone) {
    {
      const std::lock_guard lock(mutex_);
      if (gone) ++answer_.removed;
      if (error) {
        answer_.error = core_->named(*std::move(error));
        failed_ = true;
      }
      if (--waiting_ != 0) return;
    }
    if (failed_) {
      lap_ = {};
      return finish();
    }
    remove();
  }

  void next_page() {
    if (next_ < items_.size()) {  // Only the limit ends a page early.
      lap_.position = primary_key_of(core_->options(), items_[next_ - 1]);
      return read();
    }
    lap_.position = std::move(end_);
    if (lap_.position) return read();
    if (whole_) {
      lap_ = {};
      return finish();
    }
    // It began in the middle: what has expired before that since the last sweep is still there.
    whole_ = true;
    read();
  }

  void finish() {
    {
      const std::lock_guard lock(core_->lap_mutex);
      core_->lap = std::move(lap_);
    }
    core_->complete(done_, std::move(answer_));
  }

  const CorePtr core_;
  const Time now_;
  const std::size_t limit_;
  Callback<void(SweepAnswer)> done_;
  Core::Lap lap_;
  bool whole_ = false;  // This lap began at the beginning.
  int pages_ = 0;
  std::vector<Item> items_;
  std::optional<Item> end_;
  std::size_t next_ = 0;

  std::mutex mutex_;  // The deletes under way end on several threads; all else happens when none is.
  std::size_t waiting_ = 0;
  bool failed_ = false;
  SweepAnswer answer_;
};

class DynamoDbStore final : public Store {
 public:
  DynamoDbStore(const DynamoDbOptions& options, std::shared_ptr<aws::Transport> transport)
      : transport_(std::move(transport)), core_(std::make_shared<Core>(options, *transport_)) {}

  DynamoDbStore(const DynamoDbStore&) = delete;
  DynamoDbStore& operator=(const DynamoDbStore&) = delete;

  ~DynamoDbStore() override {
    if (!core_->in_completion()) {
      core_->wait();
      return;
    }
    // This may be a thread of the transport, which cannot wait for itself. Without another thread it is left alone.
    auto kept = std::make_unique<std::shared_ptr<aws::Transport>>(std::move(transport_));
    try {
      std::thread([core = core_, transport = kept.get()] {
        core->wait();
        delete transport;
      }).detach();
    } catch (const std::system_error&) {
    }
    static_cast<void>(kept.release());
  }

  void insert(RecordPtr record, Done done) override { put(*record, nullptr, std::move(done)); }

  void replace(RecordPtr record, Seen seen, Done done) override {
    const Condition condition = core_->format().unchanged(seen);
    put(*record, &condition, std::move(done));
  }

  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    const auto* items = dynamic_cast<const TransactItems*>(companion.get());
    if (items == nullptr) {
      return done(Answer::decline(ErrorKind::misuse,
                                  name() + ": what should commit with the record is none of this store's: it takes "
                                           "once::stores::TransactItems"));
    }
    if (items->size() == 0) return replace(std::move(record), seen, std::move(done));
    core_->begin();
    const Condition condition = core_->format().unchanged(seen);
    auto put = put_text(core_->name_only(), *record, &condition);
    if (Error* error = std::get_if<Error>(&put)) return cannot_keep(core_, done, std::move(*error));
    const PutText& own = std::get<PutText>(put);
    if (own.item_bytes + items->bytes() > TransactItems::max_bytes) {
      return fail(core_, done,
                  {ErrorKind::misuse, "the record has " + std::to_string(own.item_bytes) + " bytes and what commits " +
                                          "with it " + std::to_string(items->bytes()) +
                                          ", together over the limit of " + std::to_string(TransactItems::max_bytes)});
    }
    const std::string writes = "[{\"Put\":" + own.text + "}}," + items->json() + "]";
    // The service takes a text that it has carried out within ten minutes for a repetition. Made of the text itself,
    // the token can never come with another one, which it would refuse.
    std::string body = R"({"ClientRequestToken":")" + to_hex(sha256(writes)).substr(0, 36) + '"';
    if (core_->options().count_capacity) body += R"(,"ReturnConsumedCapacity":"TOTAL")";
    body += ",\"TransactItems\":" + writes;
    transact(core_, {.body = std::move(body),
                     .key = record->key,
                     .seen = seen,
                     .companion = std::move(companion),
                     .items = items,
                     .done = std::move(done)});
  }

  void remove(std::string key, Seen seen, Done done) override {
    core_->begin();
    auto primary_key = key_for(key);
    if (Error* error = std::get_if<Error>(&primary_key)) return fail(core_, done, std::move(*error));
    std::string body = core_->table() + ",\"Key\":";
    append_json(body, std::get<Item>(primary_key));
    append_write_condition(body, core_->format().unchanged(seen));
    send(core_, {.operation = "DeleteItem", .body = std::move(body), .key = std::move(key), .done = std::move(done)});
  }

  void get(std::string key, Done done) override {
    core_->begin();
    auto primary_key = key_for(key);
    if (Error* error = std::get_if<Error>(&primary_key)) return fail(core_, done, std::move(*error));
    read_item(core_, std::get<Item>(primary_key),
              [core = core_, key = std::move(key), done = std::move(done)](Outcome outcome,
                                                                           std::optional<StoreTime> time) mutable {
                if (outcome.error) return fail(core, done, *std::move(outcome.error));
                give(core, done, Answer::Status::done, key, outcome.answer.item, time);
              });
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    core_->begin();
    if (query.limit < 1 || query.limit > max_page) {
      return fail(core_, done,
                  {ErrorKind::misuse,
                   "a page holds 1 to " + std::to_string(max_page) + " records, not " + std::to_string(query.limit)});
    }
    if (!query.cursor.empty()) {
      const auto cursor = cursor_from_text(query.cursor, core_);
      if (!cursor) return fail(core_, done, {ErrorKind::misuse, "the cursor is not one of a page of this store"});
      if (!cursor->shard) return list_table(core_, std::move(query), cursor->key, std::move(done));
      return list_index(core_, std::move(query), *cursor->shard, cursor->key, std::move(done));
    }
    const DynamoDbOptions& options = core_->options();
    const bool open = query.state && *query.state != State::completed && core_->format().open_partition(0);
    using UseIndex = DynamoDbOptions::UseIndex;
    if (!open || options.use_index == UseIndex::never) {
      return list_table(core_, std::move(query), std::nullopt, std::move(done));
    }
    if (options.use_index == UseIndex::always) core_->index = Core::Index::there;
    Callback<void()> listing = [core = core_, query = std::move(query), done = std::move(done)]() mutable {
      if (core->index == Core::Index::there) {
        list_index(core, std::move(query), 0, std::nullopt, std::move(done));
      } else {
        list_table(core, std::move(query), std::nullopt, std::move(done));
      }
    };
    if (core_->index != Core::Index::not_asked) return listing();
    find_index(core_, std::move(listing));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    core_->begin();
    if (limit == 0) return core_->complete(done, SweepAnswer{});
    std::make_shared<Sweep>(core_, now, limit, std::move(done))->start();
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return core_->time(); }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = core_->format().max_record_bytes(),
            .durable = true,
            .shared = true,
            .tells_time = true,
            .default_skew = Millis{2'000},
            .keeps_compressed = core_->format().keeps_compressed()};
  }

  [[nodiscard]] std::string name() const override { return core_->name(); }

  [[nodiscard]] DynamoDbStatus status() const { return core_->status(); }

 private:
  static Error empty_key() { return {ErrorKind::misuse, "the key is empty"}; }

  [[nodiscard]] std::variant<Item, Error> key_for(const std::string& key) const {
    if (key.empty()) return empty_key();
    return core_->format().primary_key(key);
  }

  struct PutText {
    std::string text;  // Without the closing brace.
    std::size_t item_bytes = 0;
  };

  // What puts the record under this condition, or under that of an insert if it is null.
  [[nodiscard]] std::variant<PutText, Error> put_text(const std::string& beginning, const Record& record,
                                                      const Condition* condition) const {
    const std::size_t most = core_->format().max_record_bytes();
    const auto too_large = [&](std::size_t bytes, std::size_t limit) {
      return Error{ErrorKind::misuse, "the record of the key '" + printable(record.key) + "' has " +
                                          std::to_string(bytes) + " bytes, over the limit of " + std::to_string(limit)};
    };
    if (record_bytes(record) > most) return too_large(record_bytes(record), most);
    if (record.result.placement == Placement::compressed && !core_->format().keeps_compressed()) {
      return Error{ErrorKind::misuse, "other programs read this table: it keeps no compressed results"};
    }
    if (record.key.empty()) return empty_key();
    auto item = core_->format().encode(record);
    if (Error* error = std::get_if<Error>(&item)) return std::move(*error);
    // Only with very many steps: the room beside the largest result has been used up.
    PutText put{.text = {}, .item_bytes = item_bytes(std::get<Item>(item))};
    if (put.item_bytes > max_item_bytes) return too_large(put.item_bytes, max_item_bytes);
    put.text.reserve(beginning.size() + put.item_bytes + put.item_bytes / 2 + 512);
    put.text = beginning;
    put.text += ",\"Item\":";
    append_json(put.text, std::get<Item>(item));
    append_write_condition(put.text, condition == nullptr ? core_->absent() : *condition);
    return put;
  }

  // insert without `condition`.
  void put(const Record& record, const Condition* condition, Done done) {
    core_->begin();
    auto text = put_text(core_->table(), record, condition);
    if (Error* error = std::get_if<Error>(&text)) return cannot_keep(core_, done, std::move(*error));
    send(core_, {.operation = "PutItem",
                 .body = std::move(std::get<PutText>(text).text),
                 .key = record.key,
                 .is_insert = condition == nullptr,
                 .done = std::move(done)});
  }

  std::shared_ptr<aws::Transport> transport_;
  const CorePtr core_;
};

}  // namespace

std::unique_ptr<Store> make_dynamodb_store(DynamoDbOptions options) {
  options = completed(std::move(options));
  auto transport = make_dynamodb_transport(options);
  // From here on the store alone holds them: a completion must not be the last to let go of them.
  options.transport.reset();
  options.credentials.reset();
  return std::make_unique<DynamoDbStore>(options, std::move(transport));
}

std::shared_ptr<aws::Transport> make_dynamodb_transport(const DynamoDbOptions& options) {
  if (options.transport) return options.transport;
  return aws::make_client({.region = options.region,
                           .endpoint = options.endpoint,
                           .profile = options.profile,
                           .credentials = options.credentials,
                           .ca_file = options.ca_file,
                           .timeout = options.request_timeout,
                           .total_timeout = options.operation_timeout});
}

std::optional<DynamoDbStatus> dynamodb_status(const Store& store) {
  const auto* dynamodb = dynamic_cast<const DynamoDbStore*>(&store);
  if (dynamodb == nullptr) return std::nullopt;
  return dynamodb->status();
}

}  // namespace once::stores
