"""A queue for `once sqs` as Amazon SQS describes standard queues: each message is delivered at least once.

What SQS says may happen now and then happens often here: two receivers get one message, a deleted message comes again,
and requests and answers are lost on the way. A message that was received MOST_RECEIVED times is given up, as by a queue
with a redrive policy: else those that are left would be most of what is received in a long run. What it does is in a
file, a line of JSON for each act.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html
"""
import contextlib
import dataclasses
import http.server
import json
import threading
import time

NAME = "orders"
MOST_RECEIVED = 20


@dataclasses.dataclass
class Message:
    identity: str
    body: str
    attributes: dict
    sent_ms: int
    visible_at: float = 0.0
    receipts: int = 0


class LostOnTheWay(Exception):
    """The connection is closed without an answer."""


class MessageQueue:
    """Serves on a free loopback port until close(). chance: a random.Random of its own. Calm: nothing is lost or doubled."""

    def __init__(self, folder, chance, calm):
        self.calm = calm
        self.messages = {}
        self._left = {}  # Those that are not deleted or given up. Who waits longest is first.
        self._chance = chance
        self._changed = threading.Condition()
        self._log = open(folder / "queue.jsonl", "a")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # A poller that was killed.
        self._server.queue = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        with self._changed:
            self._log.close()

    def send(self, body, attributes):
        with self._changed:
            message = Message(f"m{len(self.messages) + 1}", json.dumps(body), attributes, time.time_ns() // 1_000_000)
            self.messages[message.identity] = self._left[message.identity] = message
            self._say(sent=message.identity, want=attributes["want"])
            self._changed.notify_all()

    def left(self):
        with self._changed:
            return list(self._left)

    def answer(self, operation, asked):
        """The JSON of an answer, or LostOnTheWay."""
        if self._happens(0.03):
            self._note(lost="request", operation=operation)
            raise LostOnTheWay
        answer = getattr(self, "_" + operation)(asked)
        if self._happens(0.03):
            self._note(lost="answer", operation=operation)
            raise LostOnTheWay
        return answer

    # ---- What a poller asks for

    def _GetQueueUrl(self, _):  # noqa: N802: the names are given
        return {"QueueUrl": f"{self.url}/000000000000/{NAME}"}

    def _GetQueueAttributes(self, _):  # noqa: N802
        return {"Attributes": {"QueueArn": f"arn:aws:sqs:eu-central-1:000000000000:{NAME}"}}

    def _ReceiveMessage(self, asked):  # noqa: N802
        until = time.monotonic() + asked["WaitTimeSeconds"]
        with self._changed:
            while not (found := self._visible()[:asked["MaxNumberOfMessages"]]) and time.monotonic() < until:
                self._changed.wait(min(0.1, max(0, until - time.monotonic())))
            return {"Messages": [self._deliver(message, asked["VisibilityTimeout"]) for message in found]}

    def _ChangeMessageVisibility(self, asked):  # noqa: N802
        with self._changed:
            identity, receipt = asked["ReceiptHandle"].split("/")
            message = self.messages[identity]
            if int(receipt) == message.receipts:  # Otherwise somebody else has received it since.
                message.visible_at = time.monotonic() + asked["VisibilityTimeout"]
                self._changed.notify_all()
        return {}

    def _DeleteMessage(self, asked):  # noqa: N802
        with self._changed:
            message = self.messages[asked["ReceiptHandle"].split("/")[0]]
            comes_again = message.identity in self._left and self._happens(0.1)
            if not comes_again:
                self._left.pop(message.identity, None)
            message.visible_at = time.monotonic() + 0.3
            self._say(deleted=message.identity, comes_again=comes_again)
        return {}

    # ---- Parts

    def _visible(self):
        now = time.monotonic()
        visible = [message for message in self._left.values() if message.visible_at <= now]
        for message in visible:
            if message.receipts >= MOST_RECEIVED:
                del self._left[message.identity]
                self._say(given_up=message.identity)
        return [message for message in visible if message.identity in self._left]

    def _deliver(self, message, visibility_s):
        message.receipts += 1
        self._left[message.identity] = self._left.pop(message.identity)
        doubled = self._happens(0.15)
        message.visible_at = 0 if doubled else time.monotonic() + visibility_s
        self._say(delivered=message.identity, receipt=message.receipts, doubled=doubled)
        return {
            "MessageId": message.identity, "ReceiptHandle": f"{message.identity}/{message.receipts}", "Body": message.body,
            "MD5OfBody": "",
            "Attributes": {"ApproximateReceiveCount": str(message.receipts), "SentTimestamp": str(message.sent_ms)},
            "MessageAttributes": {name: {"DataType": "String", "StringValue": value}
                                  for name, value in message.attributes.items()}}

    def _happens(self, chance):
        return not self.calm and self._chance.random() < chance

    def _note(self, **line):
        with self._changed:
            self._say(**line)

    def _say(self, **line):
        if not self._log.closed:
            self._log.write(json.dumps({"t": time.monotonic_ns(), **line}) + "\n")
            self._log.flush()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802: the name is given
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            answer = self.server.queue.answer(self.headers["X-Amz-Target"].removeprefix("AmazonSQS."), asked)
        except LostOnTheWay:
            self.close_connection = True
            return
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *_):
        pass
