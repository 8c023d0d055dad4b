#include "stores/sqlite/rows.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <once/fingerprint.hpp>

#include "text/ascii.hpp"
#include "text/netstring.hpp"
#include "text/utf8.hpp"

namespace once::stores::sqlite {

namespace {

// Parameter numbers of the statements below; a record's are the same in all.
enum Parameter : int {
  p_hash = 1,
  p_state,
  p_revision,
  p_attempt,
  p_token,
  p_lease_until,
  p_expires_at,
  p_created_at,
  p_finished_at,
  p_owner,
  p_fingerprint,
  p_key,
  p_holder,
  p_note,
  p_steps,
  p_result,
  p_content_type,
  p_placement,
  p_location,
  p_result_bytes,
  p_result_sha256,
  p_failure_code,
  p_failure_message,
  p_on_lapse,
  p_expected_until,
  p_label,
  p_history,
  p_input,
  p_input_bytes,
  p_reserve,
  p_id,
  p_seen_owner,
  p_seen_revision,
};

constexpr std::string_view insert_sql = R"sql(
INSERT INTO records (id, hash, state, revision, attempt, token, lease_until_ms, expires_at_ms, sweep_at_ms,
  created_at_ms, finished_at_ms, owner, fingerprint, key, holder, note, steps, result, content_type, placement,
  location, result_bytes, result_sha256, failure_code, failure_message, on_lapse, expected_until_ms, label, history,
  input, input_bytes, reserve)
VALUES (?31, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
  ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30))sql";

#define ONCE_SET                                                                                                      \
  "UPDATE records SET state = ?2, revision = ?3, attempt = ?4, token = ?5, lease_until_ms = ?6, expires_at_ms = ?7, " \
  "created_at_ms = ?8, finished_at_ms = ?9, owner = ?10, fingerprint = ?11, holder = ?13, note = ?14, steps = ?15, "  \
  "result = ?16, content_type = ?17, placement = ?18, location = ?19, result_bytes = ?20, result_sha256 = ?21, "      \
  "failure_code = ?22, failure_message = ?23, on_lapse = ?24, expected_until_ms = ?25, label = ?26, history = ?27, "  \
  "input = ?28, input_bytes = ?29, reserve = ?30"
#define ONCE_WHERE " WHERE id = ?31 AND key = ?12 AND owner = ?32 AND revision = ?33"
constexpr std::string_view finish_sql = ONCE_SET ONCE_WHERE " AND (sweep_at_ms <= ?7 OR (sweep_at_ms IS ?7))";
constexpr std::string_view replace_sql = ONCE_SET ", sweep_at_ms = ?7" ONCE_WHERE;
#undef ONCE_SET
#undef ONCE_WHERE

// The columns of row_columns.
enum Column : int {
  c_id,
  c_state,
  c_revision,
  c_attempt,
  c_token,
  c_lease_until,
  c_expires_at,
  c_created_at,
  c_finished_at,
  c_owner,
  c_fingerprint,
  c_key,
  c_holder,
  c_note,
  c_steps,
  c_result,
  c_content_type,
  c_placement,
  c_location,
  c_result_bytes,
  c_result_sha256,
  c_failure_code,
  c_failure_message,
  c_on_lapse,
  c_expected_until,
  c_label,
  c_history,
  c_input,
  c_input_bytes,
};

std::string_view view(const Owner& owner) noexcept {
  return {reinterpret_cast<const char*>(owner.bytes.data()), owner.bytes.size()};
}

void bind_text(Statement& statement, int at, std::string_view bytes, bool is_text) {
  if (bytes.empty()) return;  // Stays NULL.
  if (is_text) {
    statement.bind_text(at, bytes);
  } else {
    statement.bind_blob(at, bytes);
  }
}
void bind_text(Statement& statement, int at, std::string_view bytes) {
  if (!bytes.empty()) bind_text(statement, at, bytes, is_clean_text(bytes));
}

void bind_key(Statement& statement, int at, std::string_view key, bool is_text) {
  // Empty keys are refused earlier; a NULL would match no row.
  if (is_text) {
    statement.bind_text(at, key);
  } else {
    statement.bind_blob(at, key);
  }
}

void bind_record(Statement& s, const Record& record, const Encoded& encoded) {
  // Unbound parameters are NULL.
  s.bind(p_state, static_cast<std::int64_t>(record.state));
  s.bind(p_revision, static_cast<std::int64_t>(record.revision));
  s.bind(p_attempt, record.attempt);
  s.bind(p_token, static_cast<std::int64_t>(record.token));
  if (record.lease_until != Time{}) s.bind(p_lease_until, unix_ms(record.lease_until));
  if (record.expires_at != never) s.bind(p_expires_at, unix_ms(record.expires_at));
  s.bind(p_created_at, unix_ms(record.created_at));
  if (record.finished_at != Time{}) s.bind(p_finished_at, unix_ms(record.finished_at));
  s.bind_blob(p_owner, view(record.owner));
  if (!record.fingerprint.empty()) s.bind_blob(p_fingerprint, record.fingerprint.bytes());
  bind_key(s, p_key, record.key, encoded.key_is_text);
  bind_text(s, p_holder, record.holder, encoded.holder_is_text);
  bind_text(s, p_note, record.note, encoded.note_is_text);
  bind_text(s, p_steps, encoded.steps, encoded.steps_are_text);
  const Result& result = record.result;
  bind_text(s, p_result, result.bytes, encoded.result_is_text);
  bind_text(s, p_content_type, result.content_type);
  if (result.placement != Placement::inlined) s.bind(p_placement, static_cast<std::int64_t>(result.placement));
  bind_text(s, p_location, result.location);
  if (result.size != 0) s.bind(p_result_bytes, static_cast<std::int64_t>(result.size));
  if (result.digest != Sha256{}) {
    s.bind_blob(p_result_sha256, {reinterpret_cast<const char*>(result.digest.data()), result.digest.size()});
  }
  bind_text(s, p_failure_code, record.failure.code);
  bind_text(s, p_failure_message, record.failure.message);
  if (record.on_lapse != OnLapse::takeover) s.bind(p_on_lapse, static_cast<std::int64_t>(record.on_lapse));
  if (record.expected_until != Time{}) s.bind(p_expected_until, unix_ms(record.expected_until));
  bind_text(s, p_label, record.label);
  bind_text(s, p_history, encoded.history, encoded.history_is_text);
  bind_text(s, p_input, record.input, encoded.input_is_text);
  if (record.input_bytes != 0) s.bind(p_input_bytes, static_cast<std::int64_t>(record.input_bytes));
}

// A row that grows on completion splits its page, and most claims are completed. So a claim reserves the room that
// recent results needed. A guess, only for speed.
std::size_t growth(const Record& record) noexcept {
  return record.result.bytes.size() + record.result.content_type.size() + record.result.location.size() +
         record.failure.code.size() + record.failure.message.size();
}

// Reads columns, and reports which one is malformed.
class Reader {
 public:
  Reader(const Statement& statement, const std::string& path) : s_(statement), path_(path) {}

  [[noreturn]] void fail(const char* column) const {
    throw Exception(ErrorKind::corrupt, "sqlite store " + path_ + ": the row " + std::to_string(s_.integer(c_id)) +
                                            " of the key '" + text::printable(s_.bytes(c_key)) + "' has a malformed " +
                                            column + ": repair or delete that row");
  }
  [[nodiscard]] std::optional<std::int64_t> number(int column, const char* name) const {
    const int type = s_.type(column);
    if (type == SQLITE_NULL) return std::nullopt;
    if (type != SQLITE_INTEGER) fail(name);
    return s_.integer(column);
  }
  [[nodiscard]] std::int64_t number(int column, const char* name, std::int64_t low, std::int64_t high) const {
    const auto value = number(column, name);
    if (!value || *value < low || *value > high) fail(name);
    return *value;
  }
  [[nodiscard]] Time time(int column, const char* name, Time if_null) const {
    const auto value = number(column, name);
    return value ? Time(Millis(*value)) : if_null;
  }
  [[nodiscard]] std::string_view bytes(int column, const char* name) const {
    const int type = s_.type(column);
    if (type == SQLITE_NULL) return {};
    if (type != SQLITE_TEXT && type != SQLITE_BLOB) fail(name);
    return s_.bytes(column);
  }

 private:
  const Statement& s_;
  const std::string& path_;
};

}  // namespace

const std::string_view row_columns =
    "id, state, revision, attempt, token, lease_until_ms, expires_at_ms, created_at_ms, finished_at_ms, owner, "
    "fingerprint, key, holder, note, steps, result, content_type, placement, location, result_bytes, result_sha256, "
    "failure_code, failure_message, on_lapse, expected_until_ms, label, history, input, input_bytes";

bool is_clean_text(std::string_view bytes) noexcept {
  return bytes.find('\0') == std::string_view::npos && text::valid_utf8(bytes);
}

Encoded encode(const HashKey& hash_key, const Record& record) {
  Encoded encoded;
  encoded.key_hash = hash_of(hash_key, record.key);
  encoded.key_is_text = is_clean_text(record.key);
  encoded.holder_is_text = is_clean_text(record.holder);
  encoded.note_is_text = is_clean_text(record.note);
  encoded.result_is_text = is_clean_text(record.result.bytes);
  for (const Step& step : record.steps) {
    text::append_netstring(encoded.steps, step.name);
    text::append_netstring(encoded.steps, step.result);
  }
  encoded.steps_are_text = is_clean_text(encoded.steps);
  encoded.history = history_text(record.history);
  encoded.history_is_text = is_clean_text(encoded.history);
  encoded.input_is_text = is_clean_text(record.input);
  return encoded;
}

SqlStatement finish_statement(const Record& record, std::int64_t id) {
  const auto text = [](std::string_view bytes) -> SqlValue {
    if (bytes.empty()) return nullptr;
    return is_clean_text(bytes) ? SqlValue(bytes) : SqlValue::bytes(bytes);
  };
  const auto number = [](auto value, bool is_there) -> SqlValue {
    return is_there ? SqlValue(static_cast<std::int64_t>(value)) : SqlValue();
  };
  const Result& result = record.result;
  constexpr std::uint64_t random_bits = (std::uint64_t{1} << revision_random_bits) - 1;
  static_assert(revision_random_bits == 20, "the statement says so");
  SqlStatement statement;
  // If no such row is found, its hash is NULL: then the constraint fails, and the whole transaction is rolled back.
  // Otherwise its id is taken already, and it is updated. sweep_at_ms: as in the statements above.
  statement.text =
      "INSERT OR ROLLBACK INTO records (id, hash, state, revision, attempt, token, created_at_ms, owner, key) "
      "VALUES ($1, (SELECT hash FROM records WHERE id = $1 AND key = $2 AND owner = $3 AND state = 0 AND "
      "lease_until_ms IS NOT NULL), 0, 0, 0, 0, 0, x'', '') "
      "ON CONFLICT (id) DO UPDATE SET state = 1, revision = (((revision >> 20) + 1) << 20) | $4, "
      "lease_until_ms = NULL, expires_at_ms = $5, sweep_at_ms = "
      "CASE WHEN sweep_at_ms <= $5 OR sweep_at_ms IS $5 THEN sweep_at_ms ELSE $5 END, finished_at_ms = $6, "
      "result = $7, content_type = $8, placement = $9, location = $10, result_bytes = $11, result_sha256 = $12, "
      "failure_code = NULL, failure_message = NULL, reserve = NULL";
  statement.values = {id,
                      is_clean_text(record.key) ? SqlValue(record.key) : SqlValue::bytes(record.key),
                      SqlValue::bytes(view(record.owner)),
                      record.revision & random_bits,
                      number(record.expires_at == never ? 0 : unix_ms(record.expires_at), record.expires_at != never),
                      unix_ms(record.finished_at),
                      text(result.bytes),
                      text(result.content_type),
                      number(result.placement, result.placement != Placement::inlined),
                      text(result.location),
                      number(result.size, result.size != 0),
                      result.digest == Sha256{} ? SqlValue()
                                                : SqlValue::bytes({reinterpret_cast<const char*>(result.digest.data()),
                                                                   result.digest.size()})};
  statement.text += " RETURNING id, revision";
  return statement;
}

Row read_row(const Statement& s, const std::string& path) {
  const Reader reader(s, path);
  constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
  Row row;
  Record& record = row.record;
  row.id = s.integer(c_id);
  record.key = reader.bytes(c_key, "key");
  if (record.key.empty()) reader.fail("key");
  record.state = static_cast<State>(reader.number(c_state, "state", 0, 3));
  record.revision = static_cast<std::uint64_t>(reader.number(c_revision, "revision", 0, max));
  if (!is_revision(record.revision)) reader.fail("revision");
  record.attempt =
      static_cast<std::uint32_t>(reader.number(c_attempt, "attempt", 0, std::numeric_limits<std::uint32_t>::max()));
  record.token = static_cast<std::uint64_t>(reader.number(c_token, "token", 0, max));
  record.lease_until = reader.time(c_lease_until, "lease_until_ms", Time{});
  record.expires_at = reader.time(c_expires_at, "expires_at_ms", never);
  record.created_at = Time(Millis(reader.number(c_created_at, "created_at_ms", -max - 1, max)));
  record.finished_at = reader.time(c_finished_at, "finished_at_ms", Time{});

  const std::string_view owner = reader.bytes(c_owner, "owner");
  if (owner.size() != record.owner.bytes.size()) reader.fail("owner");
  std::memcpy(record.owner.bytes.data(), owner.data(), owner.size());
  const std::string_view fingerprint = reader.bytes(c_fingerprint, "fingerprint");
  if (fingerprint.size() > Fingerprint::max_bytes) reader.fail("fingerprint");
  record.fingerprint = Fingerprint(fingerprint);

  record.holder = reader.bytes(c_holder, "holder");
  record.note = reader.bytes(c_note, "note");
  std::string_view steps = reader.bytes(c_steps, "steps");
  while (!steps.empty()) {
    const auto name = text::take_netstring(steps);
    const auto result = name ? text::take_netstring(steps) : std::nullopt;
    if (!result) reader.fail("steps");
    record.steps.push_back({std::string(*name), std::string(*result)});
  }

  Result& result = record.result;
  result.bytes = reader.bytes(c_result, "result");
  result.content_type = reader.bytes(c_content_type, "content_type");
  if (s.type(c_placement) != SQLITE_NULL) {
    result.placement = static_cast<Placement>(reader.number(c_placement, "placement", 0, 4));
  }
  result.location = reader.bytes(c_location, "location");
  result.size = static_cast<std::uint64_t>(reader.number(c_result_bytes, "result_bytes").value_or(0));
  const std::string_view digest = reader.bytes(c_result_sha256, "result_sha256");
  if (!digest.empty()) {
    if (digest.size() != result.digest.size()) reader.fail("result_sha256");
    std::memcpy(result.digest.data(), digest.data(), digest.size());
  }
  record.failure.code = reader.bytes(c_failure_code, "failure_code");
  record.failure.message = reader.bytes(c_failure_message, "failure_message");
  if (s.type(c_on_lapse) != SQLITE_NULL) {
    record.on_lapse = static_cast<OnLapse>(reader.number(c_on_lapse, "on_lapse", 0, 1));
  }
  record.expected_until = reader.time(c_expected_until, "expected_until_ms", Time{});
  record.label = reader.bytes(c_label, "label");
  auto history = history_from_text(reader.bytes(c_history, "history"));
  if (!history) reader.fail("history");
  record.history = *std::move(history);
  record.input = reader.bytes(c_input, "input");
  record.input_bytes = static_cast<std::uint64_t>(reader.number(c_input_bytes, "input_bytes").value_or(0));
  return row;
}

RowReader::RowReader(Connection& connection)
    : path_(connection.path()),
      read_(connection, "SELECT " + std::string(row_columns) + " FROM records WHERE id = ?1 AND key = ?2") {}

std::optional<Row> RowReader::read(std::span<const std::int64_t> candidates, std::string_view key) {
  if (candidates.empty()) return std::nullopt;
  const bool is_text = is_clean_text(key);
  for (const std::int64_t id : candidates) {
    const Resetting resetting(read_);
    read_.bind(1, id);
    bind_key(read_, 2, key, is_text);
    if (read_.step()) return read_row(read_, path_);
  }
  return std::nullopt;
}

Rows::Rows(Connection& connection, RecentKeys& recent, std::size_t most_recent)
    : connection_(connection),
      keys_(connection, recent, most_recent),
      reader_(connection),
      insert_(connection, insert_sql),
      finish_(connection, finish_sql),
      replace_(connection, replace_sql),
      remove_(connection, "DELETE FROM records WHERE id = ?1 AND key = ?2 AND owner = ?3 AND revision = ?4"),
      sweep_look_(connection,
                  "SELECT id, expires_at_ms FROM records INDEXED BY records_by_sweep WHERE sweep_at_ms <= ?1 LIMIT ?2"),
      sweep_remove_(connection, "DELETE FROM records WHERE id = ?1"),
      sweep_later_(connection, "UPDATE records SET sweep_at_ms = expires_at_ms WHERE id = ?1"),
      has_expired_(connection,
                   "SELECT 1 FROM records INDEXED BY records_by_sweep WHERE sweep_at_ms <= ?1 AND expires_at_ms <= ?1 "
                   "LIMIT 1") {}

std::optional<Row> Rows::insert(const Record& record, const Encoded& encoded, std::int64_t& id) {
  // Two statements: one INSERT ... WHERE NOT EXISTS would go through a temporary table.
  if (auto in_the_way = find(record.key, encoded.key_hash)) return in_the_way;
  id = keys_.next_id();
  const Resetting resetting(insert_);
  insert_.bind(p_hash, encoded.key_hash);
  bind_record(insert_, record, encoded);
  bind_reserve(insert_, record);
  insert_.bind(p_id, id);
  insert_.step();
  keys_.added({.hash = encoded.key_hash, .id = id});
  return std::nullopt;
}

void Rows::bind_reserve(Statement& statement, const Record& record) {
  constexpr std::size_t most = 1024;  // Larger results get their own pages anyway.
  if (record.state == State::in_progress) {
    statement.bind_zeros(p_reserve, reserve_);
  } else {
    const std::size_t now = std::min(growth(record), most);
    reserve_ = std::max(now, (reserve_ * 31 + now) / 32);  // Grows at once, shrinks slowly.
  }
}

bool Rows::update(Statement& statement, const Record& record, const Encoded& encoded, const Seen& seen,
                  std::int64_t id) {
  const Resetting resetting(statement);
  bind_record(statement, record, encoded);
  bind_reserve(statement, record);
  statement.bind(p_id, id);
  statement.bind_blob(p_seen_owner, view(seen.owner));
  statement.bind(p_seen_revision, static_cast<std::int64_t>(seen.revision));
  statement.step();
  return connection_.changes() != 0;
}

bool Rows::replace(const Record& record, const Encoded& encoded, const Seen& seen, std::int64_t& id) {
  const Place place = Place::from(seen.place);
  id = place.id;
  if (id != 0) {
    // A claim that does not expire is indexed when it is completed, which finish_ does not do.
    Statement& statement = place.never_swept && record.expires_at != never ? replace_ : finish_;
    if (update(statement, record, encoded, seen, id)) return true;
  }
  return std::ranges::any_of(keys_.find(encoded.key_hash), [&](std::int64_t candidate) {
    id = candidate;
    return update(replace_, record, encoded, seen, candidate);
  });
}

bool Rows::remove(std::string_view key, std::int64_t key_hash, const Seen& seen) {
  const auto remove_row = [&](std::int64_t id) {
    const Resetting resetting(remove_);
    remove_.bind(1, id);
    bind_key(remove_, 2, key, is_clean_text(key));
    remove_.bind_blob(3, view(seen.owner));
    remove_.bind(4, static_cast<std::int64_t>(seen.revision));
    remove_.step();
    return connection_.changes() != 0;
  };
  const std::int64_t place = Place::from(seen.place).id;
  if (place != 0 && remove_row(place)) return true;
  return std::ranges::any_of(keys_.find(key_hash), remove_row);
}

std::optional<Row> Rows::find(std::string_view key, std::int64_t key_hash) {
  return reader_.read(keys_.find(key_hash), key);
}

Rows::Swept Rows::sweep(Time now, std::size_t limit) {
  std::vector<std::pair<std::int64_t, bool>> rows;  // Id, and whether it has expired.
  {
    const Resetting resetting(sweep_look_);
    sweep_look_.bind(1, unix_ms(now));
    sweep_look_.bind(2, static_cast<std::int64_t>(limit));
    while (sweep_look_.step()) {
      rows.emplace_back(sweep_look_.integer(0),
                        sweep_look_.type(1) == SQLITE_INTEGER && sweep_look_.integer(1) <= unix_ms(now));
    }
  }
  // The highest id first, as each one above last_deleted would change that row.
  std::ranges::sort(rows, std::ranges::greater());
  Swept swept;
  swept.looked_at = rows.size();
  for (const auto& [id, expired] : rows) {
    Statement& statement = expired ? sweep_remove_ : sweep_later_;
    const Resetting resetting(statement);
    statement.bind(1, id);
    statement.step();
    if (expired) ++swept.removed;
  }
  swept.goes_on = keys_.removes_more();
  return swept;
}

bool Rows::has_expired(Time now) {
  const Resetting resetting(has_expired_);
  has_expired_.bind(1, unix_ms(now));
  return has_expired_.step();
}

}  // namespace once::stores::sqlite
