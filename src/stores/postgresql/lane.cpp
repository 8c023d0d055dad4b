#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include <boost/asio/post.hpp>
#include <once/fingerprint.hpp>
#include <once/platform/system.hpp>

#include "stores/postgresql/loop.hpp"

namespace once::stores::postgresql {

namespace {

using boost::system::error_code;

constexpr Millis first_backoff{50};
constexpr Millis longest_backoff{1'000};
constexpr Millis most_looking_up{1'000};  // If another host of the URL was found.
constexpr unsigned most_rounds = 3;       // Then each member of the group gets a Sync of its own.
constexpr unsigned most_failures = 8;     // Of deadlocks and the like.
constexpr std::size_t most_group_bytes = std::size_t{8} * 1024 * 1024;
constexpr Millis answer_margin{500};  // A lock is not waited for longer than the deadline less this.

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
  if (made_at_ != snapshots() || !alive() || is_left_behind()) {
    close();
    return connect();
  }
  take_batch();
  send_batch();
}

void Lane::connect() {
  fatal_ = doomed_ = warned_ = false;
  fatal_message_.clear();
  made_at_ = snapshots();
  connect_by_ = Steady::now() + io_.target.connect_timeout();
  turn_ = io_.turn;
  addresses_.assign(io_.target.names().size(), {});
  looking_up_ = 0;
  for (const std::string& name : io_.target.names()) looking_up_ += name.empty() ? 0 : 1;
  if (looking_up_ == 0) return begin();
  stage_ = Stage::looking_up;
  found_by_ = Steady::now() + most_looking_up;
  ++generation_;
  for (std::size_t host = 0; host < addresses_.size(); ++host) {
    const std::string& name = io_.target.names()[host];
    if (name.empty()) continue;
    auto done = [io = std::weak_ptr(io_.shared()), lane = this, generation = generation_, host](NameAddresses told) {
      const auto still = io.lock();  // It outlives its lanes.
      if (still == nullptr) return;
      boost::asio::post(still->context,
                        [lane, generation, host, told = std::move(told)] { lane->looked_up(generation, host, told); });
      static_cast<void>(still->want());  // Posting has nudged it.
    };
    try {
      look_up(name, 0, done);
    } catch (const std::system_error& error) {
      done({.found = {}, .problem = error.what()});
    }
  }
}

void Lane::looked_up(std::uint64_t generation, std::size_t host, const NameAddresses& told) {
  if (generation == generation_ && stage_ == Stage::looking_up) {
    for (const NameAddress& address : told.found) {
      std::array<char, NI_MAXHOST> text{};
      if (getnameinfo(reinterpret_cast<const sockaddr*>(&address.bytes), static_cast<socklen_t>(address.size),
                      text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        addresses_[host].emplace_back(text.data());
      }
    }
    if (addresses_[host].empty()) {
      problem_ = "the name " + io_.target.names()[host] + " cannot be resolved: " + told.problem;
    }
    if (--looking_up_ == 0) begin();
  }
  io_.flush();
}

// A host without addresses is left out: its name cannot be resolved, or not in time.
void Lane::begin() {
  const auto& names = io_.target.names();
  bool is_any = names.empty();
  for (std::size_t host = 0; host < names.size(); ++host) {
    is_any = is_any || names[host].empty() || !addresses_[host].empty();
  }
  if (!is_any) return could_not_connect(problem_, true);
  stage_ = Stage::connecting;
  connection_ = io_.target.start(turn_, addresses_);
  if (connection_ == nullptr || PQstatus(connection_.get()) == CONNECTION_BAD) {
    return could_not_connect(connect_problem(connection_.get()), true);
  }
  PQsetNoticeReceiver(connection_.get(), &Lane::notice, this);
  // Before the first poll the socket is watched as if that had asked for writing (libpq's manual, "PQconnectPoll").
  watch(true);
}

// With several hosts another one comes first. libpq itself tries the next only if a host refuses the connection, or
// takes no writes; not if it says nothing, or closes the connection. One step for all lanes that met the same host:
// with two hosts, two steps would lead them back to it.
void Lane::next_host() noexcept {
  if (turn_ == io_.turn) ++io_.turn;
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
  // max_connections, and CONNECTION LIMIT of a role or a database. The connections may be this store's own: with a
  // limit of 1 it writes by one, and then cannot read by another.
  if (problem_.find("too many c") != std::string::npos || problem_.find("remaining connection") != std::string::npos) {
    problem_ += ". A store opens up to " +
                std::to_string(2 + io_.options.write_connections + io_.options.side_connections) +
                " connections, and more for companions: allow them all";
  }
  next_host();
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
    return could_not_connect(error.message, error.kind == ErrorKind::unavailable);
  }
  if (auto problem = unfit_server(result, io_.options.schema, io_.options.allow_unsafe)) {
    return could_not_connect(*std::move(problem), false);
  }
  if (auto problem = io_.target.newest().meet(result, epoch_)) return could_not_connect(*std::move(problem), true);
  name_statements(result);
}

// A named statement is parsed once for the connection. A pooler may give each transaction another session, which does
// not know the name, and would keep it when the connection is gone. But a pooler tells its clients another process than
// the server does, as they send cancellations to it. The name is random: should a pooler be between nevertheless, then
// the server knows no such statement (26000) and executes nothing. See failed_unit().
void Lane::name_statements(const PGresult* about) {
  statement_prefix_.clear();
  parsed_.fill(false);
  constexpr int pid_column = 5;
  const auto pid =
      number_of({PQgetvalue(about, 0, pid_column), static_cast<std::size_t>(PQgetlength(about, 0, pid_column))});
  if (!pid || *pid != PQbackendPID(connection_.get())) return;
  std::array<std::uint8_t, 8> random{};
  system_random()->fill(random);
  statement_prefix_ = "once_" + to_hex({reinterpret_cast<const char*>(random.data()), random.size()}) + "_";
}

bool Lane::is_left_behind() const noexcept { return epoch_ != io_.target.newest().epoch(); }

void Lane::notice(void* lane, const PGresult* result) {
  auto& self = *static_cast<Lane*>(lane);
  const Failure said = Failure::of(result);
  if (said.fatal) {
    self.fatal_ = true;
    self.fatal_message_ = said.message;
    return;
  }
  if (is_unsure_commit(result)) self.warned_ = true;
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
  std::string statement;
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
    view_.show(request.parameters);
    if (prepared != request.call) {
      prepared = request.call;
      const auto call = static_cast<std::size_t>(request.call);
      statement = statement_prefix_.empty() ? std::string() : statement_prefix_ + std::to_string(call);
      if (statement.empty() || !parsed_.at(call)) {
        if (PQsendPrepare(connection, statement.c_str(), io_.sql(request.call).c_str(), view_.count(), view_.types()) !=
            1) {
          return false;
        }
        expect(Expected::What::prepare, call);
        parsed_.at(call) = !statement.empty();
      }
    }
    if (PQsendQueryPrepared(connection, statement.c_str(), view_.count(), view_.values(), view_.lengths(),
                            view_.formats(), binary_format) != 1) {
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
  const bool failed = !is_fine(result.get());
  if (stage_ == Stage::checking) {
    if (!expected_.empty()) expected_.pop_front();
    return checked(result.get());
  }
  const Expected now = expected_.front();
  if (now.what != Expected::What::sync) expected_.pop_front();
  if (units_.empty()) return;
  Unit& unit = units_.front();
  if (now.what == Expected::What::prepare && status != PGRES_COMMAND_OK) parsed_.at(now.member) = false;
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
    if (is_left_behind()) {
      if (!request->writes()) {
        request->reply.result.reset();
        again_.push_back(std::move(request));
        continue;
      }
      error = Error{ErrorKind::in_doubt,
                    io_.target.name() +
                        ": the server committed the write, but another server has taken its place meanwhile, which may "
                        "not have it"};
    } else if (warned && request->writes()) {
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
    next_host();
  }
  const Steady::time_point now = Steady::now();
  const bool other_isolation = failure.is_isolation() && !io_.explicit_begin;
  const bool is_forgotten = failure.is_statement() && !statement_prefix_.empty();
  for (std::size_t at = unit.begin; at < unit.end; ++at) {
    RequestPtr request = std::move(batch_[at]);
    request->reply.result.reset();
    const bool innocent = !unit.late && unit.failed && *unit.failed != at;
    request->reply.no_room = failure.is_disk_full() && request->writes() && !innocent;
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
    if (other_isolation || is_forgotten) {
      again_.push_back(std::move(request));
      continue;
    }
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
  if (is_forgotten) statement_prefix_.clear();
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
  // Those who hear of their answers now often have a next request, which goes with what has queued. Else 16 callers
  // who once fell into two halves would take turns for ever, and a request would wait for two commits.
  if (!queue_.empty()) io_.pump_soon();
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
    std::string why = "the calls before it take too long";
    if (stage_ == Stage::looking_up) {
      why = "the host's name is not resolved yet";
    } else if (stage_ != Stage::idle && stage_ != Stage::busy) {
      why = problem_.empty() ? "there is no connection yet" : problem_;
    }
    finish(std::move(request), Error{ErrorKind::unavailable, io_.target.name() + ": not sent within " +
                                                                 std::to_string(io_.options.operation_timeout.count()) +
                                                                 " ms: " + why + ". Nothing was written"});
  }
  queue_ = std::move(left);
}

void Lane::tick(Steady::time_point now) {
  switch (stage_) {
    case Stage::looking_up:
      if (connect_by_ <= now) {
        could_not_connect(
            "the host's name was not resolved within " + std::to_string(io_.target.connect_timeout().count()) + " ms",
            true);
      } else if (found_by_ <= now && std::any_of(addresses_.begin(), addresses_.end(),
                                                 [](const auto& addresses) { return !addresses.empty(); })) {
        begin();
      }
      break;
    case Stage::connecting:
    case Stage::checking:
      if (connect_by_ <= now) {
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
