#include "stores/postgresql/schema_sql.hpp"

#include <once/error.hpp>

#include "text/ascii.hpp"
#include "text/utf8.hpp"

namespace once::stores::postgresql {

namespace {

// Times are UTC milliseconds. NULL means empty, never or not yet. Texts are bytea, because a text of PostgreSQL holds
// no NUL; records_readable shows them as text.
//
// A completion has to be a HOT update, which writes no index entry: so no index may have a column that a completion
// changes. `listed` is set for failed and unknown records only, and sweep_at_ms follows expires_at_ms lazily: it is
// never later, and the sweep looks at both. fillfactor leaves room on the page for the completed row.
constexpr std::string_view first = R"sql(
CREATE TABLE @s@.meta (name text PRIMARY KEY, value text NOT NULL);

CREATE TABLE @s@.records (
  key               bytea PRIMARY KEY,  -- at most 1024 bytes
  state             smallint NOT NULL,  -- 0 in_progress, 1 completed, 2 failed, 3 unknown
  listed            smallint,           -- the state, if failed or unknown
  attempt           bigint NOT NULL,
  revision          bigint NOT NULL,    -- a counter above 20 random bits
  token             bigint NOT NULL,
  owner             bytea NOT NULL,     -- 16 bytes
  lease_until_ms    bigint,             -- NULL: released or finished
  expires_at_ms     bigint,             -- NULL: never
  sweep_at_ms       bigint,             -- when the sweep looks at it; not after expires_at_ms
  created_at_ms     bigint NOT NULL,
  finished_at_ms    bigint,
  expected_until_ms bigint,
  on_lapse          smallint,           -- NULL takeover, 1 hold
  fingerprint       bytea,
  holder            bytea,
  note              bytea,
  label             bytea,
  history           bytea,              -- netstrings: entries dropped, then six for each entry
  input             bytea,
  input_bytes       bigint,
  steps             bytea,              -- netstrings: name, result, name, result ...
  result            bytea,
  content_type      bytea,
  placement         smallint,           -- NULL in `result`, 1 offloaded, 2 dropped, 3 compressed, 4 sealed
  location          bytea,
  result_bytes      bigint,             -- offloaded, dropped, compressed: how many before that
  result_sha256     bytea,              -- offloaded, dropped, compressed: of those
  failure_code      bytea,
  failure_message   bytea
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
-- Bytes that are compressed or encrypted already, or small: compressing them again costs more than it saves.
ALTER TABLE @s@.records ALTER COLUMN result SET STORAGE EXTERNAL;
CREATE INDEX records_listed ON @s@.records (listed, key) WHERE listed IS NOT NULL;
CREATE INDEX records_by_sweep ON @s@.records (sweep_at_ms) WHERE sweep_at_ms IS NOT NULL;

CREATE FUNCTION @s@.readable(bytes bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN others THEN
  RETURN encode(bytes, 'escape');
END $$;

CREATE VIEW @s@.records_readable AS
SELECT @s@.readable(key) AS key, @s@.readable(label) AS label,
       CASE state WHEN 0 THEN CASE WHEN lease_until_ms IS NULL THEN 'released' ELSE 'in_progress' END
                  WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'unknown' ELSE '?' || state END AS state,
       attempt, revision, token, @s@.readable(holder) AS holder, @s@.readable(note) AS note,
       to_timestamp(created_at_ms / 1000.0) AS created_at,
       to_timestamp(lease_until_ms / 1000.0) AS lease_until,
       CASE on_lapse WHEN 1 THEN 'hold' ELSE 'takeover' END AS on_lapse,
       to_timestamp(expected_until_ms / 1000.0) AS expected_until,
       to_timestamp(finished_at_ms / 1000.0) AS finished_at,
       to_timestamp(coalesce(expires_at_ms / 1000.0, 'Infinity')) AS expires_at,
       encode(owner, 'hex') AS owner, encode(fingerprint, 'hex') AS fingerprint,
       @s@.readable(history) AS history, @s@.readable(input) AS input, @s@.readable(steps) AS steps,
       CASE placement WHEN 1 THEN 'offloaded' WHEN 2 THEN 'dropped' WHEN 3 THEN 'compressed: once show prints it'
                      WHEN 4 THEN 'sealed: once show prints it' ELSE @s@.readable(result) END AS result,
       coalesce(result_bytes, octet_length(result), 0) AS result_bytes,
       @s@.readable(content_type) AS content_type, @s@.readable(location) AS location,
       @s@.readable(failure_code) AS failure_code, @s@.readable(failure_message) AS failure_message
FROM @s@.records;

CREATE FUNCTION @s@.now_1() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint $$;

-- One conditional write. act: 1 insert, 2 replace, 3 remove. done: written. Otherwise nothing was changed, and `there`
-- is the record in the way, or NULL. Each statement in here sees what was committed before it began: a single statement
-- (a CTE) would see the moment at which it began itself, and show a stale record in the way, or none.
--
-- lock_ms is given in the first call of a transaction, which may hold a group of calls: how long any of them waits for
-- another transaction's lock. That call also sees to it that the commit is durable, and refuses (ON002) an isolation in
-- which statements do not see what was committed before them.
CREATE FUNCTION @s@.write_1(
  lock_ms bigint, act smallint, seen_owner bytea, seen_revision bigint,
  p_key bytea, p_state smallint, p_attempt bigint, p_revision bigint, p_token bigint, p_owner bytea,
  p_lease_until_ms bigint, p_expires_at_ms bigint, p_created_at_ms bigint, p_finished_at_ms bigint,
  p_expected_until_ms bigint, p_on_lapse smallint, p_fingerprint bytea, p_holder bytea, p_note bytea, p_label bytea,
  p_history bytea, p_input bytea, p_input_bytes bigint, p_steps bytea, p_result bytea, p_content_type bytea,
  p_placement smallint, p_location bytea, p_result_bytes bigint, p_result_sha256 bytea, p_failure_code bytea,
  p_failure_message bytea,
  OUT done boolean, OUT now_ms bigint, OUT there @s@.records)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF lock_ms IS NOT NULL THEN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION USING ERRCODE = 'ON002', MESSAGE = 'once needs the isolation read committed';
    END IF;
    PERFORM set_config('lock_timeout', lock_ms::text, true);
    PERFORM set_config('plan_cache_mode', 'force_generic_plan', true);
    IF current_setting('synchronous_commit') = 'off' THEN
      PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
  END IF;
  done := false;
  IF act = 1 THEN
    LOOP
      SELECT * INTO there FROM @s@.records r WHERE r.key = p_key;
      EXIT WHEN FOUND;
      INSERT INTO @s@.records (key, state, listed, attempt, revision, token, owner, lease_until_ms, expires_at_ms,
        sweep_at_ms, created_at_ms, finished_at_ms, expected_until_ms, on_lapse, fingerprint, holder, note, label,
        history, input, input_bytes, steps, result, content_type, placement, location, result_bytes, result_sha256,
        failure_code, failure_message)
      VALUES (p_key, p_state, CASE WHEN p_state >= 2 THEN p_state END, p_attempt, p_revision, p_token, p_owner,
        p_lease_until_ms, p_expires_at_ms, p_expires_at_ms, p_created_at_ms, p_finished_at_ms, p_expected_until_ms,
        p_on_lapse, p_fingerprint, p_holder, p_note, p_label, p_history, p_input, p_input_bytes, p_steps, p_result,
        p_content_type, p_placement, p_location, p_result_bytes, p_result_sha256, p_failure_code, p_failure_message)
      ON CONFLICT (key) DO NOTHING;
      IF FOUND THEN
        done := true;
        EXIT;
      END IF;
    END LOOP;
  ELSIF act = 2 THEN
    UPDATE @s@.records r SET state = p_state, listed = CASE WHEN p_state >= 2 THEN p_state END, attempt = p_attempt,
      revision = p_revision, token = p_token, owner = p_owner, lease_until_ms = p_lease_until_ms,
      expires_at_ms = p_expires_at_ms,
      sweep_at_ms = CASE WHEN p_expires_at_ms IS NULL OR r.sweep_at_ms <= p_expires_at_ms
        THEN r.sweep_at_ms ELSE p_expires_at_ms END,
      created_at_ms = p_created_at_ms, finished_at_ms = p_finished_at_ms, expected_until_ms = p_expected_until_ms,
      on_lapse = p_on_lapse, fingerprint = p_fingerprint, holder = p_holder, note = p_note, label = p_label,
      history = p_history, input = p_input, input_bytes = p_input_bytes, steps = p_steps, result = p_result,
      content_type = p_content_type, placement = p_placement, location = p_location, result_bytes = p_result_bytes,
      result_sha256 = p_result_sha256, failure_code = p_failure_code, failure_message = p_failure_message
    WHERE r.key = p_key AND r.owner = seen_owner AND r.revision = seen_revision;
    done := FOUND;
  ELSE
    DELETE FROM @s@.records r WHERE r.key = p_key AND r.owner = seen_owner AND r.revision = seen_revision;
    done := FOUND;
  END IF;
  IF NOT done AND act <> 1 THEN
    SELECT * INTO there FROM @s@.records r WHERE r.key = p_key;
    IF NOT FOUND THEN there := NULL; END IF;
  ELSIF done THEN
    there := NULL;
  END IF;
  now_ms := @s@.now_1();
END $$;

-- A standby may lag behind: never read from one.
CREATE FUNCTION @s@.get_1(p_key bytea, OUT now_ms bigint, OUT there @s@.records)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'this server is a standby';
  END IF;
  SELECT * INTO there FROM @s@.records r WHERE r.key = p_key;
  IF NOT FOUND THEN there := NULL; END IF;
  now_ms := @s@.now_1();
END $$;

-- A page of records, each as one row, then one row without a record: next_key is where the next page begins, or NULL
-- after the last page. Looks at no more than `look` rows. Failed and unknown records, and those that have expired, are
-- found by an index; the latter in the order of sweep_at_ms, so their pages begin after (after_sweep, after_key).
CREATE FUNCTION @s@.list_1(p_state smallint, from_key bytea, below_key bytea, expired_at bigint, after_sweep bigint,
  after_key bytea, most integer, most_bytes bigint, look integer)
RETURNS TABLE (there @s@.records, next_key bytea, next_sweep bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  each @s@.records;
  rows refcursor;
  looked integer := 0;
  found_rows integer := 0;
  found_bytes bigint := 0;
  by_expiry boolean := expired_at IS NOT NULL AND coalesce(p_state, 0) < 2;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'this server is a standby';
  END IF;
  IF p_state >= 2 THEN
    OPEN rows FOR SELECT * FROM @s@.records r WHERE r.listed = p_state AND r.key >= from_key
      AND (below_key IS NULL OR r.key < below_key) AND (after_key IS NULL OR r.key > after_key) ORDER BY r.key;
  ELSIF by_expiry THEN
    OPEN rows FOR SELECT * FROM @s@.records r WHERE r.sweep_at_ms >= coalesce(after_sweep, r.sweep_at_ms)
      AND r.sweep_at_ms <= expired_at
      AND (after_sweep IS NULL OR (r.sweep_at_ms, r.key) > (after_sweep, after_key)) ORDER BY r.sweep_at_ms, r.key;
  ELSE
    OPEN rows FOR SELECT * FROM @s@.records r WHERE r.key >= from_key AND (below_key IS NULL OR r.key < below_key)
      AND (after_key IS NULL OR r.key > after_key) ORDER BY r.key;
  END IF;
  next_key := after_key;
  next_sweep := after_sweep;
  LOOP
    FETCH rows INTO each;
    IF NOT FOUND THEN
      next_key := NULL;
      EXIT;
    END IF;
    EXIT WHEN found_rows = most OR looked = look OR found_bytes >= most_bytes;
    looked := looked + 1;
    next_key := each.key;
    next_sweep := each.sweep_at_ms;
    CONTINUE WHEN p_state IS NOT NULL AND each.state <> p_state;
    CONTINUE WHEN expired_at IS NOT NULL AND (each.expires_at_ms IS NULL OR each.expires_at_ms > expired_at);
    CONTINUE WHEN each.key < from_key OR each.key >= below_key;
    found_rows := found_rows + 1;
    found_bytes := found_bytes + 256 + octet_length(each.key) + coalesce(octet_length(each.result), 0)
      + coalesce(octet_length(each.steps), 0) + coalesce(octet_length(each.input), 0);
    there := each;
    RETURN NEXT;
  END LOOP;
  CLOSE rows;
  there := NULL;
  RETURN NEXT;
END $$;

-- Removes records that have expired, and gives those whose expiry was put off their new place in the index. Passes by
-- what another transaction has locked. `more`: there may be others.
CREATE FUNCTION @s@.sweep_1(at_ms bigint, most integer, OUT removed integer, OUT more boolean, OUT now_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bytea[];
  later bytea[];
  looked integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'ON002', MESSAGE = 'once needs the isolation read committed';
  END IF;
  SELECT count(*), array_agg(due.key) FILTER (WHERE due.expires_at_ms <= at_ms),
         array_agg(due.key) FILTER (WHERE due.expires_at_ms IS NULL OR due.expires_at_ms > at_ms)
    INTO looked, gone, later
    FROM (SELECT r.key, r.expires_at_ms FROM @s@.records r WHERE r.sweep_at_ms <= at_ms ORDER BY r.sweep_at_ms
          LIMIT most FOR UPDATE SKIP LOCKED) due;
  DELETE FROM @s@.records r WHERE r.key = ANY (gone);
  GET DIAGNOSTICS removed = ROW_COUNT;
  UPDATE @s@.records r SET sweep_at_ms = r.expires_at_ms WHERE r.key = ANY (later);
  more := looked = most AND EXISTS (SELECT FROM @s@.records r WHERE r.sweep_at_ms <= at_ms);
  now_ms := @s@.now_1();
END $$;

-- What a program asks first on each connection.
CREATE FUNCTION @s@.about_1(OUT version integer, OUT unsafe text, OUT now_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'this server is a standby';
  END IF;
  SELECT m.value::integer INTO version FROM @s@.meta m WHERE m.name = 'version';
  unsafe := CASE WHEN current_setting('fsync') = 'off' THEN 'fsync' ELSE '' END;
  now_ms := @s@.now_1();
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA @s@ FROM PUBLIC;
REVOKE ALL ON FUNCTION @s@.readable(bytea), @s@.now_1(), @s@.get_1, @s@.write_1, @s@.list_1, @s@.sweep_1, @s@.about_1
  FROM PUBLIC;
INSERT INTO @s@.meta VALUES ('version', '1');
)sql";

std::string with_schema(std::string_view sql, std::string_view schema) {
  const std::string name = quoted_name(schema);
  std::string out;
  for (std::size_t at = sql.find("@s@"); at != std::string_view::npos; at = sql.find("@s@")) {
    out.append(sql.substr(0, at)).append(name);
    sql.remove_prefix(at + 3);
  }
  return out.append(sql);
}

std::string in_transaction(const std::string& sql) { return "BEGIN;\n" + lock_sql() + sql + "COMMIT;\n"; }

constexpr std::string_view make_schema = R"sql(
DO $do$ BEGIN
  IF to_regnamespace(@name@) IS NULL THEN
    CREATE SCHEMA @s@;
  END IF;
END $do$;
)sql";

std::string make_schema_sql(std::string_view schema) {
  std::string sql = with_schema(make_schema, schema);
  sql.replace(sql.find("@name@"), 6, quoted_text(quoted_name(schema)));
  return sql;
}

}  // namespace

std::string quoted_name(std::string_view name) {
  // PostgreSQL cuts longer names off, with a notice only.
  if (name.empty() || name.size() > 63 || name.find('\0') != std::string_view::npos || !text::valid_utf8(name)) {
    throw Exception(ErrorKind::misuse, "postgresql store: the name '" + text::printable(name) +
                                           "' cannot be one: it must have 1 to 63 bytes of UTF-8");
  }
  std::string out = "\"";
  for (const char c : name) out.append(c == '"' ? 2 : 1, c);
  return out + '"';
}

std::string quoted_text(std::string_view text) {
  std::string out = text.find('\\') == std::string_view::npos ? "'" : " E'";
  for (const char c : text) out.append(c == '\'' || c == '\\' ? 2 : 1, c);
  return out + '\'';
}

std::string lock_sql() { return "SELECT pg_advisory_xact_lock(7956009834101502578);\n"; }

std::string migration_sql(int from, std::string_view schema) {
  if (from == 0) return make_schema_sql(schema) + with_schema(first, schema);
  throw Exception(ErrorKind::misuse, "postgresql store: no migration begins at version " + std::to_string(from));
}

std::string create_sql(std::string_view schema) {
  std::string sql;
  for (int version = 0; version < schema_version; ++version) sql += migration_sql(version, schema);
  return in_transaction(sql);
}

std::string grant_sql(std::string_view schema, std::string_view role) {
  std::string sql = with_schema(
      "GRANT USAGE ON SCHEMA @s@ TO @role@;\n"
      "GRANT EXECUTE ON FUNCTION @s@.get_1, @s@.write_1, @s@.list_1, @s@.sweep_1, @s@.about_1 TO @role@;\n",
      schema);
  const std::string name = quoted_name(role);
  for (std::size_t at = sql.find("@role@"); at != std::string::npos; at = sql.find("@role@", at + name.size())) {
    sql.replace(at, 6, name);
  }
  return sql;
}

std::string drop_sql(std::string_view schema) {
  std::string sql = with_schema(R"sql(
DROP FUNCTION IF EXISTS @s@.write_1, @s@.get_1, @s@.list_1, @s@.sweep_1, @s@.about_1;
DROP VIEW IF EXISTS @s@.records_readable;
DROP FUNCTION IF EXISTS @s@.readable, @s@.now_1;
DROP TABLE IF EXISTS @s@.records, @s@.meta;
DO $do$ BEGIN
  DROP SCHEMA @s@ RESTRICT;
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
  NULL;  -- Something else is in it, or it belongs to somebody else.
END $do$;
)sql",
                                schema);
  return in_transaction(sql);
}

std::string write_call(std::string_view schema) {
  return with_schema(
      "SELECT @s@.write_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,"
      "$25,$26,$27,$28,$29,$30,$31,$32)",
      schema);
}
std::string get_call(std::string_view schema) { return with_schema("SELECT @s@.get_1($1)", schema); }
std::string list_call(std::string_view schema) {
  return with_schema("SELECT there, next_key, next_sweep FROM @s@.list_1($1,$2,$3,$4,$5,$6,$7,$8,$9)", schema);
}
std::string sweep_call(std::string_view schema) {
  return with_schema("SELECT removed, more, now_ms FROM @s@.sweep_1($1,$2)", schema);
}
std::string about_call(std::string_view schema) {
  return with_schema("SELECT version, unsafe, now_ms FROM @s@.about_1()", schema);
}

}  // namespace once::stores::postgresql
