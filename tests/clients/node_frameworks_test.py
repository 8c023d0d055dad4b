"""node_frameworks_test.py ONCE: the Node package in the frameworks of npm: node_frameworks_test.mjs with Node."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/apps"))

import harness  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402

MODULES = subprocess.run([ROOT / "tools/node-tools", "tests/clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


class NodeFrameworks(harness.Case):
    def start_redis(self):
        """A server of this test's own, which keeps nothing."""
        path = os.fspath(self.path("redis"))
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", os.fspath(self.dir)],
                                  stdout=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        harness.wait_until(lambda: os.path.exists(path), "redis-server listens")
        return path

    def test_frameworks(self):
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(proxy.close)
        proxy.refuses = "complete"
        redis = self.start_redis()
        env = {**self.env, "ONCE_SERVER": f"unix:{self.path('s')}", "ONCE_TEST_REFUSING": f"unix:{proxy.path}",
               "ONCE_TEST_REDIS": redis, "ONCE_TEST_MODULES": f"{MODULES}/node_modules", "NODE_OPTIONS": "--no-warnings"}
        done = subprocess.run(["node", "--test", os.fspath(ROOT / "tests/clients/node_frameworks_test.mjs")], cwd=self.dir, env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=harness.DEADLINE_S * 2)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"fail 0\n.*cancelled 0\n.*skipped 0\n")


if __name__ == "__main__":
    harness.main()
