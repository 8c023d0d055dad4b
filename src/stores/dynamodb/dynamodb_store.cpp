#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <once/aws/client.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>

#include "platform/thread.hpp"
#include "stores/dynamodb/pages.hpp"
#include "stores/dynamodb/writes.hpp"
#include "text/ascii.hpp"

namespace once::stores {

namespace {

using namespace dynamodb;

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, "dynamodb store: " + what); }

void check(const DynamoDbOptions& o) {
  if (o.table.empty()) refuse("the table's name is missing");
  std::vector<const std::string*> names = attribute_names(o.attributes);
  names.push_back(&o.partition_key);
  if (!o.sort_key.empty()) names.push_back(&o.sort_key);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i]->empty() || names[i]->size() > 255 || !is_readable_text(*names[i])) {
      refuse("an attribute's name must have 1 to 255 bytes of UTF-8, not '" + text::printable(*names[i]) + "'");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (*names[i] == *names[j]) refuse("two attributes have the name '" + text::printable(*names[i]) + "'");
    }
  }
  if (o.sort_key.empty() && !o.partition_value.empty()) {
    refuse("a partition value needs a table with a sort key: name the sort key too");
  }
  // A partition key has at most 2048 bytes. The index of open records appends "#" and a shard's number.
  if (o.partition_value.size() > 2045 || !is_readable_text(o.partition_value)) {
    refuse("the partition value must be at most 2045 bytes of UTF-8");
  }
  if (o.index_shards < 1 || o.index_shards > 64) {
    refuse("the index must have 1 to 64 shards, not " + std::to_string(o.index_shards));
  }
  if (o.index.empty()) refuse("the name of the index is empty: leave it at 'open', or use no index");
  if (o.request_timeout < Millis{100} || o.request_timeout > Millis{60'000})
    refuse("a request's timeout must be 100ms to 1m");
  if (o.operation_timeout < o.request_timeout || o.operation_timeout > Millis{600'000}) {
    refuse("an operation's timeout must be at least a request's timeout, and at most 10m");
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

class DynamoDbStore final : public Store {
 public:
  DynamoDbStore(const DynamoDbOptions& options, std::shared_ptr<aws::Transport> transport)
      : transport_(std::move(transport)), service_(std::make_shared<Service>(options, *transport_)) {}

  DynamoDbStore(const DynamoDbStore&) = delete;
  DynamoDbStore& operator=(const DynamoDbStore&) = delete;

  ~DynamoDbStore() override {
    if (!service_->in_completion()) {
      service_->wait();
      return;
    }
    // This may be a thread of the transport, which cannot wait for itself, so another thread destroys it. If none can
    // be started, it is leaked.
    auto kept = std::make_unique<std::shared_ptr<aws::Transport>>(std::move(transport_));
    try {
      start_thread([service = service_, transport = kept.get()] {
        service->wait();
        delete transport;
      }).detach();
    } catch (const std::system_error&) {
    }
    static_cast<void>(kept.release());
  }

  void insert(RecordPtr record, Done done) override { put(*record, nullptr, std::move(done)); }

  void replace(RecordPtr record, Seen seen, Done done) override {
    const Condition condition = service_->format().unchanged(seen);
    put(*record, &condition, std::move(done));
  }

  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    const auto* items = dynamic_cast<const TransactItems*>(companion.get());
    if (items == nullptr) {
      return done(Answer::decline(ErrorKind::misuse,
                                  name() + ": the writes to commit with the record are not for this store: it takes "
                                           "once::stores::TransactItems"));
    }
    if (items->size() == 0) return replace(std::move(record), seen, std::move(done));
    service_->begin();
    const Condition condition = service_->format().unchanged(seen);
    auto put = put_text(service_->name_only(), *record, &condition);
    if (Error* error = std::get_if<Error>(&put)) return cannot_keep(service_, done, std::move(*error));
    const PutText& own = std::get<PutText>(put);
    if (own.item_bytes + items->bytes() > TransactItems::max_bytes) {
      return fail(
          service_, done,
          {ErrorKind::misuse, "the record has " + std::to_string(own.item_bytes) +
                                  " bytes and the writes that commit " + "with it " + std::to_string(items->bytes()) +
                                  ", together over the limit of " + std::to_string(TransactItems::max_bytes)});
    }
    const std::string writes = "[{\"Put\":" + own.text + "}}," + items->json() + "]";
    // The service treats a token that it has executed within ten minutes as a repetition, and refuses it with another
    // text. Derived from the text, a token never comes with another one.
    std::string body = R"({"ClientRequestToken":")" + to_hex(sha256(writes)).substr(0, 36) + '"';
    if (service_->options().count_capacity) body += R"(,"ReturnConsumedCapacity":"TOTAL")";
    body += ",\"TransactItems\":" + writes;
    transact(service_, {.body = std::move(body),
                        .key = record->key,
                        .seen = seen,
                        .companion = std::move(companion),
                        .items = items,
                        .done = std::move(done)});
  }

  void remove(std::string key, Seen seen, Done done) override {
    service_->begin();
    auto primary_key = key_for(key);
    if (Error* error = std::get_if<Error>(&primary_key)) return fail(service_, done, std::move(*error));
    std::string body = service_->table() + ",\"Key\":";
    append_json(body, std::get<Item>(primary_key));
    append_write_condition(body, service_->format().unchanged(seen));
    send(service_,
         {.operation = "DeleteItem", .body = std::move(body), .key = std::move(key), .done = std::move(done)});
  }

  void get(std::string key, Done done) override {
    service_->begin();
    auto primary_key = key_for(key);
    if (Error* error = std::get_if<Error>(&primary_key)) return fail(service_, done, std::move(*error));
    read_item(service_, std::get<Item>(primary_key),
              [service = service_, key = std::move(key), done = std::move(done)](
                  Outcome outcome, std::optional<StoreTime> time) mutable {
                if (outcome.error) return fail(service, done, *std::move(outcome.error));
                give(service, done, AnswerStatus::done, key, outcome.answer.item, time);
              });
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    service_->begin();
    dynamodb::list(service_, std::move(query), std::move(done));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    service_->begin();
    dynamodb::sweep(service_, now, limit, std::move(done));
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return service_->time(); }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = service_->format().max_record_bytes(),
            .durable = true,
            .shared = true,
            .tells_time = true,
            .default_skew = Millis{2'000},
            .keeps_compressed = service_->format().keeps_compressed(),
            .expires_itself = true};
  }

  [[nodiscard]] std::string name() const override { return service_->name(); }

  [[nodiscard]] DynamoDbStatus status() const { return service_->status(); }

 private:
  static Error empty_key() { return {ErrorKind::misuse, "the key is empty"}; }

  [[nodiscard]] std::variant<Item, Error> key_for(const std::string& key) const {
    if (key.empty()) return empty_key();
    return service_->format().primary_key(key);
  }

  struct PutText {
    std::string text;  // Without the closing brace.
    std::size_t item_bytes = 0;
  };

  // The request that puts the record under this condition, or under that of an insert if it is null.
  [[nodiscard]] std::variant<PutText, Error> put_text(const std::string& beginning, const Record& record,
                                                      const Condition* condition) const {
    const std::size_t most = service_->format().max_record_bytes();
    const auto too_large = [&](std::size_t bytes, std::size_t limit) {
      return Error{ErrorKind::misuse, "the record of the key '" + text::printable(record.key) + "' has " +
                                          std::to_string(bytes) + " bytes, over the limit of " + std::to_string(limit)};
    };
    if (record_bytes(record) > most) return too_large(record_bytes(record), most);
    const Placement placement = record.result.placement;
    if ((placement == Placement::compressed || placement == Placement::sealed) &&
        !service_->format().keeps_compressed()) {
      return Error{ErrorKind::misuse,
                   std::string(to_string(placement)) + " results are off, because other programs read this table"};
    }
    if (record.key.empty()) return empty_key();
    auto item = service_->format().encode(record);
    if (Error* error = std::get_if<Error>(&item)) return std::move(*error);
    // Only with very many steps, which used up the room reserved for them.
    PutText put{.text = {}, .item_bytes = item_bytes(std::get<Item>(item))};
    if (put.item_bytes > max_item_bytes) return too_large(put.item_bytes, max_item_bytes);
    put.text.reserve(beginning.size() + put.item_bytes + put.item_bytes / 2 + 512);
    put.text = beginning;
    put.text += ",\"Item\":";
    append_json(put.text, std::get<Item>(item));
    append_write_condition(put.text, condition == nullptr ? service_->absent() : *condition);
    return put;
  }

  // insert without `condition`.
  void put(const Record& record, const Condition* condition, Done done) {
    service_->begin();
    auto text = put_text(service_->table(), record, condition);
    if (Error* error = std::get_if<Error>(&text)) return cannot_keep(service_, done, std::move(*error));
    send(service_, {.operation = "PutItem",
                    .body = std::move(std::get<PutText>(text).text),
                    .key = record.key,
                    .is_insert = condition == nullptr,
                    .done = std::move(done)});
  }

  std::shared_ptr<aws::Transport> transport_;
  const ServicePtr service_;
};

}  // namespace

std::unique_ptr<Store> make_dynamodb_store(DynamoDbOptions options) {
  options = completed(std::move(options));
  auto transport = make_dynamodb_transport(options);
  // From now on only the store owns them: a completion must not destroy them.
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
  const auto* dynamodb = dynamic_cast<const DynamoDbStore*>(&innermost(store));
  if (dynamodb == nullptr) return std::nullopt;
  return dynamodb->status();
}

}  // namespace once::stores
