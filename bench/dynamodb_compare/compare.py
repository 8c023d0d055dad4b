"""once against Powertools for AWS Lambda (TypeScript and Python): the same job, on the same DynamoDB server, in one run.

    bench/run BUILD_FOLDER dynamodb_compare [--quick] [--json] [--write-docs]

The server is our fake: a table in memory with the service's conditional semantics, in a process of its own on loopback,
over plain HTTP and over TLS. The job: the text of a 200-byte order event is parsed, its order_id is the key, a handler
returns a small receipt. "New" is a first call (claim, handler, finish), a "replay" is a call that gets the stored receipt.
Each client is one process and makes the same calls one at a time and 32 in flight: once and TypeScript without a thread
each, Python with 32 threads.

A round is, for each client in turn, on a fresh table: a few calls to warm up, so many new ones, and as many replays.
What is told is the median of the rounds after the first. Processor time is the client process's own (user and system, all
threads), by itself. How many requests were made is what the server counted. A client that did not do its job (handler
runs, receipts, requests, or completed records in the table are not as many as they must be) ends the comparison.

A client answers each line {"first": 7, "count": 100, "in_flight": 1}, calls with the orders 7 to 106, with a line
{"seconds": ..., "cpu_us": ..., "runs": how often the handler ran, "wrong": how many receipts were not as expected}.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

import boto3

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True  # Beside the sources.
sys.path[:0] = [str(ROOT / "tests" / "real_servers"), str(ROOT / "bench")]

import emulator  # noqa: E402
import figures as common  # noqa: E402
import report  # noqa: E402
from clients import Lines, require_equal  # noqa: E402

TABLE = "orders"
EVENT = (
    '{"order_id":"o-0000000000","customer":"c-981","amount":4990,"currency":"EUR","items":[{"sku":"A-17","quantity":2},'
    '{"sku":"B-4","quantity":1}],"ship_to":"12 Signal Lane, Crewe","channel":"web-shop"}'
)
IN_FLIGHT = 32
REQUESTS = {"new": 2, "replay": 1}


class Server:
    def __init__(self, program, tls):
        self.lines = Lines([program, "--until-eof", *(["--tls"] if tls else [])])
        endpoint = self.lines.hear()
        ca_file = self.lines.hear() if tls else None
        self.environment = emulator.environment(endpoint) | {"NODE_NO_WARNINGS": "1"}
        if tls:
            self.environment |= {"AWS_CA_BUNDLE": ca_file, "NODE_EXTRA_CA_CERTS": ca_file}
        self.dynamodb = boto3.client(
            "dynamodb",
            endpoint_url=endpoint,
            region_name=self.environment["AWS_REGION"],
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            verify=ca_file,
        )

    @contextlib.contextmanager
    def table(self):
        self.dynamodb.create_table(
            TableName=TABLE,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        )
        yield
        self.dynamodb.delete_table(TableName=TABLE)

    def requests(self):
        # Before its first claim, a client of once asks what table it is: one request for each process, and none for a call.
        return sum(count for name, count in self.lines.ask().items() if name != "DescribeTable")

    def completed(self):
        pages = self.dynamodb.get_paginator("scan").paginate(
            TableName=TABLE,
            Select="COUNT",
            FilterExpression="#status IN (:theirs, :ours)",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":theirs": {"S": "COMPLETED"}, ":ours": {"S": "completed"}},
        )
        return sum(page["Count"] for page in pages)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.dynamodb.close()
        self.lines.__exit__(*exception)


def calls(server, name, client, kind, first, count, in_flight):
    """Has the client make these calls; sees that they were made. Returns what they took."""
    requests, cpu = server.requests(), server.lines.cpu_s()
    answer = client.ask(first=first, count=count, in_flight=in_flight)
    require_equal(name, "wrong receipts", 0, answer["wrong"])
    require_equal(name, f"runs of the handler in {kind} calls", count if kind == "new" else 0, answer["runs"])
    made = server.requests() - requests
    require_equal(name, f"requests for {count} {kind} calls", count * REQUESTS[kind], made)
    return {
        "per_second": count / answer["seconds"],
        "cpu_us": answer["cpu_us"] / count,
        "requests": made / count,
        "server_busy": (server.lines.cpu_s() - cpu) / answer["seconds"],
    }


def measure(server, clients, rounds):
    """Medians by client, in flight or one at a time, and kind of call."""
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(Lines(client["command"], server.environment)) for name, client in clients.items()
        }
        seen = {name: {mode: {"new": [], "replay": []} for mode in ("one", "many")} for name in clients}
        for number in range(rounds + 1):  # The first is to warm up.
            for name, client in clients.items():
                count = client["count"]
                for mode, in_flight in (("one", 1), ("many", IN_FLIGHT)):
                    with server.table():
                        calls(server, name, running[name], "new", count, count // 10, in_flight)
                        for kind in ("new", "replay"):
                            figures = calls(server, name, running[name], kind, 0, count, in_flight)
                            if number > 0:
                                seen[name][mode][kind].append(figures)
                        require_equal(name, "completed records in the table", count + count // 10, server.completed())
        return {
            name: {
                mode: {
                    kind: {key: common.median(figures[key] for figures in all_rounds) for key in all_rounds[0]}
                    for kind, all_rounds in kinds.items()
                }
                for mode, kinds in modes.items()
            }
            | {"peak_mib": round(running[name].peak_mib(), 1)}
            for name, modes in seen.items()
        }


def measure_start(server, clients, times):
    """Medians by client: from before the process is started until its first new call is over, and its memory then."""
    took = {name: [] for name in clients}
    memory = {name: [] for name in clients}
    with server.table():
        for number in range(times):
            for name, client in clients.items():
                began = time.perf_counter()
                with Lines(client["command"], server.environment) as process:
                    answer = process.ask(first=number, count=1, in_flight=1)
                    took[name].append((time.perf_counter() - began) * 1000)
                    memory[name].append(process.peak_mib())
                require_equal(name, "runs of the handler", 1, answer["runs"])
        require_equal("all", "completed records in the table", times * len(clients), server.completed())
    return {
        name: {"start_ms": common.median(took[name]), "start_mib": common.median(memory[name])} for name in clients
    }


def clients_of(once, scale):
    """What is run, by the names that report.py knows, and how many calls a round has: enough for a steady figure."""
    node_tools = subprocess.run([ROOT / "tools" / "node-tools"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    node = [f"{node_tools}/node_modules/.bin/node", HERE / "client_typescript.mjs", node_tools]
    python = [sys.executable, HERE / "client_python.py"]
    clients = {
        "once": {"command": [once, TABLE, EVENT, "once", "native"], "count": 3_000},
        "once_dialect": {"command": [once, TABLE, EVENT, "once-dialect", "powertools-typescript"], "count": 3_000},
        "typescript": {"command": [*node, TABLE, EVENT, "typescript"], "count": 800},
        "python": {"command": [*python, TABLE, EVENT, "python"], "count": 300},
    }
    for client in clients.values():
        client["count"] = int(client["count"] * scale)
    versions = {}
    for command in ([once], node, python):
        versions |= json.loads(subprocess.run([*command, "--versions"], check=True, stdout=subprocess.PIPE).stdout)
    return clients, versions


def main():
    parser = argparse.ArgumentParser(prog="bench_dynamodb_compare", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--server", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--once", required=True, help=argparse.SUPPRESS)
    common.add_options(parser)
    options = common.parse(parser)

    figures = {"date": datetime.date.today().isoformat(), "machine": common.machine()}
    clients, figures["versions"] = clients_of(options.once, 0.05 if options.quick else 1)
    figures |= {"event_bytes": len(EVENT), "in_flight": IN_FLIGHT, "rounds": 1 if options.quick else 5}
    figures["calls_a_round"] = {name: client["count"] for name, client in clients.items()}
    for transport in ("tls", "plain"):
        print(f"{transport}: measuring", file=sys.stderr)
        with Server(options.server, transport == "tls") as server:
            starts = measure_start(server, clients, 1 if options.quick else 11)
            rates = measure(server, clients, figures["rounds"])
        figures[transport] = {name: rates[name] | starts[name] for name in clients}
    if options.write_docs:
        report.REPORT.write(figures)
    print(json.dumps(figures, indent=2) if options.json else report.tables(figures))


if __name__ == "__main__":
    main()
