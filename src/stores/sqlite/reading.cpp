#include "stores/sqlite/reading.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "text/ascii.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::size_t list_scan = 50'000;                              // Rows that list looks at for one page …
constexpr std::size_t max_page_bytes = std::size_t{64} * 1024 * 1024;  // … and bytes of records on one.

// Of row_columns.
constexpr int state_column = 1;
constexpr int expires_column = 6;
constexpr int key_column = 11;
constexpr int last_column = 28;

// Where a page begins: "<sweep_at_ms>.<id>", the last row of the page before. In insertion order the first number is 0.
struct Cursor {
  std::int64_t sweep_at = std::numeric_limits<std::int64_t>::min();
  std::int64_t id = std::numeric_limits<std::int64_t>::min();

  [[nodiscard]] std::string text() const { return std::to_string(sweep_at) + "." + std::to_string(id); }
  static Cursor from(const std::string& text) {
    Cursor cursor;
    if (text.empty()) return cursor;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, cursor.sweep_at);
    const bool dot = first.ec == std::errc() && first.ptr != end && *first.ptr == '.';
    const auto second = dot ? std::from_chars(first.ptr + 1, end, cursor.id) : first;
    if (!dot || second.ec != std::errc() || second.ptr != end) {
      throw Exception(
          ErrorKind::misuse,
          "sqlite store: '" + text + "' is not a page's cursor: pass the cursor that the previous page returned");
    }
    return cursor;
  }
};

}  // namespace

Reading::Reading(const std::string& path, const std::string& vfs, Millis busy_timeout, Connection::Mode mode)
    : connection_(path, vfs, busy_timeout, mode),
      keys_(connection_),
      row_(connection_),
      outside_(path + "-lock"),
      begin_(connection_, "BEGIN"),
      end_(connection_, "COMMIT") {
  connection_.run("PRAGMA cache_size = -2048; PRAGMA query_only = ON; PRAGMA temp_store = MEMORY");
}

Reading::Found Reading::find(std::string_view key, const HashKey& hash_key, const RecentKeys& recent) {
  const std::int64_t key_hash = hash_of(hash_key, key);
  RecentKeys::Found known = recent.find(key_hash);  // Before the transaction: see RecentKeys::find().
  begin_.step();
  begin_.reset();
  keys_.find(key_hash, known.ids);
  Found found;
  found.row = row_.read(known.ids, key);
  if (!found.row) {
    // Rows that other processes have just written.
    const Ends ends = keys_.ends(known.known);
    const bool right = is_right(known.known, ends);
    if (!right && read_hash_key(connection_) != hash_key) {
      throw Exception(ErrorKind::unavailable, other_store(connection_.path()));
    }
    const std::int64_t from = std::max(right ? known.known.covered : 0, ends.indexed_to);
    if (ends.newest > from) {
      const std::vector<KeyEntry> entries = keys_.entries_after(from);
      found.looked_through = entries.size();
      std::vector<std::int64_t> ids;
      for (const KeyEntry& entry : entries) {
        if (entry.hash == key_hash) ids.push_back(entry.id);
      }
      found.row = row_.read(ids, key);
    }
  }
  end_.step();
  end_.reset();
  return found;
}

ListPage Reading::list(const ListQuery& query) {
  if (query.limit < 1 || query.limit > 10'000) {
    throw Exception(ErrorKind::misuse, "sqlite store: the limit of a list must be 1 to 10000");
  }
  Cursor at = Cursor::from(query.cursor);
  const bool open_only = query.state && *query.state != State::completed;
  const bool by_expiry = !open_only && query.expired_at;
  std::string sql = "SELECT " + std::string(row_columns) + ", sweep_at_ms FROM records ";
  if (open_only) {
    sql += "INDEXED BY records_open WHERE state <> 1 AND state = ?3 AND id > ?2 ORDER BY id";
  } else if (by_expiry) {
    sql +=
        "INDEXED BY records_by_sweep WHERE sweep_at_ms >= ?1 AND (sweep_at_ms, id) > (?1, ?2) AND "
        "sweep_at_ms <= ?4 ORDER BY sweep_at_ms, id";
  } else {
    sql += "WHERE id > ?2 ORDER BY id";
  }
  Statement statement(connection_, sql);
  if (by_expiry) {
    statement.bind(1, at.sweep_at);
    statement.bind(4, unix_ms(*query.expired_at));
  }
  statement.bind(2, at.id);
  if (open_only) statement.bind(3, static_cast<std::int64_t>(*query.state));

  ListPage page;
  std::size_t bytes = 0;
  for (std::size_t looked_at = 0; statement.step(); ++looked_at) {
    if (page.records.size() == query.limit || looked_at == list_scan || bytes >= max_page_bytes) {
      page.cursor = at.text();
      break;
    }
    at.id = statement.integer(0);
    at.sweep_at = by_expiry ? statement.integer(last_column + 1) : 0;
    if (!statement.bytes(key_column).starts_with(query.key_prefix)) continue;
    if (query.state && statement.integer(state_column) != static_cast<std::int64_t>(*query.state)) continue;
    if (query.expired_at) {
      if (statement.type(expires_column) == SQLITE_NULL) continue;
      if (statement.integer(expires_column) > unix_ms(*query.expired_at)) continue;
    }
    page.records.push_back(read_row(statement, connection_.path()).record);
    bytes += record_bytes(page.records.back());
  }
  return page;
}

std::vector<std::string> Reading::check(const HashKey& hash_key, const RecentKeys& recent, SqliteCheck how) {
  constexpr std::size_t most_problems = 100;
  constexpr std::int64_t newest_rows = 20'000;
  const std::string anew =
      ". To index all keys again, stop the programs and DELETE FROM key_index; UPDATE once_meta SET value = 0 "
      "WHERE name = 'indexed_to'";
  std::vector<std::string> problems;
  if (how == SqliteCheck::whole) {
    Statement integrity(connection_, "PRAGMA integrity_check(20)");
    while (integrity.step()) {
      if (integrity.bytes(0) == "ok") continue;
      problems.push_back(std::string(integrity.bytes(0)) +
                         ". Stop the programs that use the file, keep a copy of it, and restore a good one");
    }
  }

  RecentKeys::All known = recent.all();  // Before the transaction, as in find().
  begin_.step();
  begin_.reset();
  const Ends ends = keys_.ends(known.known);
  const bool trusted = is_right(known.known, ends);
  if (!trusted) known.entries.clear();
  std::unordered_multimap<std::int64_t, std::int64_t> newer;
  for (const KeyEntry& entry : known.entries) newer.emplace(entry.hash, entry.id);
  for (const KeyEntry& entry : keys_.entries_after(std::max(trusted ? known.known.covered : 0, ends.indexed_to))) {
    newer.emplace(entry.hash, entry.id);
  }
  Statement rows(connection_, "SELECT " + std::string(row_columns) + ", hash FROM records WHERE id > ?1");
  rows.bind(1, how == SqliteCheck::whole ? std::numeric_limits<std::int64_t>::min() : ends.newest - newest_rows);
  while (problems.size() < most_problems && rows.step()) {
    try {
      const Row row = read_row(rows, connection_.path());
      const std::string name = "the row " + std::to_string(row.id);
      const std::int64_t hash = hash_of(hash_key, row.record.key);
      if (rows.integer(last_column + 1) != hash) {
        problems.push_back(name +
                           " has a wrong hash, so the store cannot find it. If its key was changed by hand, write "
                           "the old key back; otherwise delete the row");
        continue;
      }
      std::vector<std::int64_t> ids;
      keys_.find(hash, ids);
      const auto [begin, end] = newer.equal_range(hash);
      std::transform(begin, end, std::back_inserter(ids), [](const auto& entry) { return entry.second; });
      std::ranges::sort(ids);
      ids.erase(std::ranges::unique(ids).begin(), ids.end());
      const bool found = std::ranges::binary_search(ids, row.id);
      if (!found) {
        problems.push_back(
            name + " is not in key_index, so the store cannot find it, and its key can be claimed again" + anew);
      }
      for (const std::int64_t id : ids) {
        if (id == row.id || (found && id > row.id) || !row_.read({&id, 1}, row.record.key)) continue;
        const std::string both = std::to_string(std::min(id, row.id)) + ", " + std::to_string(std::max(id, row.id));
        problems.push_back(
            "the key '" + text::printable(row.record.key) + "' is stored twice, in the rows " + both +
            ": it was claimed again while it existed, and its work may have run twice. Compare them "
            "(SELECT * FROM records_readable WHERE id IN (" +
            both +
            ")), find out from the services that the work called what happened, then DELETE FROM records "
            "WHERE id = the wrong one");
      }
    } catch (const SqlError&) {
      throw;
    } catch (const Exception& error) {
      problems.emplace_back(error.what());
    }
  }
  rows.reset();
  end_.step();
  end_.reset();
  return problems;
}

}  // namespace once::stores::sqlite
