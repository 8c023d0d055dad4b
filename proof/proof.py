#!/usr/bin/env python3
"""proof.py WORKER REGISTER ONCE FAKE_DYNAMODB [--seconds S] [--seed N] [--keep FOLDER] [--only TEXT] [--planted [NAME]]

The proof (docs/proof.md): real processes on real stores, while a nemesis acts. Each run's history is judged by
proof_register (Porcupine) and check.py. First come all stores and faults, then planted bugs, each of which must be
found.
Fails if a run without a bug is wrong, and if a bug is not found. tools/proof builds what it needs, and starts it."""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("postgresql", "real_servers", "apps")]
import emulator  # noqa: E402
import namespaces  # noqa: E402
import pictures  # noqa: E402
import pollers  # noqa: E402
import postgresql  # noqa: E402
import programs  # noqa: E402
import wire_bugs  # noqa: E402
from clock_test import Clock  # noqa: E402
from cutting_proxy import TO_CLIENT, TO_SERVER, CuttingProxy  # noqa: E402
from small_disk import SmallDisk  # noqa: E402

PROGRAMS = {}
FOLDER = tempfile.mkdtemp(prefix="once-proof-")
os.chmod(FOLDER, 0o755)  # A server that is not root reads its clock there.
WORKERS = 3
END_LIMIT_S = 60
DISK_MB = 64


# ---- Stores

class Sqlite:
    lease_ms, skew_ms = 600, 0
    environment = os.environ

    def __init__(self, run, stack, bug):
        folder = run.folder
        if run.fault == "full_disk":
            self.disk = SmallDisk(DISK_MB)
            stack.callback(self.disk.close)
            folder = self.disk.used
        self.url = f"sqlite:{folder}/once.db"

    def fill_disk(self, run):
        self.disk.fill()
        run.pause(0.1, 1)
        self.disk.empty()

    faults = {
        "calm": None,
        "kill": lambda run: run.kill(),
        "stop": lambda run: run.stop(),
        "worker_clock": lambda run: run.step_clock(),
        "failing_syncs": lambda run: run.fail_syncs(),
        "full_disk": lambda run: run.store.fill_disk(run),
    }


class Postgresql:
    lease_ms, skew_ms = 600, 100
    environment = os.environ

    def __init__(self, run, stack, bug):
        settings = {}
        if bug == "commits_early":
            # What a commit does not write is not written by chance either.
            settings |= {"synchronous_commit": "off", "wal_writer_delay": "10s"}
        if run.fault == "full_disk":
            self.disk = SmallDisk(DISK_MB)
            stack.callback(self.disk.close)
        self.clock = Clock(run.folder) if run.fault == "server_clock" else None
        self.server = stack.enter_context(postgresql.running(settings, variables=self.clock and self.clock.variables))
        if self.clock:
            stack.callback(self.server.stop)  # In order: one that is killed leaves libfaketime's shared memory.
        url = self.server.database()
        self.name = url.rsplit("/", 1)[1]
        if run.fault == "full_disk":
            self.server.psql(f"CREATE TABLESPACE small LOCATION '{self.disk.used}'")
            self.server.psql(f"ALTER DATABASE {self.name} SET TABLESPACE small")
        options = "operation_timeout=2s&allow_unsafe=1"
        self.url = f"{url}?{options}"
        subprocess.run([PROGRAMS["once"], "table", "create", "--store", self.url], check=True,
                       stdout=subprocess.DEVNULL)
        if bug in SQL_BUGS:
            right, wrong = SQL_BUGS[bug]
            source = self.server.psql("SELECT pg_get_functiondef('once.write_1'::regproc)", self.name)
            assert right in source, f"the planted bug {bug} does not fit the function any more"
            self.server.psql(source.replace(right, wrong), self.name)
        if run.fault in ("cut", "partition"):
            self.proxy = stack.enter_context(CuttingProxy(self.server.port))
            self.url = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{self.name}?{options}"
        if run.fault == "pooler":
            self.pooler = self.server.pgbouncer()
            self.url = self.pooler.url(self.name) + f"?{options}"
        if run.fault == "failover":
            synchronous = bug != "asynchronous_standby"
            self.link = stack.enter_context(CuttingProxy(self.server.port))
            self.standby = self.server.standby(synchronous, through=self.link.port)
            self.url = f"{self.standby.multi_host_url(self.name)}&{options}"
            if not synchronous:
                self.link.hold()  # It lags behind.

    def kill_server(self, run):
        self.server.kill()
        # Mostly for less than an operation may take.
        run.pause(*((3, 4) if "unprotected" in run.bug else (0, run.chance.choice((0.3, 0.3, 5)))))
        self.server.restart()

    def cut(self, run):
        for _ in range(8):
            self.proxy.cut(run.chance.choice((TO_SERVER, TO_CLIENT)), messages=run.chance.randrange(1, 40),
                           reset=run.chance.random() < 0.5)
        self.proxy.cut_all()

    def partition(self, run):
        self.proxy.hold()
        run.pause(0.5, 3)
        self.proxy.let_go()

    def end_sessions(self, run):
        self.server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'once' "
                         f"AND datname = '{self.name}' AND random() < 0.5", self.name)

    def step_server_clock(self, run):
        self.clock.set(run.chance.choice((-3600, -5, 0, 2, 3600)))
        run.pause(1, 2)

    fill_disk = Sqlite.fill_disk

    def fail_over(self, run):
        """The primary is killed, and the standby promoted. There is no other, so this is the run's last fault."""
        run.pause(0.5, 1)
        self.server.kill()
        self.link.cut_all()
        self.link.let_go()
        self.standby.promote()
        return True

    faults = {
        "calm": None,
        "kill": lambda run: run.kill(),
        "stop": lambda run: run.stop(),
        "server_kill": lambda run: run.store.kill_server(run),
        "cut": lambda run: run.store.cut(run),
        "partition": lambda run: run.store.partition(run),
        "sessions": lambda run: run.store.end_sessions(run),
        "pooler": lambda run: run.store.pooler.restart(),
        "server_clock": lambda run: run.store.step_server_clock(run),
        "worker_clock": lambda run: run.step_clock(),
        "full_disk": lambda run: run.store.fill_disk(run),
        "failover": lambda run: run.store.fail_over(run),
    }


class Dynamodb:
    """The fake of tests/fake_aws. Its times have whole seconds, as DynamoDB's have."""
    lease_ms, skew_ms = 1500, 500
    limits = "request_timeout=1s&operation_timeout=2s"

    def __init__(self, run, stack, bug):
        endpoint = self.serve(stack)
        if bug in ON_THE_WIRE:
            relay = wire_bugs.Relay(int(endpoint.rsplit(":", 1)[1]), bug, run.seed)
            endpoint = stack.enter_context(relay).url
        if run.fault in ("cut", "partition"):
            self.proxy = stack.enter_context(CuttingProxy(int(endpoint.rsplit(":", 1)[1]), framed=False))
            endpoint = f"http://127.0.0.1:{self.proxy.port}"
        self.url = f"dynamodb://records?{self.limits}"
        self.environment = emulator.environment(endpoint)
        self.prepare()

    def serve(self, stack):
        fake = stack.enter_context(subprocess.Popen([PROGRAMS["fake"], "--until-eof", "--table", "records"], text=True,
                                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(fake.stdin.close)
        return fake.stdout.readline().strip()

    def prepare(self):
        pass

    def cut(self, run):
        for _ in range(8):
            self.proxy.cut(run.chance.choice((TO_SERVER, TO_CLIENT)), bytes=run.chance.randrange(1, 20_000),
                           reset=run.chance.random() < 0.5)
        self.proxy.cut_all()

    partition = Postgresql.partition
    faults = {
        "calm": None,
        "kill": lambda run: run.kill(),
        "stop": lambda run: run.stop(),
        "cut": lambda run: run.store.cut(run),
        "partition": lambda run: run.store.partition(run),
        "worker_clock": lambda run: run.step_clock(),
    }


class Moto(Dynamodb):
    """Another's emulator of DynamoDB. It answers some hundred requests a second."""
    limits = "request_timeout=10s&operation_timeout=20s"

    def serve(self, stack):
        return stack.enter_context(emulator.running())

    def prepare(self):
        subprocess.run([PROGRAMS["once"], "table", "create", "--store", "dynamodb://records"], check=True,
                       stdout=subprocess.DEVNULL, env=self.environment)

    faults = {fault: Dynamodb.faults[fault] for fault in ("kill", "stop", "partition")}


# By the beginning of a fault: the program, and who judges what it told.
PROGRAMS_OF = {
    "once_run_": (programs.RunCallers, programs.judge), "proxy_": (programs.ProxyCallers, programs.judge),
    "sqs_hold_": (pollers.Pollers, pollers.judge), "sqs_": (pollers.Pollers, pollers.judge),
}
PROGRAM_RUNS = (
    ("sqlite", "once_run_kill"), ("sqlite", "once_run_stop"), ("postgresql", "once_run_kill"),
    ("postgresql", "once_run_server_kill"), ("sqlite", "proxy_kill"), ("postgresql", "proxy_kill"),
    ("postgresql", "proxy_server_kill"), ("sqlite", "sqs_kill"), ("sqlite", "sqs_stop"), ("sqlite", "sqs_hold_kill"),
    ("postgresql", "sqs_kill"), ("postgresql", "sqs_hold_stop"), ("postgresql", "sqs_server_kill"),
)
STORES = {"sqlite": Sqlite, "postgresql": Postgresql, "dynamodb": Dynamodb, "moto": Moto}

# ---- Planted bugs: where each is looked for. Those of the worker and of its store are in planted.cpp and worker.cpp.

SQL_BUGS = {  # Of the function that writes, in the test's database.
    "commits_early": ("set_config('synchronous_commit', 'on', true)", "set_config('synchronous_commit', 'off', true)"),
    "sql_unfenced": (" AND r.owner = seen_owner AND r.revision = seen_revision;\n    done := FOUND;\n  ELSE",
                     ";\n    done := FOUND;\n  ELSE"),
    "sql_removes_any": (" AND r.owner = seen_owner AND r.revision = seen_revision;\n    done := FOUND;\n  END IF",
                        ";\n    done := FOUND;\n  END IF"),
}
ON_THE_WIRE = ("dynamodb_unconditional_finish", "dynamodb_unconditional_insert", "dynamodb_eventual_read",
               "dynamodb_revision_repeats")
NOT_IN_WORKERS = (*SQL_BUGS, *ON_THE_WIRE, "asynchronous_standby")
PLANTED = {
    "unfenced_finish": ("sqlite", "stop", "a refused finish is written over what is there"),
    "ignores_revision": ("sqlite", "calm", "a replacement needs only the owner"),
    "revision_repeats": ("sqlite", "calm", "a write keeps the revision that it saw"),
    "acknowledged_early": ("sqlite", "kill", "a write is acknowledged before it is carried out and synced"),
    "stale_read": ("sqlite", "calm", "a read shows what this process saw last"),
    "lost_insert": ("sqlite", "calm", "an insert is acknowledged and not carried out"),
    "lost_finish": ("sqlite", "calm", "a finish is acknowledged and not carried out"),
    "double_insert": ("sqlite", "calm", "a refused insert is written over what is there, and done"),
    "remove_anything": ("sqlite", "calm", "a removal looks at neither owner nor revision"),
    "another_key": ("sqlite", "calm", "now and then a read shows another key's result"),
    "live_is_lapsed": ("sqlite", "calm", "a live claim is shown as lapsed"),
    "loses_steps": ("sqlite", "kill", "a takeover drops the finished steps"),
    "forgets_hold": ("sqlite", "calm", "hold is not written"),
    "token_kept": ("sqlite", "kill", "a takeover's token does not grow"),
    "attempt_kept": ("sqlite", "kill", "a takeover does not count the attempt"),
    "payloads_mixed": ("sqlite", "calm", "no fingerprint is written, so another payload gets the answer"),
    "result_changes": ("sqlite", "calm", "now and then a result is read with a byte more"),
    "sweeps_early": ("sqlite", "calm", "a sweep removes what expires within a day"),
    "doubt_is_done": ("sqlite", "failing_syncs", "a failed sync is believed: its write counts as done"),
    "full_is_done": ("sqlite", "full_disk", "a write that found the disk full counts as done"),
    "host_clock": ("postgresql", "worker_clock", "leases are read from the host's clock, not the store's"),
    "acts_late": ("sqlite", "calm", "the work does not look at its claim before it acts, and nobody renews it"),
    "released_after_acting": ("sqlite", "calm", "a claim is released after the work acted"),
    "tenants_mixed": ("sqlite", "calm", "the tenant is no part of the key"),
    "unprotected": ("postgresql", "server_kill", "the work runs without a claim when the store is down"),
    "commits_early": ("postgresql", "server_kill", "synchronous_commit is off, and the server crashes"),
    "asynchronous_standby": ("postgresql", "failover", "the promoted standby was asynchronous, and lagged behind"),
    "sql_unfenced": ("postgresql", "calm", "the SQL function updates whatever is there"),
    "run_without_scope": ("sqlite", "once_run_calm", "`once run`: all tenants share a scope"),
    "run_without_fingerprint": ("sqlite", "once_run_calm", "`once run --fingerprint none`: payloads are not compared"),
    "run_unprotected": ("postgresql", "once_run_server_kill", "`once run --on-store-down run-unprotected`"),
    "proxy_without_principal": ("sqlite", "proxy_calm", "`once proxy`: all tenants count as one client"),
    "proxy_ignores_body": ("sqlite", "proxy_calm", "`once proxy --ignore-body`: payloads are not compared"),
    "proxy_unprotected": ("postgresql", "proxy_server_kill", "`once proxy --on-store-down run-unprotected`"),
    "sql_removes_any": ("postgresql", "calm", "the SQL function removes whatever is there"),
    "dynamodb_unconditional_finish": ("dynamodb", "stop", "DynamoDB: a result is written without a condition"),
    "dynamodb_unconditional_insert": ("dynamodb", "calm", "DynamoDB: a claim is written without a condition"),
    "dynamodb_eventual_read": ("dynamodb", "calm", "DynamoDB: a read may show what an earlier one showed"),
    "dynamodb_revision_repeats": ("dynamodb", "calm", "DynamoDB: a write keeps the revision that it saw"),
    "sqs_without_tenant": ("sqlite", "sqs_calm", "`once sqs --key`: the tenant is no part of the key"),
    "sqs_without_fingerprint": ("sqlite", "sqs_calm", "`once sqs --fingerprint`: the same for all payloads"),
    "sqs_own_store": ("sqlite", "sqs_kill", "`once sqs --store memory:`: each process remembers for itself"),
    "sqs_forgets": ("sqlite", "sqs_kill", "`once sqs --retention 1ms`: results are forgotten at once"),
}


# ---- A run

class Run:
    """One store, one fault, some seconds."""

    def __init__(self, store, fault, seconds, seed, folder, bug=""):
        self.name = f"{store}-{fault}" + (f"-{bug}" if bug else "")
        self.fault, self.act, self.seconds, self.seed, self.bug = fault, fault, seconds, seed, bug
        self.chance = random.Random(f"{seed} {self.name}")
        self.folder = folder
        self.kind = STORES[store]
        self.workers = {}
        self.lives = collections.Counter()
        self.over = threading.Event()
        self.clocks = {}

    def start(self, name, role):
        self.lives[name] += 1
        life = f"{name}.{self.lives[name]}"
        in_worker = "" if self.bug in NOT_IN_WORKERS else self.bug
        settings = {
            "role": role, "name": life, "url": self.store.url, "history": self.folder / f"{life}.jsonl",
            "ledger": self.folder / "ledger.jsonl", "seed": self.chance.randrange(1 << 40), "clients": 2, "keys": 5,
            "window_ms": 1500, "began_ns": self.began_ns, "pause_ms": 10, "lease_ms": self.kind.lease_ms,
            "skew_ms": self.kind.skew_ms, "retention_ms": 500, "bug": in_worker if role != "audit" else "",
        }
        variables = dict(self.store.environment)
        if self.fault == "worker_clock" and role == "work":
            place = self.folder / f"clock-{name}"
            place.mkdir(exist_ok=True)
            self.clocks[name] = self.clocks.get(name) or Clock(place)
            variables |= self.clocks[name].variables
        return subprocess.Popen([PROGRAMS["worker"], *(f"{key}={value}" for key, value in settings.items())],
                                stdin=subprocess.PIPE, env=variables, text=True, bufsize=1)

    # What the nemesis does.

    def pause(self, least_s, most_s):
        self.over.wait(self.chance.uniform(least_s, most_s))

    def any_worker(self):
        return self.chance.choice([name for name in sorted(self.workers) if name != "operator"])

    def kill(self):
        name = self.any_worker()
        self.workers[name].kill()
        self.workers[name].wait()
        self.workers[name].stdin.close()
        self.pause(0, 0.2)
        self.workers[name] = self.start(name, "work")

    def stop(self):
        worker = self.workers[self.any_worker()]
        worker.send_signal(signal.SIGSTOP)
        self.pause(0.3, 4 * self.kind.lease_ms / 1000)
        worker.send_signal(signal.SIGCONT)

    def step_clock(self):
        self.clocks[self.any_worker()].set(self.chance.choice((-86400, -3600, -1, 0, 1, 3600, 86400)))

    def fail_syncs(self):
        worker = self.workers[self.any_worker()]
        worker.stdin.write("sync fails\n")
        self.pause(0.01, 0.3)
        worker.stdin.write("sync works\n")

    def disturb(self):
        act = self.kind.faults[self.act]
        with open(self.folder / "nemesis.log", "a") as log:
            last = not act
            while not last and not self.over.is_set():
                self.pause(0.2, 1.2)
                if self.over.is_set():
                    return
                log.write(json.dumps({"t": time.monotonic_ns(), "fault": self.fault}) + "\n")
                log.flush()
                last = act(self) is True
                log.write(json.dumps({"t": time.monotonic_ns(), "over": self.fault}) + "\n")

    def play(self):
        with contextlib.ExitStack() as stack:
            self.store = self.kind(self, stack, self.bug)
            self.began_ns = time.monotonic_ns()
            stack.callback(self.kill_all)
            stack.callback(self.over.set)
            self.begin()
            timer = threading.Timer(self.seconds, self.over.set)
            timer.start()
            try:
                self.disturb()
                self.over.wait()
            finally:
                timer.cancel()
            self.end()
        return self.judge()

    def begin(self):
        self.workers = {f"w{number}": self.start(f"w{number}", "work") for number in range(WORKERS)}
        self.workers["operator"] = self.start("operator", "operate")

    def end(self):
        for name, worker in self.workers.items():
            worker.stdin.close()
            if worker.wait(END_LIMIT_S):
                raise RuntimeError(f"{self.name}: {name} ended with {worker.returncode}")
        audit = self.start("audit", "audit")
        audit.stdin.close()
        if audit.wait(END_LIMIT_S):
            raise RuntimeError(f"{self.name}: the records cannot be read at the end")

    def kill_all(self):
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def judge(self):
        """Both checkers, as one result."""
        def of(*command):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{self.name}: {command[-2]} ended with {done.returncode}")
            return json.loads(done.stdout)

        register = of(PROGRAMS["register"], self.folder)
        linear = of(sys.executable, ROOT / "proof" / "check.py", self.folder)
        found = [{"rule": "not linearizable", "key": each["key"], "history": each["history"]}
                 for each in register["violations"]]
        found += linear["violations"]
        # A run in which nothing happened shows nothing.
        least = {} if self.bug else {
            "operations": 20 * self.seconds, "calls": self.seconds, "effects": 1,
            "takeovers": self.fault == "kill" and self.seconds > 15, "faults": self.fault != "calm"}
        found += [{"rule": f"too few {name}", "key": "", "history": []} for name, count in least.items()
                  if (register | linear["counts"]).get(name, 0) < count]
        found += [{"rule": "not decided", "key": key, "history": []} for key in register["undecided"]]
        return {"run": self.name, "seed": self.seed, "seconds": self.seconds, "keys": register["keys"],
                "operations": register["operations"], "in_doubt": register["in_doubt"], "found": found,
                "unavailable_s": linear["unavailable_s"], **linear["counts"]}


class ProgramRun(Run):
    """The same with programs, judged by what they tell."""

    def __init__(self, store, fault, *more):
        super().__init__(store, fault, *more)
        prefix = next(prefix for prefix in PROGRAMS_OF if fault.startswith(prefix))
        self.program, self.judged_by = PROGRAMS_OF[prefix]
        self.act = fault.removeprefix(prefix)

    def begin(self):
        self.callers = self.program(self, PROGRAMS["once"])

    def kill(self):
        self.callers.kill()

    def stop(self):
        self.callers.stop()

    def end(self):
        self.callers.end()

    def judge(self):
        counts, found = self.judged_by(self.folder)
        counts["faults"] = sum('"fault"' in line for line in (self.folder / "nemesis.log").read_text().splitlines())
        if not self.bug and counts["told got"] + counts["told executed"] < self.seconds:
            found.append({"rule": "too few calls", "key": "", "history": []})
        return {"run": self.name, "seed": self.seed, "seconds": self.seconds, "found": found, **counts}


def play(store, fault, seconds, seed, keep, bug=""):
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # A server that is not root reads its clock there.
        run = (ProgramRun if fault.startswith(tuple(PROGRAMS_OF)) else Run)(store, fault, seconds, seed, folder, bug)
        try:
            return run.play()
        finally:
            if not bug:
                with tarfile.open(keep / f"{run.name}.tar.xz", "w:xz", preset=1) as archive:
                    for file in sorted([*folder.glob("*.jsonl"), *folder.glob("nemesis.log")]):
                        archive.add(file, f"{run.name}/{file.name}")


def clearest(result):
    """What shows best what is wrong: of a rule about a promise, if there is one, and short."""
    about_bytes = ("not linearizable", "a record was read in another form", "a record was read that nobody",
                   "an answer tells of a record that nobody", "a finish tells of a record that nobody")
    return min(result["found"], key=lambda found: (found["rule"].startswith(about_bytes), len(found["history"])))


def shown(found):
    """The rule, the key, and each line of its history, as short as it tells what happened."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in found["history"]]
    return "\n".join([f"  {found['rule']}: {found['key']}", *(f"    {line[:600]}" for line in lines)])


def hunt(bug, seed, keep):
    """Looks for a planted bug, longer each time."""
    store, fault, _ = PLANTED[bug]
    for seconds in (4, 8, 16, 32):
        result = play(store, fault, seconds, seed, keep, bug)
        if result["found"]:
            return result
    return result


# ---- All of them

def interrupted(*_):
    """Ends at once: workers and servers end with this process."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os._exit(130)


COLUMNS = ("operations", "calls", "faults", "acts of operators", "effects", "doubles", "lost", "in_doubt", "takeovers",
           "unavailable_s")


def table(results):
    rows = ["| store | fault | " + " | ".join(column.replace("_", " ") for column in COLUMNS) + " | wrong |",
            "|" + "---|" * (len(COLUMNS) + 3)]
    for result in results:
        store, fault = result["run"].split("-")
        rows.append(f"| {store} | {fault.replace('_', ' ')} | "
                    + " | ".join(f"{result.get(column, 0):,}".replace(",", " ") for column in COLUMNS)
                    + f" | {len(result['found'])} |")
    return "\n".join(rows) + "\n"


def planted_table(results):
    rows = ["| bug | what is wrong | looked for on | found by | lines of the shortest history |",
            "|---|---|---|---|---|"]
    for bug, result in results:
        store, fault, what = PLANTED[bug]
        found = clearest(result) if result["found"] else None
        rows.append(f"| `{bug}` | {what} | {store}, {fault.replace('_', ' ')} | "
                    f"{found['rule'] if found else '**not found**'} | {len(found['history']) if found else ''} |")
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="proof.py", allow_abbrev=False)
    for name in ("worker", "register", "once", "fake"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--seconds", type=float, default=1200, help="for all of it")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "build" / "proof")
    parser.add_argument("--only", help="runs whose name contains this, such as sqlite-kill")
    parser.add_argument("--planted", nargs="?", const="", help="planted bugs only, or one of them")
    asked = parser.parse_args()
    # Small disks are mounted, where nobody else sees them.
    mounts = os.geteuid() == 0
    if mounts:
        namespaces.enter("mount", "mount -t tmpfs -o size=1m trial /mnt", "small disks")
    signal.signal(signal.SIGINT, interrupted)
    PROGRAMS.update((name, getattr(asked, name)) for name in ("worker", "register", "once", "fake"))
    asked.keep.mkdir(parents=True, exist_ok=True)
    for old in asked.keep.glob("*.tar.xz"):
        old.unlink()
    print(f"proof: seed {asked.seed}", flush=True)
    runs = [(store, fault) for store, kind in STORES.items() for fault in kind.faults]
    runs += PROGRAM_RUNS
    runs = [run for run in runs if asked.planted is None and (asked.only or "") in "-".join(run)]
    bugs = [bug for bug in PLANTED if not asked.only and asked.planted in (None, "", bug)]
    if not mounts:
        left = [run for run in runs if "full_disk" in run] + [bug for bug in bugs if "full_disk" in PLANTED[bug]]
        if left:
            print(f"proof: NOT RUN, as they mount a small disk and need root: {len(left)} runs and bugs of full_disk")
        runs = [run for run in runs if "full_disk" not in run]
        bugs = [bug for bug in bugs if "full_disk" not in PLANTED[bug]]
    if not runs and not bugs:
        sys.exit("proof: nothing has this name")
    # A run mostly waits, so there are two for each processor. A bug is mostly found in 4 s, and its server takes 2.
    together = 2 * (os.cpu_count() or 1)
    left_s = asked.seconds - 7 * len(bugs) / together
    seconds = max(4.0, left_s / math.ceil(len(runs) / together) - 5) if runs else 0
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        playing = [pool.submit(play, store, fault, seconds, asked.seed, asked.keep) for store, fault in runs]
        hunting = [pool.submit(hunt, bug, asked.seed, asked.keep) for bug in bugs]
        results = []
        for future in playing:
            result = future.result()
            results.append(result)
            print(f"proof: {result['run']}: {result.get('operations', 0)} operations, {result.get('calls', 0)} calls, "
                  f"{result.get('faults', 0)} faults, "
                  f"{result.get('effects', 0)} effects, {len(result['found'])} wrong", flush=True)
            for found in result["found"][:3]:
                print(shown(found), flush=True)
            if result["found"]:
                wrong.append(result["run"])
        hunted = []
        for bug, future in zip(bugs, hunting):
            result = future.result()
            hunted.append((bug, result))
            print(f"proof: planted {bug}: {PLANTED[bug][2]}", flush=True)
            if result["found"]:
                print(shown(clearest(result)), flush=True)
            else:
                wrong.append(f"planted {bug}")
    summary = {"seed": asked.seed, "runs": results, "planted": {bug: result for bug, result in hunted}}
    (asked.keep / "results.json").write_text(json.dumps(summary, indent=1) + "\n")
    (asked.keep / "tables.md").write_text(table(results) + "\n" + planted_table(hunted))
    if figures := pictures.collect(asked.keep):
        pictures.write(asked.keep, figures)
    passed = len(runs) + len(bugs) - len(wrong)
    (asked.keep / "test-counts").write_text(f"{passed} {len(wrong)}\n")
    for name in wrong:
        print(f"proof: WRONG: {name}")
    print(f"proof: {passed} passed, {len(wrong)} failed; histories are in {asked.keep}")
    shutil.rmtree(FOLDER)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
