"""player.py [asyncio]: plays calls for tests/clients/clients_test.py with the Python package."""
import asyncio
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "clients/python/src"))

from once_idempotency import Once, OnceError, StoredFailure  # noqa: E402


class Rejected(Exception):
    """What the work throws."""


def say(event):
    os.write(1, json.dumps(event).encode() + b"\n")  # One write: lines of threads and children do not mix.


def client(message):
    given = {name: message[name] for name in ("store", "server", "token_file", "ca_file", "cert_file", "key_file", "program") if name in message}
    return Once(**given, timeout=message["timeout_ms"] / 1000)


def options(call):
    """As this package names them."""
    given = dict(call["options"])
    named = {name: f"{given.pop(name + '_ms')}ms" for name in ("lease", "wait", "retention") if name + "_ms" in given}
    if given.get("on_unrecorded") == "fail":
        given["on_unrecorded"] = "raise"
    return {**named, **given}


def ended(call, error):
    event = {"id": call["id"], "error": getattr(error, "word", "thrown"), "message": str(error)}
    if isinstance(error, StoredFailure):
        event["message"] = error.message
    say(event)


def append(action):
    with open(action["append"], "ab", buffering=0) as file:  # One write: lines of processes do not mix.
        file.write(action["text"].encode() + b"\n")


def value_of(action):
    if "unserialisable" in action:
        return object()
    return "x" * action["large"] if "large" in action else action["return"]


class Blocking:
    can = ["fork"]

    def __init__(self):
        self.gates = {}
        self.lock = threading.Lock()

    def gate(self, name):
        with self.lock:
            return self.gates.setdefault(name, threading.Event())

    def work(self, call, claim, actions):
        for action in actions:
            if "effect" in action:
                say({"id": call["id"], "effect": action["effect"], "attempt": claim.attempt})
            elif "gate" in action:
                say({"id": call["id"], "at": action["gate"]})
                self.gate(action["gate"]).wait()
            elif "append" in action:
                append(action)
            elif "wait_ms" in action:
                time.sleep(action["wait_ms"] / 1000)
            elif "step" in action:
                claim.step(action["step"], self.work, call, claim, action["work"])
            elif "check" in action:
                claim.check()
            elif "call" in action:
                self.call(action["call"])
            elif "fork" in action:
                child = os.fork()
                if child == 0:
                    self.call(action["fork"])
                    os._exit(0)
                os.waitpid(child, 0)
            elif "throw" in action:
                raise Rejected(action["throw"])
            else:
                return value_of(action)
        return None

    def call(self, call):
        try:
            result = self.once.call(call["scope"], call["key"], lambda claim: self.work(call, claim, call["work"]),
                                    payload=call.get("payload"), **options(call))
        except (OnceError, Rejected) as error:
            return ended(call, error)
        say({"id": call["id"], "result": None if type(result) is object else result})

    def run(self):
        for line in sys.stdin:
            message = json.loads(line)
            if message["do"] == "client":
                self.once = client(message)
            elif message["do"] == "open":
                self.gate(message["gate"]).set()
            else:
                threading.Thread(target=self.call, args=(message,), daemon=True).start()
        os._exit(0)


class Asyncio:
    can = ["cancel"]

    def __init__(self):
        self.gates, self.tasks = {}, {}

    def gate(self, name):
        return self.gates.setdefault(name, asyncio.Event())

    async def work(self, call, claim, actions):
        for action in actions:
            if "effect" in action:
                say({"id": call["id"], "effect": action["effect"], "attempt": claim.attempt})
            elif "gate" in action:
                say({"id": call["id"], "at": action["gate"]})
                await self.gate(action["gate"]).wait()
            elif "append" in action:
                append(action)
            elif "wait_ms" in action:
                await asyncio.sleep(action["wait_ms"] / 1000)
            elif "step" in action:
                await claim.step(action["step"], self.work, call, claim, action["work"])
            elif "check" in action:
                await claim.check()
            elif "call" in action:
                await self.call(action["call"])
            elif "throw" in action:
                raise Rejected(action["throw"])
            else:
                return value_of(action)
        return None

    async def call(self, call):
        try:
            result = await self.once.call_async(call["scope"], call["key"], lambda claim: self.work(call, claim, call["work"]),
                                                payload=call.get("payload"), **options(call))
        except (OnceError, Rejected) as error:
            return ended(call, error)
        except asyncio.CancelledError:
            say({"id": call["id"], "error": "cancelled"})
            raise
        say({"id": call["id"], "result": None if type(result) is object else result})

    async def main(self):
        reader = asyncio.StreamReader(limit=2**24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if message["do"] == "client":
                self.once = client(message)
                resolves = "localhost" in message.get("server", "")
            elif message["do"] == "open":
                self.gate(message["gate"]).set()
            elif message["do"] == "cancel":
                self.tasks[message["id"]].cancel()
            else:
                self.tasks[message["id"]] = asyncio.ensure_future(self.call(message))
            # asyncio itself looks names up in a thread.
            if any(not (resolves and thread.name.startswith("asyncio_")) for thread in threading.enumerate()[1:]):
                sys.exit("asyncio is to run without threads")

    def run(self):
        asyncio.run(self.main())


player = Asyncio() if sys.argv[1:] == ["asyncio"] else Blocking()
say({"ready": "python", "can": player.can})
player.run()
