"""once proxy with clients that retry by themselves, from npm, PyPI, Go and Java: each gives up its first try, and its own retry
gets the answer to that.

    retries_test.py PROGRAM
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess

from service import ProxyCase, Service, harness, wait_until

CLIENTS = pathlib.Path(__file__).resolve().parent / "retries"
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def line_of(*command):
    return subprocess.run([os.fspath(word) for word in command], stdout=subprocess.PIPE, check=True).stdout.decode().strip()


MODULES = line_of(TOOLS / "node-tools", "tests/proxy/retries")
PYTHON = line_of(TOOLS / "python-tools", "retries")
OF_NPM = [(client, kind) for client in ("openai", "anthropic", "axios-retry", "got", "ky", "undici")
          for kind in ("json", "upload")]
OF_GO = [(client, kind) for client in ("net/http", "retryablehttp") for kind in ("json", "upload")]
OF_JAVA = [(client, kind) for client in ("httpclient", "okhttp") for kind in ("json", "upload")]
OF_PYPI = [("stripe", "json"), *((client, kind) for client in ("openai", "anthropic", "requests", "httpx")
                                 for kind in ("json", "upload"))]


class Slow(Service):
    """Answers when the proxy has told a retry that the first try is under way."""

    log = None

    def answer(self, key, body):
        charged = self.charge(key, body)
        wait_until(lambda: self.conflicts(key) > 0, f"{key} is asked for again")
        return 201, json.dumps({"id": f"ch_{charged.split()[1].decode()}"}).encode()

    def conflicts(self, key):
        return sum('"outcome":"conflict"' in line and f"/{key}\"" in line for line in self.log.read_text().splitlines())


class Retries(ProxyCase):
    def setUp(self):
        super().setUp()
        self.service.end()
        self.service = self.serve(Slow())
        self.service.log = self.path("access.log")
        self.proxy("--retry-after", "1s")

    @staticmethod
    def key(client, kind):
        return f"{client.replace('/', '.')}-{kind}"

    def check(self, command, cases):
        def run(case):
            client, kind = case
            key = self.key(client, kind)
            done = subprocess.run([*command, f"http://127.0.0.1:{self.port}/{key}", client, kind, key], cwd=MODULES,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=harness.DEADLINE_S)
            return json.loads(done.stdout or json.dumps({"status": done.stderr.decode()[-2000:]}))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (client, kind), answer in zip(cases, pool.map(run, cases)):
                with self.subTest(client=client, kind=kind):
                    self.assertEqual(answer["status"], 201)
                    self.assertRegex(answer["body"], r'^\{"id": "ch_\d+"\}$')
                    self.assertEqual(self.service.effects[self.key(client, kind)], 1)
                    self.assertGreater(self.service.conflicts(self.key(client, kind)), 0)
        self.assertEqual(len(self.service.ledger), len(cases))

    def test_of_npm(self):
        self.check([f"{MODULES}/node_modules/.bin/node", CLIENTS / "retries.mjs"], OF_NPM)

    def test_of_pypi(self):
        self.check([PYTHON, CLIENTS / "retries.py"], OF_PYPI)

    def test_of_go(self):
        self.check([pathlib.Path(line_of(TOOLS / "go-tools")) / "retries"], OF_GO)

    def test_of_java(self):
        self.check(["java", "-cp", line_of(TOOLS / "java-tools"), "Retries"], OF_JAVA)


if __name__ == "__main__":
    harness.main()
