"""Instructions that once proxy spends on a request, by callgrind: the same on a busy machine as on a quiet one.

    bench/run BUILD_FOLDER proxy_instructions [--requests N] [--keep FOLDER]

Counts what runs in the program, all threads, and nothing of the kernel. valgrind knows no SHA instructions: digests count for
more than they cost. --keep leaves callgrind's files there, for callgrind_annotate.
"""
import argparse
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # Beside the sources.

import compare  # noqa: E402

LINES = 8  # Connections, used at the same time.


def ask(lines, kind, prefix, rounds):
    for number in range(rounds):
        for at, line in enumerate(lines):
            key = {"none": "", "new": f"{prefix}-{at}-{number}", "replay": f"again-{at}"}[kind]
            text = compare.request("/charges", key)
            line.sendall(text if key else text.replace(b"Idempotency-Key: \r\n", b""))
        for line in lines:
            compare.read_answer(line)


def instructions(file):
    return int(re.search(r"^summary: (\d+)", file.read_text(), re.M).group(1))


def count(options, store, folder):
    service = compare.Service(options.upstream)
    out = folder / f"callgrind.{store.partition(':')[0]}"
    proxy = compare.Proxy("once", [
        "valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", options.once, "proxy", "--no-principal", "--optional-key", "--listen",
        "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{service.port}", "--store", store, "--unshared-store", "--access-log", "none", "--log", "none",
        "--threads", "1"])
    lines = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(LINES)]
    rounds = options.requests // LINES
    counted = {}

    def control(word):
        subprocess.run(["callgrind_control", word, str(proxy.process.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    for at, kind in enumerate(("none", "new", "replay")):
        ask(lines, kind, "warm", 10)
        control("--zero")
        ask(lines, kind, "counted", rounds)
        control(f"--dump={kind}")
        counted[kind] = instructions(pathlib.Path(f"{out}.{at + 1}")) / (rounds * LINES)
    proxy.end()
    service.end()
    return counted


def main():
    parser = argparse.ArgumentParser(prog="bench_proxy_instructions", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--upstream", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--once", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for callgrind's files")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("bench_proxy_instructions: there is no valgrind: install it")
    with tempfile.TemporaryDirectory(prefix="proxy_instructions-", dir=".") as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        print(f"{'instructions a request':24} {'no key':>10} {'new key':>10} {'replay':>10}")
        for store in ("memory:", f"sqlite:{temporary}/once.db"):
            counted = count(options, store, folder.resolve())
            print(f"{store.partition(':')[0]:24}" + "".join(f" {number:10.0f}" for number in counted.values()))


if __name__ == "__main__":
    main()
