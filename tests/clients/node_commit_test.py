"""node_commit_test.py ONCE: results that the Node package commits with the work's own rows, in PostgreSQL, by `pg`."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/apps"), str(ROOT / "tests/real_servers")]

import harness  # noqa: E402
import postgresql  # noqa: E402

MODULES = subprocess.run([ROOT / "tools/node-tools", "tests/clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
SCHEMA = "pay_1"


class NodeCommit(harness.Case):
    def test_commit(self):
        with postgresql.running() as database:
            url = database.database()
            self.env["ONCE_STORE"] = f"{url}?allow_unsafe=1&schema={SCHEMA}"
            self.expect(self.once("table", "create"), 0)
            server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
            self.assertIn(b"listening", server.stderr.readline())
            env = {**self.env, "ONCE_SERVER": f"unix:{self.path('s')}", "ONCE_PROGRAM": harness.PROGRAM, "ONCE_TEST_DATABASE": url,
                   "ONCE_TEST_SCHEMA": SCHEMA, "ONCE_TEST_MODULES": f"{MODULES}/node_modules"}
            done = subprocess.run(["node", "--test", os.fspath(ROOT / "tests/clients/node_commit_test.mjs")], cwd=self.dir, env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=harness.DEADLINE_S * 3)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"fail 0\n.*cancelled 0\n.*skipped 0\n")
            server.terminate()
            server.wait()


if __name__ == "__main__":
    harness.main()
