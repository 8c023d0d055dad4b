"""Programs as a caller sees them: processes of `once run`, clients of two `once proxy`, and the client packages of `once
serve`. Nobody sees what they say to the store, so what they tell and the ledger are judged."""
import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import signal
import subprocess
import threading
import time

import check
import player_process
import postgresql

# What the command does: it waits a little, adds its line to the ledger, and prints its result.
COMMAND = ('sleep "$2"; printf "%s\\n" "{\\"op\\": \\"$1\\", \\"number\\": $$}" >>"$0"; printf "%s|%s" "$1" "$$"')
PLANTED = {  # Settings that switch a part of the protection off.
    "run_without_scope": ("--scope", "all"),
    "run_without_fingerprint": ("--fingerprint", "none"),
    "run_unprotected": ("--on-store-down", "run-unprotected"),
    "proxy_without_principal": ("--principal-header", "Host"),
    "proxy_ignores_body": ("--ignore-body", None),
    "proxy_unprotected": ("--on-store-down", "run-unprotected"),
}
# The same of calls of the client packages.
PLANTED_CALLS = {
    "serve_without_scope": {"scope": "all"},
    "serve_without_payload": {"payload": None},
    "serve_without_hold": {"options": {"on_lapse": "takeover"}},
}
CALLERS = 6


def words(settings, bug):
    settings = settings | (dict([PLANTED[bug]]) if bug in PLANTED else {})
    return [word for pair in settings.items() for word in pair if word is not None]


class Callers:
    """Some threads, each of which makes one call after another. What each is told has a name:

    got       the output of the operation
    superseded  the same, of another attempt: its own has acted, and then lost its claim
    unknown   it may have acted: its process was killed, its claim or its connection was lost, its result not stored
    nothing   certainly nothing was run for it: a conflict, a mismatch, no store
    """

    def __init__(self, run, once):
        self.run, self.once = run, once
        self.lock = threading.Lock()
        self.log = open(run.folder / "callers.jsonl", "a")
        self.numbers = itertools.count(1)
        self.asked = {}
        self.begin()
        self.threads = [threading.Thread(target=self._call_on) for _ in range(CALLERS)]
        for thread in self.threads:
            thread.start()

    def _say(self, line):
        with self.lock:
            self.log.write(json.dumps({"t": time.monotonic_ns(), **line}) + "\n")
            self.log.flush()

    def _call_on(self):
        while not self.run.over.is_set():
            with self.lock:
                chance = self.run.chance
                window = (time.monotonic_ns() - self.run.began_ns) // 2_000_000_000
                tenant, name = chance.choice("ab"), f"{window}.{chance.randrange(5)}"
                payload, length = "1" if chance.random() < 0.05 else "0", chance.choice(("0", "0.02", "0.02", "0.8"))
            self._call(tenant, name, payload, length)

    def _call(self, tenant, name, payload, length):
        want = f"{tenant}|{name}|{payload}"
        number = next(self.numbers)
        self._say({"run": number, "want": want, "hold": self.is_held(name)})
        self.asked[want] = tenant, name, payload
        told, out, why = self.ask(number, tenant, name, payload, length, want)
        self._say({"ran": number, "told": told, "out": out, "why": why})

    def is_held(self, _):
        return False

    def end(self):
        """Everybody asks once more, with no faults, and must get what is stored."""
        for thread in self.threads:
            thread.join()
        for operation in list(self.asked.values())[-40:]:
            self._call(*operation, "0")
        self.log.close()


class RunCallers(Callers):
    TOLD = {0: "got", 240: "nothing", 241: "nothing", 243: "nothing", 245: "unknown", 247: "unknown", 248: "unknown"}

    def begin(self):
        self.live, self.killed = {}, set()

    def ask(self, number, tenant, name, payload, length, want):
        settings = {"--store": self.run.store.url, "--scope": tenant, "--key": name, "--wait": "2s",
                    "--lease": f"{self.run.kind.lease_ms}ms", "--fingerprint": "env:PAYLOAD", "--on-unrecorded": "fail"}
        with self.lock:
            process = subprocess.Popen(
                [self.once, "run", *words(settings, self.run.bug), "--", "sh", "-c", COMMAND,
                 self.run.folder / "ledger.jsonl", want, length], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, start_new_session=True, env=self.run.store.environment | {"PAYLOAD": payload})
            self.live[number] = process.pid
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # Not collected, so the number is still its own.
        with self.lock:
            del self.live[number]
        said, errors = process.communicate()
        code = process.returncode
        told = "unknown" if number in self.killed else self.TOLD.get(code, f"exit code {code}")
        return told, said, f"{code} {errors[-300:]}"

    def kill(self):
        """`once` alone, whose command then goes on, or both."""
        with self.lock:
            if self.live:
                number = self.run.chance.choice(sorted(self.live))
                self.killed.add(number)
                # Not by Popen, which would collect one that has ended.
                self.run.chance.choice((os.kill, os.killpg))(self.live[number], signal.SIGKILL)

    def stop(self):
        """`once` alone: its command goes on, and may act when the lease is over."""
        with self.lock:
            if not self.live:
                return
            number = self.run.chance.choice(sorted(self.live))
            self.killed.add(number)
            os.kill(self.live[number], signal.SIGSTOP)
        self.run.pause(0.3, 2.4)
        with self.lock:
            if number in self.live:
                os.kill(self.live[number], signal.SIGCONT)


class Service(http.server.BaseHTTPRequestHandler):
    """Behind the proxies. Each request acts, after a while."""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        want = self.headers["Want"]
        time.sleep(float(self.headers["Length"]))
        number = next(self.server.numbers)
        with open(self.server.ledger, "a") as ledger:
            ledger.write(json.dumps({"op": want, "number": number}) + "\n")
        body = f"{want}|{number}".encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # Its proxy was killed.
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class ProxyCallers(Callers):
    def begin(self):
        self.service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        self.service.handle_error = lambda *_: None  # A connection that broke off.
        self.service.ledger, self.service.numbers = self.run.folder / "ledger.jsonl", itertools.count(1)
        threading.Thread(target=self.service.serve_forever, args=(0.05,), daemon=True).start()
        self.ports = [postgresql.free_port() for _ in range(2)]
        self.proxies = [self._start(port) for port in self.ports]

    def _start(self, port):
        settings = {"--listen": f"127.0.0.1:{port}", "--upstream": f"http://127.0.0.1:{self.service.server_port}",
                    "--store": self.run.store.url, "--principal-header": "Tenant", "--wait": "2s",
                    "--lease": f"{self.run.kind.lease_ms}ms", "--on-ambiguous": "takeover", "--on-unrecorded": "fail"}
        return subprocess.Popen([self.once, "proxy", *words(settings, self.run.bug)], env=self.run.store.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, number, tenant, name, payload, length, want):
        with self.lock:
            port = self.run.chance.choice(self.ports)
        headers = {"Idempotency-Key": name, "Tenant": tenant, "Length": length, "Want": want, "Host": "payments"}
        sent = False
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                connection.connect()
                sent = True
                connection.request("POST", "/charges", payload, headers)
                answer = connection.getresponse()
                body = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            time.sleep(0.05)
            return "unknown" if sent else "nothing", "", str(error)
        if answer.status == 201:
            return "got", body, ""
        problem = json.loads(body)["type"].removeprefix("urn:once:problem:")
        nothing = ("in-progress", "key-reused", "store-unavailable")
        return "nothing" if problem in nothing else "unknown", "", f"{answer.status} {body}"

    def kill(self):
        which = self.run.chance.randrange(len(self.proxies))
        self.proxies[which].kill()
        self.proxies[which].wait()
        self.run.pause(0, 0.2)
        self.proxies[which] = self._start(self.ports[which])

    def end(self):
        for thread in self.threads:
            thread.join()
        for port in self.ports:
            postgresql.wait_for(lambda port=port: self._listens(port), "a proxy listens")
        super().end()
        self.close()

    @staticmethod
    def _listens(port):
        with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as probe:
            probe.connect()
            return True
        return False

    def close(self):
        for proxy in self.proxies:
            proxy.kill()
            proxy.wait()
        self.service.shutdown()
        self.service.server_close()


class ServeCallers(Callers):
    """A process of each client package, at one server. Operations of an odd number are under hold."""

    def begin(self):
        self.address, self.ledger = f"unix:{self.run.folder}/serve", self.run.folder / "ledger.jsonl"
        self.ledger.touch()
        self.server = self._start_server()
        self.killing = threading.Lock()
        self.players = {kind: self._start(kind) for kind in player_process.COMMANDS}

    def _start_server(self):
        environment = {**self.run.store.environment, "ONCE_STORE": self.run.store.url}
        server = subprocess.Popen([self.once, "serve", "--listen", self.address, "--log", "none"], env=environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        server.stderr.readline()
        return server

    def _start(self, kind):
        connection = {"server": self.address, "timeout_ms": 5000}
        return player_process.Player(player_process.COMMANDS[kind], connection, self.run.folder / f"{kind}.log", self.run.folder, os.environ)

    def is_held(self, name):
        return int(name.rsplit(".", 1)[1]) % 2 == 1

    def ask(self, number, tenant, name, payload, length, want):
        with self.lock:
            player = self.run.chance.choice(list(self.players.values()))
        options = {"lease_ms": self.run.kind.lease_ms, "wait_ms": 2000, "on_lapse": "hold" if self.is_held(name) else "takeover"}
        call = player_process.call(number, want, tenant, name, options, self.ledger, int(1000 * float(length)), payload)
        planted = PLANTED_CALLS.get(self.run.bug, {})
        call |= {**planted, "options": {**call["options"], **planted.get("options", {})}}
        try:
            player.send(call)
        except OSError:  # It was killed.
            return "nothing", "", "killed"
        player.wait(lambda event: player.is_end(event, number), 60)
        return player.told(number, want, self.ledger)

    def kill(self):
        """A client, or the server."""
        with self.killing:
            kind = self.run.chance.choice([*self.players, None])
            if kind is None:
                self.server.kill()
                self.server.wait()
                self.run.pause(0, 0.2)
                self.server = self._start_server()
            else:
                self.players[kind].kill()
                self.players[kind] = self._start(kind)

    def stop(self):
        """A client, which may go on when its lease is over."""
        player = self.run.chance.choice(list(self.players.values()))
        player.process.send_signal(signal.SIGSTOP)
        self.run.pause(0.3, 2.4)
        player.process.send_signal(signal.SIGCONT)

    def end(self):
        super().end()
        self.close()

    def close(self):
        for player in self.players.values():
            player.end()
        self.server.kill()
        self.server.communicate()


def judge(folder):
    """The counts, and what is wrong."""
    wrong, counts = [], collections.Counter()
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    effects, outputs, unknown = collections.defaultdict(list), collections.defaultdict(list), collections.Counter()
    for effect in ledger:
        effects[effect["op"]].append(effect)
    runs, ran = {}, {}
    for line in map(json.loads, (folder / "callers.jsonl").read_text().splitlines()):
        (runs if "run" in line else ran)[line.get("run") or line["ran"]] = line
    payloads = collections.defaultdict(set)  # Of a key, those that were in a result.
    for number, run in runs.items():
        counts["calls"] += 1
        told, want = ran[number], run["want"]
        counts[f"told {told['told']}"] += 1
        if told["told"] in ("unknown", "superseded"):
            unknown[want] += 1
        if told["told"] in ("got", "superseded"):
            outputs[want].append(told)
            payloads[want.rsplit("|", 1)[0]].add(want)
            if not told["out"].startswith(want + "|"):
                wrong.append(("another operation's output was replayed", want, run, told))
            elif told["out"] not in [f"{want}|{effect['number']}" for effect in effects[want]]:
                wrong.append(("an output without an effect", want, run, told))
        elif told["told"] not in ("unknown", "nothing"):
            wrong.append(("an answer that nobody expects", want, run, told))
    for want, told in outputs.items():
        other = [each for each in told if each["out"] != told[0]["out"]]
        if other:
            wrong.append(("an output changed", want, told[0], other[0]))
    for key, found in payloads.items():
        if len(found) > 1:
            wrong.append(("two payloads of one key were run", key, *(outputs[want][0] for want in found)))
    held = {run["want"] for run in runs.values() if run.get("hold")}
    for want, made in effects.items():
        counts["effects"] += len(made)
        counts["doubles"] += len(made) - 1
        if len(made) - bool(outputs[want]) > unknown[want]:
            wrong.append(("an effect came again though every attempt ended known", want, *made))
        elif len(made) > 1 and want in held:
            wrong.append(("an effect came again under hold", want, *made))
    counts["in_doubt"] = counts["told unknown"]
    counts["unavailable_s"] = check.unavailable_s(told["t"] for told in ran.values() if told["told"] == "got")
    return counts, [{"rule": rule, "key": key, "history": list(lines)} for rule, key, *lines in wrong]
