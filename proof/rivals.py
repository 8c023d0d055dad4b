#!/usr/bin/env python3
"""rivals.py ONCE [--only TEXT] [--times N] [--keep FOLDER]: the faults of the proof on other libraries, and on `once run`.

Each library has the store and the settings that its own documents recommend: see proof/rivals. A scenario is a short
story with one fault in it. Counted is how often the work acted, and kept is what each caller was told. Prints a table in
Markdown, and the history of each story in which the work acted twice or a result changed. It judges others, so it fails
only if a story could not be told, or if `once` lost a result."""
import argparse
import collections
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "proof" / "rivals"
sys.path[:0] = [str(ROOT / "tests/real_servers"), str(ROOT / "bench"), str(ROOT / "bench/postgresql")]
import compare  # noqa: E402
import emulator  # noqa: E402
import postgresql  # noqa: E402
from cutting_proxy import TO_CLIENT, CuttingProxy  # noqa: E402

LEASE_MS = 3000  # Or what is as long: the rest of a Lambda function's time.
LIMIT_S = 60

class Failed(Exception):
    """A story that could not be told."""


# ---- Who is driven

class Client:
    """A process with the library, which answers one line with one. by: who it is in the history."""

    def __init__(self, story, by, command, environment):
        self.story, self.by = story, by
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=story.errors, env=environment, start_new_session=True, bufsize=0)
        self._hear()

    def _hear(self):
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        line = self.process.stdout.readline() if ready else b""
        return json.loads(line) if line else {"error": "no answer"}

    def begin(self, **more):
        self.story.say(asks=self.by)
        ask = self.story.ask(self.by, **more)
        self.process.stdin.write(json.dumps(ask).encode() + b"\n")

    def end(self):
        """Its answer."""
        answer = self._hear()
        self.story.say(answered=self.by, **answer)
        return answer

    def signal(self, which):
        os.killpg(self.process.pid, which)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class OnceRun:
    """`once run`, a process for each call."""

    def __init__(self, story, by, command, environment):
        self.story, self.by, self.command, self.environment = story, by, command, environment
        self.process = None

    def begin(self, **more):
        self.story.say(asks=self.by)
        ask = self.story.ask(self.by, **more)
        self.process = subprocess.Popen(
            [*self.command, "--key", self.story.key, "--", sys.executable, HERE / "work.py", json.dumps(ask)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment,
            start_new_session=True)

    def end(self):
        told, errors = self.process.communicate(timeout=LIMIT_S)
        code = self.process.returncode
        answer = {"told": told} if code == 0 else {"error": f"exit code {code}", "why": errors.strip()[-200:]}
        self.story.say(answered=self.by, **answer)
        return answer

    def signal(self, which):
        if which == signal.SIGKILL:
            self.process.kill()  # Its command dies with it.
        else:
            os.killpg(self.process.pid, which)

    def close(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class DynamoDb:
    name = "DynamoDB (moto)"

    def __init__(self, stack, once):
        endpoint = stack.enter_context(emulator.running())
        self.proxy = stack.enter_context(CuttingProxy(int(endpoint.rsplit(":", 1)[1]), framed=False))
        direct = emulator.environment(endpoint)
        self.environment = emulator.environment(f"http://127.0.0.1:{self.proxy.port}") | {
            "AWS_LAMBDA_FUNCTION_NAME": "charge", "NODE_NO_WARNINGS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.url = "dynamodb://once"
        for table in ("once", "powertools"):
            subprocess.run([once, "table", "create", "--store", f"dynamodb://{table}"], check=True, env=direct,
                           stdout=subprocess.DEVNULL)


class Postgresql:
    name = "PostgreSQL"

    def __init__(self, stack, once):
        server = stack.enter_context(postgresql.running())
        direct = server.database()
        name = direct.rsplit("/", 1)[1]
        self.proxy = stack.enter_context(CuttingProxy(server.port))
        self.environment = postgresql.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
        self.postgresql_url = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{name}"
        self.url = f"{self.postgresql_url}?allow_unsafe=1"
        subprocess.run([once, "table", "create", "--store", f"{direct}?allow_unsafe=1"], check=True,
                       stdout=subprocess.DEVNULL)
        self.direct = direct


class Rival:
    """A library, its store, and its settings as the table tells them."""

    restarted = False  # Whether what a process left waits for one that starts under its name.

    def __init__(self, name, store, setting, kind, command):
        self.name, self.store, self.setting, self.kind, self._command = name, store, setting, kind, command

    def client(self, story, by):
        return self.kind(story, by, self._command(by), self.store.environment)


def rivals(once, stack):
    """All of them, with their servers and packages."""
    folder, commands = compare.libraries(None)
    python = emulator.python()
    tools = pathlib.Path(subprocess.run([ROOT / "tools/node-tools"], check=True, stdout=subprocess.PIPE,
                                        text=True).stdout.strip())
    dynamodb, database = DynamoDb(stack, once), Postgresql(stack, once)
    subprocess.run([folder / "python/bin/idemkit", "init-pg", database.direct], check=True, stdout=subprocess.DEVNULL)

    def version(path):
        return json.loads((path / "package.json").read_text())["version"]

    def pip(python, package):
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    ours = subprocess.run([once, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]

    def once_run(store, *more):
        return lambda by: [once, "run", "--store", store.url, "--lease", f"{LEASE_MS}ms", "--wait", f"{LEASE_MS}ms",
                           "--fingerprint", "none", *more]

    yield Rival(f"Powertools Python {pip(python, 'aws-lambda-powertools')}", dynamodb,
                "the Lambda context, so that a claim ends with the function's time", Client,
                lambda by: [python, "-W", "ignore", HERE / "powertools.py", "powertools"])
    yield Rival(f"Powertools TypeScript {version(tools / 'node_modules/@aws-lambda-powertools/idempotency')}", dynamodb,
                "the same", Client,
                lambda by: [tools / "node_modules/.bin/node", HERE / "powertools.mjs", tools, "powertools"])
    yield Rival(f"once run {ours}", dynamodb, "defaults", OnceRun, once_run(dynamodb))
    yield Rival(f"idemkit {pip(folder / 'python/bin/python', 'idemkit')}", database,
                "a method, which renews its lease; a wait as long as the lease", Client,
                lambda by: [folder / "python/bin/python", HERE / "idemkit_method.py", database.postgresql_url])
    dbos = Rival(f"DBOS Transact {version(folder / 'node_modules/@dbos-inc/dbos-sdk')}", database,
                 "the effect is a step; a process that starts under the same executor's name recovers", Client,
                 lambda by: [commands["dbos"][0], HERE / "dbos.mjs", folder, database.postgresql_url, by[0]])
    dbos.restarted = True
    yield dbos
    yield Rival(f"once run {ours}", database, "defaults", OnceRun, once_run(database))
    yield Rival(f"once run {ours}", database, "`--on-lapse hold`", OnceRun,
                once_run(database, "--on-lapse", "hold"))


# ---- The stories

class Story:
    numbers = itertools.count(1)

    def __init__(self, rival, name, folder, stack):
        self.rival, self.name, self.stack = rival, name, stack
        self.key = f"order-{next(self.numbers)}"
        self.ledger = folder / f"{self.key}.jsonl"
        self.ledger.touch()
        self.errors = stack.enter_context(open(folder / f"{self.key}.errors", "w"))
        self.lines, self.lock = [], threading.Lock()

    def ask(self, by, **more):
        return {"by": by, "key": self.key, "ledger": str(self.ledger), "lease_ms": LEASE_MS, **more}

    def say(self, **line):
        with self.lock:
            self.lines.append({"t": time.monotonic_ns(), **line})

    def client(self, by):
        client = self.rival.client(self, by)
        self.stack.callback(client.close)
        return client

    def noted(self, what):
        return [line for line in map(json.loads, self.ledger.read_text().splitlines()) if line["what"] == what]

    def wait_for(self, what):
        until = time.monotonic() + LIMIT_S
        while not self.noted(what):
            if time.monotonic() > until:
                raise Failed(f"{self.rival.name}, {self.name}: nobody has {what}")
            time.sleep(0.01)

    def until_told(self, client, work_ms=200, acts="first"):
        """Asks again until there is a result, or the answer that there will be none. The seconds that it took."""
        began = time.monotonic()
        while time.monotonic() - began < LIMIT_S:
            client.begin(acts=acts, work_ms=work_ms)
            answer = client.end()
            if "told" in answer or answer["error"] == "exit code 242":
                break
            time.sleep(0.1)
        return round(time.monotonic() - began, 1)

    def history(self):
        ledger = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        lines = sorted(self.lines + ledger, key=lambda line: line["t"])
        first, history = lines[0]["t"], []
        for line in lines:
            shown = {"ms": (line["t"] - first) // 1_000_000, **{name: line[name] for name in line if name != "t"}}
            if "error" in shown and len(history) > 1 and history[-2].get("error") == shown["error"] and (
                    history[-2]["answered"] == shown["answered"]):
                history.pop()  # Asked again, and told the same again.
                history[-1] |= {"until_ms": shown["ms"]}
            else:
                history.append(shown)
        return history


def together(story):
    """Two callers at once, and one later."""
    clients = [story.client(by) for by in ("a", "b")]
    for client in clients:
        client.begin(acts="last", work_ms=500)
    for client in clients:
        client.end()
    return story.until_told(story.client("c"))


def killed(story):
    """The process is killed a moment after the work acted, and another caller asks until it is told."""
    first = story.client("a")
    first.begin(acts="first", work_ms=2000)
    story.wait_for("effect")
    time.sleep(0.3)
    first.signal(signal.SIGKILL)
    story.say(killed="a")
    if story.rival.restarted:
        story.client("a2")
    return story.until_told(story.client("b"))


def paused(story, left_ms=1000):
    """The process stands still a second before it acts, until its lease is over and another caller has its result."""
    first = story.client("a")
    first.begin(acts="last", work_ms=left_ms)
    story.wait_for("begun")
    first.signal(signal.SIGSTOP)
    story.say(stopped="a")
    time.sleep(LEASE_MS / 1000 + 1)
    if story.rival.restarted:
        story.client("a2")
    took = story.until_told(story.client("b"))
    story.say(goes_on="a")
    first.signal(signal.SIGCONT)
    first.end()
    story.until_told(story.client("c"))
    return took


def paused_late(story):
    """The same, but it acts as soon as it goes on."""
    return paused(story, left_ms=100)


def cut(story):
    """The store cannot be reached while the work ends, for less than the lease."""
    proxy = story.rival.store.proxy
    first = story.client("a")
    first.begin(acts="first", work_ms=500)
    story.wait_for("effect")
    proxy.refuse()
    proxy.cut_all()
    story.say(cut="the store")
    healed = threading.Timer(1.5, lambda: (proxy.refuse(False), story.say(heals="the store")))
    healed.start()
    first.end()
    healed.join()
    return story.until_told(story.client("b"))


def answer_lost(story):
    """The store has taken the claim, and its answer is lost."""
    if not isinstance(story.rival.store, DynamoDb):
        return None
    first = story.client("a")
    story.rival.store.proxy.cut(TO_CLIENT, bytes=1, reset=True)
    first.begin(acts="first", work_ms=200)
    first.end()
    return story.until_told(story.client("b"))


STORIES = (together, killed, paused, paused_late, cut, answer_lost)
HEADS = ("two at once", "killed after it acted", "paused beyond its lease, a second before it acts",
         "the same, just before it acts", "store cut off as the work ends", "the claim's answer lost")


def facts(story, took):
    """Of one telling: how often the work acted, and what its callers were told."""
    told = [line["told"] for line in story.lines if "told" in line]
    final = told[-1] if told else None
    before = told[:told.index(final)] if told else []
    return {
        "effects": len(story.noted("effect")),
        "took": took,
        "lost": bool(before),  # Whoever asked later was told another result than an earlier caller.
        "late": any(each != final for each in told) and not before,
        "unknown": any(line.get("error") == "exit code 242" for line in story.lines),
        "nobody": not told,
    }


def in_words(tellings):
    """A cell of the table."""
    counts = collections.Counter(each["effects"] for each in tellings)

    def part(text, count):
        return text if count == len(tellings) else f"{text} ({count} of {len(tellings)})"

    words = [part(f"{effects}" if effects == 1 else f"**{effects}**", count) for effects, count in sorted(counts.items())]
    for name, text in (("lost", "**result lost**"), ("late", "late caller told otherwise"), ("unknown", "told unknown")):
        if count := sum(each[name] for each in tellings):
            words.append(part(text, count))
    if any(each["nobody"] and not each["unknown"] for each in tellings):
        words.append("**nobody told**")
    took = max(each["took"] for each in tellings)
    return ", ".join(words) + (f", after {took} s" if took >= 1 and not tellings[0]["unknown"] else "")


def main():
    parser = argparse.ArgumentParser(prog="rivals.py", allow_abbrev=False)
    parser.add_argument("once", type=os.path.abspath)
    parser.add_argument("--only", default="", help="libraries whose name contains this")
    parser.add_argument("--times", type=int, default=3, help="how often each story is told")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "build" / "proof")
    asked = parser.parse_args()
    asked.keep.mkdir(parents=True, exist_ok=True)
    rows, histories, wrong = [], {}, []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="once-rivals-")))
        for rival in rivals(asked.once, stack):
            if asked.only not in rival.name:
                continue
            cells = []
            for tell in STORIES:
                name = f"{rival.name}, {rival.setting}, {rival.store.name}, {tell.__name__}"
                tellings = []
                for _ in range(asked.times):
                    with contextlib.ExitStack() as mine:
                        story = Story(rival, tell.__name__, folder, mine)
                        try:
                            took = tell(story)
                        except (Failed, subprocess.TimeoutExpired, OSError) as error:
                            wrong.append(f"{name}: {error}")
                            continue
                    if story.lines:
                        tellings.append(facts(story, took))
                        history = story.history()
                        if tellings[-1]["lost"] and rival.kind is OnceRun:
                            wrong.append(f"{name}: a result was lost")
                        worst = max(tellings, key=lambda each: (each["lost"], each["late"], abs(each["effects"] - 1)))
                        if worst is tellings[-1]:
                            histories[name] = history
                cells.append(in_words(tellings) if tellings else "–")
                if tellings:
                    print(f"rivals: {name}: {cells[-1]}", flush=True)
                    for line in histories[name] if cells[-1].partition(",")[0] != "1" or "lost" in cells[-1] else []:
                        print(f"    {json.dumps(line)}", flush=True)
            rows.append([rival.name, rival.store.name, rival.setting, *cells])
    heads = ["library", "store", "setting", *HEADS]
    lines = [heads, ["---"] * len(heads), *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    (asked.keep / "rivals.md").write_text(f"{datetime.date.today():%-d %B %Y}\n\n{table}")
    (asked.keep / "rivals.json").write_text(json.dumps(histories, indent=1) + "\n")
    print(table)
    for each in wrong:
        print(f"rivals: WRONG: {each}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
