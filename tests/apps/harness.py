"""What the tests of the built program have in common: a store of their own, processes that end, waiting with a deadline.

Nothing here sleeps and hopes: wait_until() polls a condition that must come true, and fails when it does not.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
DEADLINE_S = 60.0
AT_SERVER = bool(os.environ.get("ONCE_TEST_SERVER"))  # Let a server claim, which is started on demand.


def own_store(_reason):
    """Of a test, or a class: it is of programs that open their store themselves."""
    return lambda test: None if AT_SERVER else test


def wait_until(condition, what, deadline_s=DEADLINE_S):
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"did not come true in {deadline_s} s: {what}")
        time.sleep(0.005)


def alive(pid):
    """Runs, and is not a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Case(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="once-test-"))
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.store = f"sqlite:{self.dir}/once.db"
        server = os.environ.get("ONCE_TEST_POSTGRESQL")
        if server:  # A schema for each test there.
            self.store = f"{server}?allow_unsafe=1&schema={self.dir.name.replace('-', '_')}"
            subprocess.run([PROGRAM, "table", "create", "--store", self.store], check=True, stdout=subprocess.DEVNULL)
        self.env = dict(os.environ, ONCE_STORE=self.store, TMPDIR=str(self.dir))
        self.env.pop("XDG_STATE_HOME", None)
        if AT_SERVER:  # It ends when the store's file is removed.
            self.env["ONCE_STORE"] = f"once+{self.store}"
            self.env["XDG_RUNTIME_DIR"] = str(self.dir / "run")
            (self.dir / "run").mkdir(mode=0o700)
        # The thread sanitizer lets a program sleep for a second at its end, in case another thread is still at fault.
        self.env["TSAN_OPTIONS"] = f"{self.env.get('TSAN_OPTIONS', '')} atexit_sleep_ms=0".strip()

    def once(self, *arguments, **options):
        """Runs the program to its end."""
        options.setdefault("stdin", subprocess.DEVNULL)
        if "input" in options:
            del options["stdin"]
        options.setdefault("env", self.env)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.run([PROGRAM, *map(os.fspath, arguments)], timeout=DEADLINE_S * 2, cwd=self.dir, **options)

    def start(self, *arguments, **options):
        """Starts the program; it is killed when the test ends."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("env", self.env)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen([PROGRAM, *map(os.fspath, arguments)], cwd=self.dir, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def expect(self, done, code, stdout=None, stderr=None):
        self.assertEqual(done.returncode, code, f"stdout: {done.stdout}\nstderr: {done.stderr}")
        if stdout is not None:
            self.assertEqual(done.stdout, stdout)
        if stderr is not None:
            self.assertIn(stderr, done.stderr)
        return done

    def show(self, key, *more):
        done = self.once("show", "--key", key, "--json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def writes(self, key, *more):
        """How often its record was written: the counter above the revision's 20 random bits."""
        return self.show(key, *more)["revision"] >> 20

    def lapse(self):
        """The leases of all claims are over: in place of short leases, which lapse while a busy machine pauses too. Their
        holders must be dead."""
        statement = "UPDATE {}records SET lease_until_ms = 1 WHERE state = 0 AND lease_until_ms IS NOT NULL"
        if server := os.environ.get("ONCE_TEST_POSTGRESQL"):
            schema = self.store.rpartition("schema=")[2]
            subprocess.run(["psql", "-XqAt", "-d", server, "-c", statement.format(f"{schema}.")], check=True)
            return
        self.edit(statement.format(""))

    def edit(self, statement):
        """Changes the file behind everybody's back."""
        with contextlib.closing(sqlite3.connect(self.path("once.db"))) as database:
            database.execute(statement)
            database.commit()

    def path(self, name):
        return self.dir / name

    def runs(self, name="ran"):
        """How often a command appended a line to this file."""
        path = self.path(name)
        return len(path.read_text().splitlines()) if path.exists() else 0

    def fifo(self, name):
        os.mkfifo(self.path(name))
        return self.path(name)

    def pid_in(self, name):
        """The process id that a command wrote to this file, once it is there."""
        path = self.path(name)
        text = wait_until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), f"{name} written")
        pid = int(text)
        self.addCleanup(lambda: alive(pid) and os.kill(pid, signal.SIGKILL))
        return pid

    def open_gate(self, name, text=b"go\n"):
        """Lets a command go on that reads this fifo."""
        with open(self.path(name), "wb") as gate:
            gate.write(text)


def main():
    global PROGRAM
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    result = unittest.main(exit=False, verbosity=1).result
    if result.testsRun == 0 or result.skipped:
        sys.exit("a test program must run all its tests")
    sys.exit(not result.wasSuccessful())
