#include "stores/sqlite/schema.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

namespace once::stores::sqlite {

namespace {

// Version 1. Times are UTC milliseconds. NULL stands for what is empty, never or not yet.
//
// A claim adds a row at the end of the table and, until version 3, one entry at a random place of one small index, the
// one on the hash of the key; the key itself is compared in the row. sweep_at_ms is never later than expires_at_ms and
// follows it lazily: a completion that prolongs the expiry, as most do, leaves the index alone, and the sweep looks at
// both.
constexpr const char* version_1 = R"sql(
CREATE TABLE records (
  id             INTEGER PRIMARY KEY, -- in the order of insertion
  key_hash       INTEGER NOT NULL,
  state          INTEGER NOT NULL,    -- 0 in_progress, 1 completed, 2 failed, 3 unknown
  revision       INTEGER NOT NULL,
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
  placement      INTEGER,             -- NULL in `result`, 1 offloaded, 2 dropped
  location       TEXT,
  result_bytes   INTEGER,             -- offloaded, dropped: how many
  result_sha256  BLOB,                -- offloaded, dropped
  failure_code    TEXT,
  failure_message TEXT,
  reserve         BLOB                -- in_progress: zeros, so that the result will fit where the claim was written
);
CREATE INDEX records_by_key_hash ON records (key_hash);
CREATE INDEX records_by_sweep ON records (sweep_at_ms) WHERE sweep_at_ms IS NOT NULL;
CREATE INDEX records_open ON records (state) WHERE state <> 1;

CREATE TABLE once_meta (
  name  TEXT PRIMARY KEY,
  value ANY
) WITHOUT ROWID;
INSERT INTO once_meta VALUES ('hash_key', randomblob(16));

CREATE VIEW records_readable AS
SELECT id,
       key,
       CASE state WHEN 0 THEN CASE WHEN lease_until_ms IS NULL THEN 'released' ELSE 'in_progress' END
                  WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'unknown' ELSE '?' || state END AS state,
       attempt,
       revision,
       token,
       holder,
       note,
       strftime('%Y-%m-%d %H:%M:%f', created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', lease_until_ms / 1000.0, 'unixepoch') AS lease_until,
       strftime('%Y-%m-%d %H:%M:%f', finished_at_ms / 1000.0, 'unixepoch') AS finished_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', expires_at_ms / 1000.0, 'unixepoch'), 'never') AS expires_at,
       lower(hex(owner)) AS owner,
       lower(hex(fingerprint)) AS fingerprint,
       steps,
       CASE placement WHEN 1 THEN 'offloaded' WHEN 2 THEN 'dropped' ELSE result END AS result,
       content_type,
       location,
       failure_code,
       failure_message
FROM records;
)sql";

// Version 2: results may be compressed, placement 3. The tables are the same; a program of version 1 must not take
// compressed bytes for the result. In records.result is then a frame of zstd, in result_bytes and result_sha256 what
// comes out of it.
constexpr const char* version_2 = R"sql(
DROP VIEW records_readable;
CREATE VIEW records_readable AS
SELECT id,
       key,
       CASE state WHEN 0 THEN CASE WHEN lease_until_ms IS NULL THEN 'released' ELSE 'in_progress' END
                  WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'unknown' ELSE '?' || state END AS state,
       attempt,
       revision,
       token,
       holder,
       note,
       strftime('%Y-%m-%d %H:%M:%f', created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', lease_until_ms / 1000.0, 'unixepoch') AS lease_until,
       strftime('%Y-%m-%d %H:%M:%f', finished_at_ms / 1000.0, 'unixepoch') AS finished_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', expires_at_ms / 1000.0, 'unixepoch'), 'never') AS expires_at,
       lower(hex(owner)) AS owner,
       lower(hex(fingerprint)) AS fingerprint,
       steps,
       CASE placement WHEN 1 THEN 'offloaded' WHEN 2 THEN 'dropped'
                      WHEN 3 THEN 'compressed: once show prints it' ELSE result END AS result,
       coalesce(result_bytes, length(CAST(result AS BLOB)), 0) AS result_bytes,
       content_type,
       location,
       failure_code,
       failure_message
FROM records;
)sql";

// Version 3: a table of our own in the place of the index on the hash of the key, with an entry for each row up to
// indexed_to; those of later rows are in memory (key_index.hpp). Deleting a row, by whomever, deletes its entry and is
// noted in last_deleted, the highest id that was ever deleted.
//
// The column gets another name so that a program of version 2 that has the file open just now cannot go on: it would
// give ids a second time.
constexpr const char* version_3 = R"sql(
CREATE TABLE key_index (
  hash INTEGER NOT NULL,
  id   INTEGER NOT NULL,
  PRIMARY KEY (hash, id)
) WITHOUT ROWID;
INSERT INTO key_index SELECT key_hash, id FROM records INDEXED BY records_by_key_hash ORDER BY key_hash, id;
DROP INDEX records_by_key_hash;
ALTER TABLE records RENAME COLUMN key_hash TO hash;
INSERT INTO once_meta (name, value)
  SELECT name, newest FROM (SELECT coalesce(max(id), 0) AS newest FROM records),
                           (SELECT 'indexed_to' AS name UNION ALL SELECT 'last_deleted');
CREATE TRIGGER records_deleted AFTER DELETE ON records BEGIN
  DELETE FROM key_index WHERE hash = old.hash AND id = old.id;
  INSERT INTO once_meta (name, value) VALUES ('last_deleted', old.id)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value < excluded.value;
END;
)sql";

constexpr std::array<Migration, 3> versions{{{version_1}, {version_2}, {version_3}}};

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

std::span<const Migration> migrations() noexcept { return versions; }

std::int64_t version_of(Connection& connection, std::span<const Migration> steps) {
  const auto last = static_cast<std::int64_t>(steps.size());
  const std::int64_t application = connection.number("PRAGMA application_id");
  const std::int64_t version = connection.number("PRAGMA user_version");
  const bool fresh = application == 0 && version == 0 && connection.number("SELECT count(*) FROM sqlite_schema") == 0;
  if (application != application_id && !fresh) {
    throw Exception(ErrorKind::misuse, "sqlite store " + connection.path() +
                                           ": this is another program's database (its application_id is " +
                                           std::to_string(application) + "): name another file");
  }
  if (version < 0 || version > last) {
    throw Exception(ErrorKind::misuse, "sqlite store " + connection.path() + ": its tables are of version " +
                                           std::to_string(version) + ", this program knows up to version " +
                                           std::to_string(last) + ": use a newer one");
  }
  return version;
}

std::int64_t migrate(Connection& connection, std::span<const Migration> steps) {
  const auto last = static_cast<std::int64_t>(steps.size());
  if (version_of(connection, steps) == last) return last;
  Transaction transaction(connection);
  const std::int64_t first = version_of(connection, steps);  // Now nobody else changes it.
  for (std::int64_t version = first; version < last; ++version) {
    connection.run(steps[static_cast<std::size_t>(version)].sql);
  }
  connection.run(("PRAGMA application_id = " + std::to_string(application_id)).c_str());
  connection.run(("PRAGMA user_version = " + std::to_string(last)).c_str());
  transaction.commit();
  return first;
}

HashKey read_hash_key(Connection& connection) {
  const std::string bytes = meta_text(connection, "hash_key");
  HashKey key;
  if (bytes.size() != 16) {
    throw Exception(ErrorKind::corrupt, "sqlite store " + connection.path() +
                                            ": once_meta has lost its hash_key; without it no record is found. "
                                            "Restore a backup");
  }
  std::memcpy(&key.first, bytes.data(), 8);
  std::memcpy(&key.second, bytes.data() + 8, 8);
  return key;
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

StoredClock settle_clock(Connection& connection, const Clock& clock, const std::string& boot_id) {
  const auto read = [&]() -> std::optional<StoredClock> {
    const auto offset = meta_number(connection, "clock_offset_ms");
    const auto set_at = meta_number(connection, "clock_set_at_ms");
    if (!offset || !set_at || meta_text(connection, "boot_id") != boot_id) return std::nullopt;
    return StoredClock{boot_id, Millis(*offset), Time(Millis(*set_at))};
  };
  if (const auto known = read()) return *known;
  Transaction transaction(connection);
  if (const auto known = read()) return *known;
  const Time wall = clock.now();
  const auto uptime = std::chrono::floor<Millis>(clock.uptime());
  const Time reached(Millis(meta_number(connection, "time_seen_ms").value_or(0)));
  StoredClock settled{boot_id, std::max(wall, reached).time_since_epoch() - uptime, wall};
  set_meta(connection, "boot_id", boot_id);
  set_meta(connection, "clock_offset_ms", settled.offset.count());
  set_meta(connection, "clock_set_at_ms", unix_ms(wall));
  transaction.commit();
  return settled;
}

void note_time(Connection& connection, Time now) { set_meta(connection, "time_seen_ms", unix_ms(now)); }

std::string kernel_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id) || id.empty()) {
    throw Exception(ErrorKind::unavailable,
                    "sqlite store: cannot read /proc/sys/kernel/random/boot_id, without which the store's time is not "
                    "known after a reboot: mount /proc");
  }
  return id;
}

}  // namespace once::stores::sqlite
