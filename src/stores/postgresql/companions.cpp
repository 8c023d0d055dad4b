#include "stores/postgresql/companions.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <exception>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include <once/stores/postgresql_transaction.hpp>

#include "platform/thread.hpp"
#include "platform/wait.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "text/ascii.hpp"

namespace once::stores::postgresql {

namespace {

constexpr Millis companion_idle_limit{30'000};  // Of a connection.
constexpr unsigned most_tries = 8;              // After deadlocks and the like.
constexpr Millis to_find_out{1'000};  // After the deadline: whether a function that failed has committed something.
constexpr const char* function_ended =
    " ended the transaction, which it must not: what it wrote before that may be committed";

// What a statement does is its first word: the server takes one statement at a time.
std::string_view first_word(std::string_view sql) {
  for (;;) {
    const std::size_t begin = sql.find_first_not_of(" \t\r\n\f(");
    if (begin == std::string_view::npos) return {};
    sql.remove_prefix(begin);
    std::size_t end = 0;
    if (sql.starts_with("--")) {
      end = sql.find('\n');
    } else if (sql.starts_with("/*")) {
      unsigned depth = 0;  // Comments nest.
      for (end = 0; end + 1 < sql.size(); ++end) {
        const std::string_view two = sql.substr(end, 2);
        if (two != "/*" && two != "*/") continue;
        depth += two == "/*" ? 1 : -1;
        ++end;
        if (depth == 0) break;
      }
      ++end;
    } else {
      return sql.substr(
          0, std::min(sql.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"), sql.size()));
    }
    if (end >= sql.size()) return {};
    sql.remove_prefix(end);
  }
}

bool changes_rows_or_reads(std::string_view sql) {
  const std::string word = text::lower(first_word(sql));
  constexpr std::array<std::string_view, 8> allowed = {"select", "insert", "update", "delete",
                                                       "merge",  "with",   "values", "table"};
  return std::find(allowed.begin(), allowed.end(), word) != allowed.end();
}

// The connection cannot be used any more: lost, or in a state that nobody knows.
struct Lost {
  std::string problem;
};

// The transaction is rolled back, or will be.
struct RolledBack {
  Error error;
  bool declined = false;   // Because of the companion.
  bool try_again = false;  // The same may succeed now.
};

RolledBack rolled_back(const Failure& failure, const std::string& schema) {
  return {.error = failure.error(schema), .try_again = failure.may_try_again()};
}

// The error of a user's statement.
RolledBack declined_by(const Failure& failure, const std::string& who) {
  const std::string_view group = std::string_view(failure.state).substr(0, 2);
  const bool is_misuse = group == "22" || group == "42" || group == "0A" || group == "54" || group == "3F";
  return {.error = {is_misuse ? ErrorKind::misuse : ErrorKind::unavailable,
                    who + failure.message + " (SQLSTATE " + failure.state + ")"},
          .declined = true,
          .try_again = failure.may_try_again()};
}

// One thread's connection.
class CompanionSession {
 public:
  CompanionSession(const PostgresqlOptions& options, const Target& target) : options_(options), target_(target) {}

  // Never throws.
  void carry_out(Request& request) {
    request.reply.error.reset();
    for (unsigned tries = 1;; ++tries) {
      const auto again = attempt(request);
      if (!again) return;
      const bool in_time = Steady::now() + Millis{100} < request.deadline;
      if (again->try_again && tries < most_tries && in_time) {
        // Two that began together and met in a deadlock must not meet there again.
        std::this_thread::sleep_for(
            Millis(std::uniform_int_distribution<int>(0, 25 * static_cast<int>(tries))(random_)));
        continue;
      }
      request.reply.result.reset();
      request.reply.error = again->error;
      request.reply.declined = again->declined;
      return;
    }
  }
  void close_if_idle() { connection_.reset(); }

 private:
  // Empty: request.reply says how it ended.
  std::optional<RolledBack> attempt(Request& request) {
    deadline_ = request.deadline;
    std::string problem;
    try {
      const bool is_new = connect();
      try {
        return transaction(request);
      } catch (const RolledBack& failed) {
        roll_back();
        // A pooler may have led it to a server that takes no writes now.
        if (!failed.declined && !failed.try_again) connection_.reset();
        return failed;
      } catch (const Lost& lost) {
        connection_.reset();
        // One that was idle may have been closed long ago. Nothing was committed.
        if (!is_new) return RolledBack{.error = unavailable(lost.problem), .try_again = true};
        problem = lost.problem;
      }
    } catch (const Exception& error) {
      connection_.reset();
      return RolledBack{.error = error.error()};
    }
    return RolledBack{.error = unavailable(problem)};
  }

  // False: it was open.
  bool connect() {
    if (is_left_behind()) connection_.reset();
    if (connection_ != nullptr) return false;
    std::optional<std::string> problem;
    for (std::size_t turn = 0; turn < target_.hosts(); ++turn) {
      problem = connect(turn);
      if (!problem) return true;
    }
    throw Exception(ErrorKind::unavailable, target_.name() + ": " + *problem);
  }
  // Says if it led to a server that was replaced.
  std::optional<std::string> connect(std::size_t turn) {
    connection_ = target_.connect(turn);
    PQsetNoticeReceiver(connection_.get(), &CompanionSession::notice, this);
    const ResultPtr about = ask(about_call(options_.schema), binary_format);
    if (!is_fine(about.get())) {
      const Error error = Failure::of(about.get()).error(options_.schema);
      throw Exception(error.kind, target_.name() + ": " + error.message);
    }
    if (const auto problem = unfit_server(about.get(), options_.schema, options_.allow_unsafe)) {
      throw Exception(ErrorKind::misuse, target_.name() + ": " + *problem);
    }
    return target_.newest().meet(about.get(), epoch_);
  }
  [[nodiscard]] bool is_left_behind() const noexcept { return epoch_ != target_.newest().epoch(); }

  // The last result of one statement outside of a transaction. Throws Exception(unavailable).
  ResultPtr ask(const std::string& sql, int format) {
    PGconn* const connection = connection_.get();
    try {
      if (PQsetnonblocking(connection, 1) != 0 ||
          PQsendQueryParams(connection, sql.c_str(), 0, nullptr, nullptr, nullptr, nullptr, format) != 1) {
        throw Lost{connect_problem(connection)};
      }
      ResultPtr last;
      while (ResultPtr result = get()) last = std::move(result);
      return last;
    } catch (const Lost& lost) {
      throw Exception(unavailable(lost.problem));
    }
  }

  // Throws RolledBack or Lost: then it is certainly not committed.
  std::optional<RolledBack> transaction(Request& request) {
    const auto* const statements = dynamic_cast<const SqlStatements*>(request.companion.get());
    const std::string number = begin(request, statements);
    if (!wrote(*request.reply.result)) {  // Refused: the answer says by which record.
      roll_back();
      if (!is_left_behind()) return std::nullopt;
      throw RolledBack{.error = unavailable("another server has taken its place meanwhile"), .try_again = true};
    }
    if (statements == nullptr) {
      try {
        run(static_cast<const PostgresqlWork&>(*request.companion).work());
      } catch (const RolledBack& failed) {
        if (is_rolled_back(number)) throw;
        return doubt(request, "the function failed (" + failed.error.message + ") and has" + function_ended);
      } catch (const Lost& lost) {
        connection_.reset();
        if (is_rolled_back(number)) throw;
        return doubt(request, lost.problem + ", in the function. It may have" + function_ended);
      }
    }
    return commit(request, number);
  }

  // A function that failed may have ended the transaction before that, or have sent a COMMIT. The server knows.
  bool is_rolled_back(const std::string& number) noexcept {
    deadline_ = std::max(deadline_, Steady::now() + to_find_out);
    roll_back();
    try {
      for (;;) {
        connect();
        const ResultPtr told = ask("SELECT pg_catalog.pg_xact_status('" + number + "')", 0);
        if (!is_fine(told.get()) || PQntuples(told.get()) != 1) return false;
        const std::string_view status = PQgetvalue(told.get(), 0, 0);
        // While the session of a closed connection ends its last statement.
        const bool goes_on = status == "in progress" && Steady::now() + Millis{20} < deadline_;
        if (!goes_on) return status == "aborted";
        std::this_thread::sleep_for(Millis{10});
      }
    } catch (const Exception&) {
      connection_.reset();
      return false;
    }
  }

  std::nullopt_t doubt(Request& request, const std::string& why) const {
    request.reply.result.reset();
    request.reply.error = Error{ErrorKind::in_doubt, target_.name() + ": " + why};
    return std::nullopt;
  }

  // Sends the record and the statements in one trip. Returns the transaction's number.
  std::string begin(Request& request, const SqlStatements* statements) {
    PGconn* const connection = connection_.get();
    request.reply.sent = options_.clock->uptime();
    const auto left = std::chrono::ceil<Millis>(request.deadline - Steady::now());
    request.parameters.set_first(std::max<std::int64_t>(left.count(), 1));
    const std::string limit = "SELECT pg_catalog.pg_current_xact_id(), pg_catalog.set_config('statement_timeout', '" +
                              std::to_string(std::max<std::int64_t>(left.count(), 1)) + "', true)";
    const Parameters::View view(request.parameters);
    bool sent = PQsetnonblocking(connection, 1) == 0 && PQenterPipelineMode(connection) == 1 &&
                send("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE") &&
                PQsendQueryParams(connection, write_call(options_.schema).c_str(), view.count(), view.types(),
                                  view.values(), view.lengths(), view.formats(), binary_format) == 1 &&
                send(limit);
    if (statements != nullptr) {
      for (const SqlStatements::Entry& entry : statements->entries()) sent = sent && send(entry.statement);
    }
    if (!sent || PQpipelineSync(connection) != 1) throw Lost{connect_problem(connection)};

    next_fine();  // BEGIN
    ResultPtr written = next_fine();
    request.reply.received = options_.clock->uptime();
    const bool done = wrote(*written);
    request.reply.result = std::move(written);
    const ResultPtr limited = next_fine();
    std::string number = PQgetvalue(limited.get(), 0, 0);
    std::optional<RolledBack> failed;
    if (statements != nullptr) failed = read_counts(*statements, done);
    if (PQresultStatus(next().get()) != PGRES_PIPELINE_SYNC || PQexitPipelineMode(connection) != 1) {
      throw Lost{"the server's answers are out of order"};
    }
    if (failed && done) throw RolledBack(*std::move(failed));
    return number;
  }

  // The first statement that failed or found another number of rows than it may.
  std::optional<RolledBack> read_counts(const SqlStatements& statements, bool done) {
    std::optional<RolledBack> failed;
    for (std::size_t n = 0; n < statements.entries().size(); ++n) {
      const ResultPtr result = next();
      if (failed) continue;
      if (!is_fine(result.get())) {
        if (PQresultStatus(result.get()) == PGRES_PIPELINE_ABORTED) throw Lost{"an aborted answer without an error"};
        failed = declined_by(Failure::of(result.get()), statements.name(n) + ": ");
        continue;
      }
      const std::string_view count = PQcmdTuples(result.get());
      const std::uint64_t rows = count.empty() ? 0 : std::strtoull(count.data(), nullptr, 10);
      if (statements.entries()[n].expected.allows(rows)) continue;
      failed = RolledBack{.error = statements.miscounted(n, rows), .declined = true};
    }
    return done ? failed : std::nullopt;
  }

  void run(const PostgresqlWork::Work& work) {
    PGconn* const connection = connection_.get();
    if (PQsetnonblocking(connection, 0) != 0) throw Lost{connect_problem(connection)};
    std::optional<Error> error;
    try {
      work(connection);
    } catch (const Exception& thrown) {
      const bool is_misuse = thrown.kind() == ErrorKind::misuse;
      error = Error{is_misuse ? ErrorKind::misuse : ErrorKind::unavailable, thrown.what()};
    } catch (const std::exception& thrown) {
      error = Error{ErrorKind::unavailable, thrown.what()};
    } catch (...) {
      error = Error{ErrorKind::unavailable, "the function threw something that is no std::exception"};
    }
    if (PQstatus(connection) != CONNECTION_OK) throw Lost{connect_problem(connection)};
    if (PQpipelineStatus(connection) != PQ_PIPELINE_OFF || PQtransactionStatus(connection) == PQTRANS_ACTIVE) {
      connection_.reset();
      throw RolledBack{.error = {ErrorKind::misuse, "the function left the connection in the middle of a statement"},
                       .declined = true};
    }
    if (error) throw RolledBack{.error = *std::move(error), .declined = true};
    if (PQtransactionStatus(connection) == PQTRANS_INERROR) {
      throw RolledBack{
          .error = {ErrorKind::unavailable, "a statement of the function had failed, so it was rolled back"},
          .declined = true};
    }
    if (Steady::now() >= deadline_) {
      throw RolledBack{.error = {ErrorKind::unavailable, "the function took longer than " +
                                                             std::to_string(options_.operation_timeout.count()) +
                                                             " ms, so it was rolled back"},
                       .declined = true};
    }
  }

  std::optional<RolledBack> commit(Request& request, const std::string& number) {
    PGconn* const connection = connection_.get();
    const std::string sql =
        commit_sql("pg_catalog.pg_current_xact_id_if_assigned() IS DISTINCT FROM '" + number + "'::pg_catalog.xid8");
    PQsetNoticeReceiver(connection, &CompanionSession::notice, this);  // The function may have set its own.
    warned_ = false;
    ResultPtr last;
    try {
      if (PQsetnonblocking(connection, 1) != 0 || PQsendQuery(connection, sql.c_str()) != 1) {
        throw Lost{connect_problem(connection)};
      }
      while (ResultPtr result = get()) last = std::move(result);
    } catch (const Lost& lost) {
      connection_.reset();
      return doubt(request, lost.problem + ", before the server said that it has committed. It may have");
    }
    if (is_fine(last.get()) && std::string_view(PQcmdStatus(last.get())) == "COMMIT") {
      if (is_left_behind()) {
        return doubt(request,
                     "the server committed, but another server has taken its place meanwhile, which may not have it");
      }
      if (!warned_) return std::nullopt;
      return doubt(
          request,
          "the server committed, but its wait for the synchronous standby was cancelled: a failover now would lose it");
    }
    const Failure failure = Failure::of(last.get());
    if (failure.is_other_transaction()) {
      roll_back();
      return doubt(request, std::string("the function has") + function_ended);
    }
    throw declined_by(failure, "at the commit: ");
  }

  void roll_back() noexcept {
    PGconn* const connection = connection_.get();
    if (connection == nullptr) return;
    try {
      while (get()) {
      }
      if (PQtransactionStatus(connection) == PQTRANS_IDLE) return;
      if (PQsetnonblocking(connection, 1) == 0 && PQsendQuery(connection, "ROLLBACK") == 1) {
        while (get()) {
        }
        if (PQtransactionStatus(connection) == PQTRANS_IDLE) return;
      }
    } catch (const Lost&) {  // Then the server rolls it back.
    }
    connection_.reset();
  }

  [[nodiscard]] bool send(const std::string& sql) {
    return PQsendQueryParams(connection_.get(), sql.c_str(), 0, nullptr, nullptr, nullptr, nullptr, 0) == 1;
  }
  [[nodiscard]] bool send(const SqlStatement& statement) {
    const auto texts = postgresql_values(statement);
    std::vector<const char*> values;
    values.reserve(texts.size());
    for (const auto& text : texts) values.push_back(text ? text->c_str() : nullptr);
    return PQsendQueryParams(connection_.get(), statement.text.c_str(), static_cast<int>(values.size()), nullptr,
                             values.data(), nullptr, nullptr, 0) == 1;
  }

  // The next result; null: the end of a statement's. Throws Lost at the deadline too.
  ResultPtr get() {
    PGconn* const connection = connection_.get();
    for (;;) {
      const int unsent = PQflush(connection);
      if (unsent < 0) throw Lost{connect_problem(connection)};
      if (unsent == 0 && PQisBusy(connection) == 0) break;
      const auto left = std::chrono::ceil<Millis>(deadline_ - Steady::now());
      pollfd ready{
          .fd = PQsocket(connection), .events = static_cast<short>(POLLIN | (unsent > 0 ? POLLOUT : 0)), .revents = 0};
      if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) == 0) {
        throw Lost{"no answer within " + std::to_string(options_.operation_timeout.count()) + " ms"};
      }
      if ((ready.revents & ~POLLOUT) != 0 && PQconsumeInput(connection) != 1) throw Lost{connect_problem(connection)};
    }
    ResultPtr result(PQgetResult(connection));
    if (result != nullptr && Failure::of(result.get()).fatal) throw Lost{Failure::of(result.get()).message};
    if (PQstatus(connection) != CONNECTION_OK) throw Lost{connect_problem(connection)};
    return result;
  }
  // In a pipeline: of the next statement. A null stands between two.
  ResultPtr next() {
    for (int nulls = 0; nulls < 2; ++nulls) {
      if (ResultPtr result = get()) return result;
    }
    throw Lost{"an answer is missing"};
  }
  ResultPtr next_fine() {
    ResultPtr result = next();
    if (is_fine(result.get())) return result;
    const Failure failure = Failure::of(result.get());
    while (PQresultStatus(next().get()) != PGRES_PIPELINE_SYNC) {
    }
    if (PQexitPipelineMode(connection_.get()) != 1) throw Lost{connect_problem(connection_.get())};
    RolledBack failed = rolled_back(failure, options_.schema);
    failed.error.message = target_.name() + ": " + failed.error.message;
    throw failed;
  }

  // The first column of write_1's composite.
  static bool wrote(const PGresult& result) {
    if (PQntuples(&result) != 1 || PQgetisnull(&result, 0, 0) == 1) return false;
    Composite columns({PQgetvalue(&result, 0, 0), static_cast<std::size_t>(PQgetlength(&result, 0, 0))});
    const auto done = columns.next();
    return done && done->bytes && done->bytes->size() == 1 && done->bytes->front() != 0;
  }

  [[nodiscard]] Error unavailable(const std::string& problem) const {
    return {ErrorKind::unavailable, target_.name() + ": " + problem + ". Nothing was written"};
  }

  static void notice(void* session, const PGresult* result) {
    if (is_unsure_commit(result)) static_cast<CompanionSession*>(session)->warned_ = true;
  }

  const PostgresqlOptions& options_;
  const Target& target_;
  ConnectionPtr connection_;
  std::uint64_t epoch_ = 0;  // Of connection_: see NewestServer.
  Steady::time_point deadline_;
  std::minstd_rand random_{std::random_device{}()};
  bool warned_ = false;  // The commit may not be on its standby.
};

thread_local const void* here = nullptr;

}  // namespace

std::optional<Error> unfit(const Companion& companion) {
  const auto misuse = [](std::string why) { return Error{ErrorKind::misuse, std::move(why)}; };
  if (dynamic_cast<const PostgresqlWork*>(&companion) != nullptr) return std::nullopt;
  const auto* const statements = dynamic_cast<const SqlStatements*>(&companion);
  if (statements == nullptr) return misuse("a PostgreSQL store commits SqlStatements or PostgresqlWork with a record");
  for (std::size_t n = 0; n < statements->entries().size(); ++n) {
    const SqlStatement& statement = statements->entries()[n].statement;
    if (!changes_rows_or_reads(statement.text)) {
      return misuse(statements->name(n) +
                    " may not commit with a record: only SELECT, INSERT, UPDATE, DELETE and MERGE");
    }
    if (statement.values.size() > 65'535) return misuse(statements->name(n) + " has more than 65535 values");
  }
  return std::nullopt;
}

struct Companions::State {
  State(PostgresqlOptions given, Target given_target) : options(std::move(given)), target(std::move(given_target)) {}

  const PostgresqlOptions options;
  const Target target;
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable queued;  // For watch().
  std::deque<RequestPtr> queue;    // In the order of their deadlines: all have the same time.
  std::size_t idle = 0;            // Threads.
  bool stopped = false;
  bool watched = false;  // watch() runs.

  static void complete(RequestPtr request) {
    const WakesAfter completions;
    request->done(std::move(request->reply));
    request.reset();
  }

  void fail_late(RequestPtr request) const {
    request->reply.error =
        Error{ErrorKind::unavailable,
              target.name() + ": not sent within " + std::to_string(options.operation_timeout.count()) +
                  " ms: the writes with companions before it take too long. Nothing was written"};
    complete(std::move(request));
  }

  // Answers what waits at its deadline, while every other thread is in a user's function.
  void watch() {
    here = this;
    std::unique_lock lock(mutex);
    while (!stopped) {
      if (queue.empty()) {
        queued.wait(lock);
      } else if (const auto due = queue.front()->deadline; Steady::now() < due) {
        queued.wait_until(lock, due);
      } else {
        RequestPtr request = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        fail_late(std::move(request));
        lock.lock();
      }
    }
  }

  void work() {
    here = this;
    CompanionSession session(options, target);
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      const bool woken = changed.wait_for(lock, companion_idle_limit, [&] { return stopped || !queue.empty(); });
      --idle;
      if (stopped) return;
      if (!woken) {
        lock.unlock();
        session.close_if_idle();
        lock.lock();
        continue;
      }
      RequestPtr request = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      if (request->deadline <= Steady::now()) {
        fail_late(std::move(request));
      } else {
        session.carry_out(*request);
        complete(std::move(request));
      }
      lock.lock();
    }
  }
};

Companions::Companions(const PostgresqlOptions& options, const Target& target)
    : state_(std::make_shared<State>(options, target)) {}

Companions::~Companions() { close(false); }

void Companions::close(bool wait) noexcept {
  std::deque<RequestPtr> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    left.swap(state_->queue);
  }
  state_->changed.notify_all();
  state_->queued.notify_all();
  for (RequestPtr& request : left) {
    request->reply.error = Error{ErrorKind::unavailable, state_->target.name() + ": the store was closed"};
    request->done(std::move(request->reply));
  }
  for (std::thread& thread : threads_) {
    if (wait) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  threads_.clear();
}

void Companions::add(RequestPtr request) {
  const std::shared_ptr<State> state = state_;  // Once it is queued, its completion may destroy the store, and this.
  std::unique_lock lock(state->mutex);
  bool is_served = state->queue.size() < state->idle;
  const std::size_t workers = threads_.size() - (state->watched ? 1 : 0);
  if (!is_served && workers < state->options.side_connections) {
    try {
      threads_.push_back(start_thread([state] { state->work(); }));
      is_served = true;
    } catch (const std::system_error& error) {
      if (workers == 0) {
        lock.unlock();
        request->reply.error =
            Error{ErrorKind::unavailable, state->target.name() + ": no thread for it: " + std::string(error.what())};
        request->done(std::move(request->reply));
        return;
      }
    }
  }
  if (!is_served && !state->watched) {
    try {
      threads_.push_back(start_thread([state] { state->watch(); }));
      state->watched = true;
    } catch (const std::system_error&) {  // It hears when a thread is free.
    }
  }
  state->queue.push_back(std::move(request));
  lock.unlock();
  state->changed.notify_one();
  state->queued.notify_one();
}

bool Companions::is_here() const noexcept { return here == state_.get(); }

}  // namespace once::stores::postgresql
