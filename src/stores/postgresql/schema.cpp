#include <once/stores/postgresql_schema.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "stores/postgresql/schema_sql.hpp"
#include "stores/postgresql/session.hpp"

namespace once::stores {

namespace {

using namespace postgresql;
using Grade = TableFinding::Grade;

std::uint64_t number(const std::optional<std::string>& text) {
  std::uint64_t value = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

// Records, bytes, dead rows, and whether autovacuum is on. A crash of the server empties its counters, and ANALYZE or
// VACUUM set the older estimate.
std::string size_sql(const std::string& quoted_schema) {
  return "SELECT greatest(CASE s.n_live_tup WHEN 0 THEN c.reltuples::bigint ELSE s.n_live_tup END, 0), "
         "pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0), current_setting('autovacuum') FROM pg_class c "
         "LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.oid = to_regclass(" +
         quoted_text(quoted_schema + ".records") + ")";
}

// The version of the schema; 0: there is none of once's.
int version_in(Session& session, const std::string& schema) {
  const std::string meta = quoted_text(quoted_name(schema) + ".meta");
  if (session.value("SELECT to_regclass(" + meta + ")").empty()) return 0;
  return static_cast<int>(
      number(session.value("SELECT value FROM " + quoted_name(schema) + ".meta WHERE name = 'version'")));
}

[[noreturn]] void refuse_newer(const Session& session, int version) {
  throw Exception(ErrorKind::misuse, session.name() + ": the schema has version " + std::to_string(version) +
                                         ", and this program knows versions up to " + std::to_string(schema_version) +
                                         ": nothing was changed. Use a newer program");
}

void migrate(Session& session, const std::string& schema, int from) {
  for (int version = from; version < schema_version; ++version) session.run(migration_sql(version, schema));
}

// Looks at one thing after another. One that the role may not see is a hint.
class Look {
 public:
  Look(Session& session, const PostgresqlOptions& options, SchemaReport& report)
      : session_(session), schema_(quoted_name(options.schema)), options_(options), report_(report) {}

  void all() {
    if (!schema()) return;
    step("functions", [&] { functions(); });
    step("server", [&] { server(); });
    step("hosts", [&] { hosts(); });
    step("commit", [&] { commit(); });
    step("logged", [&] { logged(); });
    step("writes", [&] { writes(); });
    step("standby", [&] { standby(); });
    step("keepalive", [&] { keepalive(); });
    step("isolation", [&] { isolation(); });
    step("snapshot", [&] { snapshot(); });
    step("bloat", [&] { bloat(); });
  }

 private:
  void add(Grade grade, std::string name, std::string text) {
    report_.findings.push_back({grade, std::move(name), std::move(text)});
  }

  template <class Do>
  void step(const char* name, Do look) {
    try {
      look();
    } catch (const Exception& error) {
      if (error.kind() == ErrorKind::in_doubt) throw;
      add(Grade::hint, name, std::string("could not be seen: ") + error.what());
    }
  }

  // False: there is nothing to look at.
  bool schema() {
    if (session_.value("SELECT to_regnamespace(" + quoted_text(schema_) + ")").empty()) {
      add(Grade::lack, "schema", "there is no schema " + schema_ + ": make it with once table create");
      return false;
    }
    // Unlike to_regnamespace(), this function takes the name without quotes.
    const bool usable =
        session_.value("SELECT has_schema_privilege(" + quoted_text(options_.schema) + ", 'USAGE')") == "t";
    if (!usable) {
      add(Grade::lack, "schema",
          "the role has no USAGE of the schema " + schema_ + ": once table create --role NAME grants it");
      return false;
    }
    if (session_.value("SELECT to_regprocedure(" + quoted_text(schema_ + ".about_1()") + ")").empty()) {
      add(Grade::lack, "schema", "the schema " + schema_ + " has no tables of once: make them with once table create");
      return false;
    }
    report_.exists = true;
    const Cells about = session_.run(about_call(options_.schema));
    report_.version = static_cast<int>(number(about.at(0)));
    const std::string text = schema_ + ", version " + std::to_string(report_.version);
    if (report_.version == schema_version) {
      add(Grade::fine, "schema", text);
    } else if (report_.version > schema_version) {
      add(Grade::hint, "schema", text + ": made by a newer program. This one uses the functions that it knows");
    } else {
      add(Grade::lack, "schema",
          text + ", and this program makes " + std::to_string(schema_version) + ": run once table upgrade");
    }
    return true;
  }

  void functions() {
    std::string missing;
    std::string forbidden;
    for (const std::string_view function : postgresql::functions) {
      const std::string name(function.substr(0, function.find('(')));
      const Cells found = session_.run(
          "SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_catalog.pg_proc p WHERE p.proname = '" +
          name + "' AND p.pronamespace = to_regnamespace(" + quoted_text(schema_) + ")");
      std::string& lack = found.at(0) ? forbidden : missing;
      if (found.at(0) == "t" || lack.find(name) != std::string::npos) continue;
      lack += (lack.empty() ? "" : ", ") + name;
    }
    if (!missing.empty()) {
      add(Grade::lack, "functions", missing + " missing: restore them with once table create --print-sql");
    } else if (!forbidden.empty()) {
      add(Grade::lack, "functions",
          "the role may not EXECUTE " + forbidden + ": once table create --role NAME grants it");
    } else {
      add(Grade::fine, "functions", "all there, and this role may call them");
    }
  }

  void server() {
    const Cells found = session_.run(
        "SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('server_version_num')::int, "
        "current_user, current_database()");
    add(number(found.at(2)) >= 130'000 ? Grade::fine : Grade::lack, "server",
        "PostgreSQL " + found.at(0).value_or("?") + ", database " + found.at(4).value_or("?") + ", role " +
            found.at(3).value_or("?") + (number(found.at(2)) >= 130'000 ? "" : ": once needs 13 or later"));
    const bool standby = found.at(1) == "t";
    add(standby ? Grade::lack : Grade::fine, "primary",
        standby ? "this server is a standby, which takes no writes: name the primary, or both" : "it takes writes");
  }

  // Two clusters share no record, so a program that goes from one to the other runs everything again.
  void hosts() {
    const std::vector<Session::Host> hosts = session_.hosts();
    if (hosts.size() < 2) return;
    std::map<std::string, std::string> clusters;
    std::map<std::string, std::string> primaries;
    std::string silent;
    for (const Session::Host& host : hosts) {
      if (!host.problem.empty() || host.cluster.empty()) {
        silent += (silent.empty() ? "" : "; ") + host.name + " " +
                  (host.problem.empty() ? "does not show its system identifier" : "is not reached: " + host.problem);
        continue;
      }
      clusters[host.cluster] += (clusters[host.cluster].empty() ? "" : " and ") + host.name;
      if (!host.primary.empty()) primaries.try_emplace(host.primary, host.name);
    }
    if (clusters.size() > 1) {
      std::string text;
      for (const auto& [cluster, names] : clusters) {
        text += (text.empty() ? "" : ", ") + names + " has the system identifier " + cluster;
      }
      add(Grade::lack, "hosts",
          "they are different clusters, which share no record: " + text +
              ". An operation runs again at the other one. Name hosts of one cluster only");
    } else if (primaries.size() > 1) {
      std::string text;
      for (const auto& [server, name] : primaries) text += (text.empty() ? "" : " and ") + name;
      add(Grade::lack, "hosts",
          "more than one server takes writes: " + text +
              ". Either a standby was promoted and the old primary still runs, or one cluster is a copy of the other. "
              "An operation runs again at the other one. Stop one of them");
    } else if (!silent.empty()) {
      add(Grade::hint, "hosts", "not compared: " + silent);
    } else {
      add(Grade::fine, "hosts", std::to_string(hosts.size()) + ", all of one cluster");
    }
  }

  void logged() {
    const std::string unlogged = session_.value(
        "SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c WHERE c.relnamespace = "
        "to_regnamespace(" +
        quoted_text(schema_) + ") AND c.relname IN ('records', 'meta') AND c.relpersistence <> 'p'");
    if (unlogged.empty()) return add(Grade::fine, "logged", "a crash of the server keeps the tables");
    add(options_.allow_unsafe ? Grade::hint : Grade::lack, "logged",
        "UNLOGGED: " + unlogged +
            ". A crash of the server empties them, and a standby has nothing of them. Run ALTER "
            "TABLE ... SET LOGGED");
  }

  // What may swallow or change a row. A move's gate does neither.
  void writes() {
    const std::string table = "to_regclass(" + quoted_text(schema_ + ".records") + ")";
    const Cells found = session_.run(
        "SELECT (SELECT string_agg(t.tgname, ', ' ORDER BY t.tgname) FROM pg_catalog.pg_trigger t WHERE t.tgrelid = " +
        table +
        " AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 2 = 2), "
        "(SELECT string_agg(r.rulename, ', ' ORDER BY r.rulename) FROM pg_catalog.pg_rewrite r WHERE r.ev_class = " +
        table +
        "), "
        "(SELECT c.relrowsecurity AND c.relforcerowsecurity FROM pg_catalog.pg_class c WHERE c.oid = " +
        table +
        "), "
        "(SELECT string_agg(t.tgname, ', ' ORDER BY t.tgname) FROM pg_catalog.pg_trigger t WHERE t.tgrelid = " +
        table + " AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 2 = 0 AND t.tgname <> 'gate')");
    std::string text;
    const auto also = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
    if (found.at(0)) also("triggers before a write: " + *found.at(0));
    if (found.at(1)) also("rules: " + *found.at(1));
    if (found.at(2) == "t") also("row security, which is forced on the owner too");
    if (!text.empty()) {
      add(Grade::lack, "writes",
          text + ". They may swallow or change what is written to " + schema_ +
              ".records, and such a write is refused (ON008). Remove them");
    } else if (found.at(3)) {
      add(Grade::hint, "writes",
          "triggers after a write: " + *found.at(3) + ". They must not write to " + schema_ + ".records");
    } else {
      add(Grade::fine, "writes", "nothing stands between the functions and the table");
    }
  }

  void commit() {
    const Cells found = session_.run(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')");
    if (found.at(0) == "off") {
      add(options_.allow_unsafe ? Grade::hint : Grade::lack, "fsync",
          "off: a crash of the server's host loses acknowledged claims and results, and may damage all data. Set "
          "fsync = on");
    } else {
      add(Grade::fine, "fsync", "on");
    }
    if (found.at(1) == "off") {
      add(Grade::hint, "full_page_writes", "off: only a file system that never writes half a page may do without them");
    }
    const std::string commit = found.at(2).value_or("?");
    if (commit == "off") {
      add(Grade::hint, "commit", "synchronous_commit is off here; the store's own writes use on");
    } else if (commit == "local" || commit == "remote_write") {
      add(Grade::hint, "commit",
          "synchronous_commit is " + commit +
              ": a write is acknowledged before a standby has it on its disk, so a failover may lose it");
    } else {
      add(Grade::fine, "commit", "synchronous_commit is " + commit);
    }
  }

  void standby() {
    const std::string names = session_.value("SELECT current_setting('synchronous_standby_names')");
    const Cells found = session_.run(
        "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication");
    const std::string count = found.at(0).value_or("0");
    const std::string synchronous = found.at(1).value_or("0");
    if (!names.empty()) {
      // A role without pg_monitor sees that there are standbys, but not their state.
      add(Grade::fine, "standby",
          "commits wait for a synchronous standby (" + names + "); " + count + " connected. If it stops, writes wait");
    } else if (count != "0") {
      add(Grade::hint, "standby",
          count + " connected, none synchronous (" + synchronous +
              "): a failover may lose acknowledged claims and results, and operations then run again");
    } else {
      add(Grade::hint, "standby", "none: the records are as safe as this server's disk and its backups");
    }
  }

  // A session shows what counts for it, with the system's defaults, over TCP only.
  void keepalive() {
    const Cells found = session_.run(
        "SELECT inet_server_addr() IS NULL, current_setting('tcp_keepalives_idle'), "
        "current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count')");
    if (found.at(0) == "t") {
      return add(Grade::fine, "keepalive", "this connection is local, so no host of it can be cut off");
    }
    constexpr std::uint64_t long_s = 300;
    const std::uint64_t seconds = number(found.at(1)) + number(found.at(2)) * number(found.at(3));
    if (seconds == 0 || seconds > long_s) {
      return add(Grade::hint, "keepalive",
                 "a host that is cut off in the middle of a write keeps its records locked for up to " +
                     (seconds == 0 ? std::string("ever") : std::to_string(seconds / 60) + " min") +
                     ". In postgresql.conf set tcp_keepalives_idle = 60, tcp_keepalives_interval = 10, "
                     "tcp_keepalives_count = 3");
    }
    add(Grade::fine, "keepalive",
        "the server notices a host that is cut off within " + std::to_string(seconds) + " s, and lets its locks go");
  }

  void isolation() {
    const std::string level = session_.value("SELECT current_setting('default_transaction_isolation')");
    add(Grade::fine, "isolation",
        level == "read committed" ? level
                                  : "the default is " + level + "; the store's own transactions say read committed");
  }

  void snapshot() {
    const Cells found = session_.run(
        "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))::bigint, 0), "
        "coalesce(max(age(backend_xmin)), 0), (SELECT count(*) FROM pg_prepared_xacts), "
        "(SELECT count(*) FROM pg_replication_slots WHERE NOT active) "
        "FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()");
    const std::uint64_t seconds = number(found.at(0));
    const std::uint64_t prepared = number(found.at(2));
    const std::uint64_t slots = number(found.at(3));
    std::string text = "the oldest open transaction that this role sees is " + std::to_string(seconds) + " s old";
    if (prepared > 0) text += ", " + std::to_string(prepared) + " prepared transactions wait";
    if (slots > 0) text += ", " + std::to_string(slots) + " replication slots are not in use";
    const bool late = seconds > 600 || prepared > 0 || slots > 0;
    add(late ? Grade::hint : Grade::fine, "snapshot",
        late ? text + ". While they last, dead rows stay and the table grows" : text);
  }

  void bloat() {
    const Cells found = session_.run(size_sql(schema_));
    if (found.empty()) return;
    const std::uint64_t live = number(found.at(0));
    const std::uint64_t dead = number(found.at(2));
    report_.records = live;
    report_.bytes = number(found.at(1));
    const std::string text = "about " + std::to_string(live) + " records and " + std::to_string(dead) + " dead rows, " +
                             std::to_string(report_.bytes / 1024 / 1024) + " MiB with indexes";
    if (found.at(3) == "off") {
      add(Grade::lack, "bloat", text + ". autovacuum is off: the table grows for ever. Turn it on");
    } else if (dead > 10'000 && dead > live / 2) {
      add(Grade::hint, "bloat", text + ". autovacuum does not keep up, or an old transaction holds it back");
    } else {
      add(Grade::fine, "bloat", text);
    }
  }

  Session& session_;
  const std::string schema_;
  const PostgresqlOptions& options_;
  SchemaReport& report_;
};

}  // namespace

int postgresql_schema_version() noexcept { return schema_version; }

std::string postgresql_schema_sql(const PostgresqlOptions& options, const std::vector<std::string>& roles) {
  std::string sql = create_sql(options.schema);
  for (const std::string& role : roles) sql += grant_sql(options.schema, role);
  return sql;
}

SchemaChange create_postgresql_schema(const PostgresqlOptions& options, const std::vector<std::string>& roles) {
  Session session(options);
  Change change(session);
  const int version = version_in(session, options.schema);
  if (version > schema_version) refuse_newer(session, version);
  if (version == 0) migrate(session, options.schema, 0);
  for (const std::string& role : roles) session.run(grant_sql(options.schema, role));
  change.commit();
  return version == 0 ? SchemaChange::made : SchemaChange::was_there;
}

SchemaChange upgrade_postgresql_schema(const PostgresqlOptions& options) {
  Session session(options);
  Change change(session);
  const int version = version_in(session, options.schema);
  if (version == 0) {
    throw Exception(ErrorKind::misuse, session.name() + ": there is nothing to upgrade: run once table create");
  }
  if (version > schema_version) refuse_newer(session, version);
  migrate(session, options.schema, version);
  change.commit();
  return version == schema_version ? SchemaChange::was_there : SchemaChange::upgraded;
}

void delete_postgresql_schema(const PostgresqlOptions& options) {
  Session session(options);
  if (version_in(session, options.schema) == 0) {
    throw Exception(ErrorKind::misuse, session.name() + ": there are no tables of once to delete");
  }
  session.run(drop_sql(options.schema));
}

bool SchemaReport::fits() const noexcept {
  return exists && std::none_of(findings.begin(), findings.end(),
                                [](const TableFinding& finding) { return finding.grade == Grade::lack; });
}

SchemaSize postgresql_size(const PostgresqlOptions& options) {
  Session session(options);
  const Cells found = session.run(size_sql(quoted_name(options.schema)));
  if (found.empty()) throw Exception(ErrorKind::misuse, session.name() + ": there are no tables of once");
  return {.records = number(found.at(0)), .bytes = number(found.at(1))};
}

SchemaReport check_postgresql_schema(const PostgresqlOptions& options) {
  Session session(options);
  SchemaReport report;
  Look(session, options, report).all();
  return report;
}

}  // namespace once::stores
