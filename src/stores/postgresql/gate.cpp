#include "stores/postgresql/gate.hpp"

#include <mutex>
#include <optional>
#include <utility>

#include <once/error.hpp>

#include "stores/postgresql/rows.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::stores::postgresql {

namespace {

constexpr int lock_tries = 5;  // Between them, writers that wait behind the lock go on.

GateMark gate_of(const Session& session, const std::string& text) {
  if (text.empty()) return {};
  if (auto mark = gate_from_text(text)) return *std::move(mark);
  throw Exception(ErrorKind::corrupt,
                  session.name() + ": the comment on the function gate() is not once's: '" + text + "'");
}

GateMark read_gate(Session& session, const std::string& schema) {
  return gate_of(session, session.value(gate_mark_sql(schema)));
}

}  // namespace

template <class Do>
auto PostgresqlGate::with_session(Do what) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Session> session = std::move(session_);
  if (session == nullptr) session = std::make_unique<Session>(options_);
  auto value = what(*session);
  session_ = std::move(session);
  return value;
}

GateMark PostgresqlGate::mark() {
  return with_session([&](Session& session) {
    return gate_of(session, session.value_within(gate_mark_sql(options_.schema), options_.operation_timeout));
  });
}

StoreGate::Changed PostgresqlGate::change(const GateMark& seen, const GateMark& next, Time live_after) {
  const std::string records = quoted_name(options_.schema) + ".records";
  const auto once = [&](Session& session) {
    Changed changed;
    const auto end = [&](Changed::Kind kind) {
      changed.kind = kind;
      return changed;
    };
    const auto has_live = [&] {
      if (seen.gate != Gate::draining || next.gate != Gate::closed) return false;
      changed.live =
          std::stoul(session.value("SELECT count(*) FROM " + records + " WHERE state = 0 AND lease_until_ms > " +
                                   std::to_string(unix_ms(live_after))));
      return changed.live > 0;
    };
    // Most often it ends here, without a lock, which would hold renewals up.
    if (!(read_gate(session, options_.schema) == seen)) return end(Changed::Kind::other);
    if (has_live()) return end(Changed::Kind::live);
    Change transaction(session);
    session.run("SET LOCAL lock_timeout = '2s'");
    // Waits for every transaction that has written, and holds up those that will.
    session.run("LOCK TABLE " + records + " IN SHARE ROW EXCLUSIVE MODE");
    if (!(read_gate(session, options_.schema) == seen)) return end(Changed::Kind::other);
    if (next.gate == Gate::filling && !session.run("SELECT 1 FROM " + records + " LIMIT 1").empty()) {
      return end(Changed::Kind::occupied);
    }
    if (has_live()) return end(Changed::Kind::live);
    session.run(gate_sql(options_.schema, next));
    transaction.commit();
    return changed;
  };
  for (int tried = 1;; ++tried) {
    try {
      return with_session(once);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::unavailable || tried == lock_tries) throw;
    }
  }
}

void PostgresqlGate::fill(const GateMark& filling, const std::vector<RecordPtr>& records) {
  const std::string schema = quoted_name(options_.schema);
  const bool filled = with_session([&](Session& session) {
    session.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
    // With this lock nobody changes the gate.
    session.run("LOCK TABLE " + schema + ".records IN ROW EXCLUSIVE MODE");
    if (filling.gate != Gate::filling || !(read_gate(session, options_.schema) == filling)) {
      session.run("ROLLBACK");
      return false;
    }
    session.run(let_fill_sql(filling));
    std::vector<Parameters> writes;
    for (const RecordPtr& record : records) {
      writes.push_back(write_parameters(Act::insert, *record, nullptr, true));
      std::optional<std::int64_t> lock_ms;
      if (writes.size() == 1) lock_ms = 10'000;
      writes.back().set_first(lock_ms);
    }
    session.run_all(write_call(options_.schema), writes);
    session.run("COMMIT");
    return true;
  });
  if (!filled) throw Exception(ErrorKind::misuse, Target(options_.url, options_.schema).name() + fill_refusal);
}

}  // namespace once::stores::postgresql
