"""Bugs between a worker and DynamoDB: a relay changes requests or answers as a wrong client would send or use them. The
store's code is whole, so the checkers must find each by what the workers see."""
import contextlib
import http.client
import http.server
import json
import random
import threading

CONDITION = ("ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues",
             "ReturnValuesOnConditionCheckFailure")


def is_insert(asked):
    return "attribute_not_exists" in asked.get("ConditionExpression", "")


def without_condition(asked):
    for name in CONDITION:
        asked.pop(name, None)


class Relay:
    """Serves on a free loopback port until close()."""

    def __init__(self, port, bug, seed):
        self.port, self._change = port, getattr(self, "_" + bug)
        self._chance = random.Random(f"{seed} {bug}")
        self._lock = threading.Lock()
        self._seen = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # A worker that was killed.
        self._server.relay = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def request(self, operation, body):
        """The body to send."""
        if operation != "PutItem":
            return body
        asked = json.loads(body)
        self._change(asked)
        return json.dumps(asked).encode()

    def answer(self, operation, body, answer):
        """The answer to give: status, headers, body."""
        if operation != "GetItem" or self._change != self._dynamodb_eventual_read:
            return answer
        with self._lock:
            before = self._seen.get(body, answer)
            self._seen[body] = answer
            return before if self._chance.random() < 0.5 else answer

    # ---- What is changed

    def _dynamodb_eventual_read(self, asked):
        pass  # Its answers are.

    @staticmethod
    def _dynamodb_unconditional_finish(asked):
        if not is_insert(asked) and asked["Item"]["status"]["S"] in ("completed", "failed"):
            without_condition(asked)

    @staticmethod
    def _dynamodb_unconditional_insert(asked):
        if is_insert(asked):
            without_condition(asked)

    @staticmethod
    def _dynamodb_revision_repeats(asked):
        if not is_insert(asked):
            asked["Item"]["revision"] = next(
                value for value in asked["ExpressionAttributeValues"].values() if "N" in value)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connection_on = None

    def do_POST(self):  # noqa: N802: the name is given
        relay = self.server.relay
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.connection_on is None:
            self.connection_on = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=10)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("content-length", "host")}
        self.connection_on.request("POST", "/", relay.request(operation, body), headers)
        got = self.connection_on.getresponse()
        status, given, data = relay.answer(operation, body, (got.status, got.getheaders(), got.read()))
        self.send_response_only(status)
        for name, value in given:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def finish(self):
        if self.connection_on is not None:
            self.connection_on.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_):
        pass
