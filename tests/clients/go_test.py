"""go_test.py ONCE: the Go module: its own tests, with a server, and that it is formatted and passes go vet."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "clients/go"
sys.path.insert(0, str(ROOT / "tests/apps"))

import harness  # noqa: E402
import stranger  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402

GO = pathlib.Path(subprocess.run([ROOT / "tools/go-for-clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip())


class Go(harness.Case):
    stranger_address = None

    def run_go(self, *command):
        # Caches are the user's; the rest of the environment is the test's own.
        env = {**self.env, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "ONCE_PROGRAM": harness.PROGRAM,
               "ONCE_SERVER": f"unix:{self.path('s')}", "ONCE_TEST_REFUSING": f"unix:{self.path('p')}",
               "ONCE_TEST_STRANGER": self.stranger_address or "", "PATH": f"{GO}:{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=MODULE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
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

    def test_sources(self):
        self.assertEqual(self.run_go("gofmt", "-l", "."), "")
        self.assertEqual(self.run_go("go", "vet", "./..."), "")


if __name__ == "__main__":
    harness.main()
