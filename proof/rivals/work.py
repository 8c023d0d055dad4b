"""What the clients in Python have in common: the work, and the lines that rivals.py asks and hears.

    work.py ASK      does the work that JSON asks for: a command for `once run`
"""
import json
import os
import sys
import time

SLICE_MS = 100  # Work goes on where it was after its process stood still, as computing does.


def note(ask, what):
    """A line of the ledger, in one write."""
    line = {"t": time.monotonic_ns(), "what": what, "by": ask["by"]}
    with open(ask["ledger"], "ab", buffering=0) as ledger:
        ledger.write(json.dumps(line).encode() + b"\n")


def work(ask):
    """Begins, and acts at once or at the end. Its result says who did it."""
    note(ask, "begun")
    if ask["acts"] == "first":
        note(ask, "effect")
    for _ in range(ask["work_ms"] // SLICE_MS):
        time.sleep(SLICE_MS / 1000)
    if ask["acts"] == "last":
        note(ask, "effect")
    return f"{ask['by']}:{os.getpid()}"


def asks():
    """Each question, after a line that says that this process is ready."""
    print("{}", flush=True)
    while line := sys.stdin.readline():
        yield json.loads(line)


def say(**answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    print(work(json.loads(sys.argv[1])), end="")
