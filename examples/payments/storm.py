#!/usr/bin/env python3
"""A storm of payments through HTTP, at a service behind `once proxy`, and no order is charged twice.

Many clients ask for a few dozen orders: they ask again when they have no answer, at once or later, several at the same
time, hang up, and use a key for something else. Meanwhile the service and the proxies are killed in the middle of
charges, and a proxy is stopped for longer than its lease while another one on the same store goes on. The proxies ask
the service what became of the orders whose outcome is lost; about a few, it cannot tell.

Exit code 0: nothing was charged twice, nothing that was acknowledged was lost, and every order was charged once in the
end. 1: not so. The service's ledger decides. With --without-once clients ask the service itself, to show what the storm
does then (and it ends with 0).
"""
import argparse
import json
import os
import random
import signal
import sys
import time

from clients import DEADLINE_S, Books, Client, Order
from stack import LEASE_S, Stack


class Storm:
    def __init__(self, options, stack):
        self.options = options
        self.stack = stack
        self.rng = random.Random(options.seed)
        self.books = Books()
        self.clients = []
        self.began = time.monotonic()
        self.next_show = self.began
        self.reconciled = 0
        self.struck = {"service": 0, "proxy": 0, "frozen": 0}
        self.orders = [Order(f"order-{i}", self.rng.randrange(500, 20_000)) for i in range(1, options.orders + 1)]

    # Who asks for what, and when.

    def play(self):
        victims = self.rng.sample(self.orders, 5)
        for order in victims[0], victims[3]:  # The service cannot tell what became of these.
            order.name += "-abroad"
        for order in self.rng.sample([o for o in self.orders if o not in victims], len(self.orders) // 10):
            order.card = "busy"
        for order in self.orders:
            if order not in victims:
                self.ask_often(order, self.rng.uniform(0, 0.9 * self.options.seconds))
        strikes = [(self.kill_service, "slow-to-answer"), (self.kill_proxy, "slow-to-charge"),
                   (self.freeze_proxy, "slow-to-answer"), (self.kill_service, "slow-to-charge"),
                   (self.kill_proxy, "slow-to-answer")]
        for turn, (order, (strike, card)) in enumerate(zip(victims, strikes)):
            self.wait(lambda at=turn / 5 * self.options.seconds: time.monotonic() - self.began >= at, "the time has come")
            order.card = card
            strike(order)
            self.ask_often(order, 0)
        self.settle()

    def start(self, *arguments, **more):
        client = Client(self.books, *arguments, **more)
        self.clients.append(client)
        client.start()

    def doors(self):
        """As from a load balancer that knows nothing."""
        return self.rng.sample(self.stack.doors, len(self.stack.doors))

    def ask_often(self, order, at_s):
        """One client, and others that were not needed: at the same moment, soon after, at any time."""
        for i in range(self.rng.randrange(4, 9)):
            left = max(0.1, self.options.seconds - (time.monotonic() - self.began) - at_s)
            soon = (0.0, 0.0, self.rng.expovariate(10), self.rng.uniform(0, left))[i % 4]
            hasty = [self.rng.choice((0, 0.02, 0.05)) for _ in range(self.rng.randrange(3))] if i % 2 else []
            self.start(self.doors(), order, self.rng, at_s=at_s + soon, patience_s=hasty)
        if self.rng.random() < 0.3 and self.stack.proxies:
            self.start(self.doors(), order, self.rng, at_s=at_s, stranger=True)

    # What goes wrong. Each strikes when the order is in the hands of the service.

    def begin(self, order, door, patience_s=()):
        """Asks for the order through `door`, and returns when it is half done."""
        doors = [door, *(d for d in self.stack.doors if d is not door)]
        self.start(doors, order, self.rng, patience_s=patience_s)
        half = "charged" if order.card == "slow-to-answer" else "asked"
        self.wait(lambda: self.stack.ledger.has(half, order.name) or order.decided.is_set(), f"{order.name} half done")

    def kill_service(self, order):
        self.begin(order, self.stack.doors[0])
        self.stack.service.kill()
        self.struck["service"] += 1
        self.stack.service.start()

    def kill_proxy(self, order):
        if not self.stack.proxies:
            return
        proxy = self.stack.proxies[0]
        self.begin(order, proxy)
        proxy.kill()
        self.struck["proxy"] += 1
        proxy.start()

    def freeze_proxy(self, order):
        if not self.stack.proxies:
            return
        proxy = self.stack.proxies[1]
        self.begin(order, proxy, patience_s=[0.4])
        proxy.freeze()
        self.struck["frozen"] += 1
        # Until the other proxy has found the claim lapsed, and its client has been told. If it happens to be frozen while it
        # writes to the store, nobody else can, and all wait for it.
        until = time.monotonic() + 2.5 * LEASE_S
        self.wait(lambda: order.decided.is_set() or time.monotonic() > until, "the other proxy has decided")
        proxy.thaw()

    # Waiting, with the counts on the screen.

    def wait(self, condition, what):
        while not condition():
            if time.monotonic() - self.began > DEADLINE_S:
                raise TimeoutError(f"did not come true in {DEADLINE_S:.0f} s: {what}")
            self.show()
            time.sleep(0.005)

    def settle(self):
        """Until every client has its answer."""
        self.wait(lambda: not any(client.is_alive() for client in self.clients), "every client has an answer")
        self.show(last=True)

    def show(self, last=False):
        if self.options.quiet or (not last and time.monotonic() < self.next_show):
            return
        terminal = sys.stdout.isatty()
        self.next_show = time.monotonic() + (0.25 if terminal else 1.0)
        counts = self.books.counts
        answered = sum(order.charge != 0 for order in self.orders)
        unknown = sum(order.unknown for order in self.orders)
        line = (f"{time.monotonic() - self.began:5.1f} s  {counts['requests']} requests, {answered}/{len(self.orders)} orders "
                f"answered, {unknown} unknown, {counts['replays']} replays, {counts['conflicts']} conflicts, "
                f"{self.struck['service'] + self.struck['proxy']} killed, {self.struck['frozen']} frozen")
        print(("\r\x1b[K" if terminal else "") + line, end="" if terminal and not last else "\n", flush=True)

    # What the proxies ask the service.

    def unknown_records(self):
        return json.loads(self.stack.run_once("ls", "--state", "unknown", "--json"))

    def reconcile(self):
        """Until the service has been asked about everything that it can answer. Returns how many orders that decided."""
        until = [time.monotonic()]

        def is_done():
            if time.monotonic() < until[0]:
                return False
            until[0] = time.monotonic() + 0.25
            return all(record["key"].endswith("-abroad") for record in self.unknown_records())

        self.wait(is_done, "the service was asked about every unknown order")
        records = json.loads(self.stack.run_once("ls", "--json"))
        return sum(any(entry["who"] == "reconcile" for entry in record["history"]) for record in records)

    # The operator: for what the service cannot answer, somebody must look into the ledger.

    def resolve(self):
        """The commands of each kind."""
        shown = {}
        unknown = self.unknown_records()
        known = {order.name: order for order in self.orders}
        if {record["key"] for record in unknown} - {order.name for order in self.orders if order.unknown}:
            self.books.complain("`once ls --state unknown` has orders of which no client was told so")
        for record in unknown:
            order = known[record["key"]]
            charges = self.stack.ledger.charges(order.name)
            which = ["--key", order.name, "--scope", record["scope"]]
            if charges:
                answer = self.stack.directory / f"{order.name}.json"
                answer.write_text(json.dumps({"order": order.name, "cents": order.cents, "charge": charges[0]}) + "\n")
                command = ["resolve", *which, "--as", "completed", "--result", answer, "--content-type", "application/json",
                           "--reason", f"charge {charges[0]} in the ledger"]
            else:
                command = ["resolve", *which, "--as", "released", "--reason", "not in the ledger"]
            self.stack.run_once(*command)
            shown.setdefault("charged" if charges else "not charged", []).append(command)
        return shown

    def ask_again(self):
        for order in self.orders:
            if order.unknown:
                order.unknown = False
                order.decided.clear()
                self.start(self.doors(), order, self.rng)
        self.settle()

    # What the ledger says.

    def audit(self, final):
        """(once, more than once, never)"""
        charges = {order.name: self.stack.ledger.charges(order.name) for order in self.orders}
        more = [name for name, numbers in charges.items() if len(numbers) > 1]
        never = [name for name, numbers in charges.items() if not numbers]
        if final and not self.options.without_once:
            self.books.problems += [f"{name} was charged {len(charges[name])} times" for name in more]
            self.books.problems += [f"{name} was never charged" for name in never]
            self.books.problems += [f"{order.name}: a client was told of charge {order.charge}, which is not in the ledger"
                                    for order in self.orders if order.charge not in charges[order.name]]
            found = json.loads(self.stack.run_once("doctor", "--json"))["findings"]
            self.books.problems += [f"once doctor: {finding['text']}" for finding in found
                                    if finding["name"] == "integrity" and finding["grade"] != "fine"]
        return len(charges) - len(more) - len(never), len(more), len(never)

    def paid_too_much(self):
        return sum((len(self.stack.ledger.charges(order.name)) - 1) * order.cents for order in self.orders)


def curl_lines(port):
    line = f"curl -i http://127.0.0.1:{port}/charges -H 'Idempotency-Key: mine-1' -d '{{\"order\":\"mine-1\",\"cents\":%d}}'"
    return [line % cents for cents in (500, 500, 900)]


def row(name, value, text=""):
    print(f"  {name:<22}{value:>6}   {text}".rstrip())


def print_table(storm):
    counts = storm.books.counts
    without = storm.options.without_once
    row("requests", counts["requests"], f"by {len(storm.clients)} clients, for {len(storm.orders)} orders")
    row("no answer", counts["no answer"], "they hung up, or no proxy was up: they retry")
    row("executions", sum(1 for _ in storm.stack.ledger.lines("asked")), "how often the service was called")
    if not without:
        row("replays", counts["replays"], "the stored answer; nothing was run")
        row("conflicts", counts["conflicts"], "another request is running it: retry")
        row("mismatches", counts["mismatches"], "the key came with another amount: refused")
        row("killed proxies", storm.struck["proxy"], "kill -9 in the middle of a request")
        row("frozen proxies", storm.struck["frozen"], "for longer than the lease; another takes over")
    row("killed services", storm.struck["service"], "kill -9 in the middle of a charge")
    if not without:
        row("reconciled", storm.reconciled, "their outcome was lost, and the proxies asked the service for it")
        row("unknown", len(storm.unknown_records()), "it could not tell: not rerun until an operator decides")
    print()


def print_charges(storm, final):
    charged_once, more, never = storm.audit(final)
    print(f"  the service's ledger: charged once: {charged_once} orders, more than once: {more}, never: {never}")
    return charged_once, more, never


def typed(stack, command):
    words = [stack.once, *command, "--store", stack.store]
    quoted = [word if all(c.isalnum() or c in "-_./:=" for c in word) else f"'{word}'" for word in map(str, words)]
    return " ".join(quoted)


def run(options):
    stack = Stack(options)
    try:
        if not options.without_once and not options.quiet:
            ports = [process.port for process in (*stack.proxies, stack.service)]
            print(f"once proxy listens on ports {ports[0]} and {ports[1]}, with one store, for the service on port {ports[2]}. "
                  "Paste\nthese: a charge, the same again (its answer is replayed), and its key with another amount "
                  "(refused).\n")
            print("\n".join(f"  {line}" for line in curl_lines(ports[0])) + "\n", flush=True)
            if options.stay:
                print("Watch it in a browser. The link works once, within a minute; the command makes another one.\n\n"
                      f"  {stack.open_console()}\n  {stack.once} {' '.join(stack.console_command)}\n", flush=True)
        storm = Storm(options, stack)
        storm.play()
        if not options.without_once:
            storm.reconciled = storm.reconcile()
        print()
        print_table(storm)
        print_charges(storm, final=options.without_once)
        if options.without_once:
            print(f"  customers paid {storm.paid_too_much() / 100:.2f} too much\n\nThat was without once.")
            return 0
        shown = storm.resolve()
        if shown:
            print("\nAn operator checks the unknown ones in the ledger, and resolves them:\n")
            print(f"  {typed(stack, ['ls', '--state', 'unknown'])}")
            for what, commands in shown.items():
                print(f"\n  {len(commands)} {what}, as in\n  {typed(stack, commands[0])}")
        print("\nClients that were told of an unknown outcome retry:\n")
        storm.ask_again()
        if not options.quiet:
            print()
        print_charges(storm, final=True)
        for problem in storm.books.problems:
            print(f"  PROBLEM: {problem}")
        good = not storm.books.problems
        print("\n" + ("Every order was charged exactly once, and no answer was lost." if good else
                      f"SOMETHING WENT WRONG: see above, and {stack.directory}/."), flush=True)
        if good and options.stay:
            print(f"\nIt stays up until Ctrl-C. The curl lines above work; {stack.directory}/ has the ledger and the logs.",
                  flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                print()
        return 0 if good else 1
    finally:
        stack.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", required=True, help="the program")
    parser.add_argument("--service", required=True, help="the payments service")
    parser.add_argument("--directory", default="build/payments", help="emptied, and left with store, ledger and logs")
    parser.add_argument("--port", type=int, default=8080, help="the first one that is tried")
    parser.add_argument("--orders", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0, help="over which the clients come")
    parser.add_argument("--seed", type=int, default=1, help="who asks for what, and when")
    parser.add_argument("--stay", action="store_true", help="stay up afterwards, until Ctrl-C; not in CI")
    parser.add_argument("--quiet", action="store_true", help="no counts while it runs")
    parser.add_argument("--without-once", action="store_true", help="show what happens without it")
    options = parser.parse_args()
    if options.orders < 10:
        parser.error("--orders must be at least 10")
    options.stay = options.stay and not os.environ.get("CI")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, TimeoutError, OSError) as error:
        print(f"storm: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
