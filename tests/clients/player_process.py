"""A process of a client that plays calls. docs/write-a-client.md says what it reads and prints."""
import json
import os
import pathlib
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
COMMANDS = {
    "python": [sys.executable, HERE / "players/player.py"],
    "asyncio": [sys.executable, HERE / "players/player.py", "asyncio"],
    "node": ["node", HERE / "players/player.mjs"],
    "go": [HERE / "players/go/run"],
}
# What a call may end with that has not acted, and with one that has.
NOT_RUN = {"in-progress", "key-reused", "outcome-unknown", "unavailable", "claim-lost"}
IN_DOUBT = {"claim-lost", "unrecorded", "unavailable"}


class Player:
    """`events` are what it printed; `changed` is notified of each, and of its end. Several may share one `changed`."""

    def __init__(self, command, connection, log, cwd, env, changed=None):
        """`connection` is what `client` has, and `env` in it what its environment has beside `env`."""
        env = {key: value for key, value in env.items() if not key.startswith("ONCE_")}
        env.update(connection.get("env", {}))
        with open(log, "ab") as file:
            self.process = subprocess.Popen(list(map(os.fspath, command)), cwd=cwd, env=env, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=file)
        self.changed = changed or threading.Condition()
        self.events, self.ended = [], False
        self.writing = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()
        self.send({"do": "client", **{key: value for key, value in connection.items() if key != "env"}})

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.events.append(json.loads(line))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def send(self, message):
        with self.writing:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def find(self, matches):
        """The first event that does, or None."""
        return next(filter(matches, self.events), None)

    def wait(self, matches, deadline_s):
        """The same, when it has come; None if the player has ended without it, or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.find(matches) or self.ended, deadline_s)
            return self.find(matches)

    @staticmethod
    def is_end(event, number):
        return event.get("id") == str(number) and not event.keys().isdisjoint({"result", "error"})

    def end_of(self, number):
        return self.find(lambda event: self.is_end(event, number))

    def has_acted(self, number):
        return self.find(lambda event: event.get("id") == str(number) and "effect" in event) is not None

    def told(self, number, want, ledger):
        """The words of proof/programs.py for the end of a call that call() has made, what it returned, and why."""
        end, has_acted, own = self.end_of(number), self.has_acted(number), f"{want}|{number}"
        if end is None:  # It was killed.
            with open(ledger) as file:
                has_acted = any(json.loads(line)["number"] == number for line in file)
            return "unknown" if has_acted else "nothing", "", "killed"
        if "result" in end:
            return "superseded" if has_acted and end["result"] != own else "got", end["result"], ""
        known = IN_DOUBT if has_acted else NOT_RUN
        why = f"{end['error']}: {end.get('message', '')}"
        return ("unknown" if has_acted else "nothing") if end["error"] in known else f"error {end['error']}", "", why

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        with self.writing:
            self.process.stdin.close()
        with self.changed:  # Its thread has read all that there is.
            self.changed.wait_for(lambda: self.ended)
        self.process.stdout.close()


def call(number, want, scope, key, options, ledger, ms, payload=None):
    """A call whose work looks at its claim, adds its line to the ledger, and takes a while."""
    work = [{"check": True}, {"append": str(ledger), "text": json.dumps({"op": want, "number": number})}, {"effect": want},
            {"wait_ms": ms}, {"return": f"{want}|{number}"}]
    return {"do": "call", "id": str(number), "scope": scope, "key": key, "options": {**options, "on_unrecorded": "fail"},
            "work": work, **({} if payload is None else {"payload": payload})}
