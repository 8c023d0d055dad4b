"""The clients of a comparison: programs that answer each line of their standard input with one."""
import json
import os
import pathlib
import select
import subprocess

LIMIT_S = 120  # For one answer.


class Lines:
    """A program that answers each line of its standard input with one, and ends with it."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(  # Unbuffered, so that select() sees all that is left to read.
            [str(word) for word in command], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def hear(self):
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"no answer within {LIMIT_S} s from {self.process.args} (exit code {self.process.poll()})")
        return line.decode().strip()

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        return json.loads(self.hear())

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def cpu_s(self):
        """Of the process so far, in ticks of 10 ms."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def require_equal(client, what, wanted, found):
    if found != wanted:
        raise RuntimeError(f"{client}: {found} {what}, and it should be {wanted}: this would compare something else")
