"""once proxy under load, when its store cannot be used for a while: locked, gone, replaced, on a disk that is full.

Meanwhile clients get 503 and try again; when it is back, all keys come to an end, and none has had two effects. In a mount
namespace of its own, for a small disk and one that is read-only.
"""
import collections
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time

from service import ProxyCase, harness, wait_until

sys.path.insert(0, str(pathlib.Path(harness.__file__).parent))
import namespaces  # noqa: E402

CLIENTS = 8
DISK_BYTES = 64 << 20  # The load does not fill it: the log is copied when it has 16 MiB.


class Load:
    """Clients that make charges with new keys, and ask for each again and again until there is an end of it."""

    def __init__(self, port):
        self.port = port
        self.stop = threading.Event()
        self.ends = {}  # "charged", or the problem, by key.
        self.refused = collections.Counter()  # Problems after which a client is to ask again.
        self.pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        self.clients = [self.pool.submit(self.make_charges, number) for number in range(CLIENTS)]

    def make_charges(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)
        with contextlib.closing(connection):
            for count in itertools.count(1):
                if self.stop.is_set():
                    return
                key = f"k-{number}-{count}"
                self.ends[key] = self.charge(connection, key)

    def charge(self, connection, key):
        while True:
            connection.request("POST", "/charges", b"cents=500", {"Idempotency-Key": key})
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status == 201:
                return "charged"
            problem = json.loads(body)["type"].removeprefix("urn:once:problem:")
            if problem not in ("store-unavailable", "in-progress"):
                return problem
            if not answer.headers["Retry-After"]:
                raise AssertionError(f"{problem} without Retry-After")
            self.refused[problem] += 1
            time.sleep(0.02)  # Not as long as it is asked to.

    def charged(self):
        for client in self.clients:
            if client.done():
                client.result()  # It failed.
        return sum(end == "charged" for end in list(self.ends.values()))

    def end(self):
        """No new keys; all are asked for once more: their ends."""
        self.stop.set()
        for client in self.clients:
            client.result(harness.DEADLINE_S)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)
        with contextlib.closing(connection):
            return {key: self.charge(connection, key) for key in self.ends}


class StoreFaults(ProxyCase):
    def store_at(self, folder):
        return f"sqlite:{folder}/once.db?busy_timeout=50ms"

    def check(self, fault, folder=None):
        """Load; `fault`, a context manager, for a while; load again."""
        folder = folder or self.dir
        process = self.proxy("--store", self.store_at(folder), "--lease", "700ms")
        load = Load(self.port)
        self.addCleanup(load.stop.set)
        wait_until(lambda: load.charged() > 50, "charges before")
        with fault:
            wait_until(lambda: load.refused["store-unavailable"] > 20, "the store is missed")
        before = load.charged()
        wait_until(lambda: load.charged() > before + 50, "charges after")
        again = load.end()
        self.assertIsNone(process.poll())
        effects = self.service.effects
        self.assertEqual({key: count for key, count in effects.items() if count != 1}, {})
        # What had an effect while no record of it could be made is unknown when its lease has run out.
        self.assertLessEqual({*load.ends.values(), *again.values()}, {"charged", "outcome-unknown"})
        self.assertEqual([key for key in load.ends if "charged" in (load.ends[key], again[key]) and not effects[key]], [])
        # Each row is found, it alone.
        report = json.loads(self.once("doctor", "--json", "--store", f"sqlite:{folder}/once.db").stdout)
        unknown = sum(end == "outcome-unknown" for end in again.values())
        self.assertEqual(({finding["name"] for finding in report["findings"] if finding["grade"] == "problem"},
                          report["counts"]["unknown"]), ({"unknown"} if unknown else set(), unknown), report)

    @contextlib.contextmanager
    def locked(self, folder):
        with contextlib.closing(sqlite3.connect(folder / "once.db", isolation_level=None, timeout=60)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def test_locked_by_another_process(self):
        self.check(self.locked(self.dir))

    def test_gone(self):
        @contextlib.contextmanager
        def gone():
            os.rename(self.path("once.db"), self.path("away.db"))
            yield
            os.rename(self.path("away.db"), self.path("once.db"))
        self.check(gone())

    def test_replaced(self):
        @contextlib.contextmanager
        def replaced():
            os.rename(self.path("once.db"), self.path("away.db"))
            self.path("once.db").write_bytes(b"")
            yield
            os.rename(self.path("away.db"), self.path("once.db"))
        self.check(replaced())

    @contextlib.contextmanager
    def disk(self, size=DISK_BYTES):
        folder = self.path("disk")
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "once-test", folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)

    @contextlib.contextmanager
    def full(self, folder):
        with open(folder / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        yield
        os.unlink(folder / "filler")

    def test_disk_full(self):
        with self.disk() as folder:
            self.check(self.full(folder), folder)

    def test_a_full_disk_is_reported(self):
        with self.disk(8 << 20) as folder:
            process, self.port = self.start_proxy("--admin", "0", "--access-log", self.path("access.log"),
                                                  "--store", self.store_at(folder))
            admin = int(process.stderr.readline().decode().removeprefix("once: operators on port "))

            def page(path):
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", admin, timeout=harness.DEADLINE_S)) as to:
                    to.request("GET", path)
                    answer = to.getresponse()
                    return answer.status, answer.read().decode()

            def doctor():
                done = self.once("doctor", "--json", "--store", f"sqlite:{folder}/once.db")
                return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}

            self.assertEqual(page("/readyz"), (200, "ready\n"))
            self.assertIn("201", self.curl("before"))
            self.assertEqual(doctor()[1]["space"]["grade"], "note")  # A disk of 8 MiB is small.
            with self.full(folder):
                # Some room is reserved, and taken first.
                refused = wait_until(lambda: next((key for key in [f"k-{len(self.service.ledger)}"]
                                                   if "store-unavailable" in self.curl(key)), None), "an operation is refused")
                wait_until(lambda: page("/readyz")[0] == 503, "it is not ready")
                status, text = page("/readyz")
                self.assertEqual(status, 503)
                self.assertEqual(text, "the store takes no new operations\n")
                said = next(line for line in map(bytes.decode, process.stderr) if "not ready: " in line)
                self.assertRegex(said, "the store takes no new operations: a record could not be written: .*(full|space)")
                self.assertEqual(page("/readyz?replays"), (200, "ready\n"))
                self.assertIn("Idempotent-Replayed: true", self.curl("before"))
                code, findings = doctor()
                self.assertEqual((code, findings["space"]["grade"]), (1, "problem"), findings)
                self.assertRegex(findings["space"]["text"], "^0 B of 8.0 MiB are free: new operations are refused")
            wait_until(lambda: page("/readyz")[0] == 200, "it is ready again")
            self.assertIn("201", self.curl(refused))
            self.assertEqual(doctor()[0], 0)

    def test_read_only(self):
        with self.disk() as folder:
            process = self.proxy("--store", self.store_at(folder))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(harness.DEADLINE_S), 0)
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            done = self.once("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--no-principal",
                             "--store", self.store_at(folder))
            self.expect(done, 243, stderr=b"Read-only file system")

    def test_without_protection_if_that_is_asked_for(self):
        self.proxy("--store", self.store_at(self.dir), "--on-store-down", "run-unprotected")

        def outcomes():
            return [json.loads(line)["outcome"] for line in self.path("access.log").read_text().splitlines()]

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)
            with contextlib.closing(connection):
                connection.request("POST", "/charges", b"cents=500", {"Idempotency-Key": "order-17"})
                return connection.getresponse().read().decode()

        def charge():
            return self.until_logged(ask)

        with self.locked(self.dir):
            self.assertEqual([charge(), charge()], ["charge 1\n", "charge 2\n"])
        self.assertEqual([charge(), charge()], ["charge 3\n"] * 2)
        self.assertEqual(outcomes(), ["unprotected", "unprotected", "executed", "replayed"])


if __name__ == "__main__":
    namespaces.enter("mount", "mount -t tmpfs once-test /tmp", "a mount namespace with a disk of its own")
    harness.main()
