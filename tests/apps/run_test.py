"""once run: who runs, what is replayed, what is refused."""
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import time
import unittest
from datetime import datetime

import harness
import metrics_page
from harness import Case, own_store, wait_until

ALL_BYTES = bytes(range(256))


class Replay(Case):
    def test_same_bytes_on_the_same_streams_and_the_same_exit_code(self):
        (self.path("out")).write_bytes(ALL_BYTES * 3 + b"no newline")
        (self.path("err")).write_bytes(b"\0\xff\n" + ALL_BYTES)
        command = ["--", "sh", "-c", "echo x >>ran; cat out; cat err >&2; exit 7"]
        first = self.once("run", "--key", "k", *command)
        self.expect(first, 7, self.path("out").read_bytes())
        self.assertEqual(first.stderr, self.path("err").read_bytes())
        for _ in range(3):
            again = self.once("run", "--key", "k", *command)
            self.expect(again, 7, first.stdout)
            self.assertEqual(again.stderr, first.stderr)
        self.assertEqual(self.runs(), 1)
        self.assertEqual(self.show("k")["state"], "failed")

    def test_a_command_that_wants_a_terminal(self):
        script = "test -t 1 && test -t 2 && ! test -t 0 && echo terminal; stty size <&1; echo error >&2; exit 3"
        for _ in range(2):
            done = self.once("run", "--tty", "--key", "k", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
            self.expect(done, 3, b"terminal\n24 80\nerror\n")
            self.assertEqual(done.stderr, b"")
        # All of it, also what comes from a process that outlives the command.
        many = self.once("run", "--tty", "--key", "many", "--output-wait", "60s", "--", "sh", "-c",
                         "seq 1 100000; (sleep 0.1; echo late) & echo end")
        self.expect(many, 0, b"".join(b"%d\n" % n for n in range(1, 100001)) + b"end\nlate\n")

    def test_drained_input_spares_the_producer(self):
        script = 'seq 1 200000 | "$0" run --key k "$@" -- sh -c "cat >/dev/null; echo done"; echo "${PIPESTATUS[*]}"'
        for flags, ends in (((), "0 0"), ((), "141 0"), (("--drain-input",), "0 0")):
            done = subprocess.run(["bash", "-c", script, harness.PROGRAM, *flags], env=self.env, cwd=self.dir,
                                  capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout, f"done\n{ends}\n", done.stderr)

    @own_store("a server sweeps")
    def test_expired_records_do_not_stay_where_nobody_sweeps(self):
        self.expect(self.once("run", "--key", "old", "--retention", "1ms", "--", "true"), 0)
        self.expect(self.once("run", "--key", "big", "--retention", "1ms", "--offload-limit", "4MiB", "--output-limit",
                              "1KiB", "--", "sh", "-c", "head -c 100000 /dev/urandom | base64"), 0)
        self.expect(self.once("run", "--key", "new", "--", "true"), 0)
        with contextlib.closing(sqlite3.connect(self.path("once.db"))) as database:
            labels = [row[0] for row in database.execute("SELECT label FROM records")]
        self.assertEqual(labels, ["new"])
        self.assertEqual(os.listdir(self.path("once.db.results")), [])

    def test_every_exit_code(self):
        for code in (0, 1, 2, 63, 126, 127, 128, 200, 255):
            with self.subTest(code=code):
                command = ["run", "--key", f"k{code}", "--", "sh", "-c", f"echo x >>ran{code}; exit {code}"]
                self.expect(self.once(*command), code)
                self.expect(self.once(*command), code)
                self.assertEqual(self.runs(f"ran{code}"), 1)

    def test_both_streams_into_one_keep_their_order(self):
        script = "import os\nfor i in range(50): os.write(1 + i % 2, b'%d ' % i)"
        command = [harness.PROGRAM, "run", "--key", "k", "--", "python3", "-c", script]
        # Two pipes have no order between them, but what is replayed is what came in.
        first = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        again = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        self.assertEqual(first.stdout, again.stdout)
        self.assertEqual(sorted(first.stdout.split()), sorted(str(i).encode() for i in range(50)))

    def test_output_streams_while_the_command_runs(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo early; cat go >/dev/null; echo late")
        self.assertEqual(process.stdout.readline(), b"early\n")
        self.assertIsNone(process.poll())
        self.open_gate("go")
        self.assertEqual(process.stdout.read(), b"late\n")
        self.assertEqual(process.wait(), 0)

    def test_no_output_keeps_the_exit_code_only(self):
        command = ["run", "--key", "k", "--no-output", "--", "sh", "-c", "echo hello; exit 3"]
        self.expect(self.once(*command), 3, b"hello\n")
        self.expect(self.once(*command), 3, b"")

    def test_retention_ends(self):
        command = ["run", "--key", "k", "--retention", "20ms", "--", "sh", "-c", "echo x >>ran"]
        self.expect(self.once(*command), 0)
        wait_until(lambda: self.once(*command).returncode == 0 and self.runs() >= 2, "run again after its retention")

    def test_a_retention_may_never_end_and_failures_have_their_own(self):
        run = ["run", "--retention", "never", "--failure-retention", "20ms"]
        self.expect(self.once(*run, "--key", "k", "--", "true"), 0)
        self.assertIsNone(self.show("k")["expires_at"])
        failing = [*run, "--key", "failing", "--", "sh", "-c", "echo x >>ran; exit 3"]
        self.expect(self.once(*failing), 3)
        wait_until(lambda: self.once(*failing).returncode == 3 and self.runs() >= 2, "run again after its retention")
        self.expect(self.once("run", "--key", "k", "--failure-retention", "0s", "--", "true"), 64)

    def test_a_result_of_somebody_else(self):
        self.expect(self.once("run", "--key", "k", "--on-failure", "hold", "--", "false"), 1)
        self.path("receipt").write_bytes(b"receipt\n")
        self.expect(self.once("resolve", "--key", "k", "--as", "completed", "--result", "receipt", "--reason", "seen"), 0)
        self.expect(self.once("run", "--key", "k", "--", "false"), 0, b"receipt\n")


class Log(Case):
    def test_is_off_unless_asked_for(self):
        self.assertEqual(self.expect(self.once("run", "--key", "k", "--", "true"), 0).stderr, b"")

    def test_has_a_line_for_each_event(self):
        secret = ["sh", "-c", "echo secret"]
        done = self.expect(self.once("run", "--key", "order-17", "--scope", "pay", "--log", "text", "--", *secret), 0)
        lines = done.stderr.decode().splitlines()
        self.assertEqual([line.split()[1:3] for line in lines],
                         [["info", "claimed"], ["info", "work_done"], ["info", "completed"]])
        for line in lines:
            self.assertIn(" scope=pay key=order-17 ", line)
            self.assertNotIn("secret", line)
        done = self.expect(self.once("run", "--key", "order-17", "--scope", "pay", "--log", "json", "--", *secret), 0)
        replayed = json.loads(done.stderr)
        self.assertEqual((replayed["event"], replayed["key"], replayed["attempt"]), ("replayed", "order-17", 1))

    def test_only_what_is_severe_enough(self):
        done = self.once("run", "--key", "k", "--on-failure", "hold", "--log", "json", "--log-level", "warning", "--", "false")
        held = json.loads(self.expect(done, 1).stderr)
        self.assertEqual((held["level"], held["event"]), ("warning", "held"))
        self.assertEqual(held["why"], "the command ended with exit 1; it may have acted")

    def test_all_lines_of_a_json_log_are_json(self):
        self.expect(self.once("run", "--key", "k", "--", "true"), 0)
        for arguments in (["--key", "k", "--", "false"], ["--key", "k", "--lsaese", "1", "--", "true"],
                          ["--key", "k", "--lease", "5", "--", "true"], ["--key", "x", "--", "./none"]):
            with self.subTest(arguments=arguments):
                done = self.once("run", "--log", "json", *arguments)
                self.assertNotEqual(done.returncode, 0)
                *_, last = [json.loads(line) for line in done.stderr.splitlines()]
                self.assertEqual((last["level"], last["event"]), ("err", "note"))
                self.assertIn(" is '5'; write" if "--lease" in arguments else "Nothing was run.", last["why"])
                self.assertTrue(last["time"].endswith("Z"))

    def test_a_hostile_key_breaks_no_line(self):
        key = "a\n2026-01-01T00:00:00.000Z err forged\x1b[2J"
        done = self.expect(self.once("run", "--key", key, "--log", "text", "--", "true"), 0)
        self.assertEqual(done.stderr.count(b"\n"), 3)
        self.assertNotIn(b"\x1b", done.stderr)

    def test_without_a_reader_the_command_runs_all_the_same(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.expect(self.once("run", "--key", "k", "--log", "text", "--", "sh", "-c", "echo done; exit 3", stderr=writer), 3, b"done\n")
        os.close(writer)
        self.assertEqual(self.show("k")["state"], "failed")

    def test_a_full_disk_does_not_stop_the_work(self):
        with open("/dev/full", "wb") as full:
            self.expect(self.once("run", "--key", "k", "--log", "json", "--", "echo", "done", stderr=full), 0, b"done\n")
        self.assertEqual(self.show("k")["state"], "completed")


class MetricsFile(Case):
    def run_with_file(self, *command, code, key="k"):
        """The samples of the file."""
        self.expect(self.once("run", "--scope", "jobs", "--key", key, "--metrics-file", "run.prom", "--", *command), code)
        return metrics_page.check(self.path("run.prom").read_text(), "Shell")

    def outcome(self, values):
        shown = {name: value for name, value in values.items() if name.startswith("once_run_last_outcome{")}
        self.assertEqual(sum(shown.values()), 1)
        return next(re.search('outcome="(.*)"', name)[1] for name, value in shown.items() if value == 1)

    def test_says_how_the_last_run_ended(self):
        before = time.time()
        values = self.run_with_file("sh", "-c", "exit 3", code=3)
        self.assertEqual((self.outcome(values), values['once_run_last_exit_code{scope="jobs"}']), ("executed", 3))
        self.assertTrue(before - 1 < values['once_run_last_start_timestamp_seconds{scope="jobs"}'] < time.time() + 1)
        self.assertGreater(values['once_run_last_duration_seconds{scope="jobs"}'], 0)
        self.assertEqual(self.outcome(self.run_with_file("sh", "-c", "exit 3", code=3)), "stored_failure")
        self.assertEqual(self.outcome(self.run_with_file("true", code=241)), "mismatch")
        self.assertEqual(self.outcome(self.run_with_file("true", code=0, key="other")), "executed")
        self.assertEqual(self.outcome(self.run_with_file("true", code=0, key="other")), "replayed")
        self.assertEqual(self.outcome(self.run_with_file("./is-not-there", code=127, key="third")), "error")
        self.assertEqual([file.name for file in self.dir.iterdir() if "prom" in file.name], ["run.prom"])
        self.assertEqual(self.path("run.prom").stat().st_mode & 0o777, 0o644)

    def test_a_file_that_cannot_be_written_changes_nothing_else(self):
        done = self.once("run", "--key", "k", "--metrics-file", "no/such/run.prom", "--", "sh", "-c", "echo x; exit 3")
        self.expect(done, 3, b"x\n", b"once: cannot write the metrics file no/such/run.prom: No such file or directory\n")
        self.assertEqual(self.show("k")["state"], "failed")


# A command that finishes the operation in its own transaction: with the lock between processes held, and as the owner.
FINISH = """
import fcntl, os, sqlite3, sys, time
lock = os.open("once.db-lock", os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
db = sqlite3.connect("once.db", isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("PRAGMA synchronous = FULL")
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO paid VALUES (?)", (os.environ["ONCE_KEY"],))
finished = db.execute(
    "UPDATE records SET state = 1, revision = (((revision >> 20) + 1) << 20) | (abs(random()) % 1048576), "
    "lease_until_ms = NULL, finished_at_ms = created_at_ms, result = 'paid', reserve = NULL "
    "WHERE owner = ? AND state = 0 AND lease_until_ms IS NOT NULL", (bytes.fromhex(os.environ["ONCE_OWNER"]),))
db.execute("COMMIT" if finished.rowcount == 1 and sys.argv[1] != "rollback" else "ROLLBACK")
os.close(lock)
if sys.argv[1] == "stay":
    open("committed", "w").close()
    open("go").read()
if sys.argv[1] == "write": print("receipt", flush=True)
sys.exit(int(sys.argv[2]))
"""


class FinishedByTheCommand(Case):
    def setUp(self):
        super().setUp()
        self.once("run", "--key", "first", "--", "true")
        with contextlib.closing(sqlite3.connect(self.path("once.db"))) as db:
            db.execute("CREATE TABLE paid (key)")
            db.commit()

    def paid(self):
        with contextlib.closing(sqlite3.connect(self.path("once.db"))) as db:
            return db.execute("SELECT count(*) FROM paid").fetchone()[0]

    def pay(self, how, code=0, *flags, key="k"):
        return ["run", "--key", key, *flags, "--", "python3", "-c", FINISH, how, str(code)]

    def test_it_is_found_and_is_the_result_for_everybody(self):
        self.expect(self.once(*self.pay("silent")), 0, b"paid")
        self.expect(self.once(*self.pay("silent")), 0, b"paid")
        self.assertEqual(self.paid(), 1)
        self.assertEqual(self.show("k")["state"], "completed")

    def test_what_it_wrote_is_not_followed_by_the_result(self):
        self.expect(self.once(*self.pay("write")), 0, b"receipt\n")
        self.expect(self.once(*self.pay("write")), 0, b"paid")
        self.assertEqual(self.paid(), 1)

    def test_a_failure_after_it_does_not_undo_it(self):
        for fate in ("release", "store", "hold"):
            with self.subTest(fate=fate):
                done = self.once(*self.pay("write", 3, "--on-failure", fate, key=fate))
                self.assertEqual(done.returncode, 0)
                self.assertIn(b"ended with exit 3 after it had finished", done.stderr)
                self.assertEqual(self.show(fate)["state"], "completed")
        self.assertEqual(self.paid(), 3)

    def test_a_transaction_that_is_rolled_back_is_as_if_there_were_none(self):
        self.expect(self.once(*self.pay("rollback", 3)), 3)
        self.expect(self.once(*self.pay("rollback", 3)), 3)
        self.assertEqual(self.paid(), 0)
        self.assertEqual(self.show("k")["state"], "failed")

    def test_a_renewal_that_finds_it_does_not_stop_the_command(self):
        self.fifo("go")
        process = self.start(*self.pay("stay", 0, "--lease", "6s", "-v", "--log", "text", "--log-level", "debug"))
        wait_until(lambda: self.path("committed").exists(), "the command has committed")
        # A renewal every 2 s. With a lease that is shorter than a busy machine's pauses the command would be ended.
        told = None
        while b"completed" not in (told or b""):
            self.assertNotEqual(told, b"", "once has ended")
            told = process.stderr.readline()
        self.open_gate("go")
        self.assertEqual(process.stdout.read(), b"paid")
        self.assertEqual(process.wait(), 0)


class Environment(Case):
    def test_the_command_learns_who_it_is(self):
        command = ["run", "--key", "order-17", "--scope", "pay#1", "--", "env", "-0"]
        done = self.expect(self.once(*command), 0)
        names = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)
        self.assertEqual(names["ONCE_KEY"], "order-17")
        self.assertEqual(names["ONCE_SCOPE"], "pay#1")
        self.assertEqual(names["ONCE_ATTEMPT"], "1")
        record = self.show("order-17", "--scope", "pay#1")
        self.assertEqual(names["ONCE_TOKEN"], str(record["token"]))
        self.assertRegex(names["ONCE_DERIVED_KEY"], "^[0-9a-f]{64}$")
        self.assertRegex(names["ONCE_OWNER"], "^[0-9a-f]{32}$")

    def test_it_says_the_lease_and_the_retention_where_no_flag_does(self):
        def run(key, *flags, **variables):
            command = ["run", "-v", "--key", key, *flags, "--", "true"]
            return self.once(*command, env={**self.env, **variables})

        def kept_s(key):
            record = self.show(key)
            expires, finished = (datetime.fromisoformat(record[name].replace("Z", "+00:00"))
                                 for name in ("expires_at", "finished_at"))
            return round((expires - finished).total_seconds())

        done = run("a", ONCE_RETENTION="72h", ONCE_LEASE="5m")
        self.expect(done, 0)
        self.assertIn(b"from the environment: ONCE_LEASE=5m, ONCE_RETENTION=72h", done.stderr)
        self.assertEqual(kept_s("a"), 72 * 3600)
        done = run("b", "--retention", "1h", ONCE_RETENTION="72h")
        self.assertNotIn(b"environment", done.stderr)
        self.assertEqual(kept_s("b"), 3600)
        refused = run("c", ONCE_LEASE="long")
        self.expect(refused, 64)
        self.assertIn(b"(or ONCE_LEASE) is 'long'", refused.stderr)

    def test_derived_key_is_stable_over_attempts_and_differs_by_name(self):
        def derived(key, *more):
            script = "printf %s $ONCE_DERIVED_KEY; exit 1"
            done = self.once("run", "--key", key, "--on-failure", "release", *more, "--", "sh", "-c", script)
            return self.expect(done, 1).stdout

        first = derived("k")
        self.assertEqual(first, derived("k"))
        self.assertNotEqual(first, derived("other"))
        self.assertNotEqual(first, derived("k", "--derive-name", "mail"))

    def test_only_what_is_passed_on_purpose_is_open_in_the_command(self):
        extra = os.open(self.path("extra"), os.O_WRONLY | os.O_CREAT)
        self.addCleanup(os.close, extra)
        done = self.once("run", "--key", "k", "--", "python3", "-c",
                         "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd')))", pass_fds=[extra])
        self.expect(done, 0)
        listed = json.loads(done.stdout)
        self.assertEqual([fd for fd in listed if fd not in (0, 1, 2, extra)][1:], [], listed)  # One is listdir's own.

    def test_closed_standard_streams(self):
        done = subprocess.run(f"exec {harness.PROGRAM} run --key k -- sh -c 'echo x >>ran; echo out' <&- >&- 2>&-",
                              shell=True, env=self.env, cwd=self.dir, check=False)
        self.assertEqual(done.returncode, 0)
        self.expect(self.once("run", "--key", "k", "--", "sh", "-c", "echo x >>ran; echo out"), 0, b"out\n")
        self.assertEqual(self.runs(), 1)


class Failures(Case):
    def test_default_keeps(self):
        command = ["run", "--key", "k", "--", "sh", "-c", "echo x >>ran; exit 4"]
        self.expect(self.once(*command), 4)
        self.expect(self.once(*command), 4)
        self.assertEqual(self.runs(), 1)

    def test_release_runs_again(self):
        command = ["run", "--key", "k", "--on-failure", "release", "--", "sh", "-c", "echo x >>ran; test $(wc -l <ran) = 3"]
        self.expect(self.once(*command), 1)
        self.expect(self.once(*command), 1)
        self.expect(self.once(*command), 0)
        self.expect(self.once(*command), 0)
        self.assertEqual(self.runs(), 3)

    def test_kept_is_said_of_what_was_kept(self):
        self.expect(self.once("run", "-v", "--key", "kept", "--", "true"), 0, b"", b"exit 0; its result is stored")
        script = '"$ONCE" release --key k --force --reason test >&2'
        done = self.once("run", "-v", "--key", "k", "--on-lost", "continue", "--", "sh", "-c", script,
                         env=dict(self.env, ONCE=str(harness.PROGRAM)))
        self.expect(done, 245, b"", b"was lost while the command ran")
        self.assertNotIn(b"kept", done.stderr)

    def test_hold_waits_for_a_person(self):
        command = ["run", "--key", "k", "--on-failure", "hold", "--", "sh", "-c", "echo x >>ran; exit 4"]
        self.expect(self.once(*command), 4, b"", b"exit 4; its outcome is unknown, so nothing runs until you record it with `once resolve`")
        self.expect(self.once(*command), 242, b"", b"once resolve")
        self.assertEqual(self.show("k")["state"], "unknown")
        self.assertEqual(self.runs(), 1)

    def test_rules_for_single_exit_codes(self):
        rules = ["--on-failure", "hold", "--on-exit", "75=release", "--on-exit", "2,10-12=store", "--on-exit", "1=success"]

        def run(code):
            command = ["run", "--key", f"k{code}", *rules, "--", "sh", "-c", f"exit {code}"]
            self.expect(self.once(*command), code)
            return self.once("show", "--key", f"k{code}", "--json")

        self.assertEqual(run(75).returncode, 239)
        for code, state in ((2, "failed"), (10, "failed"), (12, "failed"), (13, "unknown"), (1, "completed")):
            self.assertEqual(json.loads(run(code).stdout)["state"], state, code)

    def test_stored_failure_can_be_executed_again(self):
        self.expect(self.once("run", "--key", "k", "--", "sh", "-c", "echo x >>ran; exit $(wc -l <ran)"), 1)
        command = ["run", "--key", "k", "--on-stored-failure", "execute", "--"]
        self.expect(self.once(*command, "sh", "-c", "echo x >>ran; exit $(wc -l <ran)"), 2)
        self.assertEqual(self.show("k")["attempt"], 2)

    def test_death_by_signal(self):
        for more, fate in (([], "run"), (["--on-failure", "store"], "store"), (["--on-signal", "store"], "store"),
                           (["--on-lapse", "hold"], "hold"), (["--on-signal", "hold"], "hold")):
            with self.subTest(more=more):
                key = "k" + "".join(more)
                command = ["run", "--key", key, *more, "--", "sh", "-c", f"echo x >>'ran{key}'; kill -USR1 $$"]
                self.expect(self.once(*command), 138)
                self.expect(self.once(*command), 242 if fate == "hold" else 138)
                self.assertEqual(self.runs(f"ran{key}"), 2 if fate == "run" else 1)
                if fate == "store":
                    self.assertEqual(self.show(key)["result"]["run"]["signal"], 10)

    def test_what_cannot_be_executed_leaves_nothing(self):
        self.path("plain").write_text("no program")
        self.expect(self.once("run", "--key", "k", "--", "no-such-program"), 127, b"", b"Nothing was run")
        self.expect(self.once("run", "--key", "k", "--", "./plain"), 126)
        self.expect(self.once("run", "--key", "k", "--", "."), 126)
        self.expect(self.once("show", "--key", "k"), 239)
        self.expect(self.once("run", "--key", "k", "--", "echo", "now"), 0, b"now\n")


@own_store("it decides about records")
class Reconcile(Case):
    """--reconcile: a command says what became of an unknown operation."""

    def hold(self, key="k"):
        self.expect(self.once("run", "--key", key, "--on-failure", "hold", "--fingerprint", "none", "--", "false"), 1)

    def run_asking(self, ask, *more, key="k", **options):
        return self.once("run", "--key", key, "--fingerprint", "none", "--reconcile", ask, *more,
                         "--", "sh", "-c", "echo x >>ran; echo ran", **options)

    def test_what_took_place_is_stored_and_replayed(self):
        self.hold()
        self.expect(self.run_asking("echo charge 4711"), 0, b"charge 4711\n", b"")
        self.expect(self.run_asking("exit 3"), 0, b"charge 4711\n", b"")
        self.assertEqual(self.runs(), 0)
        record = self.show("k")
        self.assertEqual(record["state"], "completed")
        act = record["history"][-1]
        self.assertEqual((act["what"], act["who"]), ("resolved as completed", "reconcile"))
        self.assertEqual(act["why"], "the reconcile command ended with exit 0")

    def test_what_did_not_take_place_runs_at_once(self):
        self.hold()
        self.expect(self.run_asking("exit 100", "--reconcile-settle", "0s"), 0, b"ran\n")
        self.assertEqual(self.runs(), 1)
        self.assertEqual([entry["what"] for entry in self.show("k")["history"]], ["unknown", "released"])

    def test_that_counts_only_after_the_settle_time(self):
        self.hold()
        done = self.expect(self.run_asking("exit 100"), 242, b"", b"which counts only after")
        self.assertIn(b"still unknown", done.stderr)
        self.assertEqual(self.runs(), 0)
        self.assertEqual(self.show("k")["state"], "unknown")

    def test_a_final_failure_is_replayed(self):
        self.hold()
        self.expect(self.run_asking("echo refunded; exit 101"), 101, b"refunded\n")
        self.expect(self.run_asking("exit 100", "--reconcile-settle", "0s"), 101, b"refunded\n")
        self.assertEqual(self.show("k")["failure"]["code"], "exit 101")
        self.assertEqual(self.runs(), 0)

    def test_nothing_else_decides(self):
        self.hold()
        self.path("not-executable").write_text("exit 100\n")
        before = self.show("k")
        asks = ["fnd-charge", "if", "./not-executable", "kill -9 $$", "kill -TERM $$"]
        for ask in asks + [f"exit {code}" for code in (1, 2, 64, 65, 78, 99, 102, 126, 127, 128, 137, 228, 255)]:
            with self.subTest(ask=ask):
                self.expect(self.run_asking(ask, "--reconcile-settle", "0s"), 242, b"", b"still unknown")
        done = self.run_asking("sleep 1000; exit 100", "--reconcile-settle", "0s", "--reconcile-timeout", "50ms")
        self.expect(done, 242, b"", b"did not end within 50 ms")
        self.assertEqual(self.runs(), 0)
        self.assertEqual(self.show("k"), before)

    def test_its_own_operation_is_asked_about_too(self):
        script = "echo x >>ran; test -e up || exit 3; echo up"
        run = ["run", "--key", "k", "--on-failure", "hold", "--reconcile-settle", "0s"]
        self.expect(self.once(*run, "--reconcile", "exit 1", "--", "sh", "-c", script), 3, b"", b"is unknown")
        self.expect(self.once(*run, "--reconcile", "touch up; exit 100", "--", "sh", "-c", script), 0, b"up\n")
        self.assertEqual(self.runs(), 2)
        run[2] = "other"
        self.expect(self.once(*run, "--reconcile", "echo found", "--", "sh", "-c", "exit 3"), 0, b"found\n", b"")

    def test_it_asks_a_bounded_number_of_times(self):
        run = ["run", "--key", "k", "--on-failure", "hold", "--reconcile-settle", "0s", "--reconcile"]
        done = self.once(*run, "echo x >>asked; exit 100", "--", "sh", "-c", "echo x >>ran; exit 3")
        self.expect(done, 3, b"", b"is unknown")
        self.assertEqual((self.runs("asked"), self.runs()), (2, 3))

    def test_it_knows_which_operation(self):
        key = "a b'; exit 100 #$(exit 100)"
        scope = ["--scope", "pay ments"]
        derived = self.once("run", "--key", key, *scope, "--on-failure", "hold", "--fingerprint", "none", "--",
                            "sh", "-c", 'printf %s "$ONCE_DERIVED_KEY"; exit 1').stdout
        ask = 'printf "%s|%s|%s|%s|%s" "$ONCE_KEY" "$ONCE_SCOPE" "$ONCE_LABEL" "$ONCE_ATTEMPT" "$ONCE_DERIVED_KEY"'
        done = self.expect(self.run_asking(ask, *scope, key=key), 0)
        self.assertEqual(done.stdout, f"{key}|pay ments|{key}|1|".encode() + derived)

    def test_a_signal_ends_the_question_and_decides_nothing(self):
        self.hold()
        process = self.start("run", "--key", "k", "--fingerprint", "none", "--reconcile-settle", "0s",
                             "--reconcile", "echo $$ >asking; sleep 1000; exit 100", "--", "sh", "-c", "echo x >>ran")
        asking = wait_until(lambda: self.path("asking").exists() and self.path("asking").read_text().strip(), "asks")
        process.terminate()
        self.assertEqual(process.wait(harness.DEADLINE_S), -15)
        wait_until(lambda: not harness.alive(int(asking)), "the command of the question is gone")
        self.assertEqual((self.show("k")["state"], self.runs()), ("unknown", 0))

    def test_a_person_who_decides_first_wins(self):
        self.hold()
        resolve = f"'{harness.PROGRAM}' resolve --key k --as completed --result receipt --reason seen >/dev/null"
        self.path("receipt").write_bytes(b"by hand\n")
        self.expect(self.run_asking(f"{resolve}; exit 100", "--reconcile-settle", "0s"), 0, b"by hand\n")
        self.assertEqual(self.runs(), 0)

    def test_the_log_says_so(self):
        self.hold()
        done = self.expect(self.run_asking("exit 1", "--log", "json"), 242)
        *_, asked, later, said = [json.loads(line) for line in done.stderr.splitlines()]
        self.assertEqual((asked["event"], asked["why"]), ("reconcile_later", "the reconcile command: exit 1"))
        self.assertEqual([(line["event"], line["level"]) for line in (later, said)], [("note", "warning"), ("note", "err")])
        done = self.expect(self.run_asking("exit 0", "--log", "json"), 0)
        line = json.loads(done.stderr.splitlines()[-1])
        self.assertEqual((line["level"], line["event"]), ("notice", "reconciled"))
        self.assertEqual(line["why"], "resolved as completed by reconcile: the reconcile command ended with exit 0")


class Identity(Case):
    def test_another_command_under_the_same_key_is_a_mismatch(self):
        self.expect(self.once("run", "--key", "k", "--", "echo", "a"), 0)
        self.expect(self.once("run", "--key", "k", "--", "echo", "b"), 241, b"", b"used for something else")
        # Arguments that only look alike when they are joined.
        self.expect(self.once("run", "--key", "j", "--", "echo", "a b"), 0)
        self.expect(self.once("run", "--key", "j", "--", "echo", "a", "b"), 241)

    def test_without_a_fingerprint_anything_is_replayed(self):
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "echo", "a"), 0, b"a\n")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "echo", "b"), 0, b"a\n")

    def test_environment_variables(self):
        def run(**more):
            return self.once("run", "--key", "k", "--fingerprint", "args,env:DAY", "--", "true", env={**self.env, **more})

        self.expect(run(DAY="monday"), 0)
        self.expect(run(DAY="monday", OTHER="x"), 0)
        self.expect(run(DAY="tuesday"), 241)
        self.expect(run(DAY=""), 241)

    def test_a_fingerprint_that_selects_nothing_is_refused(self):
        command = ["--", "sh", "-c", "echo x >>ran"]
        empty = self.path("empty")
        empty.touch()
        for key, words, missing in (("a", "env:AMUONT", b"env:AMUONT"), ("b", "args,env:PATH,env:AMUONT", b"env:AMUONT"),
                                    ("c", "stdin", b"stdin"), ("d", "args,stdin", b"stdin")):
            for source in (subprocess.DEVNULL, open(empty, "rb")):
                with self.subTest(words=words):
                    run = ["run", "--key", key, "--fingerprint", words]
                    said = missing + b" selects nothing"
                    self.expect(self.once(*run, *command, stdin=source), 64, b"", said)
                    self.assertEqual(self.runs(), 0)
                    self.assertFalse(self.path("once.db").exists())
                if source != subprocess.DEVNULL:
                    source.close()
        # Chosen. A variable that is unset differs from one that is empty.
        chosen = ["run", "--key", "a", "--fingerprint", "env:AMOUNT,stdin", "--allow-null-parts", *command]
        for _ in range(2):
            self.expect(self.once(*chosen, stdin=subprocess.DEVNULL), 0)
        self.assertEqual(self.runs(), 1)
        self.expect(self.once(*chosen, stdin=subprocess.DEVNULL, env={**self.env, "AMOUNT": ""}), 241)
        self.expect(self.once(*chosen, input=b"x"), 241)

    def test_a_source_without_a_key_is_refused(self):
        for name, content in (("empty", b""), ("line", b"\n"), ("lines", b"\r\n\n")):
            with self.subTest(content=content):
                self.path(name).write_bytes(content)
                command = ["--", "touch", "ran"]
                self.expect(self.once("run", "--key-file", name, *command), 64)
                with open(self.path(name), "rb") as file:
                    self.expect(self.once("run", "--key-file", "-", *command, stdin=file), 64)
        for words in (["--key", ""], ["--key-hex", ""], ["--key-file", "missing"], ["--key-file", os.devnull]):
            with self.subTest(words=words):
                self.expect(self.once("run", *words, "--", "touch", "ran"), 64)
        self.assertFalse(self.path("ran").exists())

    def test_standard_input(self):
        command = ["run", "--key", "k", "--fingerprint", "stdin", "--", "sh", "-c", "echo x >>ran; cat"]
        self.expect(self.once(*command, input=ALL_BYTES), 0, ALL_BYTES)
        self.expect(self.once(*command, input=ALL_BYTES), 0, ALL_BYTES)
        self.expect(self.once(*command, input=ALL_BYTES + b"x"), 241)
        self.path("in").write_bytes(ALL_BYTES)
        with open(self.path("in"), "rb") as file:  # A file gives the same.
            self.expect(self.once(*command, stdin=file), 0, ALL_BYTES)
        self.assertEqual(self.runs(), 1)
        self.assertEqual([name for name in os.listdir(self.dir) if "input" in name], [])

    def test_a_file_is_read_from_where_it_stands(self):
        self.path("in").write_bytes(b"head\nbody\n")
        with open(self.path("in"), "rb") as file:
            os.lseek(file.fileno(), 5, os.SEEK_SET)
            command = ["run", "--key", "k", "--fingerprint", "stdin", "--", "cat"]
            self.expect(self.once(*command, stdin=file), 0, b"body\n")
        self.expect(self.once(*command, input=b"body\n"), 0, b"body\n")

    def test_the_command_reads_the_bytes_that_were_compared(self):
        self.path("in").write_bytes(b"amount 5")
        command = ["run", "--key", "k", "--fingerprint", "stdin", "--", "sh", "-c", "printf 'amount 9' >in; cat"]
        with open(self.path("in"), "rb") as file:  # It changes between the comparison and the command's reading.
            self.expect(self.once(*command, stdin=file), 0, b"amount 5")
        self.expect(self.once(*command, input=b"amount 5"), 0, b"amount 5")
        self.expect(self.once(*command, input=b"amount 9"), 241)

    def test_a_mistyped_variable_is_noticed(self):
        told = b"once: ONCE_STOER is set, but once knows no such variable. Did you mean ONCE_STORE?\n"
        self.expect(self.once("run", "--key", "k", "--", "true", env={**self.env, "ONCE_STOER": "memory:"}), 0, b"", told)
        inner = [harness.PROGRAM, "run", "--key", "inner", "--", "true"]
        done = self.once("run", "--key", "outer", "--", *inner, env={**self.env, "ONCE_PAYMENTS_URL": "x"})
        self.expect(done, 0, b"")
        self.assertEqual(done.stderr, b"")

    @own_store("switched off, no server is started that makes the file")
    def test_switched_off_every_call_runs_and_says_so(self):
        off = {**self.env, "ONCE_DISABLED": "1"}
        command = ["run", "--key", "k", "--", "sh", "-c", "echo x >>ran; echo ${ONCE_DISABLED-protected}"]
        for _ in range(2):
            self.expect(self.once(*command, env=off), 0, b"protected\n", b"ONCE_DISABLED is set: 'k' runs unprotected")
        self.assertEqual(self.runs(), 2)
        self.expect(self.once("show", "--key", "k"), 239)
        self.expect(self.once(*command, env={**self.env, "ONCE_DISABLED": "ture"}), 64, b"", b"ONCE_DISABLED is 'ture'")
        self.assertEqual(self.runs(), 2)
        self.expect(self.once(*command), 0, b"protected\n")
        self.assertEqual(self.runs(), 3)

    def test_too_much_standard_input(self):
        command = ["run", "--key", "k", "--fingerprint", "stdin", "--input-limit", "1KiB", "--", "touch", "ran"]
        self.expect(self.once(*command, input=b"x" * 1025), 64, b"", b"--input-limit")
        self.assertFalse(self.path("ran").exists())
        self.expect(self.once(*command, input=b"x" * 1024), 0)

    def bytes_of_store(self):
        return b"".join(path.read_bytes() for path in self.dir.glob("once.db*"))

    def test_nothing_of_the_call_is_kept_unless_asked_for(self):
        self.expect(self.once("run", "--key", "k", "--fingerprint", "args,stdin", "--", "true", "secret-word", input=b"secret-in"), 0)
        self.assertEqual((self.show("k")["input_bytes"], self.show("k")["input"]), (0, ""))
        self.assertNotIn(b"secret", self.bytes_of_store())
        self.assertNotIn(b"input", self.once("show", "--key", "k").stdout)

    @own_store("a server keeps no inputs")
    def test_the_command_line_is_kept_if_asked_for(self):
        self.expect(self.once("run", "--key", "k", "--keep-input", "args", "--", "true", "--order", 'a "b"', b"\xff"), 0)
        self.assertEqual(self.show("k")["input"], '["true","--order","a \\"b\\"","\ufffd"]')
        text = self.once("show", "--key", "k").stdout.decode()
        self.assertIn('\n  | ["true","--order","a \\\\"b\\\\"",', text)
        self.assertNotIn("input", json.loads(self.once("ls", "--json").stdout)[0])
        self.expect(self.once("run", "--key", "l", "--keep-input", "args", "--input-without", "x", "--", "true"), 64, b"",
                    b"--keep-input stdin")
        self.expect(self.once("run", "--key", "l", "--keep-input", "yes", "--", "true"), 64, b"")
        self.expect(self.once("run", "--key", "l", "--keep-input", "stdin", "--", "true"), 64, b"", b"--fingerprint args,stdin")

    @own_store("a server keeps no inputs")
    def test_standard_input_is_kept_if_asked_for_without_what_is_left_out(self):
        keep = ["--fingerprint", "stdin", "--keep-input", "stdin"]
        without = [*keep, "--input-without", "card.number", "--input-without", "items[*].pin"]
        body = b'{"order": 17, "card": {"number": "4111-secret"}, "items": [{"pin": "secret-1"}, {}]}'
        self.expect(self.once("run", "--key", "k", *without, "--", "sh", "-c", "cat >got", input=body), 0, b"")
        self.assertEqual(self.path("got").read_bytes(), body, "the command gets all of it")
        self.assertEqual(json.loads(self.show("k")["input"]),
                         {"order": 17, "card": {"number": "(left out)"}, "items": [{"pin": "(left out)"}, {}]})
        for number, unreadable in enumerate((b"card=4111-secret", b'{"card":"secret","card":1}', b"\xff\x00secret")):
            self.expect(self.once("run", "--key", f"u{number}", *without, "--", "true", input=unreadable), 0)
            self.assertEqual(self.show(f"u{number}")["input_bytes"], 0, unreadable)
        self.assertNotIn(b"secret", self.bytes_of_store())
        self.expect(self.once("run", "--key", "l", *keep, "--", "true", input=b"\xff\x00any"), 0)
        self.assertEqual((self.show("l")["input"], self.show("l")["input_base64"]), (None, "/wBhbnk="))
        self.path("in").write_bytes(body)
        with open(self.path("in"), "rb") as file:
            self.expect(self.once("run", "--key", "m", *keep, "--", "cat", stdin=file), 0, body)
        self.assertEqual(self.show("m")["input"].encode(), body)
        self.expect(self.once("run", "--key", "n", *keep, "--input-without", "length(card)", "--", "touch", "ran", input=body),
                    64, b"", b"does not say where a field stands")
        self.assertFalse(self.path("ran").exists())

    @own_store("a server keeps no inputs")
    def test_a_long_input_is_cut_and_its_size_told(self):
        keep = ["--fingerprint", "stdin", "--keep-input", "stdin"]
        self.expect(self.once("run", "--key", "k", *keep, "--", "wc", "-c", input=b"x" * 300_000), 0, b"300000\n")
        record = self.show("k")
        self.assertEqual((record["input_bytes"], len(record["input"])), (300_000, 65536))
        self.assertRegex(self.once("show", "--key", "k").stdout.decode(), r"\ninput +the first 64.0 KiB of 293.0 KiB\n")
        body = b'{"pin": "secret-' + b"x" * 300_000 + b'", "after": "' + b"y" * 70_000 + b'"}'
        self.expect(self.once("run", "--key", "l", *keep, "--input-without", "pin", "--", "true", input=body), 0)
        record = self.show("l")
        self.assertEqual((len(record["input"]), record["input"][:40]), (65536, '{"pin":"(left out)","after":"yyyyyyyyyyy'))
        self.assertNotIn(b"secret", self.bytes_of_store())

    @own_store("a server keeps no inputs")
    def test_a_takeover_keeps_no_input_that_it_did_not_ask_for(self):
        self.expect(self.once("run", "--key", "k", "--keep-input", "args", "--on-failure", "release", "--on-lapse", "hold",
                              "--", "sh", "-c", "exit 3 # secret-word"), 3)
        self.assertIn("secret-word", self.show("k")["input"])
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "true"), 0)
        self.assertEqual(self.show("k")["input_bytes"], 0)

    def test_standard_input_is_passed_through_untouched_otherwise(self):
        self.expect(self.once("run", "--key", "k", "--", "cat", input=b"hello"), 0, b"hello")

    @own_store("a server takes text")
    def test_keys_of_any_bytes(self):
        for name, key in (("hex", b"a\0b\nc"), ("file", b"\n\x01\xff\0")):
            with self.subTest(name=name):
                self.path("key").write_bytes(key)
                by_hex = ["--key-hex", key.hex()]
                by_file = ["--key-file", "key"]
                self.expect(self.once("run", *by_hex, "--", "sh", "-c", "echo $ONCE_ATTEMPT ${ONCE_KEY-none}"), 0, b"1 none\n")
                record = json.loads(self.expect(self.once("show", *by_file, "--json"), 0).stdout)
                self.assertEqual(bytes.fromhex(record["stored_key_hex"]), b"#" + key)
                self.assertIn(b"\\", self.once("ls").stdout)

    def test_keys_that_look_like_something_else(self):
        for key in ("[a,b]", "--key", "-5", "a b", "%23#", "{}", "", "é"):
            with self.subTest(key=key):
                if not key:
                    self.expect(self.once("run", "--key", key, "--", "true"), 64, b"", b"the key is empty")
                    continue
                done = self.once("run", f"--key={key}", "--", "printenv", "ONCE_KEY")
                self.expect(done, 0, key.encode() + b"\n")

    def test_arguments_reach_the_command_as_they_are(self):
        arguments = ["[a,b]", "--", "-x", "--key", "", "a\nb", "[", "]", "%", "--help", "'\"\\"]
        script = "import sys, json; print(json.dumps(sys.argv[1:]))"
        done = self.expect(self.once("run", "--key", "k", "--", "python3", "-c", script, *arguments), 0)
        self.assertEqual(json.loads(done.stdout), arguments)

    def test_long_keys(self):
        self.path("key").write_bytes(b"k" * 10_000_000)
        for command in (["run", "--key-file", "key", "--", "touch", "ran"], ["show", "--key-file", "key"]):
            self.expect(self.once(*command), 64, b"", b"1024 bytes")
        self.expect(self.once("run", "--key", "k" * 1024, "--", "touch", "ran"), 64, b"", b"1024")
        self.assertFalse(self.path("ran").exists())
        self.expect(self.once("run", "--key", "k" * 1023, "--", "true"), 0)

    def test_scopes_keep_keys_apart(self):
        for scope in ("", "a", "b", "a#", "a%23"):
            self.expect(self.once("run", "--key", "k", "--scope", scope, "--", "sh", "-c", "echo $ONCE_SCOPE"), 0,
                        scope.encode() + b"\n")
        self.assertEqual(len(json.loads(self.once("ls", "--json").stdout)), 5)


class Together(Case):
    def test_conflict_and_waiting(self):
        self.fifo("go")
        command = ["--", "sh", "-c", "echo x >>ran; cat go; echo done"]
        first = self.start("run", "--key", "k", *command)
        wait_until(lambda: self.runs() == 1, "the first runs")
        conflict = self.expect(self.once("run", "--key", "k", *command), 240, b"", b"--wait")
        self.assertIn(b"is being run by", conflict.stderr)
        self.expect(self.once("run", "--key", "k", "--wait", "50ms", *command), 240, b"", b"within 50ms")
        waiting = self.start("run", "--key", "k", "--wait", "60s", *command)
        self.expect(self.once("run", "--key", "k", "--", "echo", "other"), 241)  # A mismatch is told before a conflict.
        self.open_gate("go")
        self.assertEqual(first.communicate()[0], b"go\ndone\n")
        self.assertEqual(waiting.communicate()[0], b"go\ndone\n")
        self.assertEqual((first.returncode, waiting.returncode, self.runs()), (0, 0, 1))

    def test_a_running_operation_is_skipped_if_that_is_asked_for(self):
        self.fifo("go")
        command = ["--", "sh", "-c", "echo x >>ran; cat go"]
        skip = ["run", "--key", "k", "--if-running", "skip"]
        first = self.start(*skip, "--expect", "1h", *command)
        wait_until(lambda: self.runs() == 1, "the first runs")
        self.assertEqual(self.expect(self.once(*skip, *command), 0, b"").stderr, b"")
        self.expect(self.once(*skip, "-v", *command), 0, b"", b"skipped: 'k' is being run by")
        self.expect(self.once(*skip, "--", "echo", "other"), 241, b"", b"something else")
        self.expect(self.once("run", "--key", "k", *command), 240, b"", b"is being run by")
        self.open_gate("go")
        self.assertEqual((first.communicate()[0], first.returncode), (b"go\n", 0))
        self.expect(self.once(*skip, *command), 0, b"go\n")  # A replay.

    def test_what_is_overdue_or_unknown_is_not_skipped(self):
        self.fifo("go")
        command = ["--", "sh", "-c", "echo x >>ran; cat go"]
        first = self.start("run", "--key", "late", "--expect", "1ms", *command)
        wait_until(lambda: self.runs() == 1, "the first runs")
        wait_until(lambda: self.once("ls", "--overdue", "--json").stdout.strip() != b"[]", "it is overdue")
        self.expect(self.once("run", "--key", "late", "--if-running", "skip", *command), 240, b"", b"'late' is overdue: it should")
        self.open_gate("go")
        first.communicate()
        self.expect(self.once("run", "--key", "lost", "--on-failure", "hold", "--", "false"), 1)
        self.expect(self.once("run", "--key", "lost", "--if-running", "skip", "--on-failure", "hold", "--", "false"), 242, b"",
                    b"unknown")

    def test_a_waiting_caller_can_be_interrupted(self):
        self.fifo("go")
        first = self.start("run", "--key", "k", "--", "sh", "-c", "echo x >>ran; cat go")
        wait_until(lambda: self.runs() == 1, "the first runs")
        waiting = self.start("run", "-v", "--key", "k", "--wait", "60s", "--", "sh", "-c", "echo x >>ran; cat go")
        wait_until(lambda: self.blocked_signals(waiting.pid), "signals taken over")
        waiting.terminate()
        self.assertEqual(waiting.wait(), -15)
        self.open_gate("go")
        self.assertEqual(first.wait(), 0)
        self.assertEqual(self.runs(), 1)

    @staticmethod
    def blocked_signals(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            blocked = next(line for line in status if line.startswith("SigBlk")).split()[1]
        return int(blocked, 16) >> 14 & 1  # SIGTERM

    def test_twenty_at_once_run_it_once(self):
        script = "echo x >>ran; echo $$ $ONCE_TOKEN; echo said >&2; exit 5"
        store = self.store + "?busy_timeout=60s"  # They take turns at the file, and each turn has a sync.
        processes = [self.start("run", "--store", store, "--key", "k", "--wait", "60s", "--", "sh", "-c", script)
                     for _ in range(20)]
        outputs = {process.communicate() for process in processes}
        self.assertEqual(self.runs(), 1)
        self.assertEqual(len(outputs), 1, outputs)
        self.assertEqual({process.returncode for process in processes}, {5})

    def test_runs_longer_than_its_lease(self):
        self.fifo("go")
        command = ["run", "--key", "k", "--lease", "6s", "--", "sh", "-c", "echo x >>ran; cat go"]
        first = self.start(*command)
        wait_until(lambda: self.runs() == 1, "the first runs")
        begun = self.show("k")
        # Renewed often enough that the lease it began with is long over.
        wait_until(lambda: self.writes("k") >= (begun["revision"] >> 20) + 4, "renewed")
        self.expect(self.once(*command), 240)
        self.open_gate("go")
        self.assertEqual(first.wait(), 0)
        self.assertEqual(self.runs(), 1)


class StoreDown(Case):
    def test_stores_that_cannot_be_used(self):
        self.path("file").write_text("text")
        self.path("garbage").write_bytes(b"\x01\x02garbage" * 1000)
        for url, code in ((f"sqlite:{self.dir}/file/x.db", 243), (f"sqlite:{self.dir}/missing/x.db", 243),
                          (f"sqlite:{self.dir}/garbage", 244), (f"sqlite:{self.dir}", None), ("redis://x", 64),
                          ("sqlite:", 64), (f"sqlite:{self.dir}/x.db?colour=red", 64), ("nonsense", 64),
                          ("dynamodb://t?region=eu-central-1&dialect=powertools-python", 64)):
            with self.subTest(url=url):
                done = self.once("run", "--store", url, "--key", "k", "--", "touch", "ran")
                self.assertIn(done.returncode, (243, 244, 64) if code is None else (code,), done.stderr)
                self.assertIn(b"Nothing was run", done.stderr)
                self.assertFalse(self.path("ran").exists())

    @own_store("a server notices that its file was replaced")
    def test_a_file_damaged_underneath(self):
        self.expect(self.once("run", "--key", "first", "--", "true"), 0)
        database = self.path("once.db")
        for name in ("once.db-wal", "once.db-shm"):
            if self.path(name).exists():
                self.path(name).unlink()
        database.write_bytes(os.urandom(8192))
        self.expect(self.once("run", "--key", "k", "--", "touch", "ran"), 244)
        self.assertFalse(self.path("ran").exists())
        self.assertEqual(self.once("doctor").returncode, 244)

    def test_run_without_protection_if_told_so(self):
        command = ["run", "--store", f"sqlite:{self.dir}/missing/x.db", "--key", "k", "--on-store-down",
                   "run-unprotected", "--"]
        done = self.once(*command, "sh", "-c", "echo $ONCE_ATTEMPT $ONCE_TOKEN; exit 9")
        self.expect(done, 9, b"1 0\n", b"without protection")
        with open("/dev/full", "wb") as full:
            self.expect(self.once(*command, "echo", "hi", stdout=full), 74, None, b"No space left")
        # Only a store that is down: a wrong flag is not.
        self.expect(self.once("run", "--store", "redis:x", "--key", "k", "--on-store-down", "run-unprotected",
                              "--", "true"), 64)

    @own_store("a server decides what is kept outside the store")
    def test_what_has_run_is_not_run_without_protection(self):
        command = ["run", "--key", "k", "--output-limit", "1KiB", "--on-store-down", "run-unprotected", "--",
                   "sh", "-c", "echo x >>ran; head -c 9000 /dev/urandom"]
        self.expect(self.once(*command), 0)
        results = self.path("once.db.results")
        results.rename(self.path("away"))
        results.touch()  # The store says that it ran; its output cannot be had.
        self.expect(self.once(*command), 243, b"", b"Nothing was run")
        self.assertEqual(self.runs(), 1)
        results.unlink()
        self.path("away").rename(results)
        self.assertEqual(self.once(*command).returncode, 0)
        self.assertEqual(self.runs(), 1)

    def test_default_store(self):
        env = {name: value for name, value in self.env.items() if name != "ONCE_STORE"}
        home = {**env, "HOME": str(self.dir)}
        self.expect(self.once("ls", env=home), 243, b"", b"there is no store yet")
        self.expect(self.once("run", "--key", "k", "--", "true", env=home), 0)
        self.assertTrue((self.dir / ".local/state/once/once.db").exists())
        self.assertEqual(os.stat(self.dir / ".local/state/once").st_mode & 0o777, 0o700)
        state = {**home, "XDG_STATE_HOME": str(self.dir / "state %23")}
        self.expect(self.once("run", "--key", "k", "--", "true", env=state), 0)
        self.assertTrue((self.dir / "state %23/once/once.db").exists())
        del env["HOME"]
        self.expect(self.once("run", "--key", "k", "--", "true", env=env), 64, b"", b"HOME is not set")

    def test_store_flag_counts_more_than_the_variable(self):
        self.expect(self.once("run", "--store", f"sqlite:{self.dir}/other.db", "--key", "k", "--", "true"), 0)
        self.assertTrue(self.path("other.db").exists())
        self.assertFalse(self.path("once.db").exists())


class Usage(Case):
    def test_wrong_calls(self):
        for arguments, said in (
                ([], b""), (["nothing"], b""), (["run"], b"no command"), (["run", "--", "true"], b"the key is missing"),
                (["run", "--key", "k"], b"no command"), (["run", "--key", "k", "--"], b"no command"),
                (["run", "--key", "k", "true"], b""), (["run", "--key", "k", "--colour", "--", "true"], b"colour"),
                (["run", "--key", "a", "--key", "b", "--", "true"], b"--key"),
                (["run", "--key", "a", "--key-hex", "61", "--", "true"], b"only one of --key"),
                (["run", "--key-hex", "6", "--", "true"], b"hexadecimal"),
                (["run", "--key", "k", "--lease", "30", "--", "true"], b"--lease"),
                (["run", "--key", "k", "--lease", "1ms", "--", "true"], b"lease"),
                (["run", "--key", "k", "--lease", "-1s", "--", "true"], b"--lease"),
                (["run", "--key", "k", "--lease", "1.5s", "--", "true"], b"--lease"),
                (["run", "--key", "k", "--lease", "99999999999999999999s", "--", "true"], b"--lease"),
                (["run", "--key", "k", "--wait", "soon", "--", "true"], b"--wait"),
                (["run", "--key", "k", "--on-failure", "keep", "--", "true"], b"--on-failure"),
                (["run", "--key", "k", "--on-exit", "0=store", "--", "true"], b"--on-exit"),
                (["run", "--key", "k", "--on-exit", "5", "--", "true"], b"--on-exit"),
                (["run", "--key", "k", "--on-exit", "9-5=store", "--", "true"], b"--on-exit"),
                (["run", "--key", "k", "--fingerprint", "args,none", "--", "true"], b"--fingerprint"),
                (["run", "--key", "k", "--fingerprint", "environment", "--", "true"], b"--fingerprint"),
                (["run", "--key", "k", "--output-limit", "1XB", "--", "true"], b"--output-limit"),
                (["ls", "--", "true"], b"only `once run`"), (["ls", "--state", "odd"], b"--state"),
                (["show"], b"the key is missing"), (["show", "a", "--key", "b"], b"not both"),
                (["run", "--key", "k", "--if-running", "wait", "--", "true"], b"--if-running"), (["release", "--key", "k"], b"--reason"),
                (["sweep", "--expired-for", "long"], b"--expired-for")):
            with self.subTest(arguments=arguments):
                self.expect(self.once("run", "--key", "there", "--", "true"), 0)
                done = self.once(*arguments)
                self.expect(done, 64, None, said)

    def test_help_and_version(self):
        self.assertIn(b"run", self.expect(self.once("--help"), 0).stdout)
        self.assertRegex(self.expect(self.once("--version"), 0).stdout, rb"^once \d+\.\d+\.\d+\n$")
        for command in ("run", "ls", "show", "resolve", "release", "extend", "sweep", "stats", "doctor"):
            shown = self.expect(self.once(command, "--help"), 0).stdout
            self.assertIn(b"Examples:", shown, command)
            self.assertIn(f"Usage: once {command} ".encode(), shown)
        self.assertIn(b"Usage: once table check ", self.expect(self.once("table", "check", "--help"), 0).stdout)

    def test_the_key_is_an_argument_too(self):
        self.expect(self.once("run", "--key", "order-17", "--scope", "pay", "--on-failure", "hold", "--", "false"), 1)
        shown = self.expect(self.once("show", "--key", "order-17", "--scope", "pay", "--json"), 0).stdout
        self.assertEqual(self.expect(self.once("show", "order-17", "--scope", "pay", "--json"), 0).stdout, shown)
        self.assertEqual(self.expect(self.once("show", "order-17", "--json"), 0).stdout, shown)  # As a label.
        self.expect(self.once("show", "order-17", "order-18"), 64)
        self.expect(self.once("resolve", "order-17", "--scope", "pay", "--as", "failed", "--reason", "r"), 0)
        self.expect(self.once("extend", "order-17", "--scope", "pay", "--by", "1h", "--reason", "r"), 0)
        self.expect(self.once("rm", "order-17", "--all", "--state", "failed", "--reason", "r"), 64, None, b"not both")
        self.expect(self.once("rm", "order-17", "--scope", "pay", "--reason", "r"), 0)
        self.expect(self.once("show", "order-17", "--scope", "pay"), 239)


if __name__ == "__main__":
    harness.main()
