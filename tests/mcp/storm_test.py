"""storm_test.py ONCE: agents that call again, and whatever dies. The ledger has each refund once.

Several agents take the same orders, each in an order of its own. An agent calls a tool, and calls again until it has a
result, or learns that it must not: as models and clients do, under new ids, in new sessions. Meanwhile `once mcp` is
killed, its servers with it, and servers die before and after they act. Then:

- no order is in the ledger twice;
- an order whose result an agent was given is in it once, and its record has that result;
- an order that is in it without a result is unknown, for an operator; no record is left in progress.

SEED in the environment repeats the choices of a run.
"""
import json
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "apps"))

import harness  # noqa: E402
from client import Client  # noqa: E402

SHOP = HERE / "shop.py"
AGENTS, ORDERS, SESSIONS = 6, 400, 60
SEED = int(os.environ.get("SEED", random.randrange(1_000_000)))


class Agent:
    """`results`: order -> what the agent was told of it in the end."""

    def __init__(self, case, number):
        self.case, self.random = case, random.Random(SEED * 100 + number)
        self.modern = number % 2 == 1
        self.results = {}
        self.left = [f"order-{i}" for i in range(ORDERS)]
        self.random.shuffle(self.left)
        self.client = None

    def run(self):
        for _ in range(SESSIONS):
            if not self.left:
                return
            self.client = client = self.case.session(self.modern)
            try:
                client.open()
                self.work(client)
            except (AssertionError, BrokenPipeError, ConnectionError, TypeError, KeyError):
                pass  # The session is gone, in the midst of anything: a new one begins.
            finally:
                client.kill()

    def work(self, client):
        while self.left:
            order = self.left[0]
            arguments = {"order_id": order}
            fate = self.random.random()
            if fate < 0.06:
                arguments["dies"] = self.random.choice(["before", "after"])
            calls = [client.begin_call("refund", **arguments) for _ in range(self.random.choice([1, 1, 2]))]
            if fate > 0.95:
                client.send({"method": "notifications/cancelled", "params": {"requestId": calls[0]}})
                calls = calls[1:] or [client.begin_call("refund", **arguments)]
            for call in calls:
                _, outcome = client.told(client.answer(call))
                if outcome in (None, "replayed", "unknown"):
                    self.results.setdefault(order, set()).add(outcome)
            # In progress, or nothing was done: again, later.
            self.left.pop(0) if self.results.get(order) else self.left.append(self.left.pop(0))


class Storm(harness.Case):
    def setUp(self):
        super().setUp()
        self.server = [sys.executable, str(SHOP), str(self.path("ledger"))]
        text = self.once("mcp", "--suggest", "--", *self.server).stdout.decode()
        # What a call says of its own death is no part of what it asks for.
        rule = 'key = "order_id"\nfingerprint = "order_id"\nlease = "2s"\nwait = "500ms"\nlabel = "all"'
        text = text.replace('name = "refund"\n', f'name = "refund"\n{rule}\n')
        self.path("shop.toml").write_text(re.sub(r"^scope = .*$", 'scope = "shop"\nstop-within = "1s"', text, flags=re.M))

    def session(self, modern):
        return Client([harness.PROGRAM, "mcp", "--config", str(self.path("shop.toml")), "--log", "none", "--", *self.server],
                      modern, cwd=self.dir, env=self.env)

    def test_each_refund_once(self):
        print(f"SEED={SEED}", file=sys.stderr)
        agents = [Agent(self, number) for number in range(AGENTS)]
        threads = [threading.Thread(target=agent.run) for agent in agents]
        for thread in threads:
            thread.start()
        chance = random.Random(SEED)
        kills = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(chance.uniform(0.02, 0.1))  # How often lightning strikes; nothing is waited for.
            client = chance.choice(agents).client
            if client is not None and client.process.poll() is None:
                client.process.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                kills += 1
        self.settle()
        ledger = self.path("ledger").read_text().split()
        records = {record["label"]: record for record in json.loads(self.once("ls", "--json", "--limit", "1000").stdout)}
        results = {order for agent in agents for order, told in agent.results.items() if told & {None, "replayed"}}
        states = [record["state"] for record in records.values()]
        print(f"{len(ledger)} refunds, {len(results)} orders with a result, {states.count('unknown')} unknown, {kills} kills",
              file=sys.stderr)
        self.assertEqual(sorted(set(ledger)), sorted(ledger), "an order was refunded twice")
        self.assertLessEqual(results, set(ledger), "a result without a refund")
        self.assertLessEqual(results, {order for order, record in records.items() if record["state"] == "completed"})
        self.assertEqual(len(records), ORDERS)
        self.assertLessEqual(set(states), {"completed", "unknown"})
        self.assertGreater(len(results), ORDERS // 3)
        self.assertGreater(kills, 10)

    def settle(self):
        """The claims of killed sessions lapse, and each order is called once more, by an agent that lives."""
        self.lapse()
        client = self.session(False).open()
        for number in range(ORDERS):
            client.call("refund", order_id=f"order-{number}")
        self.assertEqual(client.close(), 0)
        client.kill()


if __name__ == "__main__":
    harness.main()
