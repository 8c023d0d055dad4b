"""once proxy, killed with kill -9 before each of its steps: never two effects, and no answer that was given is lost.

    steps_test.py PROGRAM KILL_BEFORE      the library made of kill_before.cpp
"""
import collections
import concurrent.futures
import http.client
import os
import shutil
import signal
import socket
import sys
import time

from service import ProxyCase, Service, harness, wait_until

KILL_BEFORE = os.path.abspath(sys.argv.pop(2))
LEASE_S = 3600  # A third into it comes a renewal, which would be a step of its own. Who comes after a death is later.
AT_ONCE = 12
BODY = "cents=500"

# What a client was told, and what a key has come to.
Answer = collections.namedtuple("Answer", "status replayed body")
Fate = collections.namedtuple("Fate", "effects status replayed")


def ask(port, key):
    """One request, sent in one piece; None if it gets no whole answer."""
    lines = f"POST /charges HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE_S) as connection:
            connection.sendall(lines.encode())
            answer = http.client.HTTPResponse(connection, method="POST")
            answer.begin()
            return Answer(answer.status, answer.headers["Idempotent-Replayed"] is not None, answer.read().decode())
    except (OSError, http.client.HTTPException):
        return None


def ask_until_final(port, key):
    """As a client does that waits for Retry-After, only not so long. None if the proxy is gone."""
    end = time.monotonic() + harness.DEADLINE_S
    while True:
        answer = ask(port, key)
        if not answer or "urn:once:problem:in-progress" not in answer.body:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"no final answer for {key}; the last one: {answer}")
        time.sleep(0.01)


class Steps(ProxyCase):
    def life(self, folder, key, kill_before, *arguments, after=0):
        """A proxy on the store there, a client with this key, and the proxy's death: before that step, or in the end. The
        leases of those that it comes after are over.

        Gives what the client was told, None if nothing, and the steps that the proxy came to."""
        log = folder / "steps"
        log.write_text("")
        process, port = self.start_proxy(
            "--store", f"sqlite:{folder}/once.db", "--lease", f"{LEASE_S}s", "--threads", "1", "--access-log", "none",
            *arguments, env=dict(self.env, LD_PRELOAD=KILL_BEFORE, ONCE_KILL_BEFORE=str(kill_before),
                                 ONCE_KILL_LOG=str(log), ONCE_CLOCK_AHEAD_S=str(2 * LEASE_S * after)))

        def over():  # It has seen that the client has left, or is dead.
            return log.read_text().endswith("close\n") or process.poll() is not None
        answer = ask_until_final(port, key)
        wait_until(over, f"the proxy of {key} has ended")
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        return answer, log.read_text().split()

    def fate(self, key, deaths, *arguments):
        """What became of a key whose proxies were killed there, one after the other, when the next one was asked. Checks
        that it had one effect at most, and that what clients were told is true and stays so."""
        folder = self.path(key)
        folder.mkdir()
        lives = [self.life(folder, key, number, *arguments, after=after) for after, number in enumerate((*deaths, 0, 0))]
        shutil.rmtree(folder)
        where = f"{key}: {lives}"
        told = [answer for answer, _ in lives]
        *_, last, again = told
        self.assertIsNotNone(last, where)
        self.assertLessEqual(self.service.effects[key], 1, where)
        answers = [answer for answer in told if answer]
        for before, after in zip(answers, answers[1:]):
            if before.status == after.status:
                self.assertEqual(before.body, after.body, where)
            else:  # An answer that is not kept is given once.
                self.assertEqual((before.status, after.status), (201, 410), where)
        if last.status == 409:
            self.assertIn("urn:once:problem:outcome-unknown", last.body, where)
            self.assertEqual(again, last, where)
        else:
            self.assertEqual(self.service.effects[key], 1, where)
            self.assertTrue(again.replayed, where)
        return Fate(self.service.effects[key], last.status, last.replayed)

    def fates(self, name, *arguments, deaths=lambda number, steps: (number,)):
        """Kills before each step of a request that would be answered with a charge."""
        folder = self.path(name)
        folder.mkdir()
        answer, steps = self.life(folder, name, 0, *arguments)
        self.assertEqual((answer.status, answer.replayed, self.service.effects[name]), (201, False, 1))
        # It takes the request, notes in the new lock file how it has found the log, syncs the claim and notes that, asks the
        # service, does the same with the answer, and gives it.
        self.assertEqual(
            steps,
            "recv pwrite pwrite64 fdatasync pwrite connect sendmsg recv pwrite64 fdatasync pwrite sendmsg close".split())
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(self.fate, f"{name}-{number}", deaths(number, len(steps)), *arguments)
                    for number in range(1, len(steps) + 1)]
            seen = [run.result() for run in runs]
        self.assertEqual(sum(self.service.effects.values()), len(self.service.ledger))
        return seen

    # Which step is which: see fates().

    def test_hold(self):
        self.assertEqual(
            self.fates("hold"),
            [Fate(1, 201, False)] * 3  # The claim was not there yet: the retry ran.
            + [Fate(0, 409, False)] * 4  # It was, and nothing had gone out: unknown, as nobody can tell.
            + [Fate(1, 409, False)] * 2  # It had run, and its answer was not stored: unknown.
            + [Fate(1, 201, True)] * 4)  # Stored: from the moment that it is written, which kill -9 cannot take back.

    def test_takeover(self):
        # The service honours the key, which reaches it. A second proxy is killed as well, the third lives.
        self.service = self.serve(Service(honours_keys=True))
        seen = self.fates("takeover", "--on-ambiguous", "takeover",
                          deaths=lambda number, steps: (number, steps - number + 1))
        self.assertEqual(set(seen), {Fate(1, 201, False), Fate(1, 201, True)})

    def test_an_answer_too_large_to_keep(self):
        self.assertEqual(
            self.fates("large", "--answer-limit", "4"),
            [Fate(1, 201, False)] * 3 + [Fate(0, 409, False)] * 4 + [Fate(1, 409, False)] * 2
            + [Fate(1, 410, True)] * 4)  # It is recorded before the answer goes out.


if __name__ == "__main__":
    harness.main()
