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
    def test_frameworks(self):
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(proxy.close)
        proxy.refuses = "complete"
        env = {**self.env, "ONCE_SERVER": f"unix:{self.path('s')}", "ONCE_TEST_REFUSING": f"unix:{proxy.path}",
               "ONCE_TEST_MODULES": f"{MODULES}/node_modules", "NODE_OPTIONS": "--no-warnings"}
        done = subprocess.run(["node", "--test", os.fspath(ROOT / "tests/clients/node_frameworks_test.mjs")], cwd=self.dir, env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=harness.DEADLINE_S * 2)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"fail 0\n.*cancelled 0\n.*skipped 0\n")


if __name__ == "__main__":
    harness.main()
