"""first_call.py [RUNS]: how long the first call takes with the packages in build/client-packages (make client-packages): from
before the import of the package until the first result is durable, with the program started for it, on a new store in
SQLite. And a replay after that. In Python, Node and Go, as they are installed; the last line of each is of this machine.
"""
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/apps"))

import pages  # noqa: E402

MADE = ROOT / "build/client-packages"
CPU = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
PYTHON = """
import time
began = time.perf_counter()
from once_idempotency import Once
charge = Once("sqlite:pay.db").idempotent(key="{order}", scope="charge")(lambda order: "receipt")
charge("17")
first = time.perf_counter()
charge("17")
print((first - began) * 1e3, (time.perf_counter() - first) * 1e3)
"""
NODE = """
const began = performance.now();
const { Once } = await import('once-idempotency');
const once = new Once('sqlite:pay.db');
const charge = once.makeIdempotent((order) => 'receipt', { key: (order) => order, scope: 'charge' });
await charge('17');
const first = performance.now();
await charge('17');
console.log(first - began, performance.now() - first);
once.close();
"""
GO = """
package main

import (
	"context"
	"fmt"
	"time"

	"once.invalid/once"
	_ "once.invalid/once/carried"
)

func main() {
	began := time.Now()
	client, err := once.New(once.Config{Store: "sqlite:pay.db"})
	if err != nil {
		panic(err)
	}
	charge := once.Func(client, "charge", func(order string) string { return order }, func(context.Context, string) (string, error) { return "receipt", nil })
	var first time.Duration
	for i := 0; i < 2; i++ {
		if _, err := charge(context.Background(), "17"); err != nil {
			panic(err)
		}
		if i == 0 {
			first = time.Since(began)
		}
	}
	fmt.Println(first.Seconds()*1e3, (time.Since(began)-first).Seconds()*1e3)
}
"""


def text_of(*command, **more):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, text=True, **more).stdout.strip()


def install(folder):
    """What each language starts."""
    tools = text_of(ROOT / "tools/python-tools", "clients")
    text_of(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    text_of(tools, "-m", "pip", "--quiet", "--python", folder / "venv", "install", "--no-index", "--find-links", MADE, "once-idempotency")
    (folder / "pay.py").write_text(PYTHON)
    for name, path in ((f"once-idempotency-linux-{CPU}", f"@once-idempotency/linux-{CPU}"), ("once-idempotency", "once-idempotency")):
        to = folder / "node_modules" / path
        to.mkdir(parents=True)
        text_of("tar", "-xzf", next(MADE.glob(f"{name}-[0-9]*.tgz")), "--strip-components=1", "-C", to)
    (folder / "pay.mjs").write_text(NODE)
    proxy = next(MADE.glob("once-go-*"))
    with tarfile.open(proxy) as archive:
        archive.extractall(folder, filter="data")
    version = proxy.name.removeprefix("once-go-").removesuffix(".tar.gz")
    shop = folder / "shop"
    shop.mkdir()
    (shop / "pay.go").write_text(GO)
    env = {**os.environ, "GOPROXY": f"file://{folder}/once-go-{version}", "GONOSUMDB": "once.invalid", "GOFLAGS": "-modcacherw", "GOPATH": f"{folder}/go",
           "GOCACHE": text_of("go", "env", "GOCACHE"), "CGO_ENABLED": "0", "TMPDIR": "/var/tmp"}
    env["PATH"] = f"{text_of(ROOT / 'tools/go-for-clients')}:{env['PATH']}"
    for command in (["mod", "init", "example.test/pay"], ["get", f"once.invalid/once@v{version}", f"once.invalid/once/carried@v{version}"], ["build", "-o", "pay"]):
        text_of("go", *command, cwd=shop, env=env, stderr=subprocess.DEVNULL)
    return {"Python": [folder / "venv/bin/python", folder / "pay.py"], "Node": ["node", folder / "pay.mjs"], "Go": [shop / "pay"]}


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="once-first-", dir="/var/tmp") as folder:
        folder = pathlib.Path(folder)
        commands = install(folder)
        print(f"ms, least and median of {runs} runs: import to the first result, and a replay")
        for language, command in commands.items():
            times = []
            for _ in range(runs):
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    env = {name: value for name, value in os.environ.items() if not name.startswith("ONCE_")}
                    env |= {"XDG_RUNTIME_DIR": place, "XDG_CACHE_HOME": f"{folder}/cache", "NODE_NO_WARNINGS": "1"}
                    times.append([float(word) for word in text_of(*command, cwd=place, env=env).split()])
                    pages.end_servers(pathlib.Path(place))
            first, replay = zip(*times)
            print(f"{language:8}{min(first):8.1f}{statistics.median(first):8.1f}{min(replay):8.2f}{statistics.median(replay):8.2f}")


if __name__ == "__main__":
    main()
