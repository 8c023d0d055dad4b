#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "stores/postgresql/loop.hpp"

namespace once::stores::postgresql {

namespace {

using boost::system::error_code;

constexpr Millis first_backoff{50};
constexpr Millis longest_backoff{1'000};
constexpr unsigned most_rounds = 3;    // Then each member of the group gets a Sync of its own.
constexpr unsigned most_failures = 8;  // Of deadlocks and the like.
constexpr std::size_t most_group_bytes = std::size_t{8} * 1024 * 1024;
constexpr Millis answer_margin{500};  // A lock is not waited for longer than the deadline less this.
constexpr int binary_format = 1;

// Whether the server itself refused the connection, for good: a wrong password, no such database. libpq 15 gives no
// SQLSTATE for it. If this is wrong, the caller hears of it now and not at its deadline.
bool is_refused_for_good(std::string_view problem) {
  if (problem.find("FATAL:") == std::string_view::npos) return false;
  for (const std::string_view passing :
       {"starting up", "shutting down", "recovery", "too many", "remaining connection", "not yet accepting",
        "not accepting", "cannot connect", "login failed", "read-only", "hot standby", "client_login_timeout",
        "query_wait_timeout", "terminating", "server login"}) {
    if (problem.find(passing) != std::string_view::npos) return false;
  }
  return true;
}

}  // namespace

Lane::Lane(Io& io, Kind kind) : io_(io), kind_(kind), socket_(io.context.get_executor()) {}

// ---- Connecting

void Lane::pump() {
  if (stage_ == Stage::closed) {
    if (!queue_.empty() && Steady::now() >= retry_at_) connect();
    return;
  }
  if (stage_ != Stage::idle || queue_.empty()) return;
  if (!alive()) {
    close();
    return connect();
  }
  take_batch();
  send_batch();
}

void Lane::connect() {
  fatal_ = doomed_ = warned_ = false;
  fatal_message_.clear();
  stage_ = Stage::connecting;
  connect_by_ = Steady::now() + io_.target.connect_timeout();
  connection_ = io_.target.start(io_.turn);
  if (connection_ == nullptr || PQstatus(connection_.get()) == CONNECTION_BAD) {
    return could_not_connect(connect_problem(connection_.get()), true);
  }
  PQsetNoticeReceiver(connection_.get(), &Lane::notice, this);
  // Before the first poll the socket is watched as if that had asked for writing (libpq's manual, "PQconnectPoll").
  watch(true);
}

void Lane::go_on_connecting() {
  switch (PQconnectPoll(connection_.get())) {
    case PGRES_POLLING_READING:
      return watch(false);
    case PGRES_POLLING_WRITING:
      return watch(true);
    case PGRES_POLLING_OK:
      return connected();
    default:
      return could_not_connect(connect_problem(connection_.get()), true);
  }
}

void Lane::could_not_connect(std::string problem, bool retry) {
  problem_ = std::move(problem);
  close();
  backoff_ = std::clamp(backoff_ * 2, first_backoff, longest_backoff);
  retry_at_ = Steady::now() + backoff_;
  if (retry && !is_refused_for_good(problem_)) return;
  for (RequestPtr& request : std::exchange(queue_, {})) {
    finish(std::move(request), Error{ErrorKind::misuse, io_.target.name() + ": " + problem_});
  }
}

void Lane::connected() {
  if (PQsetnonblocking(connection_.get(), 1) != 0 || PQenterPipelineMode(connection_.get()) != 1) {
    return could_not_connect(connect_problem(connection_.get()), true);
  }
  stage_ = Stage::checking;
  answer_by_ = connect_by_;
  check();
}

void Lane::check() {
  PGconn* const connection = connection_.get();
  if (PQsendQueryParams(connection, io_.sql(Call::about).c_str(), 0, nullptr, nullptr, nullptr, nullptr,
                        binary_format) != 1 ||
      PQpipelineSync(connection) != 1) {
    return could_not_connect(connect_problem(connection), true);
  }
  expected_ = {{Expected::What::other}, {Expected::What::sync}};
  watch(false);
  flush();
}

// The answer of about_1, or null: the Sync after it.
void Lane::checked(const PGresult* result) {
  if (result == nullptr) {
    if (stage_ != Stage::checking) return;
    backoff_ = Millis{0};
    problem_.clear();
    stage_ = Stage::idle;
    idle_since_ = Steady::now();
    return pump();
  }
  if (PQresultStatus(result) != PGRES_TUPLES_OK) {
    const Failure failure = Failure::of(result);
    const Error error = failure.error(io_.options.schema);
    if (failure.is_wrong_server()) ++io_.turn;
    return could_not_connect(error.message, error.kind == ErrorKind::unavailable);
  }
  const bool has_version = PQntuples(result) == 1 && PQgetisnull(result, 0, 0) == 0;
  if (!has_version) {
    return could_not_connect(
        "the schema " + io_.options.schema + " has lost its version: run once table check to see what it lacks", false);
  }
  const std::string unsafe = PQgetvalue(result, 0, 1);
  if (!unsafe.empty() && !io_.options.allow_unsafe) {
    could_not_connect("the server runs with " + unsafe +
                          " off, so a crash of its host loses acknowledged claims and results. Turn it on, or add "
                          "allow_unsafe=1 to the URL if that is meant",
                      false);
  }
}

void Lane::notice(void* lane, const PGresult* result) {
  auto& self = *static_cast<Lane*>(lane);
  const Failure said = Failure::of(result);
  if (said.fatal) {
    self.fatal_ = true;
    self.fatal_message_ = said.message;
    return;
  }
  const char* const severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
  if (severity == nullptr || std::string_view(severity) != "WARNING") return;
  // A cancelled wait for a synchronous standby: WARNING 01000 from SyncRepWaitForLSN (src/backend/replication/
  // syncrep.c), in the server's language. The functions of the store warn of nothing, so any such warning counts.
  const char* const function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
  const bool is_standby = function != nullptr && std::string_view(function) == "SyncRepWaitForLSN";
  if (is_standby || said.state == "01000") self.warned_ = true;
}

bool Lane::alive() {
  // Reads what came while it was idle: a parameter's new value, or why the server closes it.
  for (int i = 0; i < 16; ++i) {
    pollfd readable{.fd = PQsocket(connection_.get()), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 0) <= 0) break;
    if (PQconsumeInput(connection_.get()) != 1) return false;
    static_cast<void>(PQisBusy(connection_.get()));  // Parses it, and so calls notice().
  }
  warned_ = false;  // Of nothing that is under way.
  return !fatal_ && PQstatus(connection_.get()) == CONNECTION_OK;
}

// Waits until libpq's socket can be read, or written; calls the stage's function then.
void Lane::watch(bool for_writing) {
  const bool connecting = stage_ == Stage::connecting;
  if (connecting || !socket_.is_open()) {
    // While it connects, libpq closes sockets and opens others, which may have the same number.
    error_code ignored;
    socket_.close(ignored);
    ++generation_;
    reading_ = writing_ = false;
    const int copy = fcntl(PQsocket(connection_.get()), F_DUPFD_CLOEXEC, 0);
    error_code error;
    if (copy >= 0) socket_.assign(copy, error);
    if (copy < 0 || error) {
      if (copy >= 0 && !socket_.is_open()) ::close(copy);
      return lost("no file descriptor for it");
    }
  }
  bool& waiting = for_writing ? writing_ : reading_;
  if (waiting) return;
  waiting = true;
  const auto how = for_writing ? Descriptor::wait_write : Descriptor::wait_read;
  socket_.async_wait(how, [this, for_writing, generation = generation_](const error_code& error) {
    if (generation == generation_ && !error) {
      (for_writing ? writing_ : reading_) = false;
      if (stage_ == Stage::connecting) {
        go_on_connecting();
      } else if (for_writing) {
        flush();
      } else {
        read();
      }
    }
    io_.flush();
  });
}

void Lane::close() noexcept {
  if (stage_ == Stage::closed) return;
  stage_ = Stage::closed;
  ++generation_;
  error_code ignored;
  socket_.close(ignored);
  reading_ = writing_ = false;
  // Sends a goodbye and closes the socket. A statement under way goes on in the server: it is never cancelled, as a
  // cancelled wait for a standby would be taken for a commit.
  connection_.reset();
  units_.clear();
  expected_.clear();
}

// ---- Sending

void Lane::take_batch() {
  const std::size_t most = kind_ == Kind::writes || kind_ == Kind::reads ? io_.options.group : 1;
  std::size_t bytes = 0;
  while (!queue_.empty() && batch_.size() < most && bytes < most_group_bytes) {
    bytes += queue_.front()->parameters.size_bytes();
    batch_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (kind_ == Kind::writes) {
    std::stable_sort(batch_.begin(), batch_.end(), [](const auto& a, const auto& b) { return a->key < b->key; });
  }
}

void Lane::send_batch() {
  stage_ = Stage::busy;
  answer_by_ = Steady::time_point::max();
  const Uptime now = io_.options.clock->uptime();
  for (const RequestPtr& request : batch_) {
    answer_by_ = std::min(answer_by_, request->deadline);
    request->reply.sent = now;
  }
  const bool apart =
      std::any_of(batch_.begin(), batch_.end(), [](const auto& request) { return request->rounds >= most_rounds; });
  // With BEGIN, a failed transaction has to be rolled back by a statement before the next one.
  if (apart && io_.explicit_begin && batch_.size() > 1) {
    for (std::size_t at = batch_.size(); at-- > 1;) queue_.push_front(std::move(batch_[at]));
    batch_.resize(1);
  }
  bool sent = true;
  const std::size_t step = apart ? 1 : batch_.size();
  for (std::size_t begin = 0; sent && begin < batch_.size(); begin += step) sent = send_unit(begin, begin + step);
  if (!sent) return lost(connect_problem(connection_.get()));
  watch(false);
  flush();
}

bool Lane::send_unit(std::size_t begin, std::size_t end) {
  PGconn* const connection = connection_.get();
  const auto expect = [&](Expected::What what, std::size_t member = 0) { expected_.push_back({what, member}); };
  const auto run = [&](const char* sql) {
    return PQsendQueryParams(connection, sql, 0, nullptr, nullptr, nullptr, nullptr, 0) == 1;
  };
  units_.push_back({.begin = begin, .end = end});
  if (io_.explicit_begin) {
    if (PQtransactionStatus(connection) == PQTRANS_INERROR) {
      if (!run("ROLLBACK")) return false;
      expect(Expected::What::other);
    }
    if (!run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")) return false;
    expect(Expected::What::other);
  }
  std::optional<Call> prepared;
  for (std::size_t at = begin; at < end; ++at) {
    Request& request = *batch_[at];
    if (request.call == Call::write) {
      // The group waits for a lock this long; a connection aside as long as the caller does.
      std::optional<std::int64_t> lock_ms;
      if (at == begin) lock_ms = io_.options.lock_timeout.count();
      if (kind_ == Kind::aside) {
        const auto left = std::chrono::floor<Millis>(request.deadline - Steady::now()) - answer_margin;
        lock_ms = std::max<std::int64_t>(left.count(), io_.options.lock_timeout.count());
      }
      request.parameters.set_first(lock_ms);
    }
    const std::string& sql = io_.sql(request.call);
    if (prepared != request.call) {
      // Without a name, so that a pooler which gives each transaction another connection needs to know of none.
      if (PQsendPrepare(connection, "", sql.c_str(), request.parameters.count(), request.parameters.types()) != 1) {
        return false;
      }
      expect(Expected::What::prepare);
      prepared = request.call;
    }
    const Parameters::View view = request.parameters.view();
    if (PQsendQueryPrepared(connection, "", request.parameters.count(), view.values, view.lengths, view.formats,
                            binary_format) != 1) {
      return false;
    }
    expect(Expected::What::member, at);
  }
  if (io_.explicit_begin) {
    if (!run("COMMIT")) return false;
    expect(Expected::What::commit);
  }
  if (PQpipelineSync(connection) != 1) return false;
  expect(Expected::What::sync);
  return true;
}

void Lane::flush() {
  if (stage_ != Stage::busy && stage_ != Stage::checking) return;
  switch (PQflush(connection_.get())) {
    case 0:
      return;
    case 1:
      return watch(true);
    default:
      return lost(connect_problem(connection_.get()));
  }
}

// ---- Answers

void Lane::read() {
  if (stage_ != Stage::busy && stage_ != Stage::checking) return;  // Idle: alive() reads it.
  if (PQconsumeInput(connection_.get()) != 1) return lost(connect_problem(connection_.get()));
  const std::uint64_t generation = generation_;
  int ends = 0;  // PQgetResult() gives null between two statements.
  while (!expected_.empty() && PQisBusy(connection_.get()) == 0) {
    ResultPtr result(PQgetResult(connection_.get()));
    if (PQstatus(connection_.get()) == CONNECTION_BAD) return lost(connect_problem(connection_.get()));
    if (result == nullptr) {
      if (++ends > 2) break;
      continue;
    }
    ends = 0;
    answered(std::move(result));
    if (generation != generation_) return;
    if (fatal_) return lost(fatal_message_);
  }
  if (fatal_) return lost(fatal_message_);
  if (!expected_.empty()) {
    flush();
    if (generation == generation_) watch(false);
    return;
  }
  if (stage_ == Stage::checking) return checked(nullptr);
  end_batch();
}

void Lane::answered(ResultPtr result) {
  const ExecStatusType status = PQresultStatus(result.get());
  if (status == PGRES_PIPELINE_SYNC) {
    // Those before it were answered.
    while (!expected_.empty() && expected_.front().what != Expected::What::sync) expected_.pop_front();
    if (!expected_.empty()) expected_.pop_front();
    if (stage_ == Stage::busy) end_unit();
    return;
  }
  const bool failed = status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK;
  if (stage_ == Stage::checking) {
    if (!expected_.empty()) expected_.pop_front();
    return checked(result.get());
  }
  const Expected now = expected_.front();
  if (now.what != Expected::What::sync) expected_.pop_front();
  if (units_.empty()) return;
  Unit& unit = units_.front();
  if (status == PGRES_PIPELINE_ABORTED) return;  // After an error: it was not executed.
  if (failed) {
    if (unit.failure) return;
    unit.failure = Failure::of(result.get());
    if (unit.failure->fatal) {
      fatal_ = true;
      fatal_message_ = unit.failure->message;
      return;
    }
    if (now.what == Expected::What::member) unit.failed = now.member;
    unit.late = now.what == Expected::What::sync || now.what == Expected::What::commit;
    return;
  }
  if (now.what == Expected::What::member) {
    Request& request = *batch_[now.member];
    request.reply.received = io_.options.clock->uptime();
    request.reply.result = std::move(result);
  } else if (now.what == Expected::What::commit && std::string_view(PQcmdStatus(result.get())) != "COMMIT") {
    // The server rolls a transaction back whose statement failed; that was told before this.
    unit.failure = Failure{.state = "25P02", .message = "the transaction was rolled back", .fatal = false};
  }
}

void Lane::end_unit() {
  if (units_.empty()) return;
  Unit unit = std::move(units_.front());
  units_.pop_front();
  const bool warned = std::exchange(warned_, false);
  if (unit.failure) return failed_unit(unit);
  for (std::size_t at = unit.begin; at < unit.end; ++at) {
    RequestPtr request = std::move(batch_[at]);
    std::optional<Error> error;
    if (warned && request->writes()) {
      error = Error{ErrorKind::in_doubt,
                    io_.target.name() +
                        ": the server committed the write, but its wait for the synchronous standby was cancelled: a "
                        "failover now would lose it"};
    } else if (request->reply.result == nullptr) {
      error = Error{ErrorKind::in_doubt, io_.target.name() + ": the server committed without an answer"};
    }
    finish(std::move(request), std::move(error));
  }
}

void Lane::failed_unit(Unit& unit) {
  const Failure& failure = *unit.failure;
  if (failure.is_wrong_server()) {
    doomed_ = true;
    ++io_.turn;
  }
  const Steady::time_point now = Steady::now();
  const bool other_isolation = failure.is_isolation() && !io_.explicit_begin;
  for (std::size_t at = unit.begin; at < unit.end; ++at) {
    RequestPtr request = std::move(batch_[at]);
    request->reply.result.reset();
    if (unit.late) {
      // An error at the commit itself means that it was rolled back; but nothing here depends on that.
      Error error = failure.error(io_.options.schema);
      if (request->writes()) {
        error = {ErrorKind::in_doubt, failure.message + " (SQLSTATE " + failure.state + "), at the commit"};
      }
      error.message = io_.target.name() + ": " + error.message;
      finish(std::move(request), std::move(error));
      continue;
    }
    if (other_isolation) {
      again_.push_back(std::move(request));
      continue;
    }
    const bool innocent = unit.failed && *unit.failed != at;
    if (innocent) {
      ++request->rounds;
      again_.push_back(std::move(request));
      continue;
    }
    if ((failure.may_try_again() && request->failures < most_failures && request->deadline > now + answer_margin) ||
        (failure.is_wrong_server() && request->deadline > now)) {
      ++request->failures;
      if (kind_ == Kind::writes && failure.may_try_again()) {
        io_.put_aside(std::move(request));
      } else {
        again_.push_back(std::move(request));
      }
      continue;
    }
    Error error = failure.error(io_.options.schema);
    error.message = io_.target.name() + ": " + error.message;
    finish(std::move(request), std::move(error));
  }
  if (other_isolation) io_.explicit_begin = true;
}

void Lane::end_batch() {
  batch_.clear();
  for (std::size_t at = again_.size(); at-- > 0;) queue_.push_front(std::move(again_[at]));
  again_.clear();
  stage_ = Stage::idle;
  idle_since_ = Steady::now();
  if (doomed_) {
    close();
    retry_at_ = Steady::now() + first_backoff;
  }
  pump();
}

// The connection is gone. What was sent may have been committed.
void Lane::lost(const std::string& problem) {
  const bool before_batch = stage_ == Stage::connecting || stage_ == Stage::checking;
  if (before_batch) return could_not_connect(problem.empty() ? "the connection was lost" : problem, true);
  close();
  problem_ = problem;
  std::vector<RequestPtr> batch = std::exchange(batch_, {});
  for (std::size_t at = again_.size(); at-- > 0;) queue_.push_front(std::move(again_[at]));
  again_.clear();
  const Steady::time_point now = Steady::now();
  for (RequestPtr& request : batch) {
    if (request == nullptr) continue;
    request->reply.result.reset();
    if (request->writes()) {
      finish(std::move(request),
             Error{ErrorKind::in_doubt,
                   io_.target.name() + ": " + problem +
                       ", before the server said that it has committed. The write may have been carried out"});
    } else if (request->call == Call::get && request->deadline > now && request->failures < most_failures) {
      ++request->failures;
      queue_.push_back(std::move(request));
    } else {
      finish(std::move(request), Error{ErrorKind::unavailable, io_.target.name() + ": " + problem});
    }
  }
  backoff_ = std::clamp(backoff_ * 2, first_backoff, longest_backoff);
  retry_at_ = now;
  pump();
}

// ---- Deadlines

void Lane::expire_queue(Steady::time_point now) {
  std::deque<RequestPtr> left;
  for (RequestPtr& request : queue_) {
    if (request->deadline > now) {
      left.push_back(std::move(request));
      continue;
    }
    std::string why = stage_ == Stage::closed || stage_ == Stage::connecting || stage_ == Stage::checking
                          ? (problem_.empty() ? "there is no connection yet" : problem_)
                          : "the calls before it take too long";
    finish(std::move(request), Error{ErrorKind::unavailable, io_.target.name() + ": not sent within " +
                                                                 std::to_string(io_.options.operation_timeout.count()) +
                                                                 " ms: " + why + ". Nothing was written"});
  }
  queue_ = std::move(left);
}

void Lane::tick(Steady::time_point now) {
  switch (stage_) {
    case Stage::connecting:
    case Stage::checking:
      if (connect_by_ <= now) {
        ++io_.turn;  // With several hosts another one comes first: libpq itself waits for the first for ever.
        could_not_connect("no connection within " + std::to_string(io_.target.connect_timeout().count()) + " ms", true);
      }
      break;
    case Stage::busy:
      if (answer_by_ <= now) {
        lost("no answer within " + std::to_string(io_.options.operation_timeout.count()) + " ms");
      }
      break;
    default:
      break;
  }
  expire_queue(now);
  if (stage_ == Stage::closed) pump();
}

void Lane::stop() {
  for (RequestPtr& request : std::exchange(queue_, {})) {
    finish(std::move(request), Error{ErrorKind::unavailable, io_.target.name() + ": the store was closed"});
  }
  if (stage_ == Stage::busy) {
    for (RequestPtr& request : again_) queue_.push_back(std::move(request));
    again_.clear();
    for (RequestPtr& request : std::exchange(batch_, {})) {
      if (request == nullptr) continue;
      const ErrorKind kind = request->writes() ? ErrorKind::in_doubt : ErrorKind::unavailable;
      finish(std::move(request), Error{kind, io_.target.name() + ": the store was closed before the answer"});
    }
    for (RequestPtr& request : std::exchange(queue_, {})) {
      finish(std::move(request), Error{ErrorKind::unavailable, io_.target.name() + ": the store was closed"});
    }
  }
  close();
}

void Lane::finish(RequestPtr request, std::optional<Error> error) {
  if (error) request->reply.result.reset();
  request->reply.error = std::move(error);
  if (kind_ == Kind::aside) {
    const auto found = io_.aside_keys_.find(request->key);
    if (found != io_.aside_keys_.end()) io_.aside_keys_.erase(found);
  }
  io_.finish(std::move(request));
}

}  // namespace once::stores::postgresql
