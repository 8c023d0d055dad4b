#include "stores/sqlite/companions.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "text/ascii.hpp"

namespace once::stores {

SqliteWork::SqliteWork(Work work) : work_(std::move(work)) {
  if (!work_) throw Exception(ErrorKind::misuse, "SqliteWork was given no function");
}

namespace sqlite {

namespace {

constexpr const char* savepoint_name = "once_companion";
constexpr const char* changes_schema = "changes the schema: make tables in a SqliteTransaction";
constexpr int look_every = 1'000;  // Instructions of SQLite's machine between two looks at the clock.
constexpr std::array own_tables = {"records", "key_index", "dropped_keys", "once_meta"};

thread_local bool is_in_work = false;

bool same(const char* name, const char* other) noexcept { return sqlite3_stricmp(name, other) == 0; }

bool is_own(const char* table) noexcept {
  constexpr std::string_view internal = "sqlite_";
  return sqlite3_strnicmp(table, internal.data(), static_cast<int>(internal.size())) == 0 ||
         std::ranges::any_of(own_tables, [&](const char* own) { return same(own, table); });
}

// Prepares and finalizes.
class UserStatement {
 public:
  UserStatement(sqlite3* db, const std::string& text, const char*& tail) {
    code_ = sqlite3_prepare_v2(db, text.c_str(), static_cast<int>(text.size()), &statement_, &tail);
  }
  ~UserStatement() { sqlite3_finalize(statement_); }
  UserStatement(const UserStatement&) = delete;
  UserStatement& operator=(const UserStatement&) = delete;

  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] sqlite3_stmt* get() const noexcept { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_;
};

void bind_value(sqlite3_stmt* statement, int at, const SqlValue& value) {
  struct Binder {
    sqlite3_stmt* statement;
    int at;
    void operator()(std::monostate) const { sqlite3_bind_null(statement, at); }
    void operator()(std::int64_t number) const { sqlite3_bind_int64(statement, at, number); }
    void operator()(double number) const { sqlite3_bind_double(statement, at, number); }
    void operator()(const std::string& text) const {
      sqlite3_bind_text64(statement, at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
    }
    void operator()(const SqlValue::Bytes& bytes) const {
      // An empty blob is not NULL: it needs a pointer.
      sqlite3_bind_blob64(statement, at, bytes.bytes.c_str(), bytes.bytes.size(), SQLITE_STATIC);
    }
  };
  std::visit(Binder{statement, at}, value.value());
}

}  // namespace

std::string bind_values(sqlite3_stmt* statement, const std::vector<SqlValue>& values) {
  std::vector<bool> used(values.size());
  for (int at = 1; at <= sqlite3_bind_parameter_count(statement); ++at) {
    const char* const name = sqlite3_bind_parameter_name(statement, at);
    const std::string_view text = name == nullptr ? std::string_view("?") : std::string_view(name);
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), number);
    const bool good = text.front() == '$' && error == std::errc{} && end == text.data() + text.size();
    if (!good) return "its parameter " + text::printable(text) + " is not called $1, $2 ...";
    if (number < 1 || number > values.size()) {
      return "it has a parameter " + std::string(text) + ", and was given " + std::to_string(values.size()) + " values";
    }
    used[number - 1] = true;
    bind_value(statement, at, values[number - 1]);
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return "it was given a value for $" + std::to_string(i + 1) + ", which it does not have";
  }
  return {};
}

Companions::Companions(Connection& connection, const StoreFile& file)
    : connection_(connection),
      file_(file),
      savepoint_(connection, "SAVEPOINT once_companion"),
      release_(connection, "RELEASE once_companion"),
      undo_(connection, "ROLLBACK TO once_companion") {
  // For the life of the connection: to set it later would prepare all of the store's statements again.
  sqlite3_set_authorizer(connection.raw(), authorize, this);
}

Companions::~Companions() { sqlite3_set_authorizer(connection_.raw(), nullptr, nullptr); }

bool Companions::knows(const Companion& companion) noexcept {
  return dynamic_cast<const SqlStatements*>(&companion) != nullptr ||
         dynamic_cast<const SqliteWork*>(&companion) != nullptr;
}

bool Companions::is_running_here() noexcept { return is_in_work; }

void Companions::undo() {
  undo_.step();
  undo_.reset();
  keep();
}

int Companions::authorize(void* self, int action, const char* first, const char* second, const char* /*database*/,
                          const char* /*trigger*/) {
  auto& ours = *static_cast<Companions*>(self);
  if (ours.guest_ == Guest::none) return SQLITE_OK;
  try {
    switch (action) {
      case SQLITE_SELECT:
      case SQLITE_READ:
      case SQLITE_FUNCTION:
      case SQLITE_RECURSIVE:
        return SQLITE_OK;
      case SQLITE_INSERT:
      case SQLITE_UPDATE:
      case SQLITE_DELETE:
        if (!is_own(first)) return SQLITE_OK;
        if (same(first, "sqlite_master") || same(first, "sqlite_temp_master")) {  // By CREATE and DROP.
          ours.deny(changes_schema);
          return SQLITE_DENY;
        }
        ours.deny(std::string("writes to '") + first + "', a table of once's or SQLite's own");
        return SQLITE_DENY;
      case SQLITE_SAVEPOINT:
        if (ours.guest_ == Guest::work && !same(second, savepoint_name)) return SQLITE_OK;
        ours.deny("uses a savepoint");
        return SQLITE_DENY;
      case SQLITE_PRAGMA:
        ours.deny(std::string("uses PRAGMA ") + first);
        return SQLITE_DENY;
      case SQLITE_TRANSACTION:
        ours.deny(std::string("uses ") + first + ", which would end the store's own transaction");
        return SQLITE_DENY;
      case SQLITE_ATTACH:
      case SQLITE_DETACH:
        ours.deny("attaches or detaches another file");
        return SQLITE_DENY;
      default:
        ours.deny(changes_schema);
        return SQLITE_DENY;
    }
  } catch (const std::bad_alloc&) {
    return SQLITE_DENY;
  }
}

void Companions::deny(const std::string& what) {
  if (denied_.empty()) denied_ = what;
}

std::optional<Error> Companions::write(const Companion& companion) {
  denied_.clear();
  is_late_ = false;
  const Clock& clock = *file_.options().clock;
  until_ = clock.uptime() + file_.options().work_timeout;
  sqlite3_progress_handler(
      connection_.raw(), look_every,
      [](void* self) {
        auto& ours = *static_cast<Companions*>(self);
        ours.is_late_ = ours.is_late_ || ours.file_.options().clock->uptime() > ours.until_;
        return ours.is_late_ ? 1 : 0;
      },
      this);
  struct End {
    Companions& ours;
    ~End() {
      ours.guest_ = Guest::none;
      sqlite3_progress_handler(ours.connection_.raw(), 0, nullptr, nullptr);
    }
  };
  std::optional<Error> declined;
  {
    const End end{*this};
    if (const auto* const statements = dynamic_cast<const SqlStatements*>(&companion)) {
      guest_ = Guest::statements;
      declined = write_statements(*statements);
    } else {
      guest_ = Guest::work;
      declined = run_work(dynamic_cast<const SqliteWork&>(companion));
    }
  }
  if (!connection_.in_transaction()) {
    throw TransactionEnded{declined ? *declined
                                    : Error{ErrorKind::misuse, "the writes have ended the store's own transaction"}};
  }
  return declined ? declined : left_behind();
}

std::optional<Error> Companions::write_statements(const SqlStatements& statements) {
  for (std::size_t n = 0; n < statements.entries().size(); ++n) {
    if (auto declined = write_statement(statements, n)) return declined;
  }
  return std::nullopt;
}

std::optional<Error> Companions::write_statement(const SqlStatements& statements, std::size_t n) {
  const SqlStatements::Entry& entry = statements.entries()[n];
  sqlite3* const db = connection_.raw();
  const auto misuse = [&](const std::string& why) { return Error{ErrorKind::misuse, statements.name(n) + ": " + why}; };
  const char* tail = nullptr;
  const UserStatement statement(db, entry.statement.text, tail);
  if (statement.code() != SQLITE_OK) return failure(statement.code(), statements.name(n));
  if (statement.get() == nullptr) return misuse("there is no statement in it");
  if (std::string_view(tail).find_first_not_of(" \t\r\n;") != std::string_view::npos) {
    return misuse("something follows the statement: add each statement by itself");
  }
  if (const std::string wrong = bind_values(statement.get(), entry.statement.values); !wrong.empty()) {
    return misuse(wrong);
  }
  std::uint64_t rows = 0;
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) ++rows;
  if (code != SQLITE_DONE) return failure(code, statements.name(n));
  if (sqlite3_stmt_readonly(statement.get()) == 0) rows = static_cast<std::uint64_t>(sqlite3_changes(db));
  if (!entry.expected.allows(rows)) return statements.miscounted(n, rows);
  return std::nullopt;
}

std::optional<Error> Companions::run_work(const SqliteWork& work) {
  sqlite3* const db = connection_.raw();
  std::optional<Error> thrown;
  is_in_work = true;
  try {
    work.work()(db);
  } catch (const Exception& error) {
    thrown = Error{error.kind() == ErrorKind::misuse ? ErrorKind::misuse : ErrorKind::unavailable, error.what()};
  } catch (const std::exception& error) {
    thrown = Error{ErrorKind::unavailable, error.what()};
  } catch (...) {  // It has no text.
    thrown = Error{ErrorKind::unavailable, "the work threw an exception that is not a std::exception"};
  }
  is_in_work = false;
  const int code = sqlite3_extended_errcode(db);
  bool left_running = false;
  for (sqlite3_stmt* at = sqlite3_next_stmt(db, nullptr); at != nullptr; at = sqlite3_next_stmt(db, at)) {
    if (sqlite3_stmt_busy(at) == 0) continue;  // The store's own are reset.
    sqlite3_reset(at);
    left_running = true;
  }
  const std::string who = "the work";
  if (!denied_.empty()) return Error{ErrorKind::misuse, who + " " + denied_};
  if (is_late_) return late(who);
  if (thrown || !connection_.in_transaction()) {
    // The disk's own failures are the store's affair, whatever the work made of them.
    switch (code & 0xFF) {
      case SQLITE_FULL:
      case SQLITE_IOERR:
      case SQLITE_NOMEM:
      case SQLITE_CORRUPT:
      case SQLITE_READONLY:
        throw connection_.error(code);
      default:
        break;
    }
  }
  if (thrown) return thrown;
  if (left_running) {
    return Error{ErrorKind::misuse, who + " left a statement running: reset or finalize each statement"};
  }
  return std::nullopt;
}

// SQLite checks these at the commit, where they would fail the whole group.
std::optional<Error> Companions::left_behind() {
  int unresolved = 0;
  int highest = 0;
  sqlite3_db_status(connection_.raw(), SQLITE_DBSTATUS_DEFERRED_FKS, &unresolved, &highest, 0);
  if (unresolved == 0) return std::nullopt;
  return Error{ErrorKind::unavailable, "a foreign key does not hold at the end of the writes"};
}

Error Companions::failure(int code, const std::string& who) const {
  const std::string detail = sqlite3_errmsg(connection_.raw());
  switch (code & 0xFF) {
    case SQLITE_AUTH:
      return {ErrorKind::misuse, who + " " + (denied_.empty() ? detail : denied_)};
    case SQLITE_INTERRUPT:
      return late(who);
    case SQLITE_CONSTRAINT:
      return {ErrorKind::unavailable, who + ": " + detail};
    case SQLITE_ERROR:
    case SQLITE_ABORT:
    case SQLITE_LOCKED:
    case SQLITE_MISMATCH:
    case SQLITE_RANGE:
    case SQLITE_TOOBIG:
    case SQLITE_MISUSE:
      return {ErrorKind::misuse, who + ": " + detail};
    default:
      throw connection_.error(code);
  }
}

Error Companions::late(const std::string& who) const {
  return {ErrorKind::unavailable, who + " ran for longer than " + std::to_string(file_.options().work_timeout.count()) +
                                      " ms, while all other writers waited (work_timeout)"};
}

}  // namespace sqlite

}  // namespace once::stores
