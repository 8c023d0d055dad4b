"""cli_test.py ONCE: the program's commands on a store in PostgreSQL."""
import json
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "apps"), str(ROOT / "real_servers")]
import harness  # noqa: E402
import postgresql  # noqa: E402
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
        self.assertIn("once table create", self.do("run", "--key", "k", "--", "true", code=64).stderr)
        self.assertIn("make it with once table create", self.do("table", "check", code=1).stdout)
        self.assertEqual(self.do("table", "create").stdout, "created schema 'once'\n")
        self.assertEqual(self.do("table", "create").stdout, "schema 'once' already exists and fits\n")
        self.assertEqual(self.do("table", "upgrade").stdout, "schema 'once' already has version 1\n")
        report = json.loads(self.do("table", "check", "--json").stdout)
        self.assertTrue(report["fits"] and report["exists"])
        self.assertEqual(report["version"], 1)
        self.assertEqual({finding["name"] for finding in report["findings"]},
                         {"schema", "functions", "server", "primary", "fsync", "commit", "standby", "isolation",
                          "snapshot", "bloat"})
        self.assertIn("would delete schema 'once'", self.do("table", "delete", "--dry-run").stdout)
        self.assertIn("nothing was deleted", self.do("table", "delete", input="twice\n", code=64).stderr)
        self.do("table", "check")
        self.do("table", "delete", input="once\n")
        self.assertEqual(self.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'once'"), "0")
        self.do("table", "delete", "--yes", code=64)

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
