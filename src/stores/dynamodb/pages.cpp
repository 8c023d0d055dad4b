#include "stores/dynamodb/pages.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "text/json_write.hpp"

namespace once::stores::dynamodb {

namespace {

constexpr std::size_t max_page = 10'000;
// How many items a sweep reads per request, how many it deletes at a time, and how many requests it makes per call.
constexpr std::size_t sweep_page = 1'000;
constexpr std::size_t sweep_deletes = 16;
constexpr int sweep_pages = 50;

// Reads pages of the table, or of this store's partition of it.
void scan(const ServicePtr& service, const std::optional<Condition>& filter, std::size_t limit,
          const std::optional<Item>& from, Callback<void(Outcome)> then) {
  const DynamoDbOptions& options = service->options();
  std::string body = service->table() + ",\"ConsistentRead\":true,\"Limit\":" + std::to_string(limit);
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
  service->call(
      service, composite ? "Query" : "Scan", std::move(body), Access::read, true,
      [then = std::move(then)](Outcome outcome, std::optional<StoreTime>) mutable { then(std::move(outcome)); });
}

// The primary key of an item, to continue after it.
Item primary_key_of(const DynamoDbOptions& options, const Item& item) {
  Item key;
  for (const std::string* name : {&options.partition_key, &options.sort_key}) {
    if (name->empty()) continue;
    if (const AttributeValue* value = item.find(*name)) key.add(*name, *value);
  }
  return key;
}

// A place in a list: "t" and the key of the last item of the table, or "i", the shard of the index, ':' and that key,
// if any.
struct Cursor {
  std::optional<std::uint32_t> shard;
  std::optional<Item> key;
};

std::string to_text(const Cursor& cursor) {
  std::string text = cursor.shard ? "i" + std::to_string(*cursor.shard) + ":" : "t";
  if (cursor.key) append_json(text, *cursor.key);
  return text;
}

std::optional<Cursor> cursor_from_text(std::string_view text, const ServicePtr& service) {
  const DynamoDbOptions& options = service->options();
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
    if (shard >= options.index_shards || !service->format().open_partition(shard)) return std::nullopt;
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
    if (name == &options.attributes.open && value->text != service->format().open_partition(*cursor.shard)) {
      return std::nullopt;
    }
  }
  return cursor;
}

using ListDone = Callback<void(ListPage)>;

void fail_list(const ServicePtr& service, ListDone& done, Error error) {
  ListPage page;
  page.error = service->named(std::move(error));
  service->complete(done, std::move(page));
}

// One page of a list: one request.
void give_page(const ServicePtr& service, const ListQuery& query, Outcome outcome, std::optional<std::uint32_t> shard,
               ListDone& done) {
  if (outcome.error) return fail_list(service, done, *std::move(outcome.error));
  ListPage page;
  for (const Item& item : outcome.answer.items) {
    auto key = service->format().key_of(item);
    if (Error* error = std::get_if<Error>(&key)) {
      page.unreadable.push_back(service->named(std::move(*error)));
      continue;
    }
    if (!std::get<std::string>(key).starts_with(query.key_prefix)) continue;
    auto record = service->format().decode(item);
    if (Error* error = std::get_if<Error>(&record)) {
      page.unreadable.push_back(service->named(std::move(*error)));
      continue;
    }
    Record& found = std::get<Record>(record);
    if (query.state && found.state != *query.state) continue;
    if (query.expired_at && !is_expired(found.expires_at, *query.expired_at)) continue;
    page.records.push_back(std::move(found));
  }
  if (outcome.answer.last_key) {
    page.cursor = to_text({shard, std::move(outcome.answer.last_key)});
  } else if (shard && *shard + 1 < service->options().index_shards) {
    page.cursor = to_text({*shard + 1, std::nullopt});
  }
  service->complete(done, std::move(page));
}

void list_table(const ServicePtr& service, ListQuery query, const std::optional<Item>& from, ListDone done) {
  const auto filter = service->format().filter(query);
  const std::size_t limit = query.limit;
  scan(service, filter, limit, from,
       [service, query = std::move(query), done = std::move(done)](Outcome outcome) mutable {
         give_page(service, query, std::move(outcome), std::nullopt, done);
       });
}

void list_index(const ServicePtr& service, ListQuery query, std::uint32_t shard, const std::optional<Item>& from,
                ListDone done) {
  const DynamoDbOptions& options = service->options();
  std::string body = service->table() + ",\"Limit\":" + std::to_string(query.limit) + ",\"IndexName\":";
  text::json::append_quoted(body, options.index);
  if (from) {
    body += ",\"ExclusiveStartKey\":";
    append_json(body, *from);
  }
  Condition open{.expression = "#k_open = :k_open", .names = {{"#k_open", options.attributes.open}}, .values = {}};
  open.values.add(":k_open", AttributeValue::s(service->format().open_partition(shard).value_or("")));
  const auto filter = service->format().filter(query);
  append_conditions(body, {{"KeyConditionExpression", &open}, {"FilterExpression", filter ? &*filter : nullptr}});
  service->call(service, "Query", std::move(body), Access::read, true,
                [service, query = std::move(query), shard, done = std::move(done)](Outcome outcome,
                                                                                   std::optional<StoreTime>) mutable {
                  give_page(service, query, std::move(outcome), shard, done);
                });
}

// One call of sweep(). It runs in one completion after the other.
class Sweep : public std::enable_shared_from_this<Sweep> {
 public:
  Sweep(ServicePtr service, Time now, std::size_t limit, Callback<void(SweepAnswer)> done)
      : service_(std::move(service)), now_(now), limit_(limit), done_(std::move(done)) {}

  void start() {
    {
      const std::lock_guard lock(service_->lap_mutex);
      lap_ = service_->lap;
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
    scan(service_, service_->format().filter(query), sweep_page, lap_.position,
         [self = shared_from_this()](Outcome outcome) { self->take(std::move(outcome)); });
  }

  void take(Outcome outcome) {
    if (outcome.error) {
      answer_.error = service_->named(*std::move(outcome.error));
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
      auto read = service_->format().decode(item);
      if (Error* error = std::get_if<Error>(&read)) {
        if (!answer_.error) answer_.error = service_->named(std::move(*error));  // Continue with the others.
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
    auto key = service_->format().primary_key(record.key);
    if (Error* error = std::get_if<Error>(&key)) return removed(std::move(*error), false);
    std::string body = service_->table() + ",\"Key\":";
    append_json(body, std::get<Item>(key));
    const Condition condition = service_->format().unchanged({.owner = record.owner, .revision = record.revision});
    append_conditions(body, {{"ConditionExpression", &condition}});
    service_->call(service_, "DeleteItem", std::move(body), Access::write, false,
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
        answer_.error = service_->named(*std::move(error));
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
      lap_.position = primary_key_of(service_->options(), items_[next_ - 1]);
      return read();
    }
    lap_.position = std::move(end_);
    if (lap_.position) return read();
    if (whole_) {
      lap_ = {};
      return finish();
    }
    // It began in the middle: items before that may have expired since the last sweep.
    whole_ = true;
    read();
  }

  void finish() {
    {
      const std::lock_guard lock(service_->lap_mutex);
      service_->lap = std::move(lap_);
    }
    service_->complete(done_, std::move(answer_));
  }

  const ServicePtr service_;
  const Time now_;
  const std::size_t limit_;
  Callback<void(SweepAnswer)> done_;
  Service::Lap lap_;
  bool whole_ = false;  // This lap began at the table's beginning.
  int pages_ = 0;
  std::vector<Item> items_;
  std::optional<Item> end_;
  std::size_t next_ = 0;

  std::mutex mutex_;  // Running deletes end on several threads; everything else happens when none runs.
  std::size_t waiting_ = 0;
  bool failed_ = false;
  SweepAnswer answer_;
};

}  // namespace

void list(const ServicePtr& service, ListQuery query, Callback<void(ListPage)> done) {
  if (query.limit < 1 || query.limit > max_page) {
    return fail_list(service, done,
                     {ErrorKind::misuse, "a page holds 1 to " + std::to_string(max_page) + " records, not " +
                                             std::to_string(query.limit)});
  }
  if (!query.cursor.empty()) {
    const auto cursor = cursor_from_text(query.cursor, service);
    if (!cursor) return fail_list(service, done, {ErrorKind::misuse, "the cursor is not one of a page of this store"});
    if (!cursor->shard) return list_table(service, std::move(query), cursor->key, std::move(done));
    return list_index(service, std::move(query), *cursor->shard, cursor->key, std::move(done));
  }
  const DynamoDbOptions& options = service->options();
  const bool open = query.state && *query.state != State::completed && service->format().open_partition(0);
  using UseIndex = DynamoDbOptions::UseIndex;
  if (!open || options.use_index == UseIndex::never) {
    return list_table(service, std::move(query), std::nullopt, std::move(done));
  }
  if (options.use_index == UseIndex::always) service->index = Service::Index::there;
  Callback<void()> listing = [service, query = std::move(query), done = std::move(done)]() mutable {
    if (service->index == Service::Index::there) {
      list_index(service, std::move(query), 0, std::nullopt, std::move(done));
    } else {
      list_table(service, std::move(query), std::nullopt, std::move(done));
    }
  };
  if (service->index != Service::Index::not_asked) return listing();
  // A table that may not be described counts as one without an index.
  service->describe(service, [listing = std::move(listing)](const Outcome&) mutable { listing(); });
}

void sweep(const ServicePtr& service, Time now, std::size_t limit, Callback<void(SweepAnswer)> done) {
  if (limit == 0) return service->complete(done, SweepAnswer{});
  std::make_shared<Sweep>(service, now, limit, std::move(done))->start();
}

}  // namespace once::stores::dynamodb
