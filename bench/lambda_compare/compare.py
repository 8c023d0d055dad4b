"""once's Lambda runtime against Node with Powertools and against aws-lambda-cpp: the same function, in one run.

    bench/run BUILD_FOLDER lambda_compare [--quick] [--json] [--write-docs]

The function: the text of a 200-byte order event is parsed, order_id is the key, a small receipt is the response. It is
once's `bootstrap` as `make lambda` builds it (static), the same handler under aws-lambda-cpp (linked against Debian's
libcurl, as that is what it has), and Powertools' makeIdempotent in Node on a runtime of a few lines. A Runtime API of this
script's own gives events one after another and takes the responses, over connections that are kept alive.

Start: from before the program is started until its first response has come in whole; medians of so many processes, all
in turn. Memory is the resident set then. With the store in memory, and with DynamoDB over TLS: a server in another
process that gives the same answer to everything, so a new call is two round trips and next to no work there.

Warm: processor time (user and system, all threads) of an invocation after the first ones, for the bare handler and the
idempotent one on the same runtime; the difference is what being idempotent costs.

Batch: ten new messages of SQS in one event, against a DynamoDB that answers after a fixed delay; in delays. Zips: what
make lambda makes.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True  # Beside the sources.
sys.path[:0] = [str(ROOT / "tests" / "real_servers"), str(ROOT / "bench")]

import emulator  # noqa: E402
import figures as common  # noqa: E402
import report  # noqa: E402

EVENT = (
    '{"order_id":"o-%010d","customer":"c-981","amount":4990,"currency":"EUR","items":[{"sku":"A-17","quantity":2},'
    '{"sku":"B-4","quantity":1}],"ship_to":"12 Signal Lane, Crewe","channel":"web-shop"}'
)
LIMIT_S = 30  # For one response.
DELAY_MS = 50
BATCH = 10
EXAMPLES = ("payment", "order_batch", "event_consumer")


class RuntimeApi:
    """The Runtime API for one function at a time, on one thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.buffers = {}
        self.waiting = None  # The connection that asked for an event.

    def next_request(self):
        """(connection, method, path, body) of the next request that has come in whole."""
        until = time.monotonic() + LIMIT_S
        while True:
            ready = self.selector.select(until - time.monotonic())
            if not ready:
                raise RuntimeError(f"the function did nothing for {LIMIT_S} s")
            for key, _ in ready:
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.selector.register(connection, selectors.EVENT_READ)
                    self.buffers[connection] = b""
                    continue
                got = key.fileobj.recv(65536)
                if not got:
                    self.close(key.fileobj)
                    continue
                self.buffers[key.fileobj] += got
                head, end, body = self.buffers[key.fileobj].partition(b"\r\n\r\n")
                length = re.search(rb"\ncontent-length: *(\d+)", head, re.I)
                if not end or len(body) < int(length[1] if length else 0):
                    continue
                self.buffers[key.fileobj] = b""
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                return key.fileobj, method, path, body

    def close(self, connection):
        self.selector.unregister(connection)
        connection.close()
        del self.buffers[connection]

    def forget_all(self):
        self.waiting = None
        for connection in list(self.buffers):
            self.close(connection)

    def ready(self):
        """Waits until the function asks for an event."""
        while self.waiting is None:
            connection, method, path, body = self.next_request()
            if method != "GET" or not path.endswith("/invocation/next"):
                raise RuntimeError(f"{method} {path} where an event should be asked for: {body.decode()}")
            self.waiting = connection

    def invoke(self, event):
        """The response."""
        self.ready()
        request_id = str(uuid.uuid4())
        text = event.encode()
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            f"Lambda-Runtime-Aws-Request-Id: {request_id}\r\n"
            f"Lambda-Runtime-Deadline-Ms: {int(time.time() * 1000) + 30_000}\r\n"
            "Lambda-Runtime-Invoked-Function-Arn: arn:aws:lambda:eu-central-1:123456789012:function:bench\r\n"
            "Lambda-Runtime-Trace-Id: Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        self.waiting.sendall(head.encode() + text)
        self.waiting = None
        connection, method, path, body = self.next_request()
        if method != "POST" or not path.endswith(f"/invocation/{request_id}/response"):
            raise RuntimeError(f"{method} {path} where a response should come: {body.decode()}")
        connection.sendall(
            b"HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"status\":\"OK\"}\n"
        )
        return body.decode()


class Function:
    """A process of one."""

    def __init__(self, api, command, environment):
        self.api = api
        variables = environment | {
            "AWS_LAMBDA_RUNTIME_API": api.address,
            "AWS_LAMBDA_FUNCTION_NAME": "bench",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
            "_HANDLER": "bootstrap",
            "POWERTOOLS_IDEMPOTENCY_DISABLED": "false",
        }
        words = [str(word) for word in command]
        self.began = time.perf_counter()
        self.pid = os.posix_spawn(words[0], words, variables)

    def since_start_ms(self):
        return (time.perf_counter() - self.began) * 1000

    def cpu_us(self):
        """Of all its threads so far."""
        total = 0
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # A thread that has just ended.
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1000

    def rss_mib(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.api.forget_all()


def check(name, response, number):
    """A comparison of functions that do something else would mean nothing."""
    wanted = {"order_id": f"o-{number:010d}", "status": "paid", "amount": 4990}
    if json.loads(response) != wanted:
        raise RuntimeError(f"{name} gave {response} and should have given {wanted}")


class DynamoDb:
    """Our fake, over TLS."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen([program, "--until-eof", "--tls", *options], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        endpoint = self.process.stdout.readline().strip()
        ca_file = self.process.stdout.readline().strip()
        self.environment = emulator.environment(endpoint, {"PATH": os.environ["PATH"]}) | {
            "ONCE_STORE": "dynamodb://orders", "AWS_CA_BUNDLE": ca_file, "NODE_EXTRA_CA_CERTS": ca_file,
            "NODE_NO_WARNINGS": "1",
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def measure_start(api, functions, environment, times):
    took = {name: [] for name in functions}
    memory = {name: [] for name in functions}
    for number in range(times + 1):  # The first brings the files into memory.
        for name, command in functions.items():
            with Function(api, command, environment | {"BENCH_MODE": "idempotent"}) as function:
                check(name, api.invoke(EVENT % number), number)
                if number:
                    took[name].append(function.since_start_ms())
                    api.ready()
                    memory[name].append(function.rss_mib())
    return {name: {"start_ms": common.median(took[name]), "rss_mib": common.median(memory[name])} for name in functions}


def measure_warm(api, functions, environment, rounds, count):
    """Processor time of an invocation, bare and idempotent. Rounds go round all, so that other load hits all of them."""
    seen = {name: {"bare": [], "idempotent": []} for name in functions}
    walls = {name: {"bare": [], "idempotent": []} for name in functions}
    number = 0
    for _ in range(rounds):
        for name, command in functions.items():
            for mode, figures in seen[name].items():
                with Function(api, command, environment | {"BENCH_MODE": mode}) as function:
                    for _ in range(count // 4):
                        number += 1
                        check(name, api.invoke(EVENT % number), number)
                    api.ready()
                    cpu, began = function.cpu_us(), time.perf_counter()
                    for _ in range(count):
                        number += 1
                        check(name, api.invoke(EVENT % number), number)
                    api.ready()
                    figures.append((function.cpu_us() - cpu) / count)
                    walls[name][mode].append((time.perf_counter() - began) / count * 1e6)
    result = {}
    for name in functions:
        result[name] = {f"{mode}_cpu_us": common.median(seen[name][mode]) for mode in seen[name]}
        result[name] |= {f"{mode}_us": common.median(walls[name][mode]) for mode in seen[name]}
        pairs = zip(seen[name]["idempotent"], seen[name]["bare"])
        result[name]["added_cpu_us"] = common.median(with_it - without for with_it, without in pairs)
    return result


def batch_event(number):
    records = [
        {"messageId": str(uuid.uuid4()), "receiptHandle": "r", "body": EVENT % (number * BATCH + i), "attributes": {},
         "messageAttributes": {}, "eventSource": "aws:sqs", "awsRegion": "eu-central-1",
         "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders"}
        for i in range(BATCH)
    ]
    return json.dumps({"Records": records})


def measure_batch(api, command, environment, times):
    """Median time of a batch, in delays of the server."""
    took = []
    with Function(api, command, environment | {"BENCH_MODE": "batch"}):
        for number in range(times + 1):  # The first opens the connections.
            event = batch_event(number)
            api.ready()
            began = time.perf_counter()
            response = json.loads(api.invoke(event))
            if response != {"batchItemFailures": []}:
                raise RuntimeError(f"the batch failed: {response}")
            if number:
                took.append((time.perf_counter() - began) * 1000)
    return {"ms": common.median(took), "round_trips": round(common.median(took) / DELAY_MS, 2)}


def build_peers(build):
    """Builds what is measured. Returns the commands, by the names that report.py knows, and versions."""
    done = subprocess.run([ROOT / "tools/build", "lambda", "lambda_compare_once"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout)
    once = ROOT / "build/lambda/bench/lambda_compare/lambda_compare_once"

    prefix = subprocess.run([ROOT / "tools/aws-lambda-cpp"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    folder = pathlib.Path(build) / "bench/lambda_compare"
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["cmake", "--install", build, "--prefix", folder / "prefix"], **quiet)
    subprocess.run(["cmake", "-G", "Ninja", "-S", HERE / "aws_lambda_cpp", "-B", folder / "aws_lambda_cpp",
                    "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix};{folder / 'prefix'}"], **quiet)
    subprocess.run(["cmake", "--build", folder / "aws_lambda_cpp"], **quiet)

    tools = subprocess.run([ROOT / "tools/node-tools"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # The program itself: what npm has made of it at .bin is a script in between.
    node = [subprocess.run([f"{tools}/node_modules/.bin/node", "-p", "process.execPath"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.strip(), HERE / "function_typescript.mjs", tools]
    versions = json.loads(subprocess.run([*node, "--versions"], check=True, stdout=subprocess.PIPE).stdout)
    config = (pathlib.Path(prefix) / "lib").rglob("aws-lambda-runtime-config-version.cmake")
    versions["aws-lambda-cpp"] = re.search(r'PACKAGE_VERSION "([\d.]+)"', next(config).read_text())[1]
    return {"once": [once], "aws": [folder / "aws_lambda_cpp/lambda_compare_aws"], "node": node}, versions


def zips():
    sizes = {}
    for example in EXAMPLES:
        subprocess.run([ROOT / "tools/lambda", example], check=True, stdout=sys.stderr)
        sizes[example] = round((ROOT / f"build/lambda/{example}.zip").stat().st_size / 1e6, 2)
    return sizes


def main():
    parser = argparse.ArgumentParser(prog="bench_lambda_compare", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--server", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    common.add_options(parser)
    options = common.parse(parser)
    starts, rounds, count, batches = (1, 1, 40, 2) if options.quick else (21, 5, 2_000, 15)

    figures = {"date": datetime.date.today().isoformat(), "machine": common.machine()}
    functions, figures["versions"] = build_peers(options.build)
    figures["versions"]["once"] = re.search(r"project\(once VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    figures["zips_mb"] = zips()
    figures |= {"starts": starts, "rounds": rounds, "invocations": count, "delay_ms": DELAY_MS, "batch": BATCH}
    api = RuntimeApi()
    with DynamoDb(options.server, "--fixed-answer", "{}") as server:
        memory = server.environment | {"ONCE_STORE": "memory:"}
        print("start: measuring", file=sys.stderr)
        figures["start"] = {
            "memory": measure_start(api, functions, memory, starts),
            "dynamodb": measure_start(api, functions, server.environment, starts),
        }
        print("warm: measuring", file=sys.stderr)
        figures["warm"] = measure_warm(api, functions, server.environment, rounds, count)
    with DynamoDb(options.server, "--table", "orders", "--delay", str(DELAY_MS)) as server:
        print("batch: measuring", file=sys.stderr)
        figures["batch_of_ten"] = measure_batch(api, functions["once"], server.environment, batches)
    if options.write_docs:
        report.REPORT.write(figures)
    print(json.dumps(figures, indent=2) if options.json else report.tables(figures))


if __name__ == "__main__":
    main()
