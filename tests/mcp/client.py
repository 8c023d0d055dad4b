"""A client of the Model Context Protocol over standard input and output, without an SDK, for tests."""
import contextlib
import json
import queue
import subprocess
import threading

DEADLINE_S = 60.0
MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


class Client:
    """Speaks to `command`. `modern`: of 2026-07-28, without a handshake."""

    def __init__(self, command, modern=False, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.modern = modern
        self.ids = 0
        self.answers = {}  # By id: a queue.
        self.others = queue.Queue()
        self.errors = []
        self.is_over = False  # The server has closed its output.
        self.readers = [threading.Thread(target=self._read), threading.Thread(target=lambda: self.errors.extend(self.process.stderr))]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            waiting = self.answers.get(message.get("id")) if "method" not in message else None
            (waiting or self.others).put(message)
        self.is_over = True
        for waiting in list(self.answers.values()):
            waiting.put(None)

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method, params=None):
        """Returns the id."""
        self.ids += 1
        self.answers[self.ids] = queue.Queue()
        if self.is_over:
            self.answers[self.ids].put(None)
        params = dict(params or {})
        if self.modern:
            params["_meta"] = MODERN | params.get("_meta", {})
        self.send({"id": self.ids, "method": method, "params": params})
        return self.ids

    def answer(self, number):
        """None: the server is gone."""
        return self.answers[number].get(timeout=DEADLINE_S)

    def ask(self, method, params=None):
        return self.answer(self.begin(method, params))

    def open(self):
        if not self.modern:
            answer = self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
            if "result" not in answer:
                raise AssertionError(answer)
            self.send({"method": "notifications/initialized"})
        return self

    def begin_call(self, tool, meta=None, **arguments):
        return self.begin("tools/call", {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {}))

    def call(self, tool, meta=None, **arguments):
        """The texts of the result, and what once says of it."""
        return self.told(self.answer(self.begin_call(tool, meta, **arguments)))

    @staticmethod
    def told(answer):
        result = answer["result"]
        return [block["text"] for block in result["content"]], result.get("_meta", {}).get("once/outcome")

    def close(self):
        """The exit code, after the client has closed its end."""
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)

    def kill(self):
        """Leaves nothing behind."""
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(DEADLINE_S)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()
