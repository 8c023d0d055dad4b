"""go_test.py ONCE: the Go module: its own tests, with a server, and that it is formatted and passes go vet."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "clients/go"
TESTS = ROOT / "tests/clients/go"  # What needs a module of others.
sys.path.insert(0, str(ROOT / "tests/apps"))
sys.path.append(str(ROOT / "tests/real_servers"))  # It has another cutting_proxy.

import harness  # noqa: E402
import postgresql  # noqa: E402
import stranger  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402

GO = pathlib.Path(subprocess.run([ROOT / "tools/go-for-clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip())


class Go(harness.Case):
    stranger_address = None

    def run_go(self, *command, folder=MODULE, **more):
        # Caches are the user's; the rest of the environment is the test's own.
        env = {**self.env, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "ONCE_PROGRAM": harness.PROGRAM,
               "ONCE_SERVER": f"unix:{self.path('s')}", "ONCE_TEST_REFUSING": f"unix:{self.path('p')}",
               "ONCE_TEST_STRANGER": self.stranger_address or "", "PATH": f"{GO}:{os.environ['PATH']}", **more}
        done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=harness.DEADLINE_S * 10)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_module(self):
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        self.stranger_address = stranger.start(self)
        proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(proxy.close)
        proxy.refuses = "complete"
        said = self.run_go("go", "test", "-count=1", "-v", "-timeout=5m", "./...")
        if self.stranger_address:
            stranger.check_nothing_was_sent(self)
        self.assertEqual(said.count("\nok "), 2, said)
        self.assertNotIn("SKIP", said)

    def test_commit(self):
        """With the store's own database."""
        with postgresql.running() as database:
            url, schema = database.database(), "pay_1"
            self.env["ONCE_STORE"] = f"{url}?allow_unsafe=1&schema={schema}"
            made = self.once("table", "create")
            self.assertEqual(made.returncode, 0, made.stderr)
            server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
            self.assertIn(b"listening", server.stderr.readline())
            said = self.run_go("go", "test", "-count=1", "-v", "-timeout=5m", ".", folder=TESTS, ONCE_TEST_SCHEMA=schema,
                               ONCE_TEST_DATABASE=f"{url}?sslmode=disable")
            self.assertEqual(said.count("--- PASS"), said.count("=== RUN"), said)
            server.terminate()
            server.wait()

    def test_sources(self):
        for folder in (MODULE, MODULE / "carried", TESTS, ROOT / "examples/clients/shop"):
            self.assertEqual(self.run_go("gofmt", "-l", ".", folder=folder), "")
            self.assertEqual(self.run_go("go", "vet", "./...", folder=folder), "")


if __name__ == "__main__":
    harness.main()
