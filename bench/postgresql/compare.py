"""once against pgbench with equal writes, and against other libraries with idempotency keys in PostgreSQL.

    bench/run BUILD_FOLDER postgresql [--quick] [--only-once | --only-lanes] [--json] [--write-docs]

One server of Debian's packages on this machine, fsync on, synchronous commits. A cycle is a claim and its finish, each
committed by itself: the engine's new call with a result of 100 bytes. pgbench (-M prepared, a connection and a client for
each cycle in flight) inserts the same row into the same table and updates it, with no condition and no function. A row of
each is compared.

Rounds are short and alternate, and take turns in who comes first: so other load on the machine hits both, and the table is
the same for both. What is told is the median of the rounds, and of the ratios within each. Client: the client process's
own processor time, for one of the two operations of a cycle. Server: that of all the server's processes, for a cycle. WAL
and transactions are the server's own counts.

Table sizes: the table is filled with finished records by SQL before the rounds. The server writes no checkpoint and runs
no autovacuum while it is measured.

Lanes: once with two and four connections for writes, beside one, 256 cycles in flight. --only-lanes measures nothing else.

Other libraries: once, DBOS Transact (TypeScript; a workflow's id is the key) and idemkit (Python; `@idempotent`) do the
same cycles, with as many connections as cycles in flight, but once, which has one for writes. Then a process of each is
killed (-9) while it has many keys in work, and another that was there all the time is asked for all of them. The work
leaves a line in a file for each run.

A client answers each line {"do": "cycles", "first": 7, "count": 100, "in_flight": 1}, cycles with the keys 7 to 106, with
a line {"seconds": ..., "cpu_us": ..., "runs": how often the work ran, "wrong": how many had no result of their own}.
"""
import argparse
import collections
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True  # Beside the sources.
sys.path[:0] = [str(ROOT / "tests" / "real_servers"), str(ROOT / "bench")]

import figures as common  # noqa: E402
import guard  # noqa: E402
import postgresql  # noqa: E402
import report  # noqa: E402
from clients import Lines, require_equal  # noqa: E402

PGBENCH = postgresql.BINARIES / "pgbench"
SETTINGS = {
    "fsync": "on", "shared_buffers": "1GB", "max_connections": "300", "checkpoint_timeout": "1d", "max_wal_size": "20GB",
    "autovacuum": "off",
}
MODES = (1, 16, 64)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
LANES, LANES_IN_FLIGHT = (1, 2, 4), (64, 256)
LIBRARY_MODES = (1, 64)
RESULT = "r" * 100
# Work that is killed.
KEYS, AT_ONCE, WORK_MS, LEASE_MS, PATIENCE_MS = 400, 32, 200, 3_000, 15_000

# The values that differ have one length with those of once. Numbers are what pgbench can make of its own; a bytea reads
# them as text.
SCRIPT = """\\set n :n + 1
\\set key 1000000000000000000 + permute(:start + :client_id * 1000000000 + :n, 900000000000000000, 7)
\\set token :now + :n
\\set lease :token + 30000
\\set expires :token + 86400000
\\set finished :token + 5
INSERT INTO once.records (key, state, attempt, revision, token, owner, lease_until_ms, expires_at_ms, sweep_at_ms,
  created_at_ms, holder)
VALUES (:key, 0, 1, 1835009, :token, '0123456789abcdef', :lease, :expires, :expires, :token, '{holder}');
UPDATE once.records SET state = 1, revision = 2935233, lease_until_ms = NULL, expires_at_ms = :expires,
  finished_at_ms = :finished, result = '{result}', content_type = 'text/plain' WHERE key = :key;
"""

# Half the keys among those of each side.
FILL = """
SET maintenance_work_mem = '1GB'; SET synchronous_commit = off;
TRUNCATE once.records;
ALTER TABLE once.records DROP CONSTRAINT records_pkey;
DROP INDEX once.records_by_sweep, once.records_listed;
INSERT INTO once.records (key, state, attempt, revision, token, owner, expires_at_ms, sweep_at_ms, created_at_ms,
  finished_at_ms, holder, result, content_type)
SELECT CASE WHEN i % 2 = 0
         THEN convert_to('pay#' || lpad(((i::numeric * 618033988749895) % 1000000000000000)::text, 15, '0'), 'UTF8')
         ELSE convert_to((1000000000000000000 + abs(hashint8extended(i, 7) % 900000000000000000))::text, 'UTF8') END,
  1, 1, 2935233, {now} + i, '0123456789abcdef', {now} + 86400000, {now} + 86400000, {now}, {now} + 5, '{holder}',
  '{result}', 'text/plain'
FROM generate_series(1, {records}::bigint) i;
ALTER TABLE once.records ADD PRIMARY KEY (key);
CREATE INDEX records_listed ON once.records (listed, key) WHERE listed IS NOT NULL;
CREATE INDEX records_by_sweep ON once.records (sweep_at_ms) WHERE sweep_at_ms IS NOT NULL;
"""


def children_cpu_us():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1e6


class Database:
    """A database on the server, and what a client's cycles there cost."""

    def __init__(self, server, url):
        self.server = server
        self.url = url
        self.name = url.rsplit("/", 1)[1]
        self.numbers = itertools.count(1)

    def psql(self, sql, limit_s=3600):
        return self.server.psql(sql, self.name, limit_s=limit_s)

    def server_cpu_us(self):
        """Of all its processes, those that have ended included. In ticks of 10 ms."""
        ticks = 0
        for pid in (self.server.process.pid, *guard.children(self.server.process.pid)):
            try:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # Then it is among the postmaster's children that have ended.
                continue
            last = 15 if pid == self.server.process.pid else 13
            ticks += sum(int(field) for field in fields[11:last])
        return ticks * 1e6 / os.sysconf("SC_CLK_TCK")

    def counts(self):
        """Bytes of WAL and transactions that wrote, so far."""
        row = self.psql("SELECT pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())")
        return [int(value) for value in row.split("|")]

    def measured(self, run):
        """run() returns how many cycles, in how many seconds, with how many µs of the client."""
        wal, transactions = self.counts()
        cpu = self.server_cpu_us()
        cycles, seconds, client_us = run()
        cpu = self.server_cpu_us() - cpu
        wal_after, transactions_after = self.counts()
        return {
            "per_second": cycles / seconds,
            "client_us": client_us / cycles / 2,
            "server_us": cpu / cycles,
            "wal_bytes": (wal_after - wal) / cycles,
            "transactions": (transactions_after - transactions) / cycles,
        }


class Client:
    """A process that makes cycles."""

    def __init__(self, database, command, name):
        self.database = database
        self.name = name
        self.lines = Lines(command, postgresql.environment() | {"NODE_NO_WARNINGS": "1"})
        self.first = next(FIRSTS)
        self.rates = {}

    def cycles(self, in_flight, count, do="cycles"):
        def run():
            answer = self.lines.ask(do=do, first=self.first, count=count, in_flight=in_flight)
            self.first += count
            require_equal(self.name, "cycles without a result", 0, answer["wrong"])
            require_equal(self.name, "runs of the work", count, answer["runs"])
            self.rates[in_flight] = count / answer["seconds"]
            return count, answer["seconds"], answer["cpu_us"]

        return self.database.measured(run)

    def round(self, in_flight, seconds, do="cycles"):
        """Cycles for about so long; 0: as few as show that it works."""
        if not seconds:
            return self.cycles(in_flight, 3 * in_flight, do)
        if in_flight not in self.rates:
            self.cycles(in_flight, 3 * in_flight, do)  # Connects.
            self.cycles(in_flight, 10 * in_flight, do)
        return self.cycles(in_flight, max(in_flight, int(self.rates[in_flight] * seconds)), do)


FIRSTS = itertools.count(10**9, 10**9)  # Clients of one database have keys of their own.


class PgBench:
    name = "pgbench"

    def __init__(self, database, folder, holder):
        self.database = database
        self.script = folder / "cycle.sql"
        self.script.write_text(SCRIPT.format(holder=holder, result=RESULT))

    def round(self, in_flight, seconds, do="cycles"):
        start = next(self.database.numbers) * 10**12
        how_long = ["-T", str(seconds)] if seconds else ["-t", "3"]
        command = [
            PGBENCH, "-n", "-M", "prepared", "-c", str(in_flight), "-j", str(min(in_flight, os.cpu_count())), *how_long,
            "-D", "n=0", "-D", f"start={start}", "-D", f"now={now_ms()}", "-f", self.script, self.database.url,
        ]

        def run():
            cpu = children_cpu_us()
            done = subprocess.run(
                [str(word) for word in command], env=postgresql.environment(), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False,
            )
            cycles = re.search(r"number of transactions actually processed: (\d+)", done.stdout)
            rate = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", done.stdout)
            if done.returncode or not (cycles and rate):
                raise RuntimeError(f"pgbench ended with {done.returncode}: {done.stdout}")
            return int(cycles[1]), int(cycles[1]) / float(rate[1]), children_cpu_us() - cpu

        return self.database.measured(run)


def now_ms():
    return time.time_ns() // 1_000_000


def take_turns(clients, in_flight, seconds, rounds, do="cycles"):
    """Medians of each client, and of the ratios of the first one to each other within a round."""
    seen = collections.defaultdict(list)
    for number in range(rounds):
        for client in clients if number % 2 == 0 else clients[::-1]:
            seen[client.name].append(client.round(in_flight, seconds, do))
    ours = seen[clients[0].name]
    medians = {
        name: {key: common.median(figures[key] for figures in all_rounds) for key in all_rounds[0]}
        for name, all_rounds in seen.items()
    }
    for client in clients[1:]:
        pairs = list(zip(ours, seen[client.name]))
        medians[client.name]["ratio"] = common.median(a["per_second"] / b["per_second"] for a, b in pairs)
        medians[client.name]["ratios"] = [round(a["per_second"] / b["per_second"], 2) for a, b in pairs]
        medians[client.name]["wal_ratio"] = common.median(a["wal_bytes"] / b["wal_bytes"] for a, b in pairs)
    return medians


def require_equal_rows(database):
    """The rows that both sides leave have the same size, column by column."""
    columns = database.psql(
        "SELECT string_agg(format('coalesce(pg_column_size(%I), 0)', attname), ' || '','' || ' ORDER BY attnum)"
        " FROM pg_attribute WHERE attrelid = 'once.records'::regclass AND attnum > 0")
    sizes = f"SELECT DISTINCT {columns} FROM once.records WHERE state = 1 AND key"
    require_equal("pgbench", "sizes of columns", database.psql(f"{sizes} >= 'pay#'"), database.psql(f"{sizes} < 'pay#'"))


def fill(database, records, holder):
    database.psql(FILL.format(records=records, holder=holder, result=RESULT, now=now_ms()))
    database.psql("VACUUM (ANALYZE) once.records")
    database.psql("CHECKPOINT")


def hot_share(database):
    """Of the updates so far. The server gets the counts of a session when it is idle for a while or ends."""
    row = database.psql("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'records'").split("|")
    return round(int(row[0]) / max(int(row[1]), 1), 3)


def against_pgbench(server, options, folder):
    database = Database(server, server.database())
    subprocess.run([options.once, "--create", database.url], check=True, env=postgresql.environment())
    seconds, rounds = (0, 1) if options.quick else (options.seconds, options.rounds)
    sizes = [1_000, 2_000] if options.quick else [size for size in SIZES if size <= options.most_records]
    modes, by_size = {}, {}

    # For the length of `holder`, which has the host's name and the process.
    client = Client(database, [options.once, database.url], "once")
    with client.lines:
        client.cycles(1, 10)
        holder = "h" * int(database.psql("SELECT max(octet_length(holder)) FROM once.records"))
        pgbench = PgBench(database, folder, holder)
        pgbench.round(1, 0)
        require_equal_rows(database)
        for size in sizes:
            print(f"{size} records: measuring", file=sys.stderr)
            fill(database, size, holder)
            clients = (client, pgbench)
            if not options.quick:
                take_turns(clients, 64, 1, 1)  # To warm up.
            if size == (100_000 if 100_000 in sizes else sizes[-1]):
                # Most first: the first change of a page after a checkpoint is logged whole, and few cycles would show it.
                for in_flight in reversed(MODES):
                    modes = {in_flight: take_turns(clients, in_flight, seconds, rounds)} | modes
                modes["store"] = take_turns((client,), 64, seconds, rounds, "writes")["once"]
                by_size[size] = modes[64]
            else:
                by_size[size] = take_turns(clients, 64, seconds, rounds)
        hot = hot_share(database)
    return {"modes": modes, "sizes": by_size, "hot_updates": hot}


def lanes(server, options):
    """Connections for writes: the rates of some, and the ratio of one to each."""
    database = Database(server, server.database())
    subprocess.run([options.once, "--create", database.url], check=True, env=postgresql.environment())
    fill(database, 1_000 if options.quick else 100_000, "h" * 20)
    seconds, rounds = (0, 1) if options.quick else (options.seconds, options.rounds)
    told = {}
    with contextlib.ExitStack() as running:
        clients = [Client(database, [options.once, database.url, str(count)], str(count)) for count in LANES]
        for client in clients:
            running.enter_context(client.lines)
        for in_flight in LANES_IN_FLIGHT:
            print(f"connections for writes, {in_flight} in flight: measuring", file=sys.stderr)
            for client in clients:
                client.round(in_flight, 0)  # Connects.
            told[in_flight] = take_turns(clients, in_flight, seconds, rounds)
    return told


def libraries(options):
    """Installs them below build/. Returns the commands, without their arguments, and the versions."""
    folder = ROOT / "build" / "bench-postgresql"
    folder.mkdir(parents=True, exist_ok=True)
    for name, install in (
        ("requirements.txt", [[sys.executable, "-m", "venv", folder / "python"],
                              [folder / "python/bin/pip", "install", "--quiet", "-r", HERE / "requirements.txt"]]),
        ("package.json", [["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]]),
    ):
        installed = folder / f"installed-{name}"
        if installed.exists() and installed.read_text() == (HERE / name).read_text():
            continue
        print(f"installing {name} in {folder}", file=sys.stderr)
        shutil.copy(HERE / name, folder / name)
        for command in install:
            subprocess.run(list(map(str, command)), cwd=folder, check=True, stdout=sys.stderr)
        shutil.copy(HERE / name, installed)
    commands = {
        "dbos": [folder / "node_modules/.bin/node", HERE / "client_dbos.mjs", folder],
        "idemkit": [folder / "python/bin/python", HERE / "client_idemkit.py"],
    }
    return folder, commands


def versions(commands):
    found = {}
    for command in commands:
        answer = subprocess.run([*map(str, command), "--versions"], check=True, stdout=subprocess.PIPE).stdout
        found |= json.loads(answer)
    words = subprocess.run([postgresql.BINARIES / "postgres", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return found | {"PostgreSQL": words.stdout.split()[2]}


class Library:
    """One of those compared: how to start its client."""

    def __init__(self, name, server, options, folder, command):
        self.name = name
        self.database = Database(server, server.database())
        self.command = command
        if name == "once":
            subprocess.run([options.once, "--create", self.database.url], check=True, env=postgresql.environment())
        elif name == "idemkit":
            subprocess.run([folder / "python/bin/idemkit", "init-pg", self.database.url], check=True,
                           env=postgresql.environment(), stdout=sys.stderr)

    def client(self, in_flight, executor="a"):
        more = [executor, max(in_flight, 10)] if self.name == "dbos" else []  # 10 connections are its default.
        return Client(self.database, [*self.command, self.database.url, *more], self.name)


def beside_others(all_libraries, options):
    rounds, seconds = (1, 0) if options.quick else (options.rounds, options.seconds)
    told = {}
    for in_flight in LIBRARY_MODES:
        print(f"libraries, {in_flight} in flight: measuring", file=sys.stderr)
        clients = [library.client(in_flight) for library in all_libraries]
        try:
            for client in clients:
                client.round(in_flight, 0)  # Connects.
            told[in_flight] = take_turns(clients, in_flight, seconds, rounds)
        finally:
            for client in clients:
                client.lines.__exit__()
    return told


def ran(effects):
    return collections.Counter(effects.read_text().split()) if effects.exists() else collections.Counter()


def kill_holder(library, folder, hold=False, restart=False):
    """Kills a process with work in hand, and asks another for all keys. restart: and then starts one in its place.
    Returns how many keys were in work, how many ran twice, and how many got no result from the other one."""
    name = f"{library.name}{'-hold' if hold else ''}{'-restart' if restart else ''}"
    effects = folder / name
    keys = 64 if folder.name == "quick" else KEYS
    job = {
        "do": "work", "count": keys, "in_flight": AT_ONCE, "effects": str(effects), "work_ms": WORK_MS,
        "lease_ms": LEASE_MS, "limit_ms": PATIENCE_MS, "hold": hold,
    }
    other = library.client(AT_ONCE, "other")
    with other.lines:
        holder = library.client(AT_ONCE, "holder")
        job["first"] = holder.first
        other.lines.ask(**(job | {"first": other.first, "count": 1}))  # It is connected, and idle.
        effects.unlink()
        holder.lines.process.stdin.write(json.dumps(job).encode() + b"\n")
        postgresql.wait_for(lambda: len(ran(effects)) >= keys // 2, "half of the work was begun")
        time.sleep(WORK_MS / 2000)  # Those that began together are all in the middle of it.
        holder.lines.process.kill()
        holder.lines.process.wait()
        began = time.monotonic()
        in_work = len(ran(effects))
        replacement = library.client(AT_ONCE, "holder") if restart else None
        try:
            if replacement:
                replacement.lines.ask(**(job | {"first": replacement.first, "count": 1, "effects": "/dev/null"}))
            answer = other.lines.ask(**job)
        finally:
            if replacement:
                replacement.lines.__exit__()
        seconds = time.monotonic() - began
    times = ran(effects)
    return {
        "keys": keys, "begun_before": in_work, "seconds": round(seconds, 1), "unanswered": answer["wrong"],
        "twice": sum(1 for count in times.values() if count > 1), "never": keys - len(times),
        "most": max(times.values()),
    }


def killed(all_libraries, folder):
    told = {}
    for library in all_libraries:
        print(f"{library.name}: killing", file=sys.stderr)
        told[library.name] = kill_holder(library, folder)
        if library.name == "once":
            told["once_hold"] = kill_holder(library, folder, hold=True)
        if library.name == "dbos":
            told["dbos_restart"] = kill_holder(library, folder, restart=True)
    for name, figures in told.items():
        if name != "once_hold":  # A claim whose work had not begun is held too.
            require_equal(name, "keys that never ran", 0, figures["never"])
    return told


def main():
    parser = argparse.ArgumentParser(prog="bench_postgresql", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--once", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--only-once", action="store_true", help="no other library")
    parser.add_argument("--only-lanes", action="store_true", help="only connections for writes")
    parser.add_argument("--rounds", type=int, default=7, help="of each client")
    parser.add_argument("--seconds", type=int, default=3, help="of a round")
    parser.add_argument("--most-records", type=int, default=SIZES[-1], help="no larger table")
    common.add_options(parser)
    options = common.parse(parser)
    if options.write_docs and (options.only_once or options.only_lanes or options.most_records < SIZES[-1]):
        parser.error("the documents tell of all libraries and sizes")

    figures = {
        "date": datetime.date.today().isoformat(), "machine": common.machine(), "settings": SETTINGS,
        "rounds": options.rounds, "seconds": options.seconds,
    }
    folder, commands = (None, {}) if options.only_once or options.only_lanes else libraries(options)
    commands = {"once": [options.once]} | commands
    figures["versions"] = versions(commands.values())
    with tempfile.TemporaryDirectory(prefix="once-bench-") as scratch, postgresql.running(SETTINGS) as server:
        scratch = pathlib.Path(scratch) / ("quick" if options.quick else "whole")
        scratch.mkdir()
        figures["lanes"] = lanes(server, options)
        if options.only_lanes:
            return print(json.dumps(figures, indent=2))
        figures |= against_pgbench(server, options, scratch)
        all_libraries = [Library(name, server, options, folder, command) for name, command in commands.items()]
        figures["libraries"] = beside_others(all_libraries, options)
        figures["killed"] = killed(all_libraries, scratch)
    figures["machine"]["load_after"] = round(os.getloadavg()[0], 1)
    figures = json.loads(json.dumps(figures))  # Keys that are numbers become texts, as in the file.
    if options.write_docs:
        report.REPORT.write(figures)
    print(json.dumps(figures, indent=2) if options.json or options.only_once else report.tables(figures))


if __name__ == "__main__":
    main()
