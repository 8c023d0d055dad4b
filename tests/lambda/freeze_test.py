"""Invocations that are frozen in the middle (SIGSTOP) until their lease is over, and thawed (SIGCONT)."""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

FUNCTION = os.path.abspath(sys.argv.pop(1))
SHORT_MS, LONG_MS = 3_000, 240_000


class Invocation:
    def __init__(self, store, name, left_ms, on_lapse):
        self.process = subprocess.Popen(
            [FUNCTION, store, name, str(left_ms), on_lapse], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)
        self.go_on()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Freeze(unittest.TestCase):
    # All leases run out at the same time.
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.frozen, cls.other = {}, {}
        for case in ("finished", "still_at_it", "nobody", "hold"):
            cls.frozen[case] = cls.invoke(case, "one", SHORT_MS)
            assert [cls.frozen[case].line() for _ in range(2)] == ["charged by one", "working one"]
            cls.frozen[case].process.send_signal(signal.SIGSTOP)
            if case != "nobody":
                cls.other[case] = cls.invoke(case, "two", LONG_MS)  # It waits.

    @classmethod
    def invoke(cls, case, name, left_ms):
        made = Invocation(f"sqlite:{cls.folder}/{case}.db", name, left_ms, "hold" if case == "hold" else "takeover")
        cls.addClassCleanup(made.end)
        return made

    def expect(self, invocation, *lines):
        for line in lines:
            self.assertEqual(invocation.line(), line)

    def test_another_has_finished_meanwhile(self):
        frozen, other = self.frozen["finished"], self.other["finished"]
        self.expect(other, "working two")  # When the lease is over; and it does not charge again.
        other.go_on()
        self.expect(other, "response: two")
        frozen.thaw()
        self.expect(frozen, "the finish was refused", "response: two, of another")
        self.expect(self.invoke("finished", "three", LONG_MS), "response: two, of another")

    def test_another_is_still_at_it(self):
        frozen, other = self.frozen["still_at_it"], self.other["still_at_it"]
        self.expect(other, "working two")
        frozen.thaw()
        self.expect(frozen, "the finish was refused", "error: Once.ClaimLost")
        other.go_on()
        self.expect(other, "response: two")
        self.expect(self.invoke("still_at_it", "three", LONG_MS), "response: two, of another")

    def test_nobody_else_came(self):
        self.frozen["nobody"].thaw()
        self.expect(self.frozen["nobody"], "response: one")
        self.expect(self.invoke("nobody", "two", LONG_MS), "response: one, of another")

    def test_under_hold_nobody_else_runs(self):
        frozen, other = self.frozen["hold"], self.other["hold"]
        self.expect(other, "error: Once.OutcomeUnknown")
        frozen.thaw()
        self.expect(frozen, "the finish was refused", "error: Once.ClaimLost")
        self.expect(self.invoke("hold", "three", LONG_MS), "error: Once.OutcomeUnknown")


if __name__ == "__main__":
    program = unittest.main(exit=False)
    sys.exit(not program.result.wasSuccessful() or program.result.testsRun == 0 or bool(program.result.skipped))
