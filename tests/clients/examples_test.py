"""examples_test.py ONCE: the shops in examples/clients, each with a server that it starts on demand: an order that is posted
twice is charged once, and an order with another amount is refused. And the agents there, whose models are scripts."""
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/clients"
sys.path.insert(0, str(ROOT / "tests/apps"))

import harness  # noqa: E402
import pages  # noqa: E402

# Started by the Python that has FastAPI and Celery: both in one process, on a broker in memory.
PYTHON = """
import json
import harness
import shop
from celery.contrib.testing.worker import start_worker
from starlette.testclient import TestClient

client = TestClient(shop.app)
headers = {"X-Api-Key": "alice", "Idempotency-Key": "order-17"}
answers = [client.post("/orders", json={"id": "17", "cents": cents}, headers=headers) for cents in (4000, 4000, 9000)]
with start_worker(shop.tasks, pool="solo", perform_ping_check=False, loglevel="ERROR"):
    shop.mail.delay("17")  # Delivered twice.
    shop.mail.delay("18")
    harness.wait_until(lambda: "18" in open("shop.log").read(), "the queue is empty")
print(json.dumps([[answer.status_code, answer.json()] for answer in answers]))
"""


class Examples(harness.Case):
    def setUp(self):
        super().setUp()
        self.path("run").mkdir(mode=0o700)
        self.env |= {"XDG_RUNTIME_DIR": str(self.path("run")), "ONCE_PROGRAM": harness.PROGRAM, "PORT": "0"}
        self.addCleanup(pages.end_servers, self.path("run"))

    def check(self, answers):
        receipt = [201, {"order": "17", "receipt": "r-17"}]
        self.assertEqual(answers[:2], [receipt, receipt])
        self.assertEqual(answers[2][0], 422)
        self.assertEqual(self.path("shop.log").read_text().splitlines()[0], "charged order 17: 4000")

    def post(self, port, cents):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", json.dumps({"id": "17", "cents": cents}).encode(),
                                         {"Content-Type": "application/json", "X-Api-Key": "alice", "Idempotency-Key": "order-17"})
        try:
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
                return [answer.status, json.load(answer)]
        except urllib.error.HTTPError as refused:
            return [refused.code, json.load(refused)]

    def serve(self, *command):
        server = subprocess.Popen(list(map(str, command)), cwd=self.dir, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (server.kill(), server.communicate()))
        port = server.stdout.readline().split()[-1]
        self.check([self.post(port, cents) for cents in (4000, 4000, 9000)])
        self.assertEqual(self.runs("shop.log"), 1)

    def test_fastapi_and_celery(self):
        python = subprocess.run([ROOT / "tools/python-tools", "clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        paths = [EXAMPLES, ROOT / "clients/python/src", ROOT / "tests/apps"]
        done = subprocess.run([python, "-c", PYTHON], cwd=self.dir, stdout=subprocess.PIPE, text=True, check=True, timeout=harness.DEADLINE_S * 5,
                              env={**self.env, "CELERY_BROKER": "memory://", "PYTHONPATH": ":".join(map(str, paths))})
        self.check(json.loads(done.stdout))
        mailed = "mailed the receipt of order"
        self.assertEqual(self.path("shop.log").read_text().splitlines()[1:], [f"{mailed} 17", f"{mailed} 18"])

    def test_express(self):
        modules = subprocess.run([ROOT / "tools/node-tools", "tests/clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        self.path("node_modules").mkdir()
        for name, folder in {"express": f"{modules}/node_modules/express", "once-idempotency": ROOT / "clients/node"}.items():
            self.path(f"node_modules/{name}").symlink_to(folder)
        self.path("shop.mjs").write_text((EXAMPLES / "shop.mjs").read_text())  # Node looks for packages beside it.
        self.serve("node", "shop.mjs")

    def check_agent(self, name, *command, **env):
        """Five calls, then all of them again. The bank is asked once for each order."""
        end = "(once: this is the result of an earlier call with the same "
        texts = ["error: the tool takes too long", f"charged 4000 cents\n\n{end}{name}. ",
                 f'The tool "charge" was not called: an earlier call had the same {name} and other arguments. ',
                 "error: the bank does not answer", 'It is not known whether "charge" was carried out: ']
        again = [texts[1], *texts[1:3], texts[4], texts[4]]
        for wanted in (texts, again):
            done = subprocess.run(list(map(str, command)), cwd=self.dir, stdout=subprocess.PIPE, text=True, check=True,
                                  timeout=harness.DEADLINE_S * 5, env={**self.env, **env})
            calls = done.stdout.split("call_")[1:]
            self.assertEqual([text.partition("\n")[2][:len(start)] for text, start in zip(calls, wanted)], wanted)
            self.assertEqual(len(calls), 5)
        self.assertEqual(self.path("bank.log").read_text().splitlines(), ["charged order-17: 4000", "charged order-18: 500"])

    def test_agent_in_python(self):
        self.check_agent("order_id", sys.executable, EXAMPLES / "agent.py", PYTHONPATH=str(ROOT / "clients/python/src"))

    def test_agent_in_node(self):
        self.path("node_modules").mkdir()
        self.path("node_modules/once-idempotency").symlink_to(ROOT / "clients/node")
        self.path("agent.mjs").write_text((EXAMPLES / "agent.mjs").read_text())
        self.check_agent("orderId", "node", "agent.mjs")

    def test_net_http(self):
        go = subprocess.run([ROOT / "tools/go-for-clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        env = {**os.environ, "PATH": f"{go}:{os.environ['PATH']}", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        for command in (["vet", "."], ["build", "-trimpath", "-o", self.path("shop"), "."]):
            subprocess.run(["go", *command], cwd=EXAMPLES / "shop", env=env, check=True)
        self.serve(self.path("shop"))


if __name__ == "__main__":
    harness.main()
