"""Each write to a PostgreSQL store, in the order in which the server did them, by a trigger of the test's own."""
import json

import partition

STATES = {0: "in_progress", 1: "completed", 2: "failed", 3: "unknown"}
TRIGGER = """
CREATE TABLE written (number bigserial, now_ms bigint, old jsonb, new jsonb);
CREATE FUNCTION write_down() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO written (now_ms, old, new)
  VALUES (floor(extract(epoch FROM clock_timestamp()) * 1000), to_jsonb(OLD), to_jsonb(NEW));
  RETURN NULL;
END $$;
CREATE TRIGGER write_down AFTER INSERT OR UPDATE OR DELETE ON once.records
FOR EACH ROW EXECUTE FUNCTION write_down();
"""


def text(column):
    return None if column is None else bytes.fromhex(column.removeprefix("\\x")).decode()


def record(row):
    """With the names and values that partition.check() knows."""
    return row and {
        "owner": row["owner"], "holder": text(row["holder"]), "attempt": row["attempt"], "status": STATES[row["state"]],
        "lease_until": row["lease_until_ms"] or 0, "data": text(row["result"]), "key": text(row["key"]).lstrip("#"),
    }


def writes(server, database):
    rows = server.psql("SELECT json_build_array(now_ms, old, new) FROM written ORDER BY number", database)
    for line in rows.splitlines():
        now, before, after = json.loads(line)
        before, after = record(before), record(after)
        told = after or before
        yield partition.Write(now, after is None, told["key"], told["owner"], told["holder"], told["attempt"],
                              told["status"], told["lease_until"], told["data"], True, before)
