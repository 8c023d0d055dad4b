"""clients_test.py ONCE PLAYER [CASE ...]: plays transcripts.json with a client and a real `once serve`.

PLAYER is a name in player_process.COMMANDS, or the command of another one. docs/write-a-client.md says what a player does.
"""
import collections
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import shlex
import ssl
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "apps"))

import harness  # noqa: E402
from certificates import Authority  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402
import player_process  # noqa: E402

# What each player cannot do of what cases need.
CANNOT_OF = {
    "python": {"cancel"},  # No caller can cancel a call that blocks.
    "asyncio": {"fork"},  # A loop does not survive a fork.
    "go": {"fork"},  # There is none.
    "node": {"fork"},  # There is none.
}
ABILITIES = {"cancel", "fork"}
TRANSCRIPTS = json.loads((HERE / "transcripts.json").read_text())
TIMEOUT_MS = 60_000  # Of a client: longer than a busy machine takes to start the server again.
LEASE_MS = 60_000  # Longer than any case.
TENANTS = ("blue", "red")
UNTRUSTED = {  # How a server's certificate is made that no client accepts.
    "other-host": {"sans": "DNS:other.example,IP:127.0.0.2"},
    "expired": {"days": -1},
    "name-in-subject": {"subject": "/CN=localhost", "sans": ""},
}
UNUSABLE = {  # A file's option, what is in it, and its mode.
    "no-token-file": ("token_file", None, None),
    "empty-token-file": ("token_file", "\n", 0o600),
    "two-tokens": ("token_file", "hush-hush-hush-hush\nhush-hush-hush-hush\n", 0o600),
    "open-token-file": ("token_file", "hush-hush-hush-hush\n", 0o604),
    "no-ca-file": ("ca_file", None, None),
    "empty-ca-file": ("ca_file", "\n", 0o600),
}


class Transcripts(harness.Case):
    def set_up(self, case):
        self.case = case
        self.server_socket = self.path("s")
        self.server, self.port = None, 0
        if "server" in case:
            self.set_up_tls()
        self.start_server()
        tls = (self.server_side("server"), ssl.create_default_context(cafile=self.authority.file)) if "server" in case else None
        self.proxy = self.start_proxy(tls)
        self.untrusted = []  # Proxies whose certificates no client accepts.
        self.players, self.killed, self.plays = {}, [], 0

    def start_proxy(self, tls, **more):
        proxy = CuttingProxy(self.path("p"), self.port if tls else self.server_socket, tls, **more)
        self.addCleanup(proxy.close)
        return proxy

    def server_side(self, name):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        return context

    def set_up_tls(self):
        self.authority = Authority(self.dir)
        self.authority.sign("server")
        self.tokens = {name: f"{name} " for name in TENANTS}
        for name in TENANTS:
            self.rotate(name)

    def rotate(self, tenant, of="both"):
        """The server's file gets another token for this tenant, or the client's file the server's one."""
        if of != "client":
            self.tokens[tenant] = f"the-token-of-{tenant}-{os.urandom(16).hex()}"
            lines = [f"{name} {hashlib.sha256(token.encode()).hexdigest()}\n" for name, token in self.tokens.items()]
            self.write_token("tokens", "".join(lines))
        if of != "server":
            self.write_token(f"{tenant}.token", self.tokens[tenant] + "\n")

    def write_token(self, name, text):
        """In the place of the file, which is never half of one."""
        self.path("next").write_text(text)
        self.path("next").chmod(0o600)
        self.path("next").rename(self.path(name))

    def status_of(self, token):
        context = ssl.create_default_context(cafile=self.authority.file)
        with contextlib.closing(http.client.HTTPSConnection("localhost", self.port, context=context)) as connection:
            connection.request("GET", "/v1/version", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status

    # ---- what the steps do

    def start_server(self):
        kind = self.case.get("server")
        if kind is None:
            where = f"unix:{self.server_socket}"
            self.server = self.start("serve", "--listen", where, "--log", "none")
            self.assertEqual(self.server.stderr.readline().decode(), f"once: listening on {where}\n")
            return
        shown = {"tls": ("--token-file", self.path("tokens")), "client-certificates": ("--client-ca", self.authority.file)}[kind]
        self.server = self.start("serve", "--listen", f"127.0.0.1:{self.port}", "--tls-cert", self.path("server.pem"),
                                 "--tls-key", self.path("server.key"), *shown, "--log", "none")
        line = self.server.stderr.readline().decode()
        self.assertIn("listening on", line)
        self.port = int(line.split()[-1])

    def start_tcp_server(self):
        """Another one on the same store, at a loopback address."""
        for name, letter in (("token", "x"), ("wrong", "y")):
            self.path(name).write_text(letter * 40 + "\n")
            self.path(name).chmod(0o600)
        server = self.start("serve", "--listen", "127.0.0.1:0", "--token-file", self.path("token"), "--log", "none")
        return server.stderr.readline().decode().rsplit(" ", 1)[1].strip()

    def connection(self, kind):
        """What a player connects to: through the proxy, unless the case says otherwise."""
        timeout = {"timeout_ms": self.case.get("timeout_ms", TIMEOUT_MS)}
        if kind == "proxy":
            return {"server": f"unix:{self.proxy.path}", **timeout}
        if kind == "socket":
            return {"server": f"unix:{self.server_socket}", **timeout}
        if kind in ("tcp", "wrong-token"):
            self.port = self.port or self.start_tcp_server()
            return {"server": f"http://127.0.0.1:{self.port}", "token_file": str(self.path("token" if kind == "tcp" else "wrong")), **timeout}
        if kind in TENANTS:
            host = "localhost" if kind == "red" else "127.0.0.1"  # Names are verified, and addresses.
            return {"server": f"https://{host}:{self.proxy.port}", "token_file": str(self.path(f"{kind}.token")),
                    "ca_file": str(self.authority.file), **timeout}
        if kind == "unknown-authority":  # Not even where the environment switches verification off elsewhere.
            return {**self.connection("blue"), "ca_file": str(Authority(self.dir, "another").file),
                    "env": {"NODE_TLS_REJECT_UNAUTHORIZED": "0", "PYTHONHTTPSVERIFY": "0"}}
        if kind == "environment":
            names = {"server": "ONCE_SERVER", "token_file": "ONCE_TOKEN_FILE", "ca_file": "ONCE_CA_FILE"}
            named = self.connection("blue")
            return {"env": {name: named[key] for key, name in names.items()}, **timeout}
        if kind == "system-authorities":  # Where OpenSSL and Go look for them.
            named = self.connection("blue")
            return {**named, "env": {"SSL_CERT_FILE": named.pop("ca_file")}}
        if kind in UNTRUSTED:
            self.authority.sign(kind, **UNTRUSTED[kind])
            proxy = self.start_proxy((self.server_side(kind), self.proxy.tls[1]))
            self.untrusted.append(proxy)
            return {**self.connection("blue"), "server": f"https://localhost:{proxy.port}"}
        if kind == "ipv6":
            self.proxy = self.start_proxy(self.proxy.tls, host="::1")
            return {**self.connection("blue"), "server": f"https://[::1]:{self.proxy.port}"}
        if kind in UNUSABLE:
            name, text, mode = UNUSABLE[kind]
            if text is not None:
                self.path(kind).write_text(text)
                self.path(kind).chmod(mode)
            return {**self.connection("blue"), name: str(self.path(kind))}
        if kind.startswith("certificate-"):  # Not through the proxy, which has no key of the client.
            subject = kind.removeprefix("certificate-")
            authority = Authority(self.dir, "another") if subject == "unknown" else self.authority
            certificate, key = authority.sign(subject, subject=f"/CN={subject}", sans="DNS:client.example")
            return {"server": f"https://127.0.0.1:{self.port}", "ca_file": str(self.authority.file), "cert_file": str(certificate),
                    "key_file": str(key), **timeout}
        if kind == "no-certificate":
            return {**self.connection("blue"), "server": f"https://127.0.0.1:{self.port}"}
        if kind in ("on-demand", "on-demand-fails"):
            return {"store": self.store, "program": str(self.on_demand(kind == "on-demand-fails")), **timeout}
        raise AssertionError(f"a connection {kind}?")

    def on_demand(self, fails):
        """The program, with a folder of this test for its socket; the server soon ends by itself."""
        program = self.path("on-demand")
        wanted = "serve --on-demand"  # The store's URL is not for a command line, which all users see.
        folder = self.path("run")
        folder.mkdir(mode=0o700, exist_ok=True)
        end = ('echo "once: no such store" >&2; exit 243' if fails else
               f'XDG_RUNTIME_DIR={shlex.quote(str(folder))} exec {shlex.quote(harness.PROGRAM)} "$@" --idle-timeout 10s')
        check = f'[ "$* $ONCE_STORE" = {shlex.quote(f"{wanted} {self.store}")} ] || exit 64'
        program.write_text(f"#!/bin/sh\n{check}\necho x >>started\n{end}\n")
        program.chmod(0o755)
        return program

    def player(self, name):
        if name not in self.players:
            kind = self.case.get("connections", {}).get(name, "proxy")
            made = player_process.Player(COMMAND, self.connection(kind), self.path(f"{name}.log"), self.dir, self.env)
            self.players[name] = made
            self.addCleanup(made.end)
            ready = self.wait(name, "it is ready", lambda event: "ready" in event)
            self.assertEqual(set(ready["can"]), ABILITIES - CANNOT, "the abilities of this player, as CANNOT_OF has them")
        return self.players[name]

    def wait(self, name, what, matches):
        player = self.player(name)
        found = player.wait(matches, harness.DEADLINE_S)
        if found is None:
            raise AssertionError(f"player {name}, {'which ended' if player.ended else ''}: not seen that {what}: {player.events}")
        return found

    def call_of(self, call, player):
        """A call of this play has a scope and an id of its own."""
        self.started[call["id"]] = player
        return {"do": "call", "scope": f"{self.case['name']} {self.plays}", **call, "id": self.id_of(call["id"]),
                "options": {"lease_ms": LEASE_MS, "wait_ms": 0, **call.get("options", {})},
                "work": [self.action(action, player) for action in call.get("work", [])]}

    def action(self, action, player):
        changed = dict(action)
        if "gate" in changed:
            changed["gate"] = self.id_of(changed["gate"])
        if "work" in changed:
            changed["work"] = [self.action(inner, player) for inner in changed["work"]]
        for name in ("call", "fork"):
            if name in changed:
                changed[name] = self.call_of(changed[name], player)
        return changed

    def id_of(self, name):
        return f"{name} {self.plays}"

    def check_end(self, name, gives):
        got = self.wait(self.started[name], f"the call {name} ends", lambda event: event.get("id") == self.id_of(name) and event.keys() & {"result", "error"})
        gives = dict(gives)
        for text in gives.pop("says", []):
            self.assertIn(text, got.get("message", ""), f"the call {name} gives {got}")
        self.assertEqual({key: got.get(key) for key in gives}, gives, f"the call {name} gives {got}")

    def effects(self):
        counted = collections.Counter()
        for player in [*self.players.values(), *self.killed]:
            with player.changed:
                counted.update(event["effect"] for event in player.events
                               if "effect" in event and event["id"].endswith(f" {self.plays}"))
        return dict(counted)

    def play_step(self, step):
        if "call" in step:
            call = self.call_of(step["call"], step["player"])
            name = step["call"]["id"]
            self.player(step["player"]).send(call)
            if "until" in step:
                gate = self.id_of(step["until"])
                self.wait(step["player"], f"the call {name} is at the gate {gate}", lambda event: event.get("at") == gate)
            elif "gives" in step:
                self.check_end(name, step["gives"])
        elif "open" in step:
            self.player(step["player"]).send({"do": "open", "gate": self.id_of(step["open"])})
        elif "end" in step:
            self.check_end(step["end"], step["gives"])
        elif "cancel" in step:
            self.player(self.started[step["cancel"]]).send({"do": "cancel", "id": self.id_of(step["cancel"])})
        elif step.get("kill") == "server":
            self.server.kill()
            self.server.wait()
        elif "kill" in step:
            player = self.players.pop(step["kill"])
            player.kill()
            self.killed.append(player)
        elif step.get("start") == "server":
            self.start_server()
        elif step.get("lapse"):
            self.lapse()
        elif "once" in step:
            scope = f"{self.case['name']} {self.plays}"

            def decide():
                done = self.once(step["once"][0], "--scope", scope, *step["once"][1:])
                return None if b"changed since it was read" in done.stderr else done  # By a renewal.

            self.expect(harness.wait_until(decide, "the operator has decided"), 0)
        elif "record" in step:
            wanted = dict(step["record"])
            scope = f"{self.case['name']} {self.plays}"
            if "tenant" in wanted:
                scope += f"/@tenant={wanted.pop('tenant')}"
            got = self.show(wanted.pop("key"), "--scope", scope)
            self.assertEqual({key: got[key] for key in wanted}, wanted)
        elif "effects" in step:
            self.assertEqual(self.effects(), step["effects"])
        elif "requests" in step:
            self.assertEqual(self.proxy.seen, step["requests"])
        elif "await" in step:
            ((word, count),) = step["await"].items()
            is_there = self.proxy.wait(lambda: (self.proxy.refused if word == "refused" else self.proxy.seen.count(word)) >= count,
                                       harness.DEADLINE_S)
            self.assertTrue(is_there, f"{count} times {word}: {self.proxy.seen}, refused {self.proxy.refused}")
        elif "rotate" in step:
            old = self.tokens[step["rotate"]]
            self.rotate(step["rotate"], step["of"])
            if step["of"] != "client":
                harness.wait_until(lambda: self.status_of(old) == 401, "the server has taken up the new token")
        elif "proxy" in step:
            for name, value in step["proxy"].items():
                if name == "refuses":
                    self.proxy.refuse(value)
                else:
                    setattr(self.proxy, {"hangs": "is_hanging", "stale": "stale", "swap": "swap", "instead": "instead",
                                         "unframed": "unframed"}[name], value)
        else:
            raise AssertionError(f"a step {step}?")

    def play(self, lose=None):
        self.plays += 1
        self.started = {}
        self.proxy.reset()
        self.proxy.lose = lose
        for number, step in enumerate(self.case["steps"], 1):
            try:
                self.play_step(step)
            except AssertionError as error:
                lost = "" if lose is None else f", with the {lose[1]} of request {lose[0]} lost"
                raise AssertionError(f"step {number}{lost}: {json.dumps(step)}: {error}") from None
        if lose is not None:
            self.assertGreaterEqual(len(self.proxy.seen), lose[0], "the request to be lost was sent")

    def run_case(self, case):
        self.set_up(case)
        self.play()
        if case.get("losses"):
            requests = len(self.proxy.seen)
            self.assertGreater(requests, 0)
            for number in range(1, requests + 1):
                for what in ("request", "answer", "half of the answer")[:3 if case["losses"] == "halves" else 2]:
                    self.play((number, what))
        logs = "".join(path.read_text() for path in self.dir.glob("*.log"))
        self.assertNotIn("Traceback", logs)
        if "server" in case:
            for token in ["hush", *(path.read_text().strip() for path in self.dir.glob("*.token"))]:
                self.assertNotIn(token, logs + json.dumps([player.events for player in [*self.players.values(), *self.killed]]))
        self.assertEqual([proxy.seen for proxy in self.untrusted], [[]] * len(self.untrusted), "nothing is sent to an untrusted server")


def add_cases(wanted):
    for case in TRANSCRIPTS["cases"]:
        if not set(case.get("needs", [])) & CANNOT and (not wanted or case["name"] in wanted):
            name = "test_" + case["name"].replace(" ", "_").replace("-", "_")
            assert not hasattr(Transcripts, name), name
            setattr(Transcripts, name, lambda self, case=case: self.run_case(case))


if __name__ == "__main__":
    player = sys.argv.pop(2)
    COMMAND = player_process.COMMANDS.get(player) or shlex.split(player)
    CANNOT = CANNOT_OF.get(player) or set(os.environ.get("CANNOT", "").split())
    if player == "go":  # Its program is built now: a player is to be ready soon.
        subprocess.run([ROOT / "tools/go-tools"], check=True, stdout=subprocess.DEVNULL)
    add_cases(sys.argv[2:])
    del sys.argv[2:]
    harness.main()
