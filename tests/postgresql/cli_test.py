"""cli_test.py ONCE: the program's commands on a store in PostgreSQL."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "apps"), str(ROOT / "real_servers")]
import harness  # noqa: E402
import postgresql  # noqa: E402
from cutting_proxy import TO_CLIENT, CuttingProxy  # noqa: E402
from harness import Case  # noqa: E402

SERVER = None


class Commands(Case):
    def setUp(self):
        super().setUp()
        self.url = SERVER.database()
        self.name = self.url.rsplit("/", 1)[1]
        self.env["ONCE_STORE"] = self.url + "?allow_unsafe=1"
        for name in [name for name in self.env if name.startswith("PG")]:
            del self.env[name]

    def psql(self, sql, user="postgres"):
        return SERVER.psql(sql, self.name, user)

    def do(self, *arguments, code=0, **options):
        done = self.once(*arguments, text=True, **options)
        self.assertEqual(done.returncode, code, f"{arguments}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def table(self):
        self.do("table", "create")

    def test_table_is_made_checked_and_deleted(self):
        self.assertIn("once table create", self.do("run", "--key", "k", "--", "true", code=243).stderr)
        self.assertIn("make it with once table create", self.do("table", "check", code=1).stdout)
        self.assertEqual(self.do("table", "create").stdout, "created schema 'once'\n")
        self.assertEqual(self.do("table", "create").stdout, "schema 'once' already exists and fits\n")
        self.assertEqual(self.do("table", "upgrade").stdout, "schema 'once' already has version 2\n")
        report = json.loads(self.do("table", "check", "--json").stdout)
        self.assertTrue(report["fits"] and report["exists"])
        self.assertEqual(report["version"], 2)
        self.assertEqual({finding["name"] for finding in report["findings"]},
                         {"schema", "functions", "server", "primary", "fsync", "commit", "logged", "writes", "standby",
                          "keepalive", "isolation", "snapshot", "bloat"})
        self.assertIn("would delete schema 'once'", self.do("table", "delete", "--dry-run").stdout)
        self.assertIn("nothing was deleted", self.do("table", "delete", input="twice\n", code=64).stderr)
        self.do("table", "check")
        self.do("table", "delete", input="once\n")
        self.assertEqual(self.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'once'"), "0")
        self.do("table", "delete", "--yes", code=64)

    def test_hosts_of_two_clusters_are_found(self):
        self.table()
        here = f"127.0.0.1:{SERVER.port}"

        def hosts(other, code):
            store = f"postgresql://postgres@{here},{other}/{self.name}?allow_unsafe=1"
            table = self.do("table", "check", "--store", store, code=code).stdout
            doctor = self.once("doctor", "--store", store, text=True).stdout
            return "".join(line + "\n" for line in (table + doctor).splitlines() if " hosts " in line)

        with postgresql.running() as copied:  # From the same folder, so with the same identifier.
            copied.psql(f"CREATE DATABASE {self.name}")
            found = hosts(f"127.0.0.1:{copied.port}", 1)
            self.assertEqual(found.count("more than one server takes writes"), 2, found)
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(postgresql, "BUILD", pathlib.Path(folder)), postgresql.running() as other:
            other.psql(f"CREATE DATABASE {self.name}")
            found = hosts(f"127.0.0.1:{other.port}", 1)
            self.assertEqual(found.count("different clusters"), 2, found)
            for server in (SERVER, other):
                self.assertIn(server.psql("SELECT system_identifier FROM pg_control_system()"), found)
        self.assertEqual(hosts(f"localhost:{SERVER.port}", 0).count("2, all of one cluster"), 2)
        self.assertEqual(hosts("127.0.0.1:1", 0).count("not compared: 127.0.0.1:1 is not reached"), 2)

    def test_fsync_is_seen_as_a_reload_left_it(self):
        self.table()
        store = self.url
        for value, code in (("on", 0), ("off", 1), ("on", 0)):
            self.psql(f"ALTER SYSTEM SET fsync = {value}")
            SERVER.reload()
            postgresql.wait_for(lambda: self.psql("SHOW fsync") == value, "the reload")
            table = self.do("table", "check", "--store", store, code=code).stdout
            self.assertRegex(table, "fine +fsync +on" if value == "on" else "lack +fsync +off: a crash")
            doctor = self.once("doctor", "--store", store, text=True)
            self.assertRegex(doctor.stdout + doctor.stderr, "fine +fsync +on" if value == "on" else "problem +.*fsync")
        self.psql("ALTER SYSTEM RESET fsync")
        SERVER.reload()
        postgresql.wait_for(lambda: self.psql("SHOW fsync") == "off", "the reload")

    def test_unlogged_tables_are_found(self):
        self.table()
        self.psql("ALTER TABLE once.records SET UNLOGGED")
        self.assertRegex(self.do("table", "check").stdout, "hint +logged +UNLOGGED: records")
        self.assertRegex(self.do("table", "check", "--store", self.url, code=1).stdout, "lack +logged +UNLOGGED: records")
        doctor = self.once("doctor", "--store", self.url, text=True)
        self.assertRegex(doctor.stdout + doctor.stderr, "UNLOGGED")

    def test_what_else_is_in_the_schema_stays(self):
        self.psql("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)")
        self.env["ONCE_STORE"] += "&schema=shop"
        self.table()
        self.do("table", "delete", "--yes")
        self.assertEqual(self.psql("SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'shop'::regnamespace"),
                         "orders")

    def test_the_printed_sql_makes_the_same(self):
        self.env["ONCE_STORE"] += "&schema=Sh%22op"
        self.psql("CREATE ROLE \"w'orker\" LOGIN")
        sql = self.do("table", "create", "--role", "w'orker", "--print-sql").stdout
        self.psql(sql)
        self.do("table", "check")
        self.do("run", "--key", "k", "--", "true")
        self.assertEqual(self.psql('SELECT key FROM "Sh""op".records_readable WHERE state = \'completed\''), "#k")
        self.psql('DROP OWNED BY "w\'orker"; DROP ROLE "w\'orker"')

    def test_a_sweep_whose_answer_is_lost_does_not_say_that_nothing_was_removed(self):
        self.table()
        straight, in_doubt = self.env["ONCE_STORE"], 0
        with CuttingProxy(SERVER.port) as proxy:
            through = straight.replace(f":{SERVER.port}/", f":{proxy.port}/")
            for messages in range(1, 40):
                self.env["ONCE_STORE"] = straight
                self.do("run", "--key", f"k{messages}", "--retention", "1ms", "--", "true")
                proxy.cut(TO_CLIENT, messages=10_000)  # The connection that asks for the time goes on.
                proxy.cut(TO_CLIENT, messages=messages)
                self.env["ONCE_STORE"] = through
                swept = self.once("sweep", text=True)
                proxy._cuts.clear()  # It needed fewer messages.
                if swept.returncode and self.psql("SELECT count(*) FROM once.records") == "0":
                    self.assertIn("may have been carried out", swept.stderr)
                    in_doubt += 1
        self.assertGreater(in_doubt, 0)

    def test_a_newer_schema_is_not_touched(self):
        self.table()
        self.psql("UPDATE once.meta SET value = '99' WHERE name = 'version'")
        for command in ("create", "upgrade"):
            self.assertIn("Use a newer program", self.do("table", command, code=64).stderr)
        self.assertIn("made by a newer program", self.do("table", "check").stdout)
        self.do("run", "--key", "k", "--", "true")  # Its functions are those of every version from 1.

    def test_a_role_that_may_call_functions_only(self):
        self.psql("CREATE ROLE pay LOGIN")
        self.do("table", "create", "--role", "pay")
        self.env["ONCE_STORE"] += "&user=pay"
        self.do("run", "--key", "k", "--", "echo", "hello")
        self.assertEqual(self.do("run", "--key", "k", "--", "echo", "hello").stdout, "hello\n")
        self.do("table", "check")
        self.do("ls")
        with self.assertRaisesRegex(RuntimeError, "permission denied"):
            self.psql("UPDATE once.records SET state = 1", user="pay")
        # It tells how large the store is, too.
        server = self.start("serve", "--listen", f"unix:{self.dir}/socket", "--admin", "0", "--stats-interval", "1s")
        port = int(server.stderr.readline().split()[-1])

        def size():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                lines = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if not line.startswith("#"))
            return lines.get("once_store_records_estimate"), lines.get("once_store_bytes")

        self.psql("ANALYZE once.records")
        harness.wait_until(lambda: size()[0] == "1", "the record is counted")
        self.assertEqual(size()[1], self.psql("SELECT pg_total_relation_size('once.records')"))
        server.terminate()
        server.wait(timeout=harness.DEADLINE_S)
        self.psql("REVOKE EXECUTE ON FUNCTION once.write_1 FROM pay")
        self.assertIn("--role NAME grants", self.do("run", "--key", "x", "--", "true", code=64).stderr)
        self.assertRegex(self.do("table", "check", code=1).stdout, "lack +functions +the role may not EXECUTE write_1")
        self.psql("DROP OWNED BY pay; DROP ROLE pay")

    def test_flags_of_another_store_are_refused(self):
        self.assertIn("--tags is for dynamodb: stores", self.do("table", "create", "--tags", "a=b", code=64).stderr)
        self.env["ONCE_STORE"] = "sqlite:x.db"
        self.assertIn("DynamoDB and PostgreSQL", self.do("table", "check", code=64).stderr)

    def test_commands_of_operators(self):
        self.table()
        self.do("run", "--key", "done", "--scope", "pay", "--", "echo", "hello")
        self.do("run", "--key", "failed", "--scope", "pay", "--on-exit", "3=store", "--", "sh", "-c", "exit 3", code=3)
        self.do("run", "--key", "lost", "--scope", "pay", "--on-lapse", "hold", "--on-exit", "4=hold", "--", "sh", "-c",
                "exit 4", code=4)
        listed = json.loads(self.do("ls", "--json").stdout)
        self.assertEqual({record["key"]: record["state"] for record in listed},
                         {"done": "completed", "failed": "failed", "lost": "unknown"})
        self.assertIn("lost", self.do("ls", "--state", "unknown").stdout)
        self.assertIn("hello", self.do("show", "--key", "done", "--scope", "pay").stdout)
        self.assertIn("done", self.do("find", "done").stdout)
        doctor = self.do("doctor", "--probe", code=1)
        self.assertRegex(doctor.stdout, "problem +unknown +1 waiting for your decision")
        self.assertRegex(doctor.stdout, "note +fsync +off: a crash of the server's host loses acknowledged claims")
        self.assertRegex(doctor.stdout, "fine +probe +a record was written, read and removed")
        # What a host that is cut off in the middle of a write would hold, and for how long.
        self.psql(f"ALTER DATABASE {self.name} SET tcp_keepalives_idle = 7200")
        self.assertRegex(self.do("doctor", code=1).stdout, "note +keepalive +a host that is cut off .* for up to [0-9]+ min")
        self.psql(f"ALTER DATABASE {self.name} SET tcp_keepalives_idle = 60; "
                  f"ALTER DATABASE {self.name} SET tcp_keepalives_interval = 10; "
                  f"ALTER DATABASE {self.name} SET tcp_keepalives_count = 3")
        self.assertRegex(self.do("doctor", code=1).stdout, "fine +keepalive +.* within 90 s")
        self.do("resolve", "--key", "lost", "--scope", "pay", "--as", "completed", "--reason", "seen at the bank")
        self.do("rm", "--key", "failed", "--scope", "pay", "--reason", "test")
        self.assertRegex(self.do("stats").stdout, "completed +2")
        self.psql("UPDATE once.records SET expires_at_ms = 5, sweep_at_ms = 5")
        self.assertIn("2", self.do("sweep").stdout)
        self.assertEqual(self.psql("SELECT count(*) FROM once.records"), "0")

    def test_two_calls_at_one_time_run_it_once(self):
        self.table()
        calls = [self.start("run", "--key", "k", "--wait", "30s", "--", "sh", "-c", "echo run >> ran; echo hello", text=True)
                 for _ in range(6)]
        for call in calls:
            self.assertEqual(call.communicate(timeout=60)[0], "hello\n")
        self.assertEqual((self.dir / "ran").read_text(), "run\n")

    def bank(self):
        self.table()
        self.psql("CREATE TABLE accounts (id text PRIMARY KEY, cents int CHECK (cents >= 0)); "
                  "INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0)")

    def cents(self):
        return self.psql("SELECT string_agg(cents::text, ',' ORDER BY id) FROM accounts")

    def transfer(self, result="'moved 300'", before="", finish=None, cents=300):
        """A script for sh: psql moves the money and finishes the operation, in one transaction."""
        finish = finish or f"once.finish_or_raise(:'key', :'owner', {result})"
        return f"""{before}
psql -XAtq -v ON_ERROR_STOP=1 -v key="$ONCE_STORED_KEY_HEX" -v owner="$ONCE_OWNER" '{self.url}' <<'END'
BEGIN;
UPDATE accounts SET cents = cents - {cents} WHERE id = 'alice';
UPDATE accounts SET cents = cents + {cents} WHERE id = 'bob';
\\o /dev/null
SELECT {finish};
COMMIT;
END
"""

    def pay(self, script, *flags, code=0):
        return self.do("run", "--key", "transfer-1", *flags, "--", "sh", "-c", script, code=code)

    def test_a_command_finishes_in_its_own_transaction(self):
        self.bank()
        self.assertEqual(self.pay(self.transfer()).stdout, "moved 300")
        self.assertEqual(self.pay(self.transfer()).stdout, "moved 300")
        self.assertEqual(self.cents(), "700,300")
        shown = json.loads(self.do("show", "--key", "transfer-1", "--json").stdout)
        self.assertEqual(shown["state"], "completed")

    def test_the_kinds_of_results(self):
        self.bank()
        for number, (result, shown) in enumerate([("'{\"a\": 1}', 'application/json'", '{"a": 1}'),
                                                  ("'\\x00ff0a'::bytea", "\x00\udcff\n"), ("''", ""), ("NULL::text", "")]):
            script = self.transfer(result, cents=1)
            for _ in range(2):
                done = self.once("run", "--key", str(number), "--", "sh", "-c", script)
                self.assertEqual((done.returncode, done.stdout.decode(errors="surrogateescape")), (0, shown), done.stderr)
        self.assertEqual(self.cents(), "996,4")

    def test_a_displaced_command_commits_nothing(self):
        self.bank()
        late = f"psql -XAtq '{self.url}' -c 'UPDATE once.records SET lease_until_ms = 1' && {harness.PROGRAM} run " \
               "--key transfer-1 --fingerprint none -- echo in time"
        done = self.pay(self.transfer(before=late), "--on-lost", "continue", "--fingerprint", "none", code=248)
        self.assertIn("no longer this attempt's", done.stderr)
        self.assertEqual(self.cents(), "1000,0")
        self.assertEqual(self.pay(self.transfer(), "--fingerprint", "none").stdout, "in time\n")

    def test_a_command_that_dies_before_its_commit_is_run_again_and_after_it_is_done(self):
        self.bank()
        before = self.transfer().replace("COMMIT;", "\\! kill -9 $PPID\nCOMMIT;") + "kill -9 $$"  # psql, and then the shell.
        self.pay(before, "--on-signal", "release", code=137)
        self.assertEqual(self.cents(), "1000,0")
        after = self.transfer() + "kill -9 $$"
        self.assertEqual(self.pay(after).stdout, "moved 300")
        self.assertEqual(self.pay(after).stdout, "moved 300")
        self.assertEqual(self.cents(), "700,300")

    def test_what_is_missing_or_wrong_finishes_nothing(self):
        self.bank()
        for wrong, says in [("'', :'owner', 'x'", "missing or malformed"), (":'key', 'abc', 'x'", "missing or malformed"),
                            (":'key', repeat('0', 32), 'x'", "no longer this attempt"), ("NULL, NULL, 'x'", "missing or malformed"),
                            (":'key', :'owner', repeat('x', 15728641)", "15 MiB"),
                            (":'key', :'owner', 'x', repeat('x', 2000)", "content type"),
                            (":'key', :'owner', 'x', NULL, '0 s'", "retention must be longer")]:
            done = self.pay(self.transfer(finish=f"once.finish_or_raise({wrong})"), "--on-failure", "release", code=3)
            self.assertIn(says, done.stderr)
        self.assertEqual(self.cents(), "1000,0")

    def test_how_long_its_result_is_kept(self):
        self.bank()
        kept = "SELECT round((expires_at_ms - finished_at_ms) / 3600000.0, 1) FROM once.records"
        for flags, retention, hours in [((), "", "24.0"), (("--retention", "48h"), "", "48.0"),
                                        (("--on-lapse", "hold", "--retention", "48h"), "", ""),
                                        ((), ", NULL, '3 hours'", "3.0"), (("--retention", "never"), "", "")]:
            self.pay(self.transfer(f"'x'{retention}", cents=1), *flags)
            self.assertEqual(self.psql(kept), hours, flags)
            self.psql("DELETE FROM once.records")

    def test_a_service_whose_settings_lack_the_seal_key_runs_nothing(self):
        self.table()
        keys = self.path("seal.keys")
        self.do("seal-key", "new", "--id", "a", keys)
        sealed = self.env["ONCE_STORE"] + f"&seal={keys}"
        self.assertEqual(self.do("run", "--store", sealed, "--scope", "pay", "--key", "k", "--", "echo", "SECRET").stdout,
                         "SECRET\n")
        # Another service, with keys of its own scope, so that it meets no sealed record.
        refused = self.do("run", "--scope", "ship", "--key", "k", "--", "sh", "-c", "echo x > ran; echo SECRET", code=64)
        self.assertRegex(refused.stderr, "holds, or held, sealed records.*write_clear=1.*Nothing was run")
        self.assertFalse(self.path("ran").exists())
        self.assertEqual(self.psql("SELECT count(*) FROM once.records"), "1")
        self.do("run", "--store", self.env["ONCE_STORE"] + "&write_clear=1", "--scope", "ship", "--key", "k", "--", "true")
        self.assertRegex(self.do("doctor", "--store", sealed, code=1).stdout, r"problem +seals +1 sealed .*1 in the clear")
        # once run does not tell the command of a sealed claim how to finish it; a command may know all the same.
        self.psql("CREATE TABLE accounts (id text PRIMARY KEY, cents int); INSERT INTO accounts VALUES ('alice', 1000)")
        finish = self.transfer(finish=f"once.finish_or_raise('{b'pay#t'.hex()}', :'owner', 'in the clear')")
        late = self.do("run", "--store", sealed, "--scope", "pay", "--key", "t", "--", "sh", "-c", finish, code=3)
        self.assertIn("would be kept in the clear", late.stderr)
        self.assertEqual(self.psql("SELECT cents FROM accounts"), "1000")
        # What says how the store is sealed is not the server's affair.
        command = self.env["ONCE_STORE"] + f"&seal_command=cat%20{keys}&write_clear=1"
        self.do("table", "check", "--store", command)
        self.do("run", "--store", command, "--scope", "pay", "--key", "k", "--", "echo", "SECRET")

    def test_a_role_with_one_connection_is_told_how_many_a_store_needs(self):
        self.psql("CREATE ROLE single LOGIN CONNECTION LIMIT 1")
        self.do("table", "create", "--role", "single")
        url = f"postgresql://single@127.0.0.1:{SERVER.port}/{self.name}?allow_unsafe=1&operation_timeout=1s"
        self.do("run", "--store", url, "--key", "k", "--", "true")
        # It lists by one connection, and looks for damage by another.
        error = self.do("ls", "--store", url, code=243).stderr
        self.assertIn('too many connections for role "single"', error)
        self.assertIn("A store opens up to 7 connections", error)

    def test_no_password_is_shown(self):
        self.env["ONCE_STORE"] = f"postgresql://postgres:secret@127.0.0.1:{SERVER.port}/{self.name}?allow_unsafe=1"
        self.table()
        for arguments in (["doctor"], ["stats"], ["table", "check"], ["ls"]):
            done = self.once(*arguments, text=True)
            self.assertNotIn("secret", done.stdout + done.stderr)
        for wrong in ("&sslmodus=1", "&lock_timeout=1"):
            done = self.once("stats", "--store", self.env["ONCE_STORE"] + wrong, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertNotIn("secret", done.stdout + done.stderr)


if __name__ == "__main__":
    harness.PROGRAM = sys.argv[1]
    with postgresql.running() as SERVER:
        program = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
