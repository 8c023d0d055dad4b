#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include <boost/system/system_error.hpp>

#include <once/error.hpp>
#include <once/stores/postgresql.hpp>

#include "platform/forks.hpp"
#include "platform/learnt_clock.hpp"
#include "stores/postgresql/companions.hpp"
#include "stores/postgresql/gate.hpp"
#include "stores/postgresql/local.hpp"
#include "stores/postgresql/loop.hpp"
#include "stores/postgresql/rows.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "text/hex.hpp"

namespace once::stores {

namespace {

using namespace postgresql;

constexpr std::size_t max_record = std::size_t{16} * 1024 * 1024;
constexpr int list_scan = 50'000;                                        // Rows that list looks at for one page …
constexpr std::int64_t max_page_bytes = std::int64_t{64} * 1024 * 1024;  // … and bytes of records on one.
constexpr std::size_t sweep_slice = 500;                                 // Records of one transaction.

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, "postgresql store: " + what); }

void check(const PostgresqlOptions& o) {
  quoted_name(o.schema);
  if (o.operation_timeout < Millis{1'000} || o.operation_timeout > Millis{600'000}) {
    refuse("operation_timeout must be 1s to 10m");
  }
  if (o.lock_timeout < Millis{1} || o.lock_timeout > Millis{10'000}) refuse("lock_timeout must be 1ms to 10s");
  if (o.group < 1 || o.group > 1'000) refuse("group must be 1 to 1000");
  if (o.write_connections < 1 || o.write_connections > 16) refuse("write_connections must be 1 to 16");
  if (o.side_connections < 1 || o.side_connections > 64) refuse("side_connections must be 1 to 64");
  if (!o.clock) refuse("the clock is missing");
}

// What completions share with the store, which one of them may destroy.
class Core {
 public:
  explicit Core(const PostgresqlOptions& options, const std::string& its_name)
      : name(its_name), clock_(options.clock) {}

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
  // Ends an operation.
  template <class Done, class Value>
  void complete(Done& done, Value value) noexcept {
    done(std::move(value));
    done = nullptr;  // It may own a reference to the store.
    end();
  }

  void learn(std::optional<std::int64_t> told_ms, Uptime sent, Uptime received) noexcept {
    if (!told_ms) return;
    store_clock_.learn({.now = Time(Millis(*told_ms)), .error = Millis{0}}, sent, received);
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept { return store_clock_.at(clock_->uptime()); }

  const std::string name;

 private:
  std::mutex mutex_;
  std::condition_variable none_under_way_;
  std::size_t under_way_ = 0;
  LearntClock store_clock_;
  const std::shared_ptr<Clock> clock_;
};
using CorePtr = std::shared_ptr<Core>;

std::string_view cell(const PGresult* result, int row, int column) {
  return {PQgetvalue(result, row, column), static_cast<std::size_t>(PQgetlength(result, row, column))};
}
bool is_null(const PGresult* result, int row, int column) { return PQgetisnull(result, row, column) == 1; }

Answer failed(Error error, bool unfit = false) {
  Answer answer = Answer::fail(error.kind, std::move(error.message));
  answer.unfit = unfit;
  return answer;
}

// The answer of write_1 (done, now_ms, there) and of get_1 (now_ms, there): one composite value.
Answer read_answer(Core& core, Reply reply, bool is_get) {
  if (reply.error && reply.declined) return Answer::decline(reply.error->kind, std::move(reply.error->message));
  if (reply.error) {
    Answer answer = failed(*std::move(reply.error));
    answer.no_room = reply.no_room;
    return answer;
  }
  const PGresult* const result = reply.result.get();
  const auto malformed = [&] {
    return failed({ErrorKind::corrupt, core.name + ": the answer of its functions is malformed: run once table check"});
  };
  if (PQntuples(result) != 1 || PQnfields(result) != 1 || is_null(result, 0, 0)) return malformed();
  Composite columns(cell(result, 0, 0));
  bool done = true;
  if (!is_get) {
    const auto told = columns.next();
    if (!told || !told->bytes || told->bytes->size() != 1) return malformed();
    done = told->bytes->front() != 0;
  }
  const auto now = columns.next();
  const auto there = columns.next();
  if (!now || !there) return malformed();
  if (now->bytes) core.learn(number_of(*now->bytes), reply.sent, reply.received);
  Answer answer;
  answer.time = core.time();
  answer.status = done ? AnswerStatus::done : AnswerStatus::refused;
  if (!there->bytes) return answer;
  try {
    answer.record = share(read_row(*there->bytes, core.name));
  } catch (const Exception& error) {
    return failed(error.error());
  }
  return answer;
}

// "k.<key>": after this key. "e<sweep_at_ms>.<key>": after this place in the order of expiry. Keys in hexadecimal.
struct Cursor {
  std::optional<std::int64_t> sweep_at;
  std::string key;

  static std::optional<Cursor> from(std::string_view text) {
    Cursor cursor;
    const std::size_t dot = text.find('.');
    if (dot == std::string_view::npos || dot == 0) return std::nullopt;
    const std::string_view number = text.substr(1, dot - 1);
    if (text.front() == 'e') {
      std::int64_t value = 0;
      const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), value);
      if (failed != std::errc() || end != number.data() + number.size()) return std::nullopt;
      cursor.sweep_at = value;
    } else if (text.front() != 'k' || !number.empty()) {
      return std::nullopt;
    }
    auto key = text::from_hex(text.substr(dot + 1));
    if (!key) return std::nullopt;
    cursor.key = *std::move(key);
    return cursor;
  }
};

// The first key above all that begin with `prefix`; empty: there is none.
std::string above(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xFF') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

class PostgresqlStore final : public Store {
 public:
  PostgresqlStore(PostgresqlOptions options, Target target)
      : core_(std::make_shared<Core>(options, target.name())),
        schema_(options.schema),
        operation_timeout_(options.operation_timeout),
        allow_clear_(options.allow_clear),
        gate_(std::make_unique<PostgresqlGate>(options)),
        companions_(std::make_unique<Companions>(options, target)),
        io_(std::make_unique<std::shared_ptr<Io>>(std::make_shared<Io>(std::move(options), std::move(target)))) {
    (*io_)->start();
  }

  PostgresqlStore(const PostgresqlStore&) = delete;
  PostgresqlStore& operator=(const PostgresqlStore&) = delete;

  ~PostgresqlStore() override {
    if (is_forked()) {
      static_cast<void>(io_.release());  // The connections are the parent's, and the threads do not exist.
      static_cast<void>(gate_.release());
      static_cast<void>(companions_.release());
      return;
    }
    const bool in_completion = (*io_)->has_turn() || companions_->is_here();
    if (!in_completion) core_->wait();
    companions_->close(!in_completion);
    (*io_)->close();
  }

  void insert(RecordPtr record, Done done) override {
    if (auto error = unkeepable(*record)) return done(failed(*std::move(error), true));
    write(record->key, write_parameters(Act::insert, *record, nullptr, allow_clear_), std::move(done));
  }

  void replace(RecordPtr record, Seen seen, Done done) override {
    if (auto error = unkeepable(*record)) return done(failed(*std::move(error), true));
    write(record->key, write_parameters(Act::replace, *record, &seen, allow_clear_), std::move(done));
  }

  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    if (auto error = unkeepable(*record)) return done(failed(*std::move(error), true));
    if (auto error = unfit(*companion)) return done(Answer::decline(error->kind, std::move(error->message)));
    call(Call::write, record->key, write_parameters(Act::replace, *record, &seen, allow_clear_), std::move(done),
         read_written, std::move(companion));
  }

  SqlStatement finish_statement(const Record& record, std::uint64_t /*place*/) override {
    if (auto error = unkeepable(record)) throw Exception(*std::move(error));
    return postgresql::finish_statement(record, schema_);
  }

  void remove(std::string key, Seen seen, Done done) override {
    if (key.empty()) return done(failed({ErrorKind::misuse, core_->name + ": the key is empty"}));
    Parameters parameters = remove_parameters(key, seen);
    write(std::move(key), std::move(parameters), std::move(done));
  }

  void get(std::string key, Done done) override {
    if (key.empty()) return done(failed({ErrorKind::misuse, core_->name + ": the key is empty"}));
    Parameters parameters;
    parameters.bytes(key);
    call(Call::get, std::move(key), std::move(parameters), std::move(done),
         [](Core& core, Reply reply) { return read_answer(core, std::move(reply), true); });
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    const auto misuse = [&](const std::string& what) {
      ListPage page;
      page.error = Error{ErrorKind::misuse, core_->name + ": " + what};
      done(std::move(page));
    };
    if (query.limit < 1 || query.limit > 10'000) return misuse("the limit of a list must be 1 to 10000");
    const auto cursor = query.cursor.empty() ? std::optional<Cursor>(Cursor()) : Cursor::from(query.cursor);
    if (!cursor) {
      return misuse("'" + query.cursor + "' is not a page's cursor: pass the cursor that the previous page returned");
    }
    Parameters parameters;
    if (query.state) {
      parameters.int2(static_cast<std::int16_t>(*query.state));
    } else {
      parameters.null(Type::int2);
    }
    parameters.bytes(query.key_prefix).text(above(query.key_prefix));
    const bool listed = query.state && (*query.state == State::failed || *query.state == State::unknown);
    const bool by_expiry = query.expired_at && !listed;
    if (query.expired_at) {
      parameters.int8(unix_ms(*query.expired_at));
    } else {
      parameters.null(Type::int8);
    }
    if (cursor->sweep_at) {
      parameters.int8(*cursor->sweep_at);
    } else {
      parameters.null(Type::int8);
    }
    parameters.text(cursor->key).int4(static_cast<std::int32_t>(query.limit)).int8(max_page_bytes).int4(list_scan);
    call(Call::list, {}, std::move(parameters), std::move(done),
         [by_expiry](Core& core, Reply reply) { return read_page(core, reply, by_expiry); });
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (limit == 0) {
      SweepAnswer nothing;
      nothing.more = true;
      return done(nothing);
    }
    core_->begin();
    const auto sweeping = std::make_shared<Sweeping>();
    sweeping->now = now;
    sweeping->left = limit;
    sweeping->deadline = Steady::now() + operation_timeout_;
    sweeping->done = std::move(done);
    sweep_slice_of(core_, std::weak_ptr(*io_), sweeping, forks_);
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return core_->time(); }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = max_record,
            .durable = true,
            .shared = true,
            .tells_time = true,
            .default_skew = Millis{2'000},  // After a failover another host's clock tells the time.
            .keeps_compressed = true,
            .hands_out = true,
            .has_finish_function = true};
  }

  [[nodiscard]] std::string name() const override { return core_->name; }
  [[nodiscard]] StoreGate* gate() noexcept override { return gate_.get(); }

  [[nodiscard]] LocalSchema local_schema() const { return {.schema = schema_, .allow_clear = allow_clear_}; }

 private:
  struct Sweeping {
    Time now{};
    std::size_t left = 0;
    Steady::time_point deadline;
    SweepAnswer answer;
    Callback<void(SweepAnswer)> done;
  };

  [[nodiscard]] bool is_forked() const noexcept { return forks() != forks_; }
  [[nodiscard]] Error forked() const {
    return {ErrorKind::misuse,
            core_->name + ": this process is a fork of the one that opened the store: open another here"};
  }

  [[nodiscard]] std::optional<Error> unkeepable(const Record& record) const {
    if (record.key.empty()) return Error{ErrorKind::misuse, core_->name + ": the key is empty"};
    const std::size_t bytes = record_bytes(record);
    if (bytes <= max_record) return std::nullopt;
    return Error{ErrorKind::misuse, core_->name + ": the record has " + std::to_string(bytes) +
                                        " bytes, over the limit of " + std::to_string(max_record)};
  }

  static Answer read_written(Core& core, Reply reply) { return read_answer(core, std::move(reply), false); }

  void write(std::string key, Parameters parameters, Done done) {
    call(Call::write, std::move(key), std::move(parameters), std::move(done), read_written);
  }

  // Calls a function of the schema; `read` makes its rows an answer.
  template <class Value, class Read>
  void call(Call what, std::string key, Parameters parameters, Callback<void(Value)> done, Read read,
            std::shared_ptr<const Companion> companion = nullptr) {
    core_->begin();
    auto request = std::make_unique<Request>();
    request->call = what;
    request->key = std::move(key);
    request->parameters = std::move(parameters);
    request->deadline = Steady::now() + operation_timeout_;
    request->done = [core = core_, done = std::move(done), read = std::move(read)](Reply reply) mutable {
      core->complete(done, read(*core, std::move(reply)));
    };
    if (is_forked()) {
      request->reply.error = forked();
      return request->done(std::move(request->reply));
    }
    request->companion = std::move(companion);
    if (request->companion != nullptr) return companions_->add(std::move(request));
    (*io_)->submit(std::move(request));
  }

  static ListPage read_page(Core& core, Reply& reply, bool by_expiry) {
    ListPage page;
    if (reply.error) {
      page.error = std::move(reply.error);
      return page;
    }
    const PGresult* const result = reply.result.get();
    const int rows = PQntuples(result);
    for (int row = 0; row < rows; ++row) {
      if (is_null(result, row, 0)) {
        if (is_null(result, row, 1)) continue;
        if (!by_expiry) {
          page.cursor = "k." + to_hex(cell(result, row, 1));
        } else {
          const auto at = number_of(cell(result, row, 2));
          page.cursor = "e" + std::to_string(at.value_or(0)) + "." + to_hex(cell(result, row, 1));
        }
        continue;
      }
      try {
        page.records.push_back(read_row(cell(result, row, 0), core.name));
      } catch (const Exception& error) {
        page.unreadable.push_back(error.error());
      }
    }
    return page;
  }

  // Static, as the store may be gone when the next slice begins.
  static void sweep_slice_of(const CorePtr& core, const std::weak_ptr<Io>& weak,
                             const std::shared_ptr<Sweeping>& sweeping, unsigned forks_before) {
    auto request = std::make_unique<Request>();
    const std::size_t most = std::min(sweeping->left, sweep_slice);
    request->call = Call::sweep;
    request->parameters.int8(unix_ms(sweeping->now)).int4(static_cast<std::int32_t>(most));
    request->deadline = sweeping->deadline;
    request->done = [core, weak, sweeping, forks_before](Reply reply) {
      SweepAnswer& answer = sweeping->answer;
      answer.more = false;
      if (reply.error) {
        answer.error = std::move(reply.error);
      } else {
        const PGresult* const result = reply.result.get();
        const auto removed = static_cast<std::size_t>(number_of(cell(result, 0, 0)).value_or(0));
        answer.removed += removed;
        answer.more = cell(result, 0, 1) == std::string_view("\1", 1);
        core->learn(number_of(cell(result, 0, 2)), reply.sent, reply.received);
        sweeping->left -= std::min(removed, sweeping->left);
        if (answer.more && sweeping->left > 0 && !weak.expired()) {
          sweeping->deadline = std::max(sweeping->deadline, Steady::now() + std::chrono::seconds(1));
          return sweep_slice_of(core, weak, sweeping, forks_before);
        }
      }
      core->complete(sweeping->done, std::move(answer));
    };
    const auto io = weak.lock();
    if (io == nullptr || forks() != forks_before) {
      request->reply.error = Error{ErrorKind::misuse, core->name + ": the store is another process's, or closed"};
      return request->done(std::move(request->reply));
    }
    io->submit(std::move(request));
  }

  const CorePtr core_;
  const std::string schema_;
  const Millis operation_timeout_;
  const bool allow_clear_;
  std::unique_ptr<PostgresqlGate> gate_;  // Pointers, so that they can be left after a fork.
  std::unique_ptr<Companions> companions_;
  std::unique_ptr<std::shared_ptr<Io>> io_;
  const unsigned forks_ = forks();
};

}  // namespace

std::optional<postgresql::LocalSchema> postgresql::local_schema(const Store& store) {
  const auto* const found = dynamic_cast<const PostgresqlStore*>(&innermost(store));
  return found == nullptr ? std::nullopt : std::optional(found->local_schema());
}

std::unique_ptr<Store> make_postgresql_store(PostgresqlOptions options) {
  check(options);
  Target target(options.url, options.schema);
  try {
    return std::make_unique<PostgresqlStore>(std::move(options), std::move(target));
  } catch (const boost::system::system_error& error) {
    throw Exception(ErrorKind::unavailable, std::string("postgresql store: ") + error.what() +
                                                ": raise the limit of open files (ulimit -n, LimitNOFILE=)");
  }
}

}  // namespace once::stores
