"""once proxy beside nginx and haproxy: the same requests, through each, to the same service, in one run.

    bench/run BUILD_FOLDER proxy_compare [--quick] [--json] [--write-docs] [--rounds N] [--only-once]

The service is a program with one thread and one constant answer. wrk keeps 64 connections busy with POSTs of 200 bytes. All of
them share the processors of this machine, and each proxy may use them all: as many threads or workers as there are.
A round has a short run of each proxy with each kind of request, in turn, so that whatever else the machine does hits all of
them; what is told is the median of the rounds, and for a ratio the median of the ratios within the rounds. nginx and haproxy
know nothing of keys: they pass on the very requests with keys that once claims, stores and finishes. A replay through once is
compared with the same request passed on by nginx.

Processor time is that of the proxy, all its processes and threads. Answers other than 201, or a service that was asked more or
less often than it must have been, end the comparison.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # Beside the sources.
sys.path.insert(0, str(HERE.parent))

import figures as common  # noqa: E402
import report  # noqa: E402

CONNECTIONS = 64
REPLAYED_KEYS = 200
BODY = '{"order":"o-0000000000","amount":500,"note":"' + "x" * 153 + '"}'
LIMIT_S = 60
THREADS = os.cpu_count()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def first_number(stream, pattern=rb"(\d+)"):
    ready, _, _ = select.select([stream], [], [], LIMIT_S)
    line = stream.readline() if ready else b""
    found = re.search(pattern, line)
    if not found:
        raise RuntimeError(f"no such line came: {pattern} ({line})")
    return int(found.group(1))


class Service:
    def __init__(self, program):
        self.process = subprocess.Popen([program], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = first_number(self.process.stdout)

    def tell(self, word):
        """How many requests it has had."""
        self.process.stdin.write(word.encode() + b"\n")
        return first_number(self.process.stdout)

    def end(self):
        self.process.stdin.close()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()


NGINX = """
daemon off; worker_processes {threads}; pid {folder}/nginx.pid; error_log stderr crit; worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000; tcp_nodelay on;
  upstream service {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} reuseport;
    location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""

HAPROXY = """
global
  nbthread {threads}
  maxconn 2000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
listen proxy
  bind 127.0.0.1:{port}
  server service 127.0.0.1:{upstream} pool-max-conn -1
"""


class Proxy:
    """A proxy before the service, until end()."""

    def __init__(self, name, command, port=None):
        self.name = name
        self.process = subprocess.Popen([os.fspath(word) for word in command], stderr=subprocess.PIPE)
        self.port = port or first_number(self.process.stderr, rb"listening on port (\d+)")
        self.wait_until_it_listens()

    def wait_until_it_listens(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} does not listen: {self.process.stderr.read1().decode()}")

    def processes(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [str(self.process.pid), *children.split()]

    def cpu_us(self):
        tasks = [task for pid in self.processes() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000

    def memory_kib(self):
        sums = [pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        return sum(int(re.search(r"^Pss:\s+(\d+)", text, re.M).group(1)) for text in sums)

    def end(self):
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.process.stderr.close()


def start(name, once, service, folder):
    where = {"threads": THREADS, "folder": folder, "upstream": service.port, "port": free_port()}
    if name in ("nginx", "haproxy"):
        file = folder / f"{name}.conf"
        file.write_text((NGINX if name == "nginx" else HAPROXY).format(**where))
        command = ["nginx", "-c", file, "-p", folder] if name == "nginx" else ["haproxy", "-db", "-f", file]
        return Proxy(name, command, where["port"])
    store = {"once_memory": "memory:", "once_sqlite": f"sqlite:{folder}/once.db"}[name]
    return Proxy(name, [once, "proxy", "--no-principal", "--optional-key", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{service.port}",
                        "--store", store, "--unshared-store", "--access-log", "none", "--log", "none", "--threads", str(THREADS)])


def require_equal(name, what, wanted, found):
    if found != wanted:
        raise RuntimeError(f"{name}: {what}: {found}, and it should be {wanted}")


class Bench:
    def __init__(self, service, proxies, folder, seconds):
        self.service = service
        self.proxies = proxies
        self.folder = folder
        self.seconds = seconds
        self.runs = 0

    def wrk(self, port, kind, prefix, connections, seconds):
        done = subprocess.run(
            ["wrk", f"-t{min(THREADS, connections)}", f"-c{connections}", f"-d{seconds}s", "-s",
             HERE.parents[1] / "tests/proxy/clients/wrk.lua", f"http://127.0.0.1:{port}/charges", "--", BODY, kind, prefix,
             str(REPLAYED_KEYS)],
            stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
        return json.loads(done.stdout.splitlines()[-1])

    def run(self, name, kind, replayed):
        """One short run, checked."""
        proxy = self.proxies[name]
        self.runs += 1
        prefix = "replay-" if kind == "repeated" else f"{self.runs}-"
        asked, cpu = self.settled(), proxy.cpu_us()
        seen = self.wrk(proxy.port, kind, prefix, CONNECTIONS, self.seconds)
        cpu = proxy.cpu_us() - cpu
        asked = self.settled() - asked
        require_equal(name, f"wrong answers to {kind}", 0, seen["wrong"] + seen["errors"])
        if replayed:
            require_equal(name, "replays that reached the service", 0, asked)
        elif not seen["answers"] <= asked <= seen["answers"] + 4 * CONNECTIONS:
            raise RuntimeError(f"{name}: {asked} requests reached the service, and {seen['answers']} were answered")
        return {"per_second": seen["answers"] / seen["seconds"], "cpu_us": cpu / seen["answers"],
                "p50_us": seen["p50_us"], "p99_us": seen["p99_us"]}

    def settled(self):
        """How many requests the service has had, when no more come: wrk leaves some under way."""
        count = None
        while count != (now := self.service.tell("count")):
            count = now
            time.sleep(0.05)
        return count

    def fill(self, name):
        """Makes the keys known that are to be replayed."""
        with socket.create_connection(("127.0.0.1", self.proxies[name].port)) as line:
            for number in range(REPLAYED_KEYS):
                line.sendall(request("/charges", f"replay-{number}"))
                read_answer(line)

    def lone_us(self, name):
        """The median time of requests with new keys, one after the other; straight to the service if it is "direct"."""
        self.runs += 1
        port = self.service.port if name == "direct" else self.proxies[name].port
        return self.wrk(port, "unique", f"{self.runs}-", 1, 1)["p50_us"]

    def memory(self, name, count):
        """KiB for each idle connection, and for each request with a key that is under way."""
        proxy = self.proxies[name]
        with contextlib.ExitStack() as stack:
            before = proxy.memory_kib()
            lines = [stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port))) for _ in range(count)]
            for number, line in enumerate(lines):
                line.sendall(request("/charges", f"idle-{name}-{number}"))
            for line in lines:
                read_answer(line)
            idle = (proxy.memory_kib() - before) / count
            asked = self.service.tell("count")
            for number, line in enumerate(lines):
                line.sendall(request("/held", f"held-{name}-{number}"))
            end = time.monotonic() + LIMIT_S
            while self.service.tell("count") < asked + count:
                if time.monotonic() > end:
                    raise RuntimeError(f"{name}: not all requests have reached the service")
            held = (proxy.memory_kib() - before) / count
            self.service.tell("answer")
            for line in lines:
                read_answer(line)
        return {"idle_kib": idle, "in_flight_kib": held}


def request(path, key):
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n"
            f"{BODY}").encode()


def read_answer(line):
    line.settimeout(LIMIT_S)
    got = b""
    while not got.endswith(b"}\n"):
        piece = line.recv(65536)
        if not piece:
            raise RuntimeError(f"the connection was closed after {got}")
        got += piece
    if not got.startswith(b"HTTP/1.1 201"):
        raise RuntimeError(f"not 201: {got}")


def two_syncs_us(folder, times):
    """What two durable writes take here, one after the other: a claim and a finish cannot be cheaper."""
    took = []
    with open(folder / "syncs", "wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            for _ in range(2):
                file.write(bytes(4096))
                os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)


# What is measured: kind of requests, whether they are replays, and by whom.
CASES = {
    "none": ("none", False, ("nginx", "haproxy", "once_memory")),
    "new": ("unique", False, ("nginx", "haproxy", "once_memory", "once_sqlite")),
    "replay": ("repeated", True, ("once_memory", "once_sqlite")),
}


def medians(runs, base):
    """Of the rounds; and of the ratios to what nginx did in the same round."""
    figures = {key: common.median(run[key] for run in runs) for key in runs[0]}
    if base:
        figures["of_nginx"] = {
            key: common.median(run[key] / beside[key] for run, beside in zip(runs, base)) for key in runs[0]
        }
    return figures


def measure(bench, rounds, say):
    seen = {case: {name: [] for name in names if name in bench.proxies} for case, (_, _, names) in CASES.items()}
    lone = {name: [] for name in ("direct", *bench.proxies)} if "nginx" in bench.proxies else {}
    syncs = []
    for name in bench.proxies:
        if name.startswith("once"):
            bench.fill(name)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for case, (kind, replayed, _) in CASES.items():
            for name in seen[case]:
                seen[case][name].append(bench.run(name, kind, replayed))
        for name in lone:
            lone[name].append(bench.lone_us(name))
        syncs.append(two_syncs_us(bench.folder, 50))
    bases = {"none": seen["none"].get("nginx"), "new": seen["new"].get("nginx"), "replay": seen["new"].get("nginx")}
    figures = {"cases": {c: {name: medians(runs, bases[c]) for name, runs in by.items()} for c, by in seen.items()}}
    if not lone:
        return figures
    return figures | {
        "lone_us": {name: common.median(times) for name, times in lone.items()},
        "two_syncs_us": common.median(syncs),
        "beyond_syncs_us": common.median(
            once - direct - both for once, direct, both in zip(lone["once_sqlite"], lone["direct"], syncs)),
    }


def versions(once):
    def told(command, pattern):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)
        return re.search(pattern, done.stdout).group(1)
    return {
        "once": told([once, "--version"], r"([0-9][0-9.]*)"),
        "nginx": told(["nginx", "-v"], r"nginx/([0-9.]+)"),
        "haproxy": told(["haproxy", "-v"], r"version ([0-9.]+)"),
        "wrk": told(["wrk", "-v"], r"([0-9]+\.[0-9.]+)"),
    }


def main():
    parser = argparse.ArgumentParser(prog="bench_proxy_compare", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--upstream", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--once", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-once", action="store_true", help="without nginx and haproxy, and so without ratios")
    common.add_options(parser)
    options = common.parse(parser)
    if options.only_once and options.write_docs:
        parser.error("the documents have ratios to nginx")
    names = [name for name in report.PROXIES if name.startswith("once") or not options.only_once]
    missing = [name for name in names if not name.startswith("once") and not shutil.which(name)]
    if missing:
        sys.exit(f"bench_proxy_compare: there is no {' and no '.join(missing)}: run tools/setup bench")

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    figures = {"date": datetime.date.today().isoformat(), "machine": common.machine(), "connections": CONNECTIONS}
    figures |= {"rounds": 1 if options.quick else options.rounds, "seconds": 1 if options.quick else 2}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proxy_compare-", dir="."))).resolve()
        service = Service(options.upstream)
        stack.callback(service.end)
        proxies = {}
        for name in names:
            proxies[name] = start(name, options.once, service, folder)
            stack.callback(proxies[name].end)
        bench = Bench(service, proxies, folder, figures["seconds"])
        figures |= measure(bench, figures["rounds"], lambda text: print(text, file=sys.stderr))
        figures["memory"] = {name: bench.memory(name, 100 if options.quick else 1000) for name in proxies}
    if options.only_once:
        print(json.dumps(figures, indent=2))
        return
    figures["versions"] = versions(options.once)
    if options.write_docs:
        report.REPORT.write(figures)
    print(json.dumps(figures, indent=2) if options.json else report.tables(figures))


if __name__ == "__main__":
    main()
