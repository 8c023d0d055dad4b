"""storm_test.py ONCE [SEED]: eight processes of each language call the same operations through two servers on one store.
Clients and servers are killed with SIGKILL while they run, and requests and answers are lost.

All effects are lines of one ledger. At the end it is judged, with what the callers were told, by the rules of the proof
(proof/programs.py): an operation acts again only after an attempt whose end nobody knows, never under `hold`; its
callers all get one result, also when they ask once more; and that result is an effect in the ledger.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "apps"))
sys.path += [str(ROOT / "proof"), str(ROOT / "tests/real_servers")]

import harness  # noqa: E402
import player_process  # noqa: E402
import programs  # noqa: E402
from certificates import Authority  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402

PROCESSES = {"python": 4, "asyncio": 4, "node": 8, "go": 8}
WINDOWS = 6
OPERATIONS = 4  # Of a window. Every second one is under hold.
LEASE_MS, WAIT_MS = 2000, 60_000
SCOPE = "storm"
SEED = random.SystemRandom().randrange(1 << 32)


class Storm(harness.Case):
    def test_each_effect_once(self):
        print(f"seed {SEED}", file=sys.stderr)
        self.chance = random.Random(SEED)
        self.changed = threading.Condition()
        self.ledger = self.path("ledger.jsonl")
        self.ledger.touch()
        self.told = open(self.path("callers.jsonl"), "w")
        self.addCleanup(self.told.close)
        self.calls, self.acts = [], {"client killed": 0, "holder killed": 0, "holder stopped": 0, "server killed": 0, "message lost": 0}
        self.start_servers()
        self.all_players, self.stopped = [], set()
        self.players = [self.player(kind) for kind, count in PROCESSES.items() for _ in range(count)]
        wanted = [f"{'hold' if number % 2 else 'takeover'}|{window}.{number}|0" for window in range(WINDOWS) for number in range(OPERATIONS)]
        for window in range(WINDOWS):
            self.play(wanted[window * OPERATIONS:][:OPERATIONS], self.draw_acts(window))
        calls_of_storm = len(self.calls)
        self.play(wanted, [], one_of_each=True)
        self.told.close()
        counts, wrong = programs.judge(self.dir)
        print(json.dumps({**counts, **self.acts}), file=sys.stderr)
        self.assertEqual(wrong, [])
        # What is not in doubt has a result.
        self.assertEqual({call["told"] for call in self.calls[calls_of_storm:] if call["want"].startswith("takeover")}, {"got"})
        self.assertGreaterEqual(counts["effects"], WINDOWS * OPERATIONS // 2)
        # Its work may have ended before the signal.
        self.assertGreater(self.acts["holder killed"] + self.acts["holder stopped"], 0)

    # ---- Who takes part

    def start_servers(self):
        """One on a socket, which some reach through a proxy that loses messages, and one at an address."""
        authority = Authority(self.dir)
        authority.sign("server")
        self.path("token").write_text("the-token-of-the-storm\n")
        self.path("token").chmod(0o600)
        self.port = 0
        self.servers = {"socket": None, "address": None}
        for name in self.servers:
            self.start_server(name)
        self.proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(self.proxy.close)
        self.connections = [
            {"server": f"unix:{self.path('s')}"}, {"server": f"unix:{self.proxy.path}"},
            {"server": f"https://localhost:{self.port}", "token_file": str(self.path("token")), "ca_file": str(authority.file)},
        ]

    def start_server(self, name):
        if name == "socket":
            arguments = ("--listen", f"unix:{self.path('s')}")
        else:
            arguments = ("--listen", f"127.0.0.1:{self.port}", "--tls-cert", self.path("server.pem"), "--tls-key",
                         self.path("server.key"), "--token-file", self.path("token"))
        server = self.start("serve", *arguments, "--log", "none", stdout=subprocess.DEVNULL)
        line = server.stderr.readline().decode()
        self.assertIn("listening on", line)
        if name == "address":
            self.port = int(line.split()[-1])
        self.servers[name] = server

    def player(self, kind):
        connection = {**self.connections[len(self.all_players) % 3], "timeout_ms": WAIT_MS}
        player = player_process.Player(player_process.COMMANDS[kind], connection, self.path(f"{kind}.log"), self.dir, self.env, self.changed)
        self.addCleanup(player.end)
        player.kind = kind
        self.all_players.append(player)
        return player

    # ---- What happens

    def play(self, operations, acts, one_of_each=False):
        """All of them call each operation once, in an order of their own. `acts` are functions, each with the number of
        effects that it waits for."""
        acted_before = self.effects()
        calls = []
        players = list({player.kind: player for player in self.players}.values()) if one_of_each else self.players
        for player in players:
            for want in self.chance.sample(operations, len(operations)):
                calls.append(self.call(player, want))
        for effects, act in acts:
            needs_holder = act in (self.kill_holder, self.stop_holder)
            self.wait(lambda: (self.effects() >= acted_before + effects and (not needs_holder or self.holders(calls)))
                      or self.all_ended(calls), f"{effects} effects, or the end")
            act(calls)
        self.wait(lambda: self.all_ended(calls), "all calls end, but of those that are stopped")
        for player in self.stopped:
            player.process.send_signal(signal.SIGCONT)
        self.stopped.clear()
        self.wait(lambda: self.all_ended(calls), "all calls end")
        for call in calls:
            call["told"], out, why = call["player"].told(call["number"], call["want"], self.ledger)
            self.say({"ran": call["number"], "told": call["told"], "out": out, "why": why})

    def call(self, player, want):
        number = len(self.calls) + 1
        is_held = want.startswith("hold")
        options = {"lease_ms": LEASE_MS, "wait_ms": WAIT_MS, **({"on_lapse": "hold"} if is_held else {})}
        call = {"player": player, "want": want, "number": number}
        self.calls.append(call)
        self.say({"run": number, "want": want, "hold": is_held, "by": player.kind})
        player.send(player_process.call(number, want, SCOPE, want, options, self.ledger, self.chance.choice((0, 20, 500))))
        return call

    def say(self, line):
        self.told.write(json.dumps({"t": time.monotonic_ns(), **line}) + "\n")

    def wait(self, condition, what):
        with self.changed:
            self.assertTrue(self.changed.wait_for(condition, 3 * harness.DEADLINE_S), f"not seen that {what}; the seed is {SEED}")

    def effects(self):
        return sum("effect" in event for player in self.all_players for event in player.events)

    @staticmethod
    def has_ended(call):
        return call["player"].ended or call["player"].end_of(call["number"]) is not None

    def all_ended(self, calls):
        return all(self.has_ended(call) or call["player"] in self.stopped for call in calls)

    # ---- What goes wrong

    def draw_acts(self, window):
        """A holder is killed or stopped in each window, and two of the others happen in each, in turns."""
        others = (self.kill_client, self.lose_message, self.kill_server)
        acts = [(self.kill_holder, self.stop_holder)[window % 2], *(other for number, other in enumerate(others) if number != window % 3)]
        return sorted(((self.chance.randrange(OPERATIONS), act) for act in acts), key=lambda pair: pair[0])

    def replace(self, player):
        player.kill()
        self.players[self.players.index(player)] = self.player(player.kind)

    def kill_client(self, calls):
        self.acts["client killed"] += 1
        self.replace(self.chance.choice([player for player in self.players if player not in self.stopped]))

    def holders(self, calls):
        """Of claims whose work has acted."""
        with self.changed:
            return [call["player"] for call in calls if call["player"] not in self.stopped and not self.has_ended(call)
                    and call["player"].has_acted(call["number"])]

    def kill_holder(self, calls):
        if holders := self.holders(calls):
            self.acts["holder killed"] += 1
            self.replace(self.chance.choice(holders))

    def stop_holder(self, calls):
        """Until all others have ended: somebody takes over, or finds that the outcome is unknown."""
        if holders := self.holders(calls):
            self.acts["holder stopped"] += 1
            player = self.chance.choice(holders)
            player.process.send_signal(signal.SIGSTOP)
            self.stopped.add(player)

    def kill_server(self, calls):
        self.acts["server killed"] += 1
        name = self.chance.choice(sorted(self.servers))
        self.servers[name].kill()
        self.servers[name].wait()
        self.start_server(name)

    def lose_message(self, calls):
        self.acts["message lost"] += 1
        with self.proxy.changed:
            self.proxy.lose = len(self.proxy.seen) + self.chance.randint(1, 4), self.chance.choice(("request", "answer", "half of the answer"))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        SEED = int(sys.argv.pop(2))
    subprocess.run([ROOT / "tools/go-tools"], check=True, stdout=subprocess.DEVNULL)  # Before a player waits for it.
    harness.main()
