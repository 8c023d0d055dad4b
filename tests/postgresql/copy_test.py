"""copy_test.py ONCE [KILL_BEFORE]: `once copy`, from outside: what it says, killed before each of its steps, and in a
storm of programs that use both stores. KILL_BEFORE: the library made of tests/apps/kill_before.cpp."""
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "apps"), str(ROOT / "real_servers"), str(ROOT / "proxy")]
import harness  # noqa: E402
import postgresql  # noqa: E402
from harness import Case, wait_until  # noqa: E402
from service import ProxyCase  # noqa: E402

SERVER = None
KILL_BEFORE = None
KILLED = -9
MISUSE = 64


def moves_to(first, second):
    """The URL of a program that has both stores."""
    results = "offload=file:" + first.removeprefix("sqlite:") + ".results&" if first.startswith("sqlite:") else ""
    return first + ("&" if "?" in first else "?") + results + "moves_to=" + urllib.parse.quote(second, safe="/:@?=")


class CopyCase(Case):
    def setUp(self):
        super().setUp()
        for name in [name for name in self.env if name.startswith("PG") or name == "ONCE_STORE"]:
            del self.env[name]
        self.database = SERVER.database() + "?allow_unsafe=1"
        self.file = f"sqlite:{self.dir}/from.db"
        self.table = self.new_table("once")

    def new_table(self, schema):
        url = f"{self.database}&schema={schema}"
        self.expect(self.once("table", "create", "--store", url), 0)
        return url

    def run_key(self, store, key, *command, **options):
        """Runs an operation that leaves a line in the ledger of its key."""
        command = command or ("sh", "-c", f"echo $WHERE >> {self.dir}/ledger-{key}; echo result of {key} $$")
        options.setdefault("env", dict(self.env, WHERE=store))
        return self.once("run", "--store", store, "--key", key, "--", *command, text=True, **options)

    def ran(self, key):
        return self.runs(f"ledger-{key}")

    def copy(self, *arguments, code=0, **options):
        done = self.once("copy", *arguments, text=True, **options)
        self.assertEqual(done.returncode, code, f"{arguments}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def marks(self, source, target):
        plan = json.loads(self.copy("--dry-run", "--json", source, target).stdout)
        return plan["from"], plan["to"]


class Commands(CopyCase):
    def test_moves_and_says_what_comes_next(self):
        first = self.expect(self.run_key(self.file, "a"), 0).stdout
        self.assertIn("would move 1 records", self.copy("--dry-run", self.file, self.table).stdout)
        new = self.path("new.db")
        self.assertIn("new.db, which it creates", self.copy("--dry-run", self.file, f"sqlite:{new}").stdout)
        self.assertFalse(new.exists())
        self.copy("--dry-run", self.file, f"sqlite:{new}?create=0", code=243)
        self.copy("--dry-run", self.file, f"sqlite:{self.path('nowhere')}/new.db", code=243)
        self.expect(self.run_key(self.file, "b"), 0)
        self.assertRegex(self.copy(self.file, self.table).stdout,
                         r"moved 2 records \(.*\) from sqlite:.* to postgresql:.*takes claims: let every program use it")
        refused = self.run_key(self.file, "c")
        self.expect(refused, MISUSE, stderr="this store has moved to postgresql://")
        self.assertIn("Nothing was run", refused.stderr)
        self.assertEqual(self.ran("c"), 0)
        # No policy runs it without protection.
        unprotected = self.once("run", "--store", self.file, "--key", "c", "--on-store-down", "run-unprotected", "--", "touch",
                                "ran", text=True)
        self.expect(unprotected, MISUSE)
        self.assertFalse(self.path("ran").exists())
        # The one replays, the other too, and runs what is new.
        for store in (self.file, self.table):
            self.assertEqual(self.expect(self.run_key(store, "a"), 0).stdout, first)
        self.expect(self.run_key(self.table, "c"), 0)
        self.assertEqual([self.ran(key) for key in "abc"], [1, 1, 1])
        self.assertIn("before: nothing was done", self.copy(self.file, self.table).stdout)
        self.assertIn("the move is over", self.copy("--undo", self.file, self.table, code=MISUSE).stderr)
        self.assertRegex(self.once("doctor", "--store", self.file, text=True).stdout, "problem +gate +this store has moved")
        self.assertNotIn("gate", self.once("doctor", "--store", self.table, text=True).stdout)

    def test_back_from_postgresql(self):
        first = self.expect(self.run_key(self.table, "a"), 0).stdout
        self.copy(self.table, self.file)
        self.assertEqual(self.expect(self.run_key(self.file, "a"), 0).stdout, first)
        self.expect(self.run_key(self.table, "b"), MISUSE, stderr="this store has moved to sqlite:")

    def test_says_what_it_waits_for(self):
        self.fifo("go")
        holder = self.start("run", "--store", self.file, "--key", "slow", "--scope", "pay", "--lease", "6s", "--", "sh", "-c",
                            "echo $$ > pid; read line < go; echo paid", text=True)
        self.pid_in("pid")
        waits = self.copy("--wait", "0s", self.file, self.table, code=240)
        self.assertIn("1 operation still runs", waits.stderr)
        self.assertIn("'slow' in scope 'pay', held by", waits.stderr)
        report = json.loads(self.copy("--wait", "0s", "--json", self.file, self.table, code=240).stdout)
        self.assertEqual((report["outcome"], report["live_count"], report["live"][0]["key"]), ("running", 1, "slow"))
        self.assertEqual(self.marks(self.file, self.table), ("draining", "filling"))
        self.expect(self.run_key(self.file, "new"), MISUSE, stderr="no operation can begin here. Nothing was run")
        self.expect(self.run_key(self.table, "new"), MISUSE, stderr="waits for the records of sqlite:")
        doctor = self.once("doctor", "--store", self.table, text=True)
        self.assertRegex(doctor.stdout, "problem +gate +this store waits for the records of sqlite:")
        # It renews its lease, and finishes.
        def slow(store):
            return json.loads(self.once("show", "--store", store, "--key", "slow", "--scope", "pay", "--json").stdout)

        before = slow(self.file)["revision"]
        wait_until(lambda: slow(self.file)["revision"] > before, "it has renewed its lease")
        copying = self.start("copy", self.file, self.table, text=True)
        self.open_gate("go")
        self.assertEqual(holder.communicate(timeout=60)[0], "paid\n")
        out, err = copying.communicate(timeout=60)
        self.assertEqual(copying.returncode, 0, err)
        self.assertIn("moved 1 records", out)
        self.assertEqual(slow(self.table)["state"], "completed")

    def test_is_given_up(self):
        self.fifo("go")
        self.start("run", "--store", self.file, "--key", "slow", "--", "sh", "-c", "echo $$ > pid; read line < go")
        self.pid_in("pid")
        self.copy("--wait", "0s", self.file, self.table, code=240)
        self.assertIn("takes claims again", self.copy("--undo", self.file, self.table).stdout)
        self.expect(self.run_key(self.file, "new"), 0)
        self.assertIn("in no move", self.copy("--undo", self.file, self.table, code=MISUSE).stderr)

    def test_refusals(self):
        self.expect(self.run_key(self.file, "a"), 0)
        nothing = "Nothing was changed"
        self.assertIn(nothing, self.copy(self.file, self.file, code=MISUSE).stderr)
        self.assertIn("only stores in SQLite and PostgreSQL", self.copy(self.file, "memory:", code=MISUSE).stderr)
        self.assertIn("neither may be empty", self.copy("", self.table, code=MISUSE).stderr)
        self.assertIn("once table create", self.copy(self.file, self.database + "&schema=none", code=MISUSE).stderr)
        self.copy(f"sqlite:{self.dir}/missing.db", self.table, code=243)
        self.copy(self.file, self.table, "--wait", "soon", code=MISUSE)
        self.copy(self.file, code=MISUSE)
        for both in ((moves_to(self.file, self.table), self.table), (self.file, moves_to(self.table, self.file))):
            self.assertIn("without moves_to=", self.copy(*both, code=MISUSE).stderr)
        self.expect(self.run_key(self.table, "theirs"), 0)
        self.assertIn("has records of its own", self.copy(self.file, self.table, code=MISUSE).stderr)
        self.expect(self.run_key(self.file, "b"), 0)


class Killed(CopyCase):
    # In the order of a move.
    REACHED = [("open", "open"), ("announced", "open"), ("announced", "filling"), ("draining", "filling"),
               ("closed", "filling"), ("closed", "filled")]

    def test_before_each_step(self):
        """Each time the next command goes on, each key ran once, and every result is there."""
        if KILL_BEFORE is None:
            return  # Under a sanitizer, which wants to be the first library itself.
        reached = set()
        number = 0
        while True:
            number += 1
            self.file = f"sqlite:{self.dir}/from{number}.db"
            self.table = self.new_table(f"step{number}")
            keys = [f"{number}-{i}" for i in range(3)]
            first = {key: self.expect(self.run_key(self.file, key), 0).stdout for key in keys}
            plan = dict(self.env, LD_PRELOAD=KILL_BEFORE, ONCE_KILL_BEFORE=str(number), ONCE_KILL_FROM="connect")
            done = self.once("copy", self.file, self.table, text=True, env=plan)
            self.assertIn(done.returncode, (0, KILLED), done.stderr)
            marks = self.marks(self.file, self.table)
            self.assertIn(marks, self.REACHED, f"killed before step {number}")
            reached.add(marks)
            # As programs do that know both: where one refuses, the other is asked. Only one of them may run it.
            late = f"{number}-late"
            stores = (self.file, self.table) if marks[0] in ("open", "announced") else (self.table, self.file)
            asked = [self.run_key(store, late).returncode for store in stores]
            if marks[1] == "open":  # Nothing was begun, and nobody uses the target yet.
                self.table = self.new_table(f"other{number}")
                asked.pop()
                self.path(f"ledger-{late}").write_text("ran\n")
            self.assertIn(asked, ([0], [0, MISUSE], [MISUSE, MISUSE]), marks)
            self.copy(self.file, self.table)
            for key in keys:
                self.assertEqual(self.expect(self.run_key(self.table, key), 0).stdout, first[key])
                self.assertEqual(self.ran(key), 1)
            self.expect(self.run_key(self.table, late), 0)
            self.assertEqual(self.ran(late), 1)
            if done.returncode == 0:
                break
        print(f"killed before each of {number - 1} steps", file=sys.stderr)
        self.assertGreater(number, 40)
        self.assertEqual(reached, set(self.REACHED))


class Programs(CopyCase, ProxyCase):
    def test_one_that_has_both_goes_on_without_a_restart(self):
        both = moves_to(self.file, self.table)
        self.expect(self.run_key(both, "too soon"), 243, stderr="from.db")
        large = ("first", "sh", "-c", "head -c 6000000 /dev/urandom | base64")
        first = self.expect(self.run_key(self.file, *large), 0).stdout
        beside = self.once("run", "--store", f"{self.file}?moves_to=sqlite:x.db", "--key", "k", "--", "true", text=True)
        self.expect(beside, MISUSE, stderr="With moves_to=, say where")
        proxy = self.proxy("--store", both)
        before = self.curl("a")
        self.assertIn(" 201 ", before)
        self.copy(self.file, self.table)
        wait_until(lambda: " 503 " not in self.curl("b"), "the proxy uses the second store")
        self.assertIn(before.splitlines()[-1], self.curl("a"))
        self.assertEqual([self.service.effects[key] for key in ("a", "b")], [1, 1])
        self.assertIn("once: the store has moved: from now on this program uses postgresql://",
                      proxy.stderr.readline().decode())
        for store, records in ((self.file, 2), (self.table, 3), (both, 3)):
            self.assertEqual(self.expect(self.once("ls", "--store", store, text=True), 0).stdout.count("completed"), records)
        doctor = self.once("doctor", "--store", both, text=True).stdout
        self.assertNotIn("gate", doctor)
        self.assertRegex(doctor, "note +moves_to +this is about postgresql://")
        self.expect(self.once("table", "check", "--store", both, text=True), MISUSE, stderr="without moves_to=")
        # What was kept outside the first store is found, by programs from before and after.
        for store in (self.file, both):
            self.assertEqual(self.expect(self.run_key(store, *large), 0).stdout, first)


class Storm(CopyCase):
    KEYS = 60
    WORKERS = 4

    def test_programs_that_use_both_while_it_is_killed(self):
        for source, target in ((self.file, self.table), (self.new_table("back"), f"sqlite:{self.dir}/back.db")):
            with self.subTest(source=source):
                self.storm(source, target)

    def storm(self, source, target):
        name = "there" if source == self.file else "back"
        chance = random.Random(18)
        keys = [f"{name}{i}" for i in range(self.KEYS)]
        results = {key: set() for key in keys}
        wrong = []
        shut = threading.Event()
        self.addCleanup(shut.set)

        def work(number):
            mine = random.Random(number)
            half = self.KEYS // 2
            begins = keys[:half] * 2
            goes_on = keys[half:] * 2 + keys[:half]  # While the source refuses, and after it.
            mine.shuffle(begins)
            mine.shuffle(goes_on)
            both = moves_to(source, target) if number % 2 else None
            store = both or source
            for key in begins + [None] + goes_on:
                if key is None:
                    shut.wait()
                while key is not None:
                    done = self.run_key(store, key)
                    if done.returncode == 0:
                        results[key].add(done.stdout)
                        break
                    if done.returncode == MISUSE and "Nothing was run" in done.stderr:  # Its gate: the other one.
                        store = both or (target if store == source else source)
                    elif done.returncode != 240:  # Another worker runs it.
                        return wrong.append(f"{done.returncode}: {done.stderr}")

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(self.WORKERS)]
        for key in keys[:5]:  # So that the target is never taken for the one in use.
            results[key].add(self.run_key(source, key).stdout)
        self.fifo(f"go-{name}")
        holder = self.start("run", "--store", source, "--key", f"holder-{name}", "--", "sh", "-c",
                            f"echo $$ > pid-{name}; read line < go-{name}; echo paid", text=True)
        self.pid_in(f"pid-{name}")
        for worker in workers:
            worker.start()
        # An operator begins, has to wait for the holder, and changes his mind.
        self.copy("--wait", "0s", source, target, code=240)
        self.copy("--undo", source, target)
        self.open_gate(f"go-{name}")
        self.assertEqual(holder.communicate(timeout=60)[0], "paid\n")
        kills = 0
        while True:
            # Each time it may come a little further before it is killed.
            env = dict(self.env, ONCE_KILL_BEFORE=str(chance.randint(1, 4 + 2 * kills)), ONCE_KILL_FROM="connect")
            if KILL_BEFORE is not None:
                env["LD_PRELOAD"] = KILL_BEFORE
            copying = self.start("copy", source, target, text=True, env=env)
            if KILL_BEFORE is None and kills < 10:
                try:
                    copying.wait(timeout=chance.uniform(0.02, 0.4))
                except subprocess.TimeoutExpired:
                    copying.kill()
            _, err = copying.communicate()
            if copying.returncode == 0:
                break
            self.assertEqual(copying.returncode, KILLED, err)
            kills += 1
            if self.marks(source, target)[0] in ("draining", "closed"):
                shut.set()  # From now on the source begins nothing.
        shut.set()
        for worker in workers:
            worker.join(timeout=120)
            self.assertFalse(worker.is_alive())
        self.assertEqual(wrong, [])
        for key in keys:
            self.assertEqual(self.ran(key), 1, key)
            self.assertEqual(len(results[key]), 1, results[key])
            self.assertEqual({self.expect(self.run_key(target, key), 0).stdout}, results[key])
            self.assertEqual(self.ran(key), 1, key)
        where = [self.path(f"ledger-{key}").read_text().strip() for key in keys]
        both = len(where) - where.count(source) - where.count(target)
        print(f"{name}: {where.count(source)} keys ran before and {where.count(target)} after the move, and {both} by workers "
              f"with both stores; once copy was killed {kills} times", file=sys.stderr)
        self.assertGreater(min(where.count(source), where.count(target)), 0)
        self.assertGreater(kills, 5 if KILL_BEFORE else 0)


if __name__ == "__main__":
    harness.PROGRAM = sys.argv.pop(1)
    if len(sys.argv) > 1 and sys.argv[1].endswith(".so"):
        KILL_BEFORE = os.path.abspath(sys.argv.pop(1))
    with postgresql.running() as SERVER:
        program = unittest.main(argv=sys.argv, exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
