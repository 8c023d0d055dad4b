"""One client of several is cut off from a store's service: what the tests of that share, for each kind of store.

In network namespaces of the test, which end with it: the service (10.77.0.1) and four hosts on a bridge. Three of the
hosts are cut off, each in another way, and each with three processes (partition_process), at the points that matter:

    claim    sends its claim into the cut, and never hears of it
    finish   has charged the ledger, and sends its finish into the cut
    work     has charged the ledger, works on, renews, and finishes when the cut is healed: too late

The fourth host asks for the same operations all the while. The ledger is a file that everybody can reach. Every write
that the service got, every charge, and everything that anybody was told is checked afterwards, see check().

Needs root, or a kernel that lets users make namespaces; fails where it is given neither.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import hosts
import namespaces
from hosts import Host, run

PROGRAM = None
LEASE_MS = 1500
SKEW_MS = 300
CEILING_S = 60.0
SERVER = "10.77.0.1"


# ---- Network namespaces

def enter_namespace(trial="true"):
    """Starts this script again in a network namespace in which it may do everything, the shell command `trial` too."""
    if lack := hosts.lacking():
        sys.exit(f"the partition test needs {lack}")
    namespaces.enter("net", f"{hosts.TRIAL} && {trial}", "network namespaces with a bridge in them")


# Each way of cutting: how, how it is healed, and whether requests still get through on connections that are there.
class Silence:
    """Nothing goes in or out, and nobody is told: as if a cable had been cut somewhere."""
    requests_arrive = False

    @staticmethod
    def cut(host):
        run("bridge", "link", "set", "dev", host.port, "state", "0")

    @staticmethod
    def heal(host):
        run("bridge", "link", "set", "dev", host.port, "state", "3")


class NoAnswers:
    """What it sends arrives, and nothing comes back."""
    requests_arrive = True

    @staticmethod
    def cut(host):
        run("bridge", "link", "set", "dev", host.port, "learning", "off", "flood", "off", "mcast_flood", "off",
            "bcast_flood", "off")
        run("ip", "link", "set", host.port, "type", "bridge_slave", "fdb_flush")

    @staticmethod
    def heal(host):
        run("bridge", "link", "set", "dev", host.port, "learning", "on", "flood", "on", "mcast_flood", "on",
            "bcast_flood", "on")


class LinkDown:
    """Its interface is down, and the kernel tells those who ask for it."""
    requests_arrive = False

    @staticmethod
    def cut(host):
        host.inside("ip", "link", "set", "eth0", "down")

    @staticmethod
    def heal(host):
        host.inside("ip", "link", "set", "eth0", "up")


# ---- Processes and what they tell

class Told:
    """Everything that all processes told, in the order in which it came."""

    def __init__(self):
        self.lines = []
        self.changed = threading.Condition()

    def read(self, who, stream):
        for text in stream:
            line = dict(json.loads(text), who=who)
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def wait(self, what, condition, seen=0):
        """The first line of which this is true, once there is one, after the first `seen` ones."""
        end = time.monotonic() + CEILING_S
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    if condition(line):
                        return line
                seen = len(self.lines)
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"did not happen in {CEILING_S} s: {what}")
                self.changed.wait(left)


class Process:
    """partition_process, on a host or on this machine."""

    def __init__(self, told, name, host, *words, env=None):
        self.told = told
        self.name = name
        self.process = subprocess.Popen([*(host.enter() if host else []), PROGRAM, *words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1, env=env)
        self.reader = threading.Thread(target=told.read, args=(name, self.process.stdout))
        self.reader.start()

    def command(self, text):
        self.process.stdin.write(text + "\n")

    def wait(self, event, key=None, seen=0, **more):
        wanted = dict(more, who=self.name, event=event, **({"key": key} if key else {}))
        return self.told.wait(wanted, lambda line: wanted.items() <= line.items(), seen)

    def settle(self, *keys, command="run"):
        """Asks for all of these until each has an answer: the network, and a busy machine, take their time."""
        answers = {}
        end = time.monotonic() + CEILING_S
        while asked := [key for key in keys if key not in answers]:
            seen = len(self.told.lines)
            for key in asked:
                self.command(f"{command} {key}")
            for key in asked:
                line = self.told.wait(f"{self.name} has an answer about {key}", lambda line, key=key:
                                      line["who"] == self.name and line.get("key") == key
                                      and line["event"] in (("told", "charged") if command == "start" else ("told",)),
                                      seen)
                if line.get("how") != "error":
                    answers[key] = line["event"] if line["event"] == "charged" else line["how"]
                elif time.monotonic() > end:
                    raise AssertionError(f"{self.name} got no answer about {key} in {CEILING_S} s: {line}")
        return list(answers.values())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(CEILING_S) != 0:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}")
        self.reader.join()
        self.process.stdout.close()


# ---- The history

Write = collections.namedtuple("Write", "now removes key owner holder attempt status lease_until data landed before")


def check(writes, lines, ledger):
    """The engine's guarantees, from what the store did with each write and what everybody was told.

    - A claim is taken over only when its lease and the skew have passed by the service's own time, and is counted on.
    - What is completed is never written over; who has lost a claim changes nothing.
    - Everybody who is told a result of a key is told the same one, and it is in the ledger.
    - A charge that does not count is one whose worker was told so: unrecorded, superseded or lost.
    """
    results = {}
    late = collections.Counter()
    for write in writes:
        before = write.before
        if not write.landed:
            late[write.key] += before is not None and before["owner"] != write.owner
            continue
        assert not write.removes, f"a record was removed: {write}"
        if before is not None:
            assert before["status"] == "in_progress", f"written over a finished record: {write}"
            if before["owner"] != write.owner:
                free = int(before["lease_until"]) + SKEW_MS
                assert write.now >= free, f"a live claim was taken over {free - write.now} ms early: {write}"
                assert write.attempt == int(before["attempt"]) + 1, f"the attempt is not counted on: {write}"
        if write.status == "completed":
            results[write.key] = write.data
    charges = collections.defaultdict(list)
    for charge in ledger:
        key, worker, token = charge.split(" ")
        charges[key].append(charge)
        assert charges[key] == sorted(charges[key], key=lambda c: int(c.split(" ")[2])), f"tokens fell: {charges[key]}"
    uncounted = set()
    for line in lines:
        if line["event"] != "told" or line["how"] == "error":
            continue
        if line["how"] in ("recorded", "replayed", "superseded"):
            assert line["result"] == results[line["key"]], f"not the result that counts, {results[line['key']]}: {line}"
        if line["how"] in ("unrecorded", "superseded", "lost"):
            uncounted.add((line["key"], line["who"]))
    for key, made in charges.items():
        assert made.count(results[key]) == 1, f"{key}: {results[key]} is not one of the charges {made}"
        for charge in made:
            told = (key, charge.split(" ")[1]) in uncounted
            assert charge == results[key] or told, f"double, and nobody was told: {charge}"
    return charges, late


# ---- The test

class Victim:
    """A host that is cut off, and its three processes."""

    def __init__(self, world, kind, address):
        self.kind = kind
        self.name = kind.__name__.lower()
        self.host = world.add_host(self.name, address)
        self.claim = world.add_worker(f"{self.name}-claim", self.host)
        # Where requests arrive, its only connection must be free for the finish: no renewal may be under way.
        lease_ms = 60_000 if kind.requests_arrive else LEASE_MS
        self.finish = world.add_worker(f"{self.name}-finish", self.host, lease_ms=lease_ms)
        self.work = world.add_worker(f"{self.name}-work", self.host)
        self.keys = [f"{self.name}-{point}-key" for point in ("claim", "finish", "work")]
        self.claim_key, self.finish_key, self.work_key = self.keys
        self.world = world

    def prepare(self):
        """Each has a connection that is there when the cut comes."""
        assert self.claim.settle(f"{self.name}-before") == ["recorded"]
        assert self.finish.settle(self.finish_key, command="start") == ["charged"]
        assert self.work.settle(self.work_key, command="start") == ["charged"]

    def cut(self):
        self.kind.cut(self.host)
        self.claim.command(f"start {self.claim_key}")
        self.finish.command(f"finish {self.finish_key}")
        if self.kind.requests_arrive:
            self.world.arrived(self.claim_key, "in_progress")
            self.world.arrived(self.finish_key, "completed")

    def suffer(self):
        """What those who are cut off are told, without a word from outside."""
        answer = self.claim.wait("told", self.claim_key)
        assert answer["how"] == "error" and answer["kind"] == "in_doubt", answer
        assert self.finish.wait("told", self.finish_key)["how"] == "unrecorded"
        self.work.wait("told to stop", self.work_key)
        self.work.wait("renewal_lost")

    def heal(self):
        self.kind.heal(self.host)
        for process, key in ((self.claim, self.claim_key), (self.finish, self.finish_key)):
            assert process.settle(key) == ["replayed"], key
        assert self.work.settle(f"{self.name}-before") == ["replayed"]  # It can be reached again.
        self.work.command(f"finish {self.work_key}")
        assert self.work.wait("told", self.work_key)["how"] == "superseded"

    def check(self, writes, charges):
        first = {key: [w for w in writes if w.key == key and w.landed][0] for key in self.keys}
        made = {key: [charge.split(" ")[1] for charge in charges[key]] for key in self.keys}
        arrive = self.kind.requests_arrive
        # A claim that arrived counts although nobody heard of it: the other waited for its lease. Nothing ran under it.
        assert first[self.claim_key].holder == (self.claim.name if arrive else "other"), first[self.claim_key]
        assert made[self.claim_key] == ["other"], made
        # So does a finish that arrived. One that did not makes the work run again, and was told to be unrecorded.
        assert made[self.finish_key] == [self.finish.name] + ([] if arrive else ["other"]), made
        assert made[self.work_key] == [self.work.name, "other"], made


class World:
    """A store's service at SERVER, and hosts on a bridge. Each kind of store says how it is served and watched."""

    def __init__(self, folder):
        self.told = Told()
        self.hosts, self.processes = [], []
        self.ledger = folder / "ledger"
        hosts.add_bridge("bridge0")

    def serve(self):
        """Starts the service. Returns the URL of the store."""
        raise NotImplementedError

    def arrived(self, key, status):
        """Returns when the service has a record of this key that is `in_progress` or `completed`."""
        raise NotImplementedError

    def writes(self):
        """Each Write of the service, in its order. Called when all workers have ended."""
        raise NotImplementedError

    def add_host(self, name, address):
        self.hosts.append(Host(name, address, "bridge0"))
        return self.hosts[-1]

    def add_process(self, *words, env=None):
        self.processes.append(Process(self.told, *words, env=env))
        return self.processes[-1]

    def add_worker(self, name, host, url=None, lease_ms=LEASE_MS):
        worker = self.add_process(name, host, "work", name, url or self.url, os.fspath(self.ledger), str(lease_ms),
                                  str(SKEW_MS), env=self.environment())
        worker.wait("ready")
        return worker

    def environment(self):
        """Of a worker."""
        return None

    def kill(self):
        for process in self.processes:
            process.process.kill()
        for host in self.hosts:
            host.holder.kill()

    def play(self):
        self.url = self.serve()
        other = self.add_worker("other", self.add_host("other", "10.77.0.2"))
        victims = [Victim(self, kind, f"10.77.0.{n}") for n, kind in enumerate((Silence, NoAnswers, LinkDown), 3)]
        for victim in victims:
            victim.prepare()
        for victim in victims:
            victim.cut()
        answers = other.settle(*(key for victim in victims for key in victim.keys))
        assert set(answers) == {"recorded", "replayed"}, answers
        for victim in victims:
            victim.suffer()
        for victim in victims:
            victim.heal()
        self.play_more(victims)

        for process in reversed(self.processes):  # The server last, if it is one: it tells of every request there was.
            process.end()
        for host in self.hosts:
            host.end()
        ledger = self.ledger.read_text().splitlines()
        writes = list(self.writes())
        charges, late = check(writes, self.told.lines, ledger)
        for victim in victims:
            victim.check(writes, charges)
        self.check_more(victims, charges, late)
        taken = sum(w.landed and w.before is not None and w.before["owner"] != w.owner for w in writes)
        doubled = sum(len(made) - 1 for made in charges.values())
        print(f"{len(charges)} operations, {len(ledger)} charges ({doubled} double, all told), {len(writes)} writes, "
              f"{taken} takeovers")

    def end(self):
        """Ends the service, if it is no process of add_process()."""

    def play_more(self, victims):
        pass

    def check_more(self, victims, charges, late):
        pass


def main(kind):
    """Plays a World of that kind, with the program that is the script's argument."""
    global PROGRAM
    PROGRAM = os.path.abspath(sys.argv[1])
    began = time.monotonic()
    world = None
    with tempfile.TemporaryDirectory(prefix="once-partition-") as folder:
        try:
            world = kind(pathlib.Path(folder))
            world.play()
        except BaseException:
            if world is not None:
                for line in world.told.lines:
                    if line["event"] not in ("request", "store_error"):
                        print(json.dumps(line), file=sys.stderr)
                world.kill()
            raise
        finally:
            if world is not None:
                world.end()
    print(f"partition: passed in {time.monotonic() - began:.1f} s")
