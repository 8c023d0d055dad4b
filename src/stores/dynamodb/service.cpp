#include "stores/dynamodb/service.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "text/ascii.hpp"
#include "text/json_write.hpp"

namespace once::stores::dynamodb {

thread_local const Service::Completing* Service::completing = nullptr;

namespace {

std::unique_ptr<ItemFormat> make_format(const DynamoDbOptions& options) {
  return options.dialect == DynamoDbDialect::native ? make_native_format(options) : make_powertools_format(options);
}

// Adds to a refusal of the service what people can do. The kind says what the caller can do.
Error error_of(const ServiceAnswer& answer, int status, Access access, const std::string& table) {
  const std::string& type = answer.error_type;
  const auto is = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  const auto said = [&](std::string_view advice) {
    std::string text = type.empty() ? "status " + std::to_string(status) : type;
    if (!answer.message.empty()) text += ": " + answer.message;
    if (type.empty() && answer.message.empty()) {
      text += " without saying why (does the endpoint speak DynamoDB's protocol?)";
    }
    if (!advice.empty()) text += " (" + std::string(advice) + ")";
    return text;
  };
  const auto has = [&](std::string_view part) { return answer.message.find(part) != std::string::npos; };
  if (is({"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling",
          "TransactionConflictException", "ReplicatedWriteConflictException", "LimitExceededException"}) ||
      status == 429) {
    return {ErrorKind::unavailable, said("")};
  }
  if (type == "TransactionInProgressException")
    return {ErrorKind::in_doubt, said("")};  // An earlier try of the same transaction.
  if (is({"ExpiredTokenException", "RequestExpired"})) return {ErrorKind::unavailable, said("renew the credentials")};
  if (status >= 500) return {access == Access::write ? ErrorKind::in_doubt : ErrorKind::unavailable, said("")};
  if (type == "ResourceNotFoundException") {
    return {ErrorKind::misuse,
            said("is '" + table + "' the table's name, and the region right? `once table create` makes a table")};
  }
  if (type == "AccessDeniedException") {
    return {ErrorKind::misuse, said("`once table check` prints the policy that is needed")};
  }
  if (type == "ValidationException" &&
      (has("does not match the schema") || has("Missing the key") || has("Type mismatch for key"))) {
    return {ErrorKind::misuse, said("the table has another primary key than the store's options name; `once table "
                                    "check` compares them")};
  }
  return {ErrorKind::misuse, said("")};
}

// The answer is not DynamoDB's, or was damaged.
Outcome unreadable(const aws::Reply& reply, Access access, const std::string& why) {
  Outcome outcome;
  outcome.error = Error{access == Access::write ? ErrorKind::in_doubt : ErrorKind::unavailable,
                        "status " + std::to_string(reply.status) + " with an answer that cannot be read (" + why +
                            "): does the endpoint speak DynamoDB's protocol?"};
  return outcome;
}

}  // namespace

void append_conditions(std::string& body,
                       std::initializer_list<std::pair<std::string_view, const Condition*>> conditions) {
  std::string names;
  Item values;
  for (const auto& [what, condition] : conditions) {
    if (condition == nullptr) continue;
    body += ",\"";
    body += what;
    body += "\":";
    text::json::append_quoted(body, condition->expression);
    for (const auto& [placeholder, name] : condition->names) {
      if (!names.empty()) names += ',';
      text::json::append_quoted(names, placeholder);
      names += ':';
      text::json::append_quoted(names, name);
    }
    for (const Attribute& value : condition->values) values.add(value.name, value.value);
  }
  if (!names.empty()) body += ",\"ExpressionAttributeNames\":{" + names + "}";
  if (!values.empty()) {
    body += ",\"ExpressionAttributeValues\":";
    append_json(body, values);
  }
}

Service::Service(const DynamoDbOptions& options, aws::Transport& transport)
    : options_(options),
      transport_(transport),
      format_(make_format(options)),
      name_("dynamodb:" + options.table),
      knows_replicas_(options.allow_eventual) {
  name_only_ = "{\"TableName\":";
  text::json::append_quoted(name_only_, options.table);
  table_ = name_only_;
  if (options.count_capacity) table_ += ",\"ReturnConsumedCapacity\":\"TOTAL\"";
  absent_ = {.expression = "attribute_not_exists(#c_key)", .names = {{"#c_key", options.partition_key}}, .values = {}};
}

bool Service::in_completion() const noexcept {
  for (const Completing* at = completing; at != nullptr; at = at->outer) {
    if (at->service == this) return true;
  }
  return false;
}

void Service::call(std::shared_ptr<Service> self, std::string_view operation, std::string body, Access access,
                   bool wanted, Callback<void(Outcome, std::optional<StoreTime>)> then) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  body += '}';
  transport_.call({.operation = std::string(operation), .body = std::move(body), .repeatable = access == Access::read},
                  [self = std::move(self), access, wanted, sent = options_.clock->uptime(),
                   then = std::move(then)](aws::Reply reply) mutable {
                    if (reply.time) self->store_clock_.learn(*reply.time, sent, self->options_.clock->uptime());
                    if (reply.false_time) self->false_times_.fetch_add(1, std::memory_order_relaxed);
                    then(self->outcome_of(reply, access, wanted), reply.time);
                  });
}

void Service::describe(const std::shared_ptr<Service>& self, Callback<void(const Outcome&)> then) {
  {
    const std::lock_guard lock(mutex_);
    waiting_for_description_.push_back(std::move(then));
    if (waiting_for_description_.size() > 1) return;
  }
  call(self, "DescribeTable", name_only_, Access::read, true,
       [self](const Outcome& outcome, std::optional<StoreTime>) { self->described(outcome); });
}

void Service::described(const Outcome& outcome) {
  const auto& table = outcome.answer.table;
  // Who may not describe it gets no other answer later.
  const bool answered = table || (outcome.error && outcome.error->kind == ErrorKind::misuse);
  if (answered && (!table || table->eventual.empty())) knows_replicas_ = true;
  if (answered && options_.use_index == DynamoDbOptions::UseIndex::if_there) {
    const auto usable = [&](const ServiceAnswer::Table::Index& its_index) {
      return its_index.name == options_.index && its_index.partition_key == options_.attributes.open &&
             (its_index.status.empty() || its_index.status == "ACTIVE") &&
             (its_index.projection.empty() || its_index.projection == "ALL");
    };
    index = table && std::any_of(table->indexes.begin(), table->indexes.end(), usable) ? Index::there : Index::absent;
  }
  std::vector<Callback<void(const Outcome&)>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_for_description_);
  }
  for (Callback<void(const Outcome&)>& then : waiting) then(outcome);
}

void Service::met(const Item& item) noexcept {
  const std::size_t bytes = item_bytes(item);
  if (bytes <= options_.read_first_over) return;
  // A unit written costs as much as five read: a refused insert loses 4.75 reads for each KB.
  constexpr std::size_t reads_for_a_kilobyte = 4;
  constexpr std::uint32_t most = 2'000;
  const auto more = static_cast<std::uint32_t>(std::min<std::size_t>(most, bytes / 1024 * reads_for_a_kilobyte + 1));
  std::uint32_t left = reads_first_.load(std::memory_order_relaxed);
  while (!reads_first_.compare_exchange_weak(left, std::min(most, left + more), std::memory_order_relaxed)) {
  }
}

DynamoDbStatus Service::status() const {
  DynamoDbStatus status{.table = options_.table,
                        .endpoint = transport_.name(),
                        .calls = calls_.load(),
                        .false_times = false_times_.load()};
  status.capacity_units = capacity_units_;
  if (index != Index::not_asked) status.uses_index = index == Index::there;
  return status;
}

Outcome Service::outcome_of(const aws::Reply& reply, Access access, bool wanted) {
  Outcome outcome;
  if (reply.error) {
    outcome.error = *reply.error;
    if (access == Access::read && outcome.error->kind == ErrorKind::in_doubt)
      outcome.error->kind = ErrorKind::unavailable;
    return outcome;
  }
  const bool good = reply.status == 200;
  const bool is_json = reply.body.starts_with('{');
  if (!is_json || !good || wanted || options_.count_capacity) {
    auto read = answer_from_json(reply.body);
    if (const Error* error = std::get_if<Error>(&read); error != nullptr || !is_json) {
      return unreadable(reply, access, error != nullptr ? error->message : "it is not a JSON object");
    }
    outcome.answer = std::get<ServiceAnswer>(std::move(read));
    if (options_.count_capacity) capacity_units_ += outcome.answer.capacity_units;
  }
  if (good) return outcome;
  if (outcome.answer.error_type == "ConditionalCheckFailedException") {
    outcome.condition_failed = true;
  } else if (outcome.answer.error_type == "TransactionCanceledException") {
    outcome.cancelled = true;
  } else {
    outcome.error = error_of(outcome.answer, reply.status, access, options_.table);
  }
  return outcome;
}

void fail(const ServicePtr& service, Done& done, Error error) {
  error = service->named(std::move(error));
  service->complete(done, Answer::fail(error.kind, std::move(error.message)));
}

void cannot_keep(const ServicePtr& service, Done& done, Error error) {
  service->complete(done, Answer::cannot_keep(service->named(std::move(error)).message));
}

void give(const ServicePtr& service, Done& done, AnswerStatus status, const std::string& key,
          const std::optional<Item>& item, std::optional<StoreTime> time) {
  Answer answer;
  answer.status = status;
  answer.time = time;
  if (item) {
    auto record = service->format().decode(*item);
    if (Error* error = std::get_if<Error>(&record)) return fail(service, done, std::move(*error));
    answer.record = share(std::get<Record>(std::move(record)));
    if (answer.record->key != key) {
      return fail(service, done,
                  {ErrorKind::corrupt, "the item of the key '" + text::printable(key) +
                                           "' holds the record of another key: repair or delete it"});
    }
  }
  service->complete(done, std::move(answer));
}

void read_item(const ServicePtr& service, const Item& primary_key,
               Callback<void(Outcome, std::optional<StoreTime>)> then) {
  std::string body = service->table();
  body += ",\"ConsistentRead\":true,\"Key\":";
  append_json(body, primary_key);
  service->call(service, "GetItem", std::move(body), Access::read, true, std::move(then));
}

}  // namespace once::stores::dynamodb
