#include "stores/postgresql/schema_sql.hpp"

#include <array>

#include <once/error.hpp>
#include <once/result.hpp>

#include "stores/postgresql/failure.hpp"
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

REVOKE ALL ON ALL TABLES IN SCHEMA @s@ FROM PUBLIC;
REVOKE ALL ON FUNCTION @s@.readable(bytea), @s@.now_1() FROM PUBLIC;
INSERT INTO @s@.meta VALUES ('version', '1');
)sql";

// The functions that programs call. In a schema of version 1, which has earlier texts of them, they are replaced where
// they are: roles keep their rights, and programs that are older call them as before.
//
// Each argument comes from whoever has EXECUTE. So the server's clock bounds times that remove something, and numbers
// that are put together with stored ones are cut to their size. What is written to a record is not judged: it needs the
// owner of its claim, or a key that has no record.
constexpr std::string_view second = R"sql(
-- One conditional write. act: 1 insert, 2 replace, 3 remove. done: written. Otherwise nothing was changed, and `there`
-- is the record in the way, or NULL. Each statement in here sees what was committed before it began: a single statement
-- (a CTE) would see the moment at which it began itself, and show a stale record in the way, or none.
--
-- lock_ms is given in the first call of a transaction, which may hold a group of calls: how long any of them waits for
-- another transaction's lock. That call also sees to it that the commit is durable, and refuses (ON002) an isolation in
-- which statements do not see what was committed before them. Below 0: for this call alone, as the transaction is the
-- user's own, in which his lock_timeout counts again afterwards.
--
-- The first sealed record marks the schema in meta. From then on a claim in the clear raises ON005, unless clear_allowed
-- says that it is meant: a program that was not told of the keys must not store payloads in the clear. Whoever made a
-- claim in the clear before still finishes it.
--
-- A trigger, a rule or a row security policy may swallow the row, or change it: ON008, and nothing is written. A write
-- that was swallowed would be refused, or tried for ever; one that was changed would be acknowledged as it was meant.
--
-- Every operation passes here. An assignment without a query inside is computed in place. PERFORM starts the executor,
-- and so does a condition with EXISTS, even behind a false AND: a seventh of the server's time went there.
CREATE OR REPLACE FUNCTION @s@.write_1(
  lock_ms bigint, act smallint, seen_owner bytea, seen_revision bigint,
  p_key bytea, p_state smallint, p_attempt bigint, p_revision bigint, p_token bigint, p_owner bytea,
  p_lease_until_ms bigint, p_expires_at_ms bigint, p_created_at_ms bigint, p_finished_at_ms bigint,
  p_expected_until_ms bigint, p_on_lapse smallint, p_fingerprint bytea, p_holder bytea, p_note bytea, p_label bytea,
  p_history bytea, p_input bytea, p_input_bytes bigint, p_steps bytea, p_result bytea, p_content_type bytea,
  p_placement smallint, p_location bytea, p_result_bytes bigint, p_result_sha256 bytea, p_failure_code bytea,
  p_failure_message bytea, clear_allowed boolean,
  OUT done boolean, OUT now_ms bigint, OUT there @s@.records)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  is_sealed boolean := act <> 3 AND p_placement IS NOT DISTINCT FROM 4;
  users_lock_timeout text;
  setting text;
  tries integer := 0;
BEGIN
  IF lock_ms IS NOT NULL THEN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION USING ERRCODE = 'ON002', MESSAGE = 'once needs the isolation read committed';
    END IF;
    IF lock_ms < 0 THEN
      users_lock_timeout := current_setting('lock_timeout');
    ELSE
      setting := set_config('plan_cache_mode', 'force_generic_plan', true);
    END IF;
    setting := set_config('lock_timeout', abs(lock_ms)::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
      setting := set_config('synchronous_commit', 'on', true);
    END IF;
  END IF;
  done := false;
  IF act = 1 THEN
    LOOP
      SELECT * INTO there FROM @s@.records r WHERE r.key = p_key;
      EXIT WHEN FOUND;
      -- Each try but the first follows a record that was there and was removed at once. Nobody does that a hundred times.
      tries := tries + 1;
      IF tries > 100 THEN
        RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'an inserted record is not there';
      END IF;
      INSERT INTO @s@.records (key, state, listed, attempt, revision, token, owner, lease_until_ms, expires_at_ms,
        sweep_at_ms, created_at_ms, finished_at_ms, expected_until_ms, on_lapse, fingerprint, holder, note, label,
        history, input, input_bytes, steps, result, content_type, placement, location, result_bytes, result_sha256,
        failure_code, failure_message)
      VALUES (p_key, p_state, CASE WHEN p_state >= 2 THEN p_state END, p_attempt, p_revision, p_token, p_owner,
        p_lease_until_ms, p_expires_at_ms, p_expires_at_ms, p_created_at_ms, p_finished_at_ms, p_expected_until_ms,
        p_on_lapse, p_fingerprint, p_holder, p_note, p_label, p_history, p_input, p_input_bytes, p_steps, p_result,
        p_content_type, p_placement, p_location, p_result_bytes, p_result_sha256, p_failure_code, p_failure_message)
      ON CONFLICT (key) DO NOTHING RETURNING * INTO there;
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
    WHERE r.key = p_key AND r.owner = seen_owner AND r.revision = seen_revision RETURNING * INTO there;
    done := FOUND;
  ELSE
    DELETE FROM @s@.records r WHERE r.key = p_key AND r.owner = seen_owner AND r.revision = seen_revision;
    done := FOUND;
  END IF;
  IF done AND act <> 3 AND (there.key, there.state, there.attempt, there.revision, there.token, there.owner,
    there.lease_until_ms, there.expires_at_ms, there.created_at_ms, there.finished_at_ms, there.expected_until_ms,
    there.on_lapse, there.fingerprint, there.holder, there.note, there.label, there.history, there.input,
    there.input_bytes, there.steps, there.result, there.content_type, there.placement, there.location,
    there.result_bytes, there.result_sha256, there.failure_code, there.failure_message) IS DISTINCT FROM
    (p_key, p_state, p_attempt, p_revision, p_token, p_owner, p_lease_until_ms, p_expires_at_ms, p_created_at_ms,
    p_finished_at_ms, p_expected_until_ms, p_on_lapse, p_fingerprint, p_holder, p_note, p_label, p_history, p_input,
    p_input_bytes, p_steps, p_result, p_content_type, p_placement, p_location, p_result_bytes, p_result_sha256,
    p_failure_code, p_failure_message) THEN
    RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'a record was changed as it was written';
  END IF;
  IF done AND is_sealed THEN
    IF NOT EXISTS (SELECT FROM @s@.meta m WHERE m.name = 'sealed') THEN
      INSERT INTO @s@.meta VALUES ('sealed', '1') ON CONFLICT DO NOTHING;
    END IF;
  ELSIF done AND clear_allowed IS NOT TRUE AND (act = 1 OR act = 2 AND p_owner <> seen_owner) THEN
    IF EXISTS (SELECT FROM @s@.meta m WHERE m.name = 'sealed') THEN
      RAISE EXCEPTION USING ERRCODE = 'ON005',
        MESSAGE = 'the schema holds, or held, sealed records, and this claim would keep payloads in the clear';
    END IF;
  END IF;
  IF NOT done AND act <> 1 THEN
    SELECT * INTO there FROM @s@.records r WHERE r.key = p_key;
    IF NOT FOUND THEN there := NULL; END IF;
    IF there.owner = seen_owner AND there.revision = seen_revision THEN
      RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'a record that was to be written is as it was';
    END IF;
  ELSIF done THEN
    there := NULL;
  END IF;
  IF users_lock_timeout IS NOT NULL THEN
    setting := set_config('lock_timeout', users_lock_timeout, true);
  END IF;
  now_ms := @s@.now_1();
END $$;

-- A standby may lag behind: never read from one.
CREATE OR REPLACE FUNCTION @s@.get_1(p_key bytea, OUT now_ms bigint, OUT there @s@.records)
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
-- found by an index; the latter in the order of sweep_at_ms, so their pages begin after (after_sweep, after_key). So are
-- those in progress where an operator has made the index records_running.
CREATE OR REPLACE FUNCTION @s@.list_1(p_state smallint, from_key bytea, below_key bytea, expired_at bigint,
  after_sweep bigint, after_key bytea, most integer, most_bytes bigint, look integer)
RETURNS TABLE (there @s@.records, next_key bytea, next_sweep bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  each @s@.records;
  rows refcursor;
  looked integer := 0;
  found_rows integer := 0;
  found_bytes bigint := 0;
  by_expiry boolean := expired_at IS NOT NULL AND coalesce(p_state, 0) < 2;
  running_by_index boolean := p_state = 0 AND NOT by_expiry AND EXISTS (SELECT FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_type t ON t.typrelid = i.indrelid
    WHERE t.oid = pg_typeof(each) AND c.relname = 'records_running' AND i.indisvalid);
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
  ELSIF running_by_index THEN
    OPEN rows FOR SELECT * FROM @s@.records r WHERE r.state = 0 AND r.key >= from_key
      AND (below_key IS NULL OR r.key < below_key) AND (after_key IS NULL OR r.key > after_key) ORDER BY r.key;
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
-- what another transaction has locked. `more`: there may be others. Takes the earlier of at_ms and the server's time: who
-- may only EXECUTE must not remove what is still valid.
CREATE OR REPLACE FUNCTION @s@.sweep_1(at_ms bigint, most integer, OUT removed integer, OUT more boolean,
  OUT now_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bytea[];
  later bytea[];
  looked integer;
  moved integer;
  up_to_ms bigint := least(at_ms, @s@.now_1());
  up_to_count integer := least(most, 10000);
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'ON002', MESSAGE = 'once needs the isolation read committed';
  END IF;
  SELECT count(*), array_agg(due.key) FILTER (WHERE due.expires_at_ms <= up_to_ms),
         array_agg(due.key) FILTER (WHERE due.expires_at_ms IS NULL OR due.expires_at_ms > up_to_ms)
    INTO looked, gone, later
    FROM (SELECT r.key, r.expires_at_ms FROM @s@.records r WHERE r.sweep_at_ms <= up_to_ms ORDER BY r.sweep_at_ms
          LIMIT up_to_count FOR UPDATE SKIP LOCKED) due;
  DELETE FROM @s@.records r WHERE r.key = ANY (gone);
  GET DIAGNOSTICS removed = ROW_COUNT;
  UPDATE @s@.records r SET sweep_at_ms = r.expires_at_ms WHERE r.key = ANY (later);
  GET DIAGNOSTICS moved = ROW_COUNT;
  IF removed + moved <> looked THEN
    RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'a record that was to be removed or moved is as it was';
  END IF;
  more := looked = up_to_count AND EXISTS (SELECT FROM @s@.records r WHERE r.sweep_at_ms <= up_to_ms);
  now_ms := @s@.now_1();
END $$;

-- What a program asks first on each connection. A promoted standby keeps the cluster's identifier, and has a higher
-- timeline than the server that it replaced. NULL: the server is of a kind that has none.
CREATE OR REPLACE FUNCTION @s@.about_1(OUT version integer, OUT unsafe text, OUT now_ms bigint, OUT cluster bigint,
  OUT timeline bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  there @s@.records;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'this server is a standby';
  END IF;
  SELECT m.value::integer INTO version FROM @s@.meta m WHERE m.name = 'version';
  unsafe := CASE WHEN current_setting('fsync') = 'off' THEN 'fsync'
    WHEN EXISTS (SELECT FROM pg_class c JOIN pg_type t ON t.typrelid = c.oid WHERE t.oid = pg_typeof(there)
                 AND c.relpersistence <> 'p') THEN 'logging of its tables' ELSE '' END;
  now_ms := @s@.now_1();
  BEGIN
    cluster := (pg_control_system()).system_identifier;
    timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
  EXCEPTION WHEN feature_not_supported OR insufficient_privilege OR undefined_function THEN
    cluster := NULL;
  END;
END $$;

-- Finishes a claim in the caller's own transaction. Raises ON001 if the claim is not the owner's any more, so that the
-- transaction cannot commit; ON005 if it is sealed, as whoever comes this way has no key; and ON007 inside a savepoint:
-- there a program could catch ON001 one day, and commit what stood before. The revision is not compared: renewals may go
-- on until this has the row's lock.
CREATE OR REPLACE FUNCTION @s@.finish_1(p_key bytea, p_owner bytea, p_random bigint, p_expires_at_ms bigint,
  p_finished_at_ms bigint, p_result bytea, p_content_type bytea, p_placement smallint, p_location bytea,
  p_result_bytes bigint, p_result_sha256 bytea)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  written bigint;
  writer xid;
  whole boolean;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  UPDATE @s@.records r SET state = 1, listed = NULL,
    revision = (((r.revision >> 20) + 1) << 20) | (p_random & 1048575), lease_until_ms = NULL, expires_at_ms = p_expires_at_ms,
    sweep_at_ms = CASE WHEN p_expires_at_ms IS NULL OR r.sweep_at_ms <= p_expires_at_ms
      THEN r.sweep_at_ms ELSE p_expires_at_ms END,
    finished_at_ms = p_finished_at_ms, result = p_result, content_type = p_content_type, placement = p_placement,
    location = p_location, result_bytes = p_result_bytes, result_sha256 = p_result_sha256, failure_code = NULL,
    failure_message = NULL
  WHERE r.key = p_key AND r.owner = p_owner AND r.state = 0 AND r.lease_until_ms IS NOT NULL
    AND r.placement IS DISTINCT FROM 4
  RETURNING r.revision, r.xmin, (r.state, r.owner, r.expires_at_ms, r.result, r.placement, r.result_sha256) IS NOT
    DISTINCT FROM (1::smallint, p_owner, p_expires_at_ms, p_result, p_placement, p_result_sha256)
    INTO written, writer, whole;
  IF whole IS FALSE THEN
    RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'a result was changed as it was written';
  END IF;
  IF NOT FOUND THEN
    IF EXISTS (SELECT FROM @s@.records r WHERE r.key = p_key AND r.owner = p_owner AND r.state = 0
      AND r.lease_until_ms IS NOT NULL AND r.placement IS DISTINCT FROM 4) THEN
      RAISE EXCEPTION USING ERRCODE = 'ON008', MESSAGE = 'a claim that was to be finished is as it was';
    END IF;
    IF EXISTS (SELECT FROM @s@.records r WHERE r.key = p_key AND r.owner = p_owner AND r.placement = 4) THEN
      RAISE EXCEPTION USING ERRCODE = 'ON005',
        MESSAGE = 'the claim is sealed, and its result would be kept in the clear, so nothing is finished';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'ON001',
      MESSAGE = 'the claim is no longer this attempt''s, so its transaction cannot commit',
      HINT = 'Another attempt or an operator has taken it, or it is finished already. Roll back.';
  END IF;
  -- A subtransaction has a number of its own.
  IF writer <> pg_current_xact_id()::xid THEN
    RAISE EXCEPTION USING ERRCODE = 'ON007', MESSAGE = 'a claim is finished outside of savepoints, and this is in one',
      HINT = 'An EXCEPTION block, a nested transaction of a client library and ON_ERROR_ROLLBACK are savepoints too.';
  END IF;
  -- For who wants to see before the commit whether ROLLBACK TO a savepoint has undone it.
  PERFORM set_config('once.finished', written::text, true);
  RETURN written;
END $$;

-- For any program and psql: the command of `once run` finds the two texts in ONCE_STORED_KEY_HEX and ONCE_OWNER. Say it
-- last in the transaction, outside of savepoints. retention: how long the result is replayed. Without it: as the claim
-- has it, counted from the claim or its last renewal; for ever if the claim is under hold, as its record says nothing.
CREATE OR REPLACE FUNCTION @s@.finish_or_raise(stored_key_hex text, owner_hex text, result bytea,
  content_type text DEFAULT NULL, retention interval DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  at_ms bigint := @s@.now_1();
  expires_ms bigint;
  claim @s@.records;
BEGIN
  IF stored_key_hex IS NULL OR stored_key_hex !~ '^([0-9a-fA-F]{2})+$' OR owner_hex IS NULL
    OR owner_hex !~ '^[0-9a-fA-F]{32}$' THEN
    RAISE EXCEPTION USING ERRCODE = '22023',
      MESSAGE = 'the key or the owner of the claim is missing or malformed, so nothing is finished',
      HINT = 'Pass ONCE_STORED_KEY_HEX and ONCE_OWNER, which once run sets for its command.';
  END IF;
  IF octet_length(result) > 15 * 1024 * 1024 OR octet_length(content_type) > @content_type_bytes@ THEN
    RAISE EXCEPTION USING ERRCODE = '22023',
      MESSAGE = 'the result has more than 15 MiB, or its content type more than @content_type_bytes@ bytes',
      HINT = 'Keep it in a table or a bucket of your own, and finish with its name.';
  END IF;
  IF retention <= interval '0' THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the retention must be longer than nothing';
  END IF;
  SELECT * INTO claim FROM @s@.records r WHERE r.key = decode(stored_key_hex, 'hex');
  IF retention IS NULL THEN
    expires_ms := CASE WHEN claim.expires_at_ms IS NOT NULL THEN greatest(claim.expires_at_ms, at_ms + 1) END;
  ELSE
    expires_ms := at_ms + floor(extract(epoch FROM retention) * 1000)::bigint;
  END IF;
  PERFORM @s@.finish_1(decode(stored_key_hex, 'hex'), decode(owner_hex, 'hex'), floor(random() * 1048576)::bigint,
    expires_ms, at_ms, nullif(result, ''), convert_to(nullif(content_type, ''), 'UTF8'), NULL, NULL, NULL, NULL);
END $$;

CREATE OR REPLACE FUNCTION @s@.finish_or_raise(stored_key_hex text, owner_hex text, result text,
  content_type text DEFAULT NULL, retention interval DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM @s@.finish_or_raise(stored_key_hex, owner_hex, convert_to(result, 'UTF8'), content_type, retention);
END $$;

REVOKE ALL ON FUNCTION @functions@ FROM PUBLIC;
UPDATE @s@.meta SET value = '2' WHERE name = 'version';
)sql";

std::string replaced(std::string_view sql, std::string_view mark, std::string_view by) {
  std::string out;
  for (std::size_t at = sql.find(mark); at != std::string_view::npos; at = sql.find(mark)) {
    out.append(sql.substr(0, at)).append(by);
    sql.remove_prefix(at + mark.size());
  }
  return out.append(sql);
}

std::string with_schema(std::string_view sql, std::string_view schema) {
  return replaced(replaced(sql, "@name@", quoted_text(quoted_name(schema))), "@s@", quoted_name(schema));
}

std::string list_of_functions() {
  std::string list;
  for (const std::string_view function : functions) list.append(list.empty() ? "@s@." : ", @s@.").append(function);
  return list;
}

std::string in_transaction(const std::string& sql) { return "BEGIN;\n" + lock_sql() + sql + "COMMIT;\n"; }

constexpr std::string_view make_schema = R"sql(
DO $do$ BEGIN
  IF to_regnamespace(@name@) IS NULL THEN
    CREATE SCHEMA @s@;
  END IF;
END $do$;
)sql";

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
  if (from == 0) {
    return with_schema(make_schema, schema) + with_schema(first, schema);
  }
  if (from == 1) {
    const std::string sql = replaced(second, "@content_type_bytes@", std::to_string(Result::max_content_type_bytes));
    return with_schema(replaced(sql, "@functions@", list_of_functions()), schema);
  }
  throw Exception(ErrorKind::misuse, "postgresql store: no migration begins at version " + std::to_string(from));
}

std::string create_sql(std::string_view schema) {
  std::string sql;
  for (int version = 0; version < schema_version; ++version) sql += migration_sql(version, schema);
  return in_transaction(sql);
}

std::string grant_sql(std::string_view schema, std::string_view role) {
  return replaced(with_schema("GRANT USAGE ON SCHEMA @s@ TO @role@;\nGRANT EXECUTE ON FUNCTION " + list_of_functions() +
                                  " TO @role@;\n",
                              schema),
                  "@role@", quoted_name(role));
}

std::string drop_sql(std::string_view schema) {
  const std::string sql = "DROP FUNCTION IF EXISTS " + list_of_functions() + R"sql(;
DROP VIEW IF EXISTS @s@.records_readable;
DROP FUNCTION IF EXISTS @s@.readable, @s@.now_1;
DROP TABLE IF EXISTS @s@.records, @s@.meta;
DROP FUNCTION IF EXISTS @s@.gate;
DO $do$ BEGIN
  DROP SCHEMA @s@ RESTRICT;
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
  NULL;  -- Something else is in it, or it belongs to somebody else.
END $do$;
)sql";
  return in_transaction(with_schema(sql, schema));
}

std::string gate_mark_sql(std::string_view schema) {
  return "SELECT obj_description(to_regprocedure(" + quoted_text(quoted_name(schema) + ".gate()") + "), 'pg_proc')";
}

// What the gate lets through is written into the function, and kept nowhere else: a transaction with an old snapshot
// (repeatable read) would read an old row of a table, but it calls the newest function.
//
// The caller has SHARE ROW EXCLUSIVE, which lets readers through. To drop the trigger would wait for them, so it stays
// if one of them is there, with a function that lets everything through: a move must not fail for a dump at its end.
std::string gate_sql(std::string_view schema, const GateMark& mark) {
  const std::string refusal = gate_refusal(mark);
  std::string lets = "true";
  if (mark.gate == Gate::draining) {
    lets =
        "TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NOT (NEW.owner <> OLD.owner AND NEW.state = 0 AND "
        "NEW.lease_until_ms IS NOT NULL))";
  } else if (mark.gate == Gate::filling) {
    lets = "current_setting('once.filling', true) = " + quoted_text(mark.move);
  } else if (mark.gate == Gate::closed) {
    lets = "false";
  }
  const std::string body = "BEGIN IF " + lets + " THEN RETURN NULL; END IF; RAISE EXCEPTION USING ERRCODE = 'ON006', " +
                           "MESSAGE = " + quoted_text(refusal) + "; END";
  const std::string function = with_schema(
                                   "CREATE OR REPLACE FUNCTION @s@.gate() RETURNS trigger LANGUAGE plpgsql\n"
                                   "SET search_path = pg_catalog, pg_temp AS ",
                                   schema) +
                               quoted_text(body) + ";\n" + with_schema("COMMENT ON FUNCTION @s@.gate() IS ", schema) +
                               quoted_text(gate_text(mark)) + ";\n" +
                               with_schema("REVOKE ALL ON FUNCTION @s@.gate() FROM PUBLIC;\n", schema);
  std::string trigger;
  if (refusal.empty()) {
    trigger =
        with_schema("BEGIN SET LOCAL lock_timeout = '200ms'; DROP TRIGGER IF EXISTS gate ON @s@.records; ", schema);
    if (mark.gate == Gate::open) trigger += with_schema("DROP FUNCTION @s@.gate(); ", schema);
    trigger += "EXCEPTION WHEN lock_not_available THEN NULL; END";
  } else {
    // After the statement: a finish of the user's own may be an upsert, which would meet a trigger before the insert.
    trigger = "BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgname = 'gate' AND tgrelid = " +
              quoted_text(quoted_name(schema) + ".records") + "::regclass) THEN " +
              with_schema(
                  "CREATE TRIGGER gate AFTER INSERT OR UPDATE OR DELETE ON @s@.records FOR EACH ROW "
                  "EXECUTE FUNCTION @s@.gate()",
                  schema) +
              "; END IF; END";
  }
  return function + "DO " + quoted_text(trigger) + ";\n";
}

std::string let_fill_sql(const GateMark& filling) { return "SET LOCAL once.filling = " + quoted_text(filling.move); }

std::string write_call(std::string_view schema) {
  return with_schema(
      "SELECT @s@.write_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,"
      "$25,$26,$27,$28,$29,$30,$31,$32,$33)",
      schema);
}
std::string local_write_call(std::string_view schema) {
  std::string parameters;
  constexpr std::array types = {"bigint", "smallint", "bytea", "bigint", "bytea",  "smallint", "bigint",
                                "bigint", "bigint",   "bytea", "bigint", "bigint", "bigint",   "bigint",
                                "bigint", "smallint", "bytea", "bytea",  "bytea",  "bytea",    "bytea",
                                "bytea",  "bigint",   "bytea", "bytea",  "bytea",  "smallint", "bytea",
                                "bigint", "bytea",    "bytea", "bytea",  "boolean"};
  for (std::size_t n = 0; n < types.size(); ++n) {
    parameters += (n == 0 ? "$" : ",$") + std::to_string(n + 1) + "::" + types.at(n);
  }
  return with_schema(
      "SELECT w.done, w.now_ms, pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, "
      "pg_catalog.encode(pg_catalog.record_send(w.there), 'hex') FROM @s@.write_1(" +
          parameters + ") w",
      schema);
}
std::string finish_call(std::string_view schema) {
  // With types, for client libraries that send their own.
  return with_schema(
      "SELECT @s@.finish_1($1::bytea, $2::bytea, $3::bigint, $4::bigint, $5::bigint, $6::bytea, $7::bytea, "
      "$8::smallint, $9::bytea, $10::bigint, $11::bytea)",
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
  return with_schema(
      "SELECT version, unsafe, now_ms, cluster, timeline, pg_catalog.pg_backend_pid() FROM @s@.about_1()", schema);
}

std::string commit_sql(std::string_view unless) {
  // An error that plain SQL can raise: a DO block would need the right to PL/pgSQL.
  return "SELECT (CASE WHEN " + std::string(unless) + " THEN " + quoted_text(other_transaction) +
         " END)::pg_catalog.text::pg_catalog.bool, pg_catalog.set_config('synchronous_commit', 'on', true) "
         "WHERE pg_catalog.current_setting('synchronous_commit') = 'off' OR " +
         std::string(unless) + "; COMMIT";
}

}  // namespace once::stores::postgresql
