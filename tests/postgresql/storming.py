"""What the tests of the PostgreSQL store's faults share: a server, and a program that writes to it all the while.

postgresql_storm has the verdict: nothing that was acknowledged is lost, nothing that was refused is there."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "real_servers"))
import postgresql  # noqa: E402

PROGRAM = None
DEADLINE_S = 120
DOUBT = "in doubt\n"


class Storm:
    """The program, and what it has said."""

    def __init__(self, url, timeout_ms=10_000):
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen([PROGRAM, url, "once", str(timeout_ms)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self._lines = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._said:
                self._lines.append(line)
                self._said.notify()
        with self._said:
            self._lines.append(None)  # The end.
            self._said.notify()

    def goes_on(self, steps=1):
        """Returns when so many times from now on another 200 writes were acknowledged. What it said before may be read only
        now, so each line has its time."""
        asked_ns = time.monotonic_ns()
        self._until(lambda: sum(line != DOUBT and int(line) > asked_ns for line in self._lines) >= steps)

    def doubts(self):
        """Returns when it has said that a write is in doubt."""
        self._until(lambda: DOUBT in self._lines)

    def _until(self, said):
        with self._said:
            came_true = self._said.wait_for(lambda: None in self._lines or said(), DEADLINE_S) and None not in self._lines
        if not came_true:
            self._process.kill()
            raise AssertionError(f"the storm ended, or stood still: {self._end()}")

    def verdict(self):
        errors = self._end()
        self._reader.join()
        if self._process.returncode:
            raise AssertionError(f"the storm ended with {self._process.returncode}: {errors}")
        return json.loads(self._lines[-2])

    def _end(self):
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._errors.seek(0)
        return self._errors.read()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


class StormCase(unittest.TestCase):
    settings = {}

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.stack = stack
        self.server = stack.enter_context(postgresql.running(self.settings))
        self.url = self.server.database()
        self.name = self.url.rsplit("/", 1)[1]

    def storm(self, url, **options):
        storm = Storm(url, **options)
        self.addCleanup(storm.close)
        return storm

    def through(self, port):
        return f"postgresql://postgres@127.0.0.1:{port}/{self.name}"


def main():
    """Runs the test cases of the script, whose argument is the program."""
    global PROGRAM
    PROGRAM = sys.argv[1]
    program = unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[2:]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
