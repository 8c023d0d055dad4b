#include "stores/sqlite/schema.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace once::stores::sqlite {

namespace {

// Times are UTC milliseconds. NULL means empty, never or not yet.
//
// A claim adds a row at the end of the table; the key itself is compared in the row. key_index has an entry for each
// row up to indexed_to; those of later rows are in memory (key_index.hpp). Deleting a row, by any program, notes its
// entry in dropped_keys (dropped_keys.hpp), and updates last_deleted, the highest id ever deleted.
//
// sweep_at_ms is never later than expires_at_ms, and follows it lazily: most completions extend the expiry without
// changing the index, and the sweep checks both.
constexpr const char* tables = R"sql(
CREATE TABLE records (
  id             INTEGER PRIMARY KEY, -- in the order of insertion
  hash           INTEGER NOT NULL,    -- of the key
  state          INTEGER NOT NULL,    -- 0 in_progress, 1 completed, 2 failed, 3 unknown
  revision       INTEGER NOT NULL,    -- a counter above 20 random bits
  attempt        INTEGER NOT NULL,
  token          INTEGER NOT NULL,
  lease_until_ms INTEGER,             -- NULL: released or finished
  expires_at_ms  INTEGER,             -- NULL: never
  sweep_at_ms    INTEGER,             -- when the sweep looks at it; not after expires_at_ms
  created_at_ms  INTEGER NOT NULL,
  finished_at_ms INTEGER,
  owner          BLOB NOT NULL,       -- 16 bytes
  fingerprint    BLOB,
  key            TEXT NOT NULL,       -- a BLOB if it is no clean text; so are the following
  holder         TEXT,
  note           TEXT,
  steps          TEXT,                -- netstrings: name, result, name, result ...
  result         TEXT,
  content_type   TEXT,
  placement      INTEGER,             -- NULL in `result`, 1 offloaded, 2 dropped, 3 in `result` as a frame of zstd,
                                      -- 4 in `result`, sealed with the other payloads
  location       TEXT,
  result_bytes   INTEGER,             -- offloaded, dropped, compressed: how many before that
  result_sha256  BLOB,                -- offloaded, dropped, compressed: of those
  failure_code    TEXT,
  failure_message TEXT,
  on_lapse          INTEGER,          -- NULL takeover, 1 hold
  expected_until_ms INTEGER,
  label             TEXT,
  history           TEXT,             -- netstrings: entries dropped, then six for each entry
  input             TEXT,
  input_bytes       INTEGER,
  reserve         BLOB                -- in_progress: zeros, so that the result will fit where the claim was written
);
CREATE INDEX records_by_sweep ON records (sweep_at_ms) WHERE sweep_at_ms IS NOT NULL;
CREATE INDEX records_open ON records (state) WHERE state <> 1;

CREATE TABLE key_index (
  hash INTEGER NOT NULL,
  id   INTEGER NOT NULL,
  PRIMARY KEY (hash, id)
) WITHOUT ROWID;

CREATE TABLE once_meta (
  name  TEXT PRIMARY KEY,
  value ANY
) WITHOUT ROWID;
INSERT INTO once_meta VALUES ('hash_key', randomblob(16)), ('indexed_to', 0), ('last_deleted', 0);

CREATE VIEW records_readable AS
SELECT id,
       key,
       label,
       CASE state WHEN 0 THEN CASE WHEN lease_until_ms IS NULL THEN 'released' ELSE 'in_progress' END
                  WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'unknown' ELSE '?' || state END AS state,
       attempt,
       revision,
       token,
       holder,
       note,
       strftime('%Y-%m-%d %H:%M:%f', created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', lease_until_ms / 1000.0, 'unixepoch') AS lease_until,
       CASE on_lapse WHEN 1 THEN 'hold' ELSE 'takeover' END AS on_lapse,
       strftime('%Y-%m-%d %H:%M:%f', expected_until_ms / 1000.0, 'unixepoch') AS expected_until,
       strftime('%Y-%m-%d %H:%M:%f', finished_at_ms / 1000.0, 'unixepoch') AS finished_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', expires_at_ms / 1000.0, 'unixepoch'), 'never') AS expires_at,
       lower(hex(owner)) AS owner,
       lower(hex(fingerprint)) AS fingerprint,
       history,
       input,
       steps,
       CASE placement WHEN 1 THEN 'offloaded' WHEN 2 THEN 'dropped'
                      WHEN 3 THEN 'compressed: once show prints it'
                      WHEN 4 THEN 'sealed: once show prints it, with its key' ELSE result END AS result,
       coalesce(result_bytes, length(CAST(result AS BLOB)), 0) AS result_bytes,
       content_type,
       location,
       failure_code,
       failure_message
FROM records;
)sql";

constexpr const char* deletions = R"sql(
CREATE TABLE dropped_keys (
  n    INTEGER PRIMARY KEY,           -- in the order of the deletions
  hash INTEGER NOT NULL,
  id   INTEGER NOT NULL
);

CREATE TRIGGER records_deleted AFTER DELETE ON records BEGIN
  INSERT INTO dropped_keys (hash, id) VALUES (old.hash, old.id);
  INSERT INTO once_meta (name, value) VALUES ('last_deleted', old.id)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value < excluded.value;
END;
)sql";

std::string meta_text(Connection& connection, std::string_view name) {
  Statement statement(connection, "SELECT value FROM once_meta WHERE name = ?");
  statement.bind_text(1, name);
  return statement.step() ? std::string(statement.bytes(0)) : std::string();
}

std::optional<std::int64_t> meta_number(Connection& connection, std::string_view name) {
  Statement statement(connection, "SELECT value FROM once_meta WHERE name = ?");
  statement.bind_text(1, name);
  if (!statement.step() || statement.type(0) != SQLITE_INTEGER) return std::nullopt;
  return statement.integer(0);
}

void set_meta(Connection& connection, std::string_view name, std::int64_t value) {
  Statement statement(connection, "INSERT OR REPLACE INTO once_meta (name, value) VALUES (?, ?)");
  statement.bind_text(1, name);
  statement.bind(2, value);
  statement.step();
}

void set_meta(Connection& connection, std::string_view name, std::string_view value) {
  Statement statement(connection, "INSERT OR REPLACE INTO once_meta (name, value) VALUES (?, ?)");
  statement.bind_text(1, name);
  statement.bind_text(2, value);
  statement.step();
}

// Rolls back unless it was committed.
class Transaction {
 public:
  explicit Transaction(Connection& connection) : connection_(connection) { connection_.run("BEGIN IMMEDIATE"); }
  ~Transaction() {
    // Fails only if SQLite has rolled back already.
    if (connection_.in_transaction()) sqlite3_exec(connection_.raw(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() { connection_.run("COMMIT"); }

 private:
  Connection& connection_;
};

}  // namespace

bool has_tables(Connection& connection) {
  const auto refuse = [&](const std::string& why) {
    return Exception(ErrorKind::misuse, "sqlite store " + connection.path() + ": " + why);
  };
  const std::int64_t application = connection.number("PRAGMA application_id");
  const std::int64_t version = connection.number("PRAGMA user_version");
  if (application == 0 && version == 0 && connection.number("SELECT count(*) FROM sqlite_schema") == 0) return false;
  if (application == unreleased_application_id) {
    throw refuse(
        "this file was made by a version of once before its first format, and can no longer be read: name another "
        "file, or move this one away");
  }
  if (application != application_id) {
    throw refuse("this is another program's database (its application_id is " + std::to_string(application) +
                 "): name another file");
  }
  if (version != format_version) {
    throw refuse("its tables have format " + std::to_string(version) + ", but this program knows format " +
                 std::to_string(format_version) + ": use a newer program");
  }
  return true;
}

// Builds before 0.1.0 made a trigger that removed each entry of key_index with its row.
static void note_deletions(Connection& connection) {
  const auto has_notes = [&] {
    return connection.number("SELECT count(*) FROM sqlite_schema WHERE name = 'dropped_keys'") != 0;
  };
  if (has_notes()) return;
  Transaction transaction(connection);
  if (has_notes()) return;  // Another process may have made it meanwhile.
  connection.run("DROP TRIGGER IF EXISTS records_deleted");
  connection.run(deletions);
  transaction.commit();
}

void make_tables(Connection& connection) {
  if (has_tables(connection)) return note_deletions(connection);
  Transaction transaction(connection);
  if (has_tables(connection)) return;  // Another process may have made them meanwhile; now none can.
  connection.run(tables);
  connection.run(deletions);
  connection.run(("PRAGMA application_id = " + std::to_string(application_id)).c_str());
  connection.run(("PRAGMA user_version = " + std::to_string(format_version)).c_str());
  transaction.commit();
}

HashKey read_hash_key(Connection& connection) {
  const std::string bytes = meta_text(connection, "hash_key");
  HashKey key;
  if (bytes.size() != 16) {
    // Of this type, because the caller may be in a transaction, which must end.
    throw SqlError(ErrorKind::corrupt,
                   "sqlite store " + connection.path() +
                       ": once_meta has lost its hash_key, without which no record can be found. Restore a backup",
                   SQLITE_CORRUPT);
  }
  std::memcpy(&key.first, bytes.data(), 8);
  std::memcpy(&key.second, bytes.data() + 8, 8);
  return key;
}

bool is_marked_sealed(Connection& connection) { return meta_number(connection, "sealed").has_value(); }

void mark_sealed(Connection& connection) { set_meta(connection, "sealed", 1); }

GateMark read_gate(Connection& connection) {
  const std::string text = meta_text(connection, "gate");
  if (text.empty()) return {};
  if (const auto mark = gate_from_text(text)) return *mark;
  throw SqlError(ErrorKind::corrupt,
                 "sqlite store " + connection.path() + ": once_meta has a malformed row 'gate': '" + text + "'",
                 SQLITE_CORRUPT);
}

void set_gate(Connection& connection, const GateMark& mark) {
  connection.run(
      "DROP TRIGGER IF EXISTS gate_insert; DROP TRIGGER IF EXISTS gate_claim; DROP TRIGGER IF EXISTS gate_update; "
      "DROP TRIGGER IF EXISTS gate_delete");
  if (mark.gate == Gate::open) return connection.run("DELETE FROM once_meta WHERE name = 'gate'");
  set_meta(connection, "gate", gate_text(mark));
  const std::string refusal = gate_refusal(mark);
  if (refusal.empty()) return;
  std::string quoted;
  for (const char c : refusal) quoted.append(c == '\'' ? 2 : 1, c);
  const auto add = [&](const std::string& name, const std::string& when, const std::string& only_if) {
    connection.run(("CREATE TRIGGER " + name + " " + when + " ON records " +
                    (only_if.empty() ? "" : "WHEN " + only_if) + " BEGIN SELECT RAISE(ABORT, '" + quoted + "'); END")
                       .c_str());
  };
  const std::string unless_let =
      mark.gate == Gate::filling ? "NOT EXISTS (SELECT 1 FROM once_meta WHERE name = 'gate_let')" : "";
  // After the insert: a finish of the user's own is an upsert, which would meet a trigger before it.
  add("gate_insert", "AFTER INSERT", unless_let);
  if (mark.gate == Gate::draining) {
    add("gate_claim", "BEFORE UPDATE OF owner",
        "new.owner IS NOT old.owner AND new.state = 0 AND coalesce(new.lease_until_ms, 0) <> 0");
  } else {
    add("gate_update", "BEFORE UPDATE", unless_let);
    add("gate_delete", "BEFORE DELETE", unless_let);
  }
}

void let_fill(Connection& connection, bool let) {
  if (let) {
    set_meta(connection, "gate_let", 1);
  } else {
    connection.run("DELETE FROM once_meta WHERE name = 'gate_let'");
  }
}

std::string other_store(const std::string& path) {
  return "sqlite store " + path +
         ": the file's content was replaced by another store's while it was open, so this program finds no key: "
         "restart the programs that use it";
}

std::int64_t hash_of(const HashKey& key, std::string_view bytes) noexcept {
  static_assert(std::endian::native == std::endian::little, "SipHash reads its words in this order");
  std::uint64_t a = key.first ^ 0x736F6D6570736575U;
  std::uint64_t b = key.second ^ 0x646F72616E646F6DU;
  std::uint64_t c = key.first ^ 0x6C7967656E657261U;
  std::uint64_t d = key.second ^ 0x7465646279746573U;
  const auto round = [&] {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  };
  const auto take = [&](std::uint64_t word) {
    d ^= word;
    round();
    a ^= word;
  };
  std::uint64_t last = static_cast<std::uint64_t>(bytes.size()) << 56U;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    take(word);
    bytes.remove_prefix(8);
  }
  std::uint64_t rest = 0;
  if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
  take(last | rest);
  c ^= 0xFFU;
  round();
  round();
  round();
  return static_cast<std::int64_t>(a ^ b ^ c ^ d);
}

StoredClock settle_clock(Connection& connection, const Clock& clock, HostBoot boot, bool is_alone, bool may_write) {
  const auto read = [&]() -> std::optional<StoredClock> {
    const auto offset = meta_number(connection, "clock_offset_ms");
    const auto set_at = meta_number(connection, "clock_set_at_ms");
    if (!offset || !set_at) return std::nullopt;
    const std::string id = meta_text(connection, "boot_id");
    if (id == boot.id) return StoredClock{boot, Millis(*offset), Time(Millis(*set_at)), id};
    if (is_alone) return std::nullopt;
    throw Exception(ErrorKind::misuse,
                    "another process has the file open, under the boot id '" + id + "', but this one is under '" +
                        boot.id +
                        "', so their clocks cannot be compared. A container that shows a boot id of its own (as "
                        "systemd-nspawn does) cannot share the file with others: let it read the host's "
                        "/proc/sys/kernel/random/boot_id, or end the other processes first");
  };
  if (auto known = read()) return *known;
  std::optional<Transaction> transaction;
  if (may_write) transaction.emplace(connection);
  if (auto known = read()) return *known;
  const Time wall = clock.now();
  const auto uptime = std::chrono::floor<Millis>(clock.uptime() - boot.clock_ahead);
  const Time reached(Millis(meta_number(connection, "time_seen_ms").value_or(0)));
  const Millis offset = std::max(wall, reached).time_since_epoch() - uptime;
  std::string boot_in_file = boot.id;
  if (may_write) {
    set_meta(connection, "boot_id", boot.id);
    set_meta(connection, "clock_offset_ms", offset.count());
    set_meta(connection, "clock_set_at_ms", unix_ms(wall));
    transaction->commit();
  } else {
    boot_in_file = meta_text(connection, "boot_id");
  }
  return {std::move(boot), offset, wall, std::move(boot_in_file)};
}

void note_time(Connection& connection, Time now) { set_meta(connection, "time_seen_ms", unix_ms(now)); }

}  // namespace once::stores::sqlite
