#!/usr/bin/env python3
"""proof.py WORKER REGISTER ONCE FAKE_DYNAMODB [--seconds S] [--seed N] [--keep FOLDER] [--only TEXT] [--planted [NAME]]
    [--resume] [--page]

The proof (docs/proof.md): real processes on real stores, while a nemesis acts. Each run's history is judged by
proof_register (Porcupine) and check.py. First come all stores and faults, then planted bugs, each of which must be
found.
Fails if a run without a bug is wrong, and if a bug is not found. tools/proof builds what it needs, and starts it. What is
done is kept at once: --resume goes on where the last proof was interrupted. --page writes the tables, pictures and
histories of docs/proof.md at the end, if nothing is wrong."""
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
sys.path.append(str(ROOT / "tests" / "clients"))  # It has another cutting_proxy.
import check  # noqa: E402
import emulator  # noqa: E402
import hosts  # noqa: E402
import namespaces  # noqa: E402
import network  # noqa: E402
import pictures  # noqa: E402
import pollers  # noqa: E402
import postgresql  # noqa: E402
import power_disk  # noqa: E402
import programs  # noqa: E402
import restored  # noqa: E402
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
POWER_DISK_MB = {"sqlite": 128, "postgresql": 512}


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
        if run.fault == "power_cut":
            self.disk = power_disk.PowerDisk(POWER_DISK_MB["sqlite"])
            stack.callback(self.disk.close)
            folder = self.disk.used
        self.file = folder / "once.db"
        self.copy = folder / "copy.db"
        self.url = f"sqlite:{self.file}"

    def cut_power(self, run):
        """Of the machine on which the file and all its programs are."""
        run.kill_all()
        self.disk.cut(run.chance)
        self.disk.power_off()
        run.pause(0, 0.2)
        self.disk.power_on()
        run.boots += 1
        run.begin()

    def back_up(self, run):
        if run.bug == "backup_without_log":
            shutil.copy(self.file, self.copy)
        else:
            subprocess.run(["sqlite3", self.file, f".timeout {1000 * END_LIMIT_S}", f".backup {self.copy}"], check=True)

    def restore(self, run):
        """One of the ways that docs/stores/sqlite.md tells of, without a program that runs. Returns which."""
        if run.chance.random() < 0.5:
            subprocess.run(["sqlite3", self.file, f".restore {self.copy}"], check=True)
            return ".restore"
        for name in ("", "-wal", "-shm", "-lock"):
            self.file.with_name(self.file.name + name).unlink(missing_ok=True)
        shutil.copy(self.copy, self.file)
        return "cp"

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
        "power_cut": lambda run: run.store.cut_power(run),
        "restore": lambda run: run.restore(),
    }


class Postgresql:
    lease_ms, skew_ms = 600, 100
    environment = os.environ

    def __init__(self, run, stack, bug):
        settings = {}
        if bug.startswith("commits_early"):
            # What a commit does not write is not written by chance either.
            settings |= {"synchronous_commit": "off", "wal_writer_delay": "10s"}
        if bug == "commits_locally":
            settings |= {"synchronous_commit": "local"}
        if run.fault == "full_disk":
            self.disk = SmallDisk(DISK_MB)
            stack.callback(self.disk.close)
        data = None
        if run.fault == "power_cut":
            self.disk = power_disk.PowerDisk(POWER_DISK_MB["postgresql"])
            stack.callback(self.disk.close)
            data = self.disk.used
            settings |= {"fsync": "off" if bug == "fsync_off" else "on", "min_wal_size": "32MB", "max_wal_size": "64MB"}
        self.clock = Clock(run.folder) if run.fault == "server_clock" else None
        host, clients = run.connect(stack) if run.fault in NETWORK_FAULTS else (None, None)
        self.server = stack.enter_context(
            postgresql.running(settings, clients, self.clock and self.clock.variables, data, host))
        if self.clock:
            stack.callback(self.server.stop)  # In order: one that is killed leaves libfaketime's shared memory.
        url = self.server.database()
        self.name = url.rsplit("/", 1)[1]
        if run.fault == "full_disk":
            self.server.psql(f"CREATE TABLESPACE small LOCATION '{self.disk.used}'")
            self.server.psql(f"ALTER DATABASE {self.name} SET TABLESPACE small")
        # Without fsync no store is opened, unless one insists.
        safe = run.fault == "power_cut" and bug != "fsync_off"
        options = "operation_timeout=2s" + ("" if safe else "&allow_unsafe=1") + ("&connect_timeout=2" if host else "")
        self.url = f"{url}?{options}"
        subprocess.run([PROGRAMS["once"], "table", "create", "--store", self.url], check=True,
                       stdout=subprocess.DEVNULL)
        if bug in SQL_BUGS:
            right, wrong = SQL_BUGS[bug]
            source = self.server.psql("SELECT pg_get_functiondef('once.write_1'::regproc)", self.name)
            assert right in source, f"the planted bug {bug} does not fit the function any more"
            self.server.psql(source.replace(right, wrong), self.name)
        if run.fault == "power_cut":
            self.disk.sync()
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
        if run.fault == "standby_cut_off":
            self.standby = self.server.standby(True, host=run.network.host())
            self.url = f"{self.standby.multi_host_url(self.name)}&{options}"
            self.cuts_left = 1 + int(run.seconds // 8)

    def kill_server(self, run):
        self.server.kill()
        # Mostly for less than an operation may take.
        run.pause(*((3, 4) if "unprotected" in run.bug else (0, run.chance.choice((0.3, 0.3, 5)))))
        self.server.restart()

    def cut_power(self, run):
        """Of the server's machine: the workers are on others."""
        self.server.kill()
        self.disk.cut(run.chance, writes=run.bug != "fsync_off")  # It would mostly not start again.
        self.disk.power_off()
        run.pause(0, 0.3)
        self.disk.power_on()
        try:
            self.server.restart()
        except RuntimeError as error:
            raise Lost(f"PostgreSQL does not start after the power cut: {error}") from error

    def back_up(self, run):
        """By a copy of the server's folder, or of the database."""
        self.whole = run.chance.random() < 0.5
        self.copy = self.server.folder.with_name("copy")
        # pg_basebackup copies the folder that it finds, pg_dump one transaction's view.
        if self.whole:
            words = ["pg_basebackup", "-X", "stream", "--checkpoint=fast", "--no-sync", "-D", self.copy]
        else:
            words = ["pg_dump", "-Fc", "-f", self.copy, self.name]
        where = ["-h", "127.0.0.1", "-p", str(self.server.port), "-U", "postgres"]
        subprocess.run([postgresql.BINARIES / words[0], *where, *words[1:]], check=True,
                       env=postgresql.environment(self.environment))

    def restore(self, _):
        if self.whole:
            self.server.stop()
            shutil.rmtree(self.server.folder)
            self.copy.rename(self.server.folder)
            postgresql.give_away(self.server.folder)
            self.server.start()
            return "pg_basebackup"
        self.server.psql(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.server.psql(f"CREATE DATABASE {self.name}")
        into = ["--exit-on-error", "-d", self.server.url(self.name)]
        subprocess.run([postgresql.BINARIES / "pg_restore", *into, self.copy], check=True,
                       env=postgresql.environment(self.environment))
        return "pg_dump"

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

    def cut_standby_off(self, run):
        """The primary loses its standby, and now and then a worker its primary. The last time the primary's host is cut off
        from all others, and lives on; the standby is promoted."""
        net, primary, standby = run.network, self.server.host, self.standby.host
        worker = run.hosts[run.any_worker()]
        lost = run.chance.choice(((primary, standby), (standby, primary), None, (worker, primary), (primary, worker)))
        self.cuts_left -= 1
        if self.cuts_left:
            if lost:
                net.lose(*lost)
            else:
                net.part(primary, standby)
            run.pause(0.3, 3)
            net.heal()
            return False
        net.part(primary, standby)
        run.pause(0.5, 1)
        for host in (net.here, *run.hosts.values()):
            if run.bug != "two_primaries" or host is not worker:
                net.part(primary, host)
        self.standby.promote()
        # The workers look for the new primary once they have waited for the old one.
        run.last_at_least(8)
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
        "cut_off": lambda run: run.cut_off(),
        "lost_answers": lambda run: run.lose_answers(),
        "bad_packets": lambda run: run.spoil_packets(),
        "standby_cut_off": lambda run: run.store.cut_standby_off(run),
        "power_cut": lambda run: run.store.cut_power(run),
        "restore": lambda run: run.restore(),
    }


class Dynamodb:
    """The fake of tests/fake_aws. Its times have whole seconds, as DynamoDB's have."""
    lease_ms, skew_ms = 1500, 500
    limits = "request_timeout=1s&operation_timeout=2s"

    def __init__(self, run, stack, bug):
        host, _ = run.connect(stack) if run.fault in NETWORK_FAULTS else (None, None)
        endpoint = self.serve(stack, host)
        if bug in ON_THE_WIRE:
            relay = wire_bugs.Relay(int(endpoint.rsplit(":", 1)[1]), bug, run.seed)
            endpoint = stack.enter_context(relay).url
        if run.fault in ("cut", "partition"):
            self.proxy = stack.enter_context(CuttingProxy(int(endpoint.rsplit(":", 1)[1]), framed=False))
            endpoint = f"http://127.0.0.1:{self.proxy.port}"
        self.url = f"dynamodb://records?{self.limits}"
        self.environment = emulator.environment(endpoint)
        self.prepare()

    def serve(self, stack, host):
        at = [*(host.enter() if host else []), PROGRAMS["fake"], *(["--address", host.address] if host else [])]
        fake = stack.enter_context(subprocess.Popen([*at, "--until-eof", "--table", "records"], text=True,
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
        "cut_off": lambda run: run.cut_off(),
        "lost_answers": lambda run: run.lose_answers(),
        "bad_packets": lambda run: run.spoil_packets(),
        "worker_clock": lambda run: run.step_clock(),
    }


class Moto(Dynamodb):
    """Another's emulator of DynamoDB. It answers some hundred requests a second."""
    limits = "request_timeout=10s&operation_timeout=20s"

    def serve(self, stack, host):
        return stack.enter_context(emulator.running(host=host))

    def prepare(self):
        subprocess.run([PROGRAMS["once"], "table", "create", "--store", "dynamodb://records"], check=True,
                       stdout=subprocess.DEVNULL, env=self.environment)

    faults = {fault: Dynamodb.faults[fault] for fault in ("kill", "stop", "partition", "lost_answers")}


NETWORK_FAULTS = ("cut_off", "lost_answers", "bad_packets", "standby_cut_off")
# By the beginning of a fault: the program, and who judges what it told.
PROGRAMS_OF = {
    "once_run_": (programs.RunCallers, programs.judge), "proxy_": (programs.ProxyCallers, programs.judge),
    "serve_": (programs.ServeCallers, programs.judge),
    "sqs_hold_": (pollers.Pollers, pollers.judge), "sqs_": (pollers.Pollers, pollers.judge),
}
PROGRAM_RUNS = (
    ("sqlite", "once_run_kill"), ("sqlite", "once_run_stop"), ("postgresql", "once_run_kill"),
    ("postgresql", "once_run_server_kill"), ("sqlite", "proxy_kill"), ("postgresql", "proxy_kill"),
    ("postgresql", "proxy_server_kill"), ("sqlite", "serve_kill"), ("sqlite", "serve_stop"), ("postgresql", "serve_server_kill"),
    ("sqlite", "sqs_kill"), ("sqlite", "sqs_stop"), ("sqlite", "sqs_hold_kill"),
    ("postgresql", "sqs_kill"), ("postgresql", "sqs_hold_stop"), ("postgresql", "sqs_server_kill"),
    ("dynamodb", "once_run_kill"), ("dynamodb", "once_run_stop"), ("dynamodb", "proxy_kill"), ("dynamodb", "sqs_kill"),
    ("dynamodb", "sqs_stop"),
)
STORES = {"sqlite": Sqlite, "postgresql": Postgresql, "dynamodb": Dynamodb, "moto": Moto}

# ---- Planted bugs: where each is looked for. Those of the worker and of its store are in planted.cpp and worker.cpp.

COMMITS_EARLY = "set_config('synchronous_commit', 'on', true)", "set_config('synchronous_commit', 'off', true)"
SQL_BUGS = {  # Of the function that writes, in the test's database.
    "commits_early": COMMITS_EARLY,
    "commits_early_without_power": COMMITS_EARLY,
    "sql_unfenced": (" AND r.owner = seen_owner AND r.revision = seen_revision RETURNING * INTO there;",
                     " RETURNING * INTO there;"),
    "sql_removes_any": (" AND r.owner = seen_owner AND r.revision = seen_revision;\n    done := FOUND;\n  END IF",
                        ";\n    done := FOUND;\n  END IF"),
}
ON_THE_WIRE = ("dynamodb_unconditional_finish", "dynamodb_unconditional_insert", "dynamodb_eventual_read",
               "dynamodb_revision_repeats")
NOT_IN_WORKERS = (*SQL_BUGS, *ON_THE_WIRE, "asynchronous_standby", "commits_locally", "two_primaries",
                  "fsync_off", "backup_without_log", "older_backup")
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
    "serve_without_scope": ("sqlite", "serve_calm", "a client package: all tenants share a scope"),
    "serve_without_payload": ("sqlite", "serve_calm", "a client package: payloads are not compared"),
    "serve_without_hold": ("sqlite", "serve_kill", "a client package: `hold` is not asked for"),
    "sql_removes_any": ("postgresql", "calm", "the SQL function removes whatever is there"),
    "dynamodb_unconditional_finish": ("dynamodb", "stop", "DynamoDB: a result is written without a condition"),
    "dynamodb_unconditional_insert": ("dynamodb", "calm", "DynamoDB: a claim is written without a condition"),
    "dynamodb_eventual_read": ("dynamodb", "calm", "DynamoDB: a read may show what an earlier one showed"),
    "dynamodb_revision_repeats": ("dynamodb", "calm", "DynamoDB: a write keeps the revision that it saw"),
    "sqs_without_tenant": ("sqlite", "sqs_calm", "`once sqs --key`: the tenant is no part of the key"),
    "sqs_without_fingerprint": ("sqlite", "sqs_calm", "`once sqs --fingerprint`: the same for all payloads"),
    "sqs_own_store": ("sqlite", "sqs_kill", "`once sqs --store memory:`: each process remembers for itself"),
    "sqs_forgets": ("sqlite", "sqs_kill", "`once sqs --retention 1ms`: results are forgotten at once"),
    "log_unsynced": ("sqlite", "power_cut", "SQLite's log is never synced, as with `synchronous=OFF`"),
    "log_synced_late": ("sqlite", "power_cut", "a write is acknowledged before its sync, which the next write does"),
    "file_unsynced": ("sqlite", "power_cut", "SQLite's file is not synced before its log is used anew"),
    "fsync_off": ("postgresql", "power_cut", "the server's fsync is off"),
    "commits_early_without_power": ("postgresql", "power_cut", "synchronous_commit is off"),
    "backup_without_log": ("sqlite", "restore", "the backup is a copy of SQLite's file without its log"),
    "cut_off_is_done": ("dynamodb", "cut_off", "a write that its server did not answer counts as done"),
    "lost_is_unwritten": ("postgresql", "lost_answers", "a write whose answer was lost counts as not done"),
    "acts_again": ("dynamodb", "lost_answers", "the work acts again if the answer to its finish was lost"),
    "commits_locally": ("postgresql", "standby_cut_off", "the server's synchronous_commit is local: no commit waits for the standby"),
    "two_primaries": ("postgresql", "standby_cut_off", "a worker still reaches the old primary after the failover"),
    "older_backup": ("postgresql", "restore", "the backup is older than it is said to be"),
}


# ---- A run

NOT_BACK = "the store did not come back"
RESULT_LOST = "an acknowledged result cannot be read: the store did not come back"


class Lost(Exception):
    """The store does not come back after a fault, or a process cannot use it."""


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
        self.boots = 0
        self.network, self.hosts = None, {}

    def connect(self, stack):
        """Each worker gets a host of its own, and the server another, which is returned with the network's range. All else
        is where the proof is."""
        self.network = stack.enter_context(network.Network())
        self.hosts = {f"w{number}": self.network.host() for number in range(WORKERS)}
        self.server_host = self.network.host()
        return self.server_host, self.network.range

    def start(self, name, role):
        self.lives[name] += 1
        life = f"{name}.{self.lives[name]}"
        in_worker = "" if self.bug in NOT_IN_WORKERS else self.bug
        # The auditor has the time to look for a server that answers.
        url = self.store.url.replace("operation_timeout=2s", "operation_timeout=20s") if role == "audit" else self.store.url
        settings = {
            "role": role, "name": life, "url": url, "history": self.folder / f"{life}.jsonl",
            "ledger": self.folder / "ledger.jsonl", "seed": self.chance.randrange(1 << 40), "clients": 2, "keys": 5,
            "window_ms": 1500, "began_ns": self.began_ns, "pause_ms": 10, "lease_ms": self.kind.lease_ms,
            "skew_ms": self.kind.skew_ms, "retention_ms": 500, "bug": in_worker if role != "audit" else "",
            "boot": f"boot {self.boots}" if self.fault == "power_cut" else "",
            # SQLite's file has room in reserve, and its log is written anew: small records would not find the disk full.
            "input_bytes": 65_536 if (self.fault, self.kind) == ("full_disk", Sqlite) else 0,
        }
        variables = dict(self.store.environment)
        if self.fault == "worker_clock" and role == "work":
            place = self.folder / f"clock-{name}"
            place.mkdir(exist_ok=True)
            self.clocks[name] = self.clocks.get(name) or Clock(place)
            variables |= self.clocks[name].variables
        enter = self.hosts[name].enter() if name in self.hosts else []
        return subprocess.Popen([*enter, PROGRAMS["worker"], *(f"{key}={value}" for key, value in settings.items())],
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

    def some_hosts(self):
        """One worker's or all of them."""
        return [self.hosts[self.any_worker()]] if self.chance.random() < 0.4 else list(self.hosts.values())

    def cut_off(self):
        """One worker from its store. The others go on."""
        host = self.hosts[self.any_worker()]
        if self.chance.random() < 0.3:
            self.network.unplug(host)
        else:
            self.network.part(self.server_host, host)
        self.pause(self.kind.lease_ms / 1000, 4 * self.kind.lease_ms / 1000)
        self.network.heal()

    def lose_answers(self):
        """Requests arrive, and their answers do not."""
        for host in self.some_hosts():
            self.network.lose(self.server_host, host)
        self.pause(1, 4)
        self.network.heal()

    def spoil_packets(self):
        """They are lost, doubled or late."""
        what = self.chance.choice(("lost", "doubled", "late"))
        for host in self.some_hosts():
            for way in ((host, self.server_host), (self.server_host, host)):
                if what == "lost":
                    self.network.lose(*way, share=0.3)
                if what == "doubled":
                    self.network.double(*way, share=0.5)
            if what == "late":
                self.network.slow(host, kbit=self.chance.choice((64, 256)), most_ms=1000)
        self.pause(1, 3)
        self.network.heal()

    def fail_syncs(self):
        worker = self.workers[self.any_worker()]
        worker.stdin.write("sync fails\n")
        self.pause(0.01, 0.3)
        worker.stdin.write("sync works\n")

    def restore(self):
        """A backup is taken, and restored later. Once a run."""
        part_s = self.seconds / 3
        self.over.wait(part_s / 2)
        began = time.monotonic_ns()
        self.store.back_up(self)
        if self.bug == "older_backup":
            self.over.wait(0.5)
            began = time.monotonic_ns()
        ended = time.monotonic_ns()
        self.over.wait(part_s)
        for name, worker in self.workers.items():
            if self.chance.random() < 0.5:
                worker.kill()
            worker.stdin.close()
            if worker.wait(END_LIMIT_S) not in (0, -signal.SIGKILL):
                raise RuntimeError(f"{self.name}: {name} ended with {worker.returncode}")
        self.audit("before")
        way = self.store.restore(self)
        self.audit("restored")
        with open(self.folder / "restored.json", "w") as file:
            json.dump({"by": way, "backup": [began, ended], "restored": time.monotonic_ns()}, file)
        # The keys that were in use shortly before the backup come again, for as long as a run has left at least.
        self.timer.cancel()
        self.over.clear()
        self.began_ns += time.monotonic_ns() - began + 1_000_000_000
        self.begin()
        self.end_in(part_s)
        return True

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
            self.end_in(self.seconds)
            try:
                self.disturb()
                self.over.wait()
                self.end()
            except Lost as lost:
                return {"run": self.name, "seed": self.seed, "seconds": self.seconds, "found": [self.lost(lost)]}
            finally:
                self.timer.cancel()
        return self.judge()

    def lost(self, lost):
        """A store that does not come back has lost what it had acknowledged: a result that cannot be read any more."""
        self.over.set()
        self.kill_all()
        for call, answer in check.last_results(self.folder)[:20]:
            scope, name = call["k"].split("#")
            shown_now = subprocess.run(
                [PROGRAMS["once"], "show", "--store", self.store.url, "--scope", scope, "--key", name], check=False,
                env=self.store.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if shown_now.returncode:
                return {"rule": RESULT_LOST, "key": call["k"],
                        "history": [call, answer, f"{lost}; once show: {shown_now.stderr.strip()}"]}
        return {"rule": NOT_BACK, "key": "", "history": [str(lost)]}

    def end_in(self, seconds):
        self.ends = time.monotonic() + seconds
        self.timer = threading.Timer(seconds, self.over.set)
        self.timer.start()

    def last_at_least(self, seconds):
        if self.ends < time.monotonic() + seconds:
            self.timer.cancel()
            self.over.clear()
            self.end_in(seconds)

    def begin(self):
        self.workers = {f"w{number}": self.start(f"w{number}", "work") for number in range(WORKERS)}
        self.workers["operator"] = self.start("operator", "operate")

    def end(self):
        for name, worker in self.workers.items():
            worker.stdin.close()
            if worker.wait(END_LIMIT_S):
                raise self.failure(f"{self.name}: {name} ended with {worker.returncode}")
        self.audit("audit")

    def audit(self, name):
        audit = self.start(name, "audit")
        audit.stdin.close()
        if audit.wait(END_LIMIT_S):
            raise self.failure(f"{self.name}: the records cannot be read")

    def failure(self, text):
        """What a program says after a power cut is about the store. Else it is about the proof."""
        return Lost(text) if self.fault in ("power_cut", "restore") else RuntimeError(text)

    def kill_all(self):
        for worker in self.workers.values():
            worker.kill()
        for worker in self.workers.values():
            worker.wait()
            if worker.stdin:
                with contextlib.suppress(OSError):
                    worker.stdin.close()

    def judge(self):
        """Both checkers, as one result. What a backup was restored in is judged as the two histories that it is."""
        if self.fault != "restore":
            return self.judged(self.folder, self.seconds)
        about = restored.split(self.folder)
        results = [self.judged(self.folder / name, self.seconds / 4) for name in restored.HISTORIES]
        all_of_it = check.History(self.folder)  # Not judged, only counted.
        counts = all_of_it.counts
        whole = {**results[0], **counts, **about["counts"], "operations": counts["store calls"],
                 "in_doubt": counts["in doubt"], "unavailable_s": check.unavailable_s(all_of_it.done())}
        whole |= {name: sum(result.get(name, 0) for result in results) for name in ("doubles", "lost", "takeovers")}
        whole["found"] = about["violations"] + [found for result in results for found in result["found"]]
        if not self.bug and self.seconds > 15 and not whole["again"]:
            whole["found"].append({"rule": "too few effects that came again", "key": "", "history": []})
        return whole

    def judged(self, folder, seconds):
        def of(*command):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{self.name}: {command[-2]} ended with {done.returncode}")
            return json.loads(done.stdout)

        register = of(PROGRAMS["register"], folder)
        linear = of(sys.executable, ROOT / "proof" / "check.py", folder)
        found = [{"rule": "not linearizable", "key": each["key"], "history": each["history"]}
                 for each in register["violations"]]
        found += linear["violations"]
        # A run in which nothing happened shows nothing.
        least = {} if self.bug else {
            "operations": 10 * seconds, "calls": seconds, "effects": 1,
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
                    for file in sorted(file for name in ("*.jsonl", "nemesis.log", "restored.json")
                                       for file in folder.glob(name)):
                        archive.add(file, f"{run.name}/{file.name}")


def clearest(result):
    """What shows best what is wrong: of a rule about a promise, if there is one, and short."""
    about_bytes = ("not linearizable", NOT_BACK, "a record was read in another form",
                   "a record was read that nobody", "an answer tells of a record that nobody", "a finish tells of a record that nobody")
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
        # A history says more than a store that does not come back. Another try may have one.
        if result["found"] and (seconds > 4 or clearest(result)["rule"] != NOT_BACK):
            return result
    return result


# ---- All of them

def interrupted(*_):
    """Ends at once: workers and servers end with this process."""
    print("proof: interrupted. What was done is kept: --resume goes on", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    os._exit(130)


def commit():
    """What the proof is of; nothing if the work tree has changes. tools/release publishes the histories of a commit."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return "" if git("status", "--porcelain") else git("rev-parse", "HEAD").strip()


class Kept:
    """The results, in a file that has each as soon as there is one."""

    def __init__(self, file, seed, seconds, resume):
        self.file, self.lock = file, threading.Lock()
        self.all = {"seed": seed, "seconds": seconds, "commit": commit(), "runs": {}, "planted": {}}
        if resume:
            if not file.exists():
                sys.exit(f"proof: {file} is not there, so nothing can be resumed. Nothing was run.")
            self.all = json.loads(file.read_text())
            if self.all.get("commit") != commit():
                self.all["commit"] = ""
        else:
            for old in file.parent.glob("*.tar.xz"):
                old.unlink()
            self.write()

    def write(self):
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.all, indent=1) + "\n")
        new.rename(self.file)

    def done(self, kind, name, act, *arguments):
        """The result of that name, if there is one; else it is made."""
        if name not in self.all[kind]:
            result = act(*arguments)
            with self.lock:
                self.all[kind][name] = result
                self.write()
        return self.all[kind][name]


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
    parser.add_argument("--resume", action="store_true", help="with the seed and the time of the proof that was interrupted")
    parser.add_argument("--page", action="store_true", help="write docs/proof.md, if nothing is wrong")
    asked = parser.parse_args()
    if asked.page and (asked.only or asked.planted is not None):
        parser.error("the page is about all runs and bugs")
    # Disks are mounted, and networks made, where nobody else sees them.
    root = os.geteuid() == 0
    no_root = "" if root else "this is not root"
    no_network = no_root or network.missing()
    if root:
        kinds = ["mount"] if no_network else ["mount", "net"]
        namespaces.enter(kinds, "mount -t tmpfs -o size=1m trial /mnt", "small disks")
        if not no_network:
            hosts.run("ip", "link", "set", "lo", "up")
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    PROGRAMS.update((name, getattr(asked, name)) for name in ("worker", "register", "once", "fake"))
    asked.keep.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.keep / "results.json", asked.seed, asked.seconds, asked.resume)
    seed, all_seconds = kept.all["seed"], kept.all["seconds"]
    print(f"proof: seed {seed}", flush=True)
    runs = [(store, fault) for store, kind in STORES.items() for fault in kind.faults]
    runs += PROGRAM_RUNS
    runs = [run for run in runs if asked.planted is None and (asked.only or "") in "-".join(run)]
    bugs = [bug for bug in PLANTED if not asked.only and asked.planted in (None, "", bug)]
    left_out = []
    for faults, missing, why in (
            (("full_disk",), lambda: no_root, "they mount a small disk"),
            (("power_cut",), lambda: no_root or power_disk.missing(),
             "they mount a disk of their own, and cut its power"),
            (NETWORK_FAULTS, lambda: no_network, "they make networks of their own, and part them")):
        left = [run for run in runs if run[1] in faults] + [bug for bug in bugs if PLANTED[bug][1] in faults]
        if left and (reason := missing()):
            print(f"proof: NOT RUN, as {why}, and {reason}: {len(left)} runs and bugs of {', '.join(faults)}", flush=True)
            left_out += left
            runs = [run for run in runs if run not in left]
            bugs = [bug for bug in bugs if bug not in left]
    if not runs and not bugs:
        sys.exit("proof: nothing has this name")
    # A run mostly waits, so there are three for each processor. A bug is mostly found in 4 s, and its server takes 2.
    together = 3 * (os.cpu_count() or 1)
    left_s = all_seconds - 7 * len(bugs) / together
    seconds = max(4.0, left_s / math.ceil(len(runs) / together) - 5) if runs else 0
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        playing = [pool.submit(kept.done, "runs", f"{store}-{fault}", play, store, fault, seconds, seed, asked.keep)
                   for store, fault in runs]
        # First those that may need several tries, so that nobody waits for them at the end.
        hunting = {bug: pool.submit(kept.done, "planted", bug, hunt, bug, seed, asked.keep)
                   for bug in sorted(bugs, key=lambda bug: PLANTED[bug][1] not in NETWORK_FAULTS)}
        results = []
        for future in playing:
            result = future.result()
            results.append(result)
            print(f"proof: {result['run']}: {result.get('operations', 0)} operations, {result.get('calls', 0)} calls, "
                  f"{result.get('faults', 0)} faults, "
                  f"{result.get('effects', 0)} effects, {len(result['found'])} wrong"
                  + (f"; {result['again']} of {result['forgotten']} forgotten operations were done again"
                     if "again" in result else ""), flush=True)
            for found in result["found"][:3]:
                print(shown(found), flush=True)
            if result["found"]:
                wrong.append(result["run"])
        hunted = []
        for bug in bugs:
            result = hunting[bug].result()
            hunted.append((bug, result))
            print(f"proof: planted {bug}: {PLANTED[bug][2]}", flush=True)
            if result["found"]:
                print(shown(clearest(result)), flush=True)
            else:
                wrong.append(f"planted {bug}")
    (asked.keep / "planted.txt").write_text("\n".join(
        f"{bug}: {PLANTED[bug][2]} ({', '.join(PLANTED[bug][:2])})\n{shown(clearest(result))}\n"
        for bug, result in hunted if result["found"]))
    (asked.keep / "tables.md").write_text(table(results) + "\n" + planted_table(hunted))
    if figures := pictures.collect(asked.keep):
        pictures.write(asked.keep, figures)
    passed = len(runs) + len(bugs) - len(wrong)
    (asked.keep / "test-counts").write_text(f"{passed} {len(wrong)}\n")
    for name in wrong:
        print(f"proof: WRONG: {name}")
    if not (wrong or left_out or asked.only or asked.planted is not None):
        kept.all["passed"] = kept.all["commit"]
        kept.write()
    if asked.page and not wrong and not left_out:
        pictures.write_docs(asked.keep, figures)
    elif asked.page:
        print("proof: the page was not written, as " + ("something is wrong" if wrong else "not all could be run"))
    print(f"proof: {passed} passed, {len(wrong)} failed; histories are in {asked.keep}")
    shutil.rmtree(FOLDER)
    sys.exit(bool(wrong or (asked.page and left_out)))


if __name__ == "__main__":
    main()
