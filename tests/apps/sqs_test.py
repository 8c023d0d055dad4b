"""sqs_test.py PROGRAM: `once sqs` on a queue that is not ours (moto, started for this), with processes that are killed.

After each: how often did the command's effect happen?
"""
import collections
import contextlib
import hashlib
import http.client
import http.server
import json
import pathlib
import resource
import signal
import socket
import sqlite3
import sys
import threading
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "real_servers")]
import emulator  # noqa: E402
import harness  # noqa: E402
import metrics_page  # noqa: E402
from harness import wait_until  # noqa: E402

ENDPOINT = None


def sqs(operation, **body):
    """The emulator wants to see a signature, and checks none."""
    request = urllib.request.Request(ENDPOINT, data=json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/x-amz-json-1.0")
    request.add_header("X-Amz-Target", f"AmazonSQS.{operation}")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/eu-central-1/sqs/aws4_request, "
                       "SignedHeaders=host, Signature=0")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"{}")


class Service(http.server.BaseHTTPRequestHandler):
    """Answers as the body asks it to, and notes what came."""

    def do_POST(self):  # noqa: N802: the name is given
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((body["id"], self.headers["Idempotency-Key"], self.headers["Content-Type"], self.path))
        asked = sum(1 for seen in self.server.seen if seen[0] == body["id"])
        status = body["answers"][min(asked, len(body["answers"])) - 1]
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class Crowded(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Meeting(http.server.BaseHTTPRequestHandler):
    """Answers when all whom the server waits for have come."""

    def do_POST(self):  # noqa: N802: the name is given
        self.server.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.all_here.wait(harness.DEADLINE_S)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class SilentQueue(http.server.ThreadingHTTPServer):
    """A queue that answers requests for messages when it is told to, and notes what else it is asked for."""

    daemon_threads = True

    def __init__(self):
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.shown = []  # Receipt handles of messages that were made visible.
        super().__init__(("127.0.0.1", 0), SilentQueueHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self):
        self.answer.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # Nobody waits for its answer any more.


class SilentQueueHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802: the name is given
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.headers["X-Amz-Target"]
        answer = {}
        if operation == "AmazonSQS.GetQueueUrl":
            answer = {"QueueUrl": self.server.url + "/queue"}
        elif operation == "AmazonSQS.GetQueueAttributes":
            answer = {"Attributes": {"QueueArn": "arn:aws:sqs:eu-central-1:000000000000:queue"}}
        elif operation == "AmazonSQS.ReceiveMessage":
            self.server.asked.set()
            self.server.answer.wait(harness.DEADLINE_S)
            answer = {"Messages": [{"MessageId": "m-1", "ReceiptHandle": "r-1", "Body": "1", "MD5OfBody": "",
                                    "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1"}}]}
        elif operation == "AmazonSQS.ChangeMessageVisibility" and body["VisibilityTimeout"] == 0:
            self.server.shown.append(body["ReceiptHandle"])
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Queues(harness.Case):
    queues = 0

    def setUp(self):
        super().setUp()
        Queues.queues += 1
        self.queue = f"orders-{Queues.queues}"
        self.env = emulator.environment(ENDPOINT, self.env)

    def make_queue(self, name=None, **attributes):
        name = name or self.queue
        made = sqs("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "30", **attributes})
        return made["QueueUrl"]

    def send(self, url, body, **more):
        return sqs("SendMessage", QueueUrl=url, MessageBody=body if isinstance(body, str) else json.dumps(body),
                   **more)["MessageId"]

    def left(self, url):
        """Visible, and hidden. A message that is just changing from one to the other may be seen as neither."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = sqs("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
        return tuple(int(told[name]) for name in names)

    def lines(self, name="ran"):
        path = self.path(name)
        return path.read_text().split() if path.exists() else []

    def drain(self, *arguments, queue=None, **options):
        return self.once("sqs", "--queue", queue or self.queue, "--drain", *arguments, **options)

    def events(self, done):
        """What it said of messages, without the lines of the engine's events."""
        lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
        return [line for line in lines if "key_hash" not in line]

    def ends(self, done):
        """How each message ended. moto answers 500 now and then, when its set of groups changes while it reads it for
        another request; the poller reports that, and asks again."""
        return [event["end"] for event in self.events(done) if "end" in event]

    def start_idle(self, *flags):
        """A poller that waits for messages, and its queue."""
        queue = SilentQueue()
        self.addCleanup(queue.end)
        poller = self.start("sqs", "--queue", "queue", "--endpoint", queue.url, "--visibility", "40s", *flags)
        self.assertTrue(queue.asked.wait(harness.DEADLINE_S))
        return poller, queue

    def end_of(self, poller):
        """Its exit code and what it said."""
        _, said = poller.communicate(timeout=harness.DEADLINE_S)
        return poller.returncode, said.decode()

    UNANSWERED = "once: stopped waiting for the queue's answer; messages in it stay hidden for 40s\n"


class Sqs(Queues):
    def test_each_order_is_run_once_however_often_it_was_sent(self):
        url = self.make_queue()
        for i in range(30):
            self.send(url, {"order": i % 10})
        done = self.drain("--key-from", "payload", "--key", "order", "--parallel", "4", "--log", "json", "--",
                          "sh", "-c", "printf '%s\\n' \"$(cat)\" >>ran")
        self.expect(done, 0)
        ran = [json.loads(line)["order"] for line in self.path("ran").read_text().splitlines()]
        self.assertEqual(sorted(ran), list(range(10)))
        self.assertEqual(self.left(url), (0, 0))
        self.assertEqual(collections.Counter(self.ends(done)), {"executed": 10, "replayed": 20})

    def test_switched_off_it_runs_everything_and_says_so(self):
        url = self.make_queue()
        command = ["--key-from", "payload", "--key", "order", "--parallel", "1", "--", "sh", "-c",
                   "printf '%s\\n' \"${ONCE_DISABLED-protected}\" >>ran"]
        for log in (["--log", "none"], ["--log", "json", "--log-level", "err"], ["--log", "json"]):
            self.send(url, {"order": 1})
            self.send(url, {"order": 1})
            done = self.expect(self.drain(*log, *command, env={**self.env, "ONCE_DISABLED": "1"}), 0)
            told = done.stderr.decode()
            self.assertEqual(sum("unprotected" in line and "ended" not in line for line in told.splitlines()), 2, told)
        self.assertEqual(self.path("ran").read_text(), "protected\n" * 6)
        self.expect(self.drain(*command, env={**self.env, "ONCE_DISABLED": "ture"}), 64, stderr=b"ONCE_DISABLED is 'ture'")

    def test_operators_get_counts_and_probes(self):
        url = self.make_queue()
        self.fifo("gate")
        for order in ("good", "good", "bad", "gate"):
            self.send(url, {"order": order})
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--key-from", "payload", "--key", "order",
                            "--admin", "0", "--audit-log", self.path("audit"), "--log", "json", "--", "sh", "-c",
                            "case $(cat) in *bad*) exit 1;; *gate*) read x <gate;; esac")
        port = json.loads(poller.stderr.readline())["why"].removeprefix("operators on port ")
        note = json.loads(poller.stderr.readline())["why"]
        with open(note.removeprefix("the token of the operators' API is in ")) as file:
            token = file.read().strip()

        def page(name, body=None):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", headers=headers,
                                             data=body and json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as error:
                return f"{error.code} {error.read().decode()}"

        def values():
            return metrics_page.check(page("metrics"), "Operations", "Process", "Queues", "Sweep", "Look at the store")

        def claims():
            return values().get(f'once_claims_total{{scope="{self.queue}",kind="claimed"}}')
        wait_until(lambda: (values()["once_sqs_messages_in_flight"], values()["once_sqs_received_total"], claims()) ==
                   (1, 4, 3), "the last one is being processed: it is in flight before it is claimed")
        now = values()
        for sample, value in {'once_sqs_messages_total{outcome="executed",fate="deleted"}': 1,
                              'once_sqs_messages_total{outcome="replayed",fate="deleted"}': 1,
                              'once_sqs_messages_total{outcome="failed",fate="left"}': 1,
                              f'once_operations_total{{scope="{self.queue}",outcome="completed"}}': 1,
                              f'once_claims_total{{scope="{self.queue}",kind="claimed"}}': 3}.items():
            self.assertEqual(now[sample], value, sample)
        self.assertEqual(page("healthz"), "alive\n")
        self.assertEqual(page("readyz"), "ready\n")
        records = json.loads(page("v1/records?state=in_progress"))["records"]
        self.assertEqual([record["scope"] for record in records], [self.queue])
        page(f"v1/records/{records[0]['stored_key_hex']}?include=input")
        self.assertEqual([json.loads(line)["event"] for line in self.path("audit").read_text().splitlines()], ["show"])
        poller.send_signal(signal.SIGTERM)
        wait_until(lambda: page("readyz") == "503 stopping\n", "it stops")
        act = {"act": "release", "filter": {"standing": "unknown"}, "reason": "r"}
        wait_until(lambda: "urn:once:problem:stopping" in page("v1/bulk", act), "no act on many records begins")
        self.open_gate("gate")
        self.assertEqual(self.end_of(poller)[0], 0)

    def test_operators_of_other_hosts_need_a_token(self):
        done = self.once("sqs", "--queue", "q", "--endpoint", "http://127.0.0.1:1", "--admin", "0.0.0.0:0", "--", "true")
        self.expect(done, 64, stderr=b"any client that reaches 0.0.0.0 could change records")

    def test_the_command_finds_the_message(self):
        url = self.make_queue()
        sent = self.send(url, "{}")
        done = self.drain("--", "sh", "-c", "env | grep ^ONCE_")
        self.expect(done, 0)
        variables = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
        self.assertEqual(variables["ONCE_SQS_RECEIVE_COUNT"], "1")
        self.assertEqual((variables["ONCE_KEY"], variables["ONCE_SQS_MESSAGE_ID"]), (sent, sent))
        self.assertEqual(variables["ONCE_SCOPE"], self.queue)
        self.assertEqual(variables["ONCE_ATTEMPT"], "1")
        self.assertTrue(variables["ONCE_SQS_QUEUE_ARN"].endswith(":" + self.queue))

    def test_the_body_is_on_standard_input_and_attributes_in_the_environment(self):
        url = self.make_queue()
        self.send(url, "a body\nof two lines", MessageAttributes={
            "tenant-id": {"DataType": "String", "StringValue": "t 1"}})
        done = self.drain("--", "sh", "-c", 'cat; echo "/$ONCE_SQS_ATTRIBUTE_TENANT_ID"')
        self.expect(done, 0, b"a body\nof two lines/t 1\n")

    def test_a_body_is_kept_if_asked_for_without_what_is_left_out(self):
        url = self.make_queue()
        sqs("SendMessage", QueueUrl=url, MessageBody='{"order": 17, "card": {"number": "4111-secret"}}')
        sqs("SendMessage", QueueUrl=url, MessageBody="number=4111-secret")
        self.expect(self.drain("--keep-input", "--input-without", "card.number", "--", "sh", "-c", "cat >/dev/null"), 0)
        keys = [record["key"] for record in json.loads(self.once("ls", "--json").stdout)]
        inputs = sorted(self.show(key, "--scope", self.queue)["input"] for key in keys)
        self.assertEqual(inputs, ["", '{"order":17,"card":{"number":"(left out)"}}'])
        self.assertNotIn(b"secret", b"".join(path.read_bytes() for path in self.dir.glob("once.db*")))
        self.expect(self.drain("--input-without", "cvc", "--", "true"), 64, b"", b"--keep-input")
        self.expect(self.drain("--keep-input", "--input-without", "cvc | [0", "--", "true"), 64, b"")

    def test_killed_between_the_result_and_the_deletion_it_is_not_run_again(self):
        url = self.make_queue()
        self.send(url, "1")
        # The same as a death there: the result is durable, and the message is still in the queue.
        message = sqs("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0)["Messages"][0]
        self.expect(self.once("run", "--key", message["MessageId"], "--scope", self.queue, "--fingerprint", "none", "--",
                              "sh", "-c", "echo done >>ran"), 0)
        done = self.drain("--log", "json", "--", "sh", "-c", "echo again >>ran")
        self.expect(done, 0)
        self.assertEqual(self.ends(done), ["replayed"])
        self.assertEqual(self.lines(), ["done"])
        self.assertEqual(self.left(url), (0, 0))

    def test_a_command_that_fails_is_tried_again_and_ends_in_the_dead_letter_queue(self):
        dead = self.make_queue(self.queue + "-dead")
        arn = sqs("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        url = self.make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
        self.send(url, "bad")
        self.send(url, "good")
        done = self.drain("--retry-after", "0s", "--", "sh", "-c",
                          'read x; echo "$x" >>ran; test "$x" != bad')
        self.expect(done, 1)
        self.assertEqual(sorted(self.lines()), ["bad", "bad", "bad", "good"])
        self.assertEqual(self.left(url), (0, 0))
        self.assertEqual(self.left(dead), (1, 0))
        self.assertIn(b"the command ended with exit 1; it stays in the queue", done.stderr)

    def test_a_drain_tells_what_others_have_and_what_comes_later(self):
        url = self.make_queue()
        self.send(url, "with another consumer")
        self.assertEqual(len(sqs("ReceiveMessage", QueueUrl=url)["Messages"]), 1)
        self.send(url, "mine")
        done = self.expect(self.drain("--", "sh", "-c", "cat >>ran"), 1)
        self.assertEqual(self.lines(), ["mine"])
        self.assertIn(b"0 messages can be received, 1 are hidden", done.stderr)
        later = self.make_queue(self.queue + "-later")
        self.send(later, "later", DelaySeconds=600)
        self.assertIn(b"1 are delayed", self.expect(self.drain("--", "true", queue=self.queue + "-later"), 1).stderr)

    def test_a_drain_tells_of_the_dead_letter_queue(self):
        dead = self.make_queue(self.queue + "-dead")
        arn = sqs("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        url = self.make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
        self.send(url, "good")
        self.expect(self.drain("--", "true"), 0)
        self.send(dead, "given up long ago")
        done = self.expect(self.drain("--", "true"), 1)
        self.assertIn(f"dead-letter queue {self.queue}-dead holds 1 messages".encode(), done.stderr)

    def test_unknown_survives_a_redrive(self):
        dead = self.make_queue(self.queue + "-dead")
        arn = sqs("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        url = self.make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
        self.send(url, {"order": 17})
        hold = ["--on-failure", "hold", "--key-from", "payload", "--key", "order", "--retry-after", "0s", "--",
                "sh", "-c", "cat >>ran; false"]
        self.expect(self.drain(*hold), 1)
        wait_until(lambda: not sqs("ReceiveMessage", QueueUrl=url).get("Messages"), "it is dead-lettered")
        done = self.expect(self.drain(*hold), 1)
        self.assertIn(b"First resolve the operations that are unknown", done.stderr)
        self.assertIn(b"A redriven message has a new message id", done.stderr)
        self.send(url, {"order": 17})  # What a redrive does.
        self.expect(self.drain(*hold), 1)
        self.assertEqual(self.runs(), 1)

    def test_hold_needs_a_key_that_survives_a_redrive(self):
        url = self.make_queue()
        self.send(url, {"order": 17})
        work = ["--", "sh", "-c", "cat >>ran"]
        for hold in (["--on-lapse", "hold"], ["--on-failure", "hold"], ["--on-signal", "hold"], ["--on-exit", "3=hold"]):
            for key in ([], ["--key-from", "id"], ["--key-from", "deduplication-id"], ["--key", "messageId"],
                        ["--key", "[messageId, powertools_json(body).order]"],
                        ["--key", "join('-', [messageId, powertools_json(body).order])"],
                        ["--key", "attributes.MessageDeduplicationId"]):
                done = self.expect(self.drain(*hold, *key, *work), 64, stderr=b"hold needs a key that survives a redrive")
                self.assertIn(b"message id, and may have a new deduplication id", done.stderr)
        self.assertEqual(self.runs(), 0)
        self.assertEqual(self.left(url), (1, 0))
        self.expect(self.drain("--on-lapse", "hold", "--key", "powertools_json(body).order", *work), 0)
        self.assertEqual(self.runs(), 1)

    def test_a_queue_that_comes_back_is_worked_on(self):
        url = self.make_queue()
        self.send(url, "1")
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--log", "json", "--admin", "0", "--",
                            "sh", "-c", "cat >>ran; echo >>ran")
        port = next(line for line in map(json.loads, poller.stderr) if "operators on port" in line.get("why", ""))["why"]
        port = int(port.rsplit(" ", 1)[1])
        wait_until(lambda: self.lines() == ["1"], "it worked")
        wait_until(lambda: self.left(url) == (0, 0), "the message is deleted")
        sqs("DeleteQueue", QueueUrl=url)
        pause = next(line for line in map(json.loads, poller.stderr) if line["event"] == "pause")
        self.assertIn("NonExistentQueue" if "NonExistent" in pause["why"] else "QueueDoesNotExist", pause["why"])

        def page(path):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.DEADLINE_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        status, text = page("/readyz")
        self.assertEqual(status, 503)
        self.assertIn("no messages can be received", text)
        self.assertIn("once_sqs_receiving 0", page("/metrics")[1])
        self.send(self.make_queue(), "2")
        wait_until(lambda: self.lines() == ["1", "2"], "it works again")
        wait_until(lambda: page("/readyz")[0] == 200, "it is ready again")
        self.assertIn("once_sqs_receiving 1", page("/metrics")[1])
        poller.terminate()
        self.assertEqual(self.end_of(poller)[0], 0)

    def test_a_failure_that_counts_is_kept_and_deleted(self):
        url = self.make_queue()
        sent = self.send(url, "no such account")
        self.expect(self.drain("--on-exit", "3=store", "--", "sh", "-c", "echo x >>ran; exit 3"), 0)
        self.assertEqual(self.left(url), (0, 0))
        record = self.show(sent, "--scope", self.queue)
        self.assertEqual((record["state"], record["failure"]["code"]), ("failed", "exit 3"))
        self.assertEqual(self.runs(), 1)

    def test_a_fifo_queue_keeps_the_order_of_its_groups(self):
        url = self.make_queue(self.queue + ".fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for body in ["a1", "b1", "a2", "b2", "a3", "b3"]:
            self.send(url, body, MessageGroupId=body[0])
        done = self.drain("--parallel", "4", "--retry-after", "0s", "--", "sh", "-c",
                          'read x; echo "$x" >>ran; test "$x" != a2 || test -e failed || { touch failed; exit 1; }',
                          queue=self.queue + ".fifo")
        self.expect(done, 0)
        self.assertEqual([x for x in self.lines() if x[0] == "a"], ["a1", "a2", "a2", "a3"])
        self.assertEqual([x for x in self.lines() if x[0] == "b"], ["b1", "b2", "b3"])
        self.assertEqual(self.left(url), (0, 0))

    def test_sigterm_lets_finish_what_runs_and_gives_back_the_rest(self):
        url = self.make_queue(self.queue + ".fifo", FifoQueue="true", ContentBasedDeduplication="true")
        self.fifo("gate")
        for body in ["1", "2", "3"]:
            self.send(url, body, MessageGroupId="g")
        poller = self.start("sqs", "--queue", self.queue + ".fifo", "--parallel", "3", "--receive-wait", "1s", "-v", "--",
                            "sh", "-c", "echo begun >>begun; read x <gate; cat >>ran; echo >>ran")
        wait_until(lambda: self.lines("begun"), "the command begun")
        wait_until(lambda: self.left(url) == (0, 3), "all three received")
        poller.send_signal(signal.SIGTERM)
        wait_until(lambda: self.left(url) == (2, 1), "two given back")
        self.assertIsNone(poller.poll())
        self.open_gate("gate")
        out, err = poller.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(poller.returncode, 0, err)
        self.assertEqual(self.lines(), ["1"])
        self.assertEqual(self.left(url), (2, 0))
        self.expect(self.drain("--", "sh", "-c", "cat >>ran; echo >>ran", queue=self.queue + ".fifo"), 0)
        self.assertEqual(self.lines(), ["1", "2", "3"])

    def test_a_second_sigterm_ends_what_runs(self):
        url = self.make_queue()
        self.send(url, "1")
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--grace", "30s",
                            "--", "sh", "-c", "echo $$ >pid; exec sleep 1000")
        pid = self.pid_in("pid")
        poller.send_signal(signal.SIGTERM)
        poller.send_signal(signal.SIGTERM)
        wait_until(lambda: poller.poll() is not None or poller.send_signal(signal.SIGTERM), "ended")
        self.assertEqual(poller.returncode, 0)
        self.assertFalse(harness.alive(pid))
        self.assertEqual(self.left(url), (1, 0), "released, and visible again")

    def test_an_idle_poller_gives_back_what_comes_when_it_stops(self):
        poller, queue = self.start_idle("-v", "--", "sh", "-c", "echo x >>ran")
        poller.send_signal(signal.SIGTERM)
        self.assertIn(b"ending: running work is allowed to finish", poller.stderr.readline())
        queue.answer.set()
        code, said = self.end_of(poller)
        self.assertEqual((code, queue.shown, self.runs()), (0, ["r-1"], 0))
        self.assertIn("message m-1 is returned to the queue: the poller is stopping", said)
        self.assertNotIn(self.UNANSWERED, said)

    def test_a_second_sigterm_ends_an_idle_poller_at_once(self):
        for work in (["--", "true"], ["--post", "http://127.0.0.1:1/"]):
            with self.subTest(work=work):
                poller, queue = self.start_idle("--receive-wait", "20s", *work)
                poller.send_signal(signal.SIGTERM)
                self.assertIn(b"A second signal ends it", poller.stderr.readline())
                poller.send_signal(signal.SIGTERM)
                self.assertEqual(self.end_of(poller), (0, self.UNANSWERED))
                self.assertFalse(queue.answer.is_set())

    def test_stop_within_ends_an_idle_poller(self):
        poller, _ = self.start_idle("--receive-wait", "20s", "--stop-within", "100ms", "--log", "json", "--", "true")
        poller.send_signal(signal.SIGTERM)
        code, said = self.end_of(poller)
        note, abandoned = [json.loads(line) for line in said.splitlines()]
        self.assertEqual((code, note["event"], abandoned["event"]), (0, "note", "abandoned"))
        self.assertIn("After 100ms, or at a second signal, it is ended.", note["why"])

    def test_stop_within_ends_what_runs(self):
        url = self.make_queue()
        self.send(url, "1")
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--stop-within",
                            "100ms", "--", "sh", "-c", "echo $$ >pid; exec sleep 1000")
        pid = self.pid_in("pid")
        poller.send_signal(signal.SIGTERM)
        self.assertEqual(poller.wait(timeout=harness.DEADLINE_S), 0)
        self.assertFalse(harness.alive(pid))
        self.assertEqual(self.left(url), (1, 0), "released, and visible again")

    def test_what_has_no_key_is_left_or_parked(self):
        url = self.make_queue()
        sent = self.send(url, "no JSON")
        flags = ["--key-from", "payload", "--key", "order"]
        done = self.drain(*flags, "--retry-after", "0s", "--visibility", "3s", "--on-poison", "park", "--",
                          "sh", "-c", "echo x >>ran")
        self.expect(done, 0)
        self.assertEqual(self.left(url), (0, 0))
        self.assertEqual(self.runs(), 0)
        record = self.show(sent, "--scope", self.queue + "/parked")
        self.assertEqual(record["state"], "unknown")
        listed = json.loads(self.once("ls", "--state", "unknown", "--scope", self.queue + "/parked", "--json").stdout)
        self.assertEqual(len(listed), 1)
        self.expect(self.once("resolve", "--scope", self.queue + "/parked", "--key", sent, "--as", "completed",
                              "--reason", "done by hand"), 0)

    def test_the_records_may_be_in_dynamodb(self):
        self.env["ONCE_STORE"] = f"dynamodb://claims-{Queues.queues}"
        self.expect(self.once("table", "create"), 0)
        url = self.make_queue()
        for i in range(12):
            self.send(url, {"order": i % 4})
        done = self.drain("--key-from", "payload", "--key", "order", "--parallel", "4", "--log", "json", "--",
                          "sh", "-c", "printf '%s\\n' \"$(cat)\" >>ran")
        self.expect(done, 0)
        self.assertEqual(sorted(json.loads(line)["order"] for line in self.path("ran").read_text().splitlines()),
                         list(range(4)))
        self.assertEqual(self.left(url), (0, 0))

    def test_another_programs_table_is_read_before_a_claim(self):
        """Its rows have the texts of keys, and ours are digests: a row is found by the label."""
        with contextlib.closing(sqlite3.connect(self.path("shop.db"))) as table:
            table.execute("CREATE TABLE keys (id TEXT PRIMARY KEY, status TEXT, response TEXT)")
            table.executemany("INSERT INTO keys VALUES (?, ?, '1')",
                              [("17", "COMPLETED"), ("order-18", "COMPLETED"), ("busy", "IN_PROGRESS")])
            table.commit()
        self.path("old.toml").write_text(
            f'mode = "read"\nfrom = "sqlite:{self.path("shop.db")}"\ntable = "keys"\npreset = "article"\nkey = "id"\n'
            f'key-prefix = ""\nhash = "sha256"\nscope = "{self.queue}"\nexpired = "skip"\n')
        url = self.make_queue()
        for order in (17, "order-18", "busy", "new"):
            self.send(url, {"order": order})
        done = self.drain("--store", f"sqlite:{self.path('once.db')}?fallback={self.path('old.toml')}", "--key-from", "payload",
                          "--key", "order", "--label", "all", "--log", "json", "--", "sh", "-c", "cat >>ran")
        self.assertEqual(self.path("ran").read_text(), '{"order": "new"}')
        self.assertEqual(sum(self.left(url)), 1)
        self.assertEqual(collections.Counter(self.ends(done)), {"executed": 1, "replayed": 2, "conflict": 1})

    def test_messages_are_posted_with_a_key_that_stays_the_same(self):
        server = self.serve(Service)
        url = self.make_queue()
        for body in [{"id": 1, "answers": [200]}, {"id": 2, "answers": [503, 500, 201]}, {"id": 1, "answers": [200]}]:
            self.send(url, body)
        done = self.drain("--post", f"http://127.0.0.1:{server.server_port}/charge?now=1", "--key-from", "payload", "--key",
                          "id", "--retry-after", "0s")
        self.expect(done, 0)
        self.assertEqual(self.left(url), (0, 0))
        asked = collections.Counter(seen[0] for seen in server.seen)
        self.assertEqual(asked, {1: 1, 2: 3})
        self.assertEqual(len({seen[1] for seen in server.seen}), 2)
        self.assertEqual({seen[2:] for seen in server.seen}, {("application/json", "/charge?now=1")})

    def serve(self, handler):
        server = Crowded(("127.0.0.1", 0), handler)
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def test_as_many_are_posted_at_one_time_as_it_says(self):
        posts = 70
        server = self.serve(Meeting)
        server.all_here = threading.Barrier(posts)
        url = self.make_queue()
        for i in range(posts):
            self.send(url, {"id": i})
        done = self.drain("--post", f"http://127.0.0.1:{server.server_port}/", "--parallel", str(posts))
        self.expect(done, 0)
        self.assertEqual(len(server.seen), posts)
        self.assertEqual(self.left(url), (0, 0))

    def test_while_the_service_is_down_nothing_is_received(self):
        closed = socket.socket()  # Bound, so that nobody else gets the port, and not listening.
        self.addCleanup(closed.close)
        closed.bind(("127.0.0.1", 0))
        url = self.make_queue()
        self.send(url, "1")
        done = self.drain("--post", f"http://127.0.0.1:{closed.getsockname()[1]}/", "--log", "json")
        self.expect(done, 1, stderr=b"cannot connect")
        self.assertEqual([event["event"] for event in self.events(done)], ["ended", "pause", "note"])
        self.assertEqual(self.left(url), (0, 1))

    def test_what_no_message_can_be_posted_with_ends_it(self):
        server = self.serve(Service)
        url = self.make_queue()
        self.send(url, {"id": 1, "answers": [200]})
        post = ["--post", f"https://127.0.0.1:{server.server_port}/"]
        done = self.expect(self.drain(*post, "--content-type", "a\nb"), 64, stderr=b"--content-type a\\nb")
        done = self.expect(self.drain(*post), 64, stderr=b"does not speak TLS")
        self.assertIn(b"1 were received, 0 deleted", done.stderr)
        self.assertEqual(self.left(url), (1, 0), "visible again at once")

    def test_a_second_sigterm_ends_what_was_posted(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        url = self.make_queue()
        self.send(url, "1")
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--post",
                            f"http://127.0.0.1:{silent.getsockname()[1]}/")
        connection, _ = silent.accept()
        self.addCleanup(connection.close)
        connection.recv(1)
        poller.send_signal(signal.SIGTERM)
        wait_until(lambda: poller.poll() is not None or poller.send_signal(signal.SIGTERM), "ended")
        self.assertEqual(poller.returncode, -signal.SIGTERM)
        self.assertEqual(self.left(url), (0, 1), "it comes again when its visibility ends")

    def test_what_is_wrong_is_said(self):
        run = ["--", "true"]
        self.expect(self.drain(*run, queue="no-such-queue"), 64, stderr=b"QueueDoesNotExist")
        self.expect(self.drain(), 64, stderr=b"either a command")
        self.expect(self.drain("--post", "http://127.0.0.1:1/", *run), 64, stderr=b"either a command")
        self.expect(self.drain("--post", "127.0.0.1"), 64, stderr=b"write a URL")
        self.expect(self.drain("--store", "memory:", *run), 64, stderr=b"exists only in this process")
        self.expect(self.drain("--visibility", "1s", *run), 64, stderr=b"visibility")
        self.expect(self.drain("--receive-wait", "0s", *run), 64, stderr=b"only some of SQS's servers")
        self.expect(self.drain(*run, queue="http://127.0.0.1:1/0/orders/"), 64, stderr=b"--queue http://127.0.0.1:1/0/orders/")
        self.expect(self.drain("--stop-within", "soon", *run), 64, stderr=b"--stop-within")
        self.expect(self.drain("--key", "nonsense(", *run), 64, stderr=b"nonsense(")
        wrong = self.expect(self.drain("--key", "nonsense(", "--log", "json", *run), 64)
        self.assertEqual(json.loads(wrong.stderr)["level"], "err")
        self.expect(self.drain("--key-from", "record", *run), 64, stderr=b"a new receipt handle at each delivery")
        url = self.make_queue()
        self.send(url, "1")
        self.expect(self.drain("--", "./no-such-program"), 127,
                    stderr=b"That message and all that were not started stay in the queue: 1 were received, 0 deleted.")
        self.assertEqual(self.runs(), 0)
        bare = {name: value for name, value in self.env.items() if not name.startswith("AWS_")}
        bare |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null",
                 "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_REGION": "eu-central-1",
                 "AWS_ENDPOINT_URL": ENDPOINT}
        self.expect(self.drain(*run, env=bare), 64, stderr=b"credentials")
        self.expect(self.once("sqs", "--help"), 0)


class Reconcile(Queues):
    ASKS = ["--on-failure", "hold", "--key-from", "payload", "--key", "to_string(@)", "--reconcile-settle", "0s",
            "--retry-after", "0s", "--log", "json"]

    def test_the_command_decides_about_a_message(self):
        url = self.make_queue()
        ask = 'case "$(cat answer)" in done) echo "$ONCE_KEY $ONCE_SCOPE";; not) exit 100;; *) fnd-charge;; esac'
        work = ["--", "sh", "-c", "cat >/dev/null; echo x >>ran; test -e up"]
        identity = hashlib.sha256(b'"1"').hexdigest()
        self.send(url, "1")
        self.path("answer").write_text("typo")
        poller = self.start("sqs", "--queue", self.queue, *self.ASKS, "--visibility", "3s", "--reconcile", ask, *work)
        wait_until(lambda: self.lines(), "it ran")
        show = ["show", "--key", identity, "--scope", self.queue, "--json"]

        def state():
            done = self.once(*show)
            return done.returncode == 0 and json.loads(done.stdout)["state"]

        wait_until(lambda: state() == "unknown", "it is unknown")
        self.path("answer").write_text("done")
        wait_until(lambda: state() == "completed", "it is decided")  # The queue alone cannot tell: see left().
        wait_until(lambda: self.left(url) == (0, 0), "its message is deleted")
        self.assertEqual(len(self.lines()), 1)
        record = json.loads(self.once(*show).stdout)
        self.assertEqual(record["history"][-1]["who"], "reconcile")
        self.path("up").touch()
        self.path("answer").write_text("not")
        other = self.send(url, "2")
        wait_until(lambda: self.left(url) == (0, 0) and len(self.lines()) == 2, f"{other} ran")
        poller.terminate()
        self.assertEqual(self.end_of(poller)[0], 0)

    def test_it_looks_by_itself(self):
        self.make_queue()
        self.expect(self.once("run", "--key", "k", "--scope", self.queue, "--on-failure", "hold", "--", "false"), 1)
        self.expect(self.once("run", "--key", "k", "--scope", "else", "--on-failure", "hold", "--", "false"), 1)
        poller = self.start("sqs", "--queue", self.queue, *self.ASKS, "--reconcile-interval", "10ms",
                            "--reconcile", "echo found", "--", "true")
        wait_until(lambda: self.show("k", "--scope", self.queue)["state"] == "completed", "it asked")
        poller.terminate()
        self.assertEqual(self.end_of(poller)[0], 0)
        self.assertEqual(self.show("k", "--scope", "else")["state"], "unknown")

    def test_a_question_ends_with_the_program(self):
        self.make_queue()
        self.expect(self.once("run", "--key", "k", "--scope", self.queue, "--on-failure", "hold", "--", "false"), 1)
        poller = self.start("sqs", "--queue", self.queue, *self.ASKS, "--reconcile-interval", "10ms",
                            "--reconcile", "echo $$ >asking; sleep 1000; exit 100", "--", "true")
        asking = wait_until(lambda: self.path("asking").exists() and self.path("asking").read_text().strip(), "it asks")
        poller.terminate()
        self.assertEqual(self.end_of(poller)[0], 0)
        wait_until(lambda: not harness.alive(int(asking)), "the question is gone")
        self.assertEqual(self.show("k", "--scope", self.queue)["state"], "unknown")


class Log(Queues):
    def test_events_and_messages_are_lines_of_one_log(self):
        url = self.make_queue()
        sent = self.send(url, {"order": "17", "card": "4111"})
        done = self.expect(self.drain("--log", "json", "--", "true"), 0)
        lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
        self.assertEqual([(line["level"], line["event"]) for line in lines],
                         [("info", event) for event in ("claimed", "work_done", "completed", "ended")])
        self.assertEqual([line["key"] for line in lines], [sent] * 4)
        self.assertNotIn(b"4111", done.stderr)
        self.send(url, "again")
        self.assertEqual(self.expect(self.drain("--log", "none", "--verbose", "--", "true"), 0).stderr, b"")
        self.send(url, "as text")
        said = self.expect(self.drain("--", "true"), 0).stderr.decode().splitlines()
        self.assertEqual([line.split()[1:3] for line in said],
                         [["info", "claimed"], ["info", "work_done"], ["info", "completed"]])

    def test_what_needs_attention_is_said_once_at_every_level(self):
        url = self.make_queue()
        self.send(url, "fails")
        done = self.expect(self.drain("--log-level", "warning", "--", "false"), 1)
        lines = done.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("the command ended with exit 1; it stays in the queue", lines[0])
        self.expect(self.drain("--log", "xml", "--", "true"), 64)


class WithoutDescriptors(Queues):
    """Not under the sanitizers: the one for undefined behaviour wants a pipe to look at an object's type."""

    def test_a_command_that_cannot_be_watched_is_ended_and_its_claim_lapses(self):
        url = self.make_queue()
        sent = self.send(url, "1")
        self.fifo("gate")
        poller = self.start("sqs", "--queue", self.queue, "--receive-wait", "1s", "--grace", "100ms", "--log", "json", "--",
                            "sh", "-c", "trap '' TERM; echo $$ >pid; read x <gate; echo said; sleep 1000")
        pid = self.pid_in("pid")
        # poll(2) refuses more descriptors than may be open: its next one, when the command says something.
        limits = resource.prlimit(poller.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(poller.pid, resource.RLIMIT_NOFILE, (6, limits[1]))
        self.open_gate("gate")
        ended = next(line for line in map(json.loads, poller.stderr) if line["event"] == "ended")
        resource.prlimit(poller.pid, resource.RLIMIT_NOFILE, limits)
        self.assertEqual((ended["event"], ended["end"], ended["deleted"]), ("ended", "failed", False))
        self.assertIn("once could not watch it: cannot wait for the command", ended["why"])
        self.assertFalse(harness.alive(pid))
        for task in pathlib.Path(f"/proc/{poller.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # A thread that has ended has no children.
                self.assertEqual((task / "children").read_text(), "", "no zombie")
        self.assertEqual(self.show(sent, "--scope", self.queue)["state"], "in_progress")


class Patience(Queues):
    """What takes as long as leases and visibilities do."""

    def test_killed_in_the_middle_it_comes_again_and_is_run_again_once(self):
        url = self.make_queue()
        self.fifo("gate")
        self.send(url, "1")
        flags = ["sqs", "--queue", self.queue, "--visibility", "6s", "--lease", "6s", "--receive-wait", "1s"]
        first = self.start(*flags, "--", "sh", "-c", "echo begun >>begun; read x <gate; echo done >>ran")
        wait_until(lambda: self.lines("begun"), "the command begun")
        first.kill()
        first.wait()
        self.assertEqual(sum(self.left(url)), 1)
        # Its successor waits until the message is visible again, takes the lapsed claim over, and runs it.
        second = self.start(*flags, "--", "sh", "-c", 'echo $ONCE_ATTEMPT >>begun; echo done >>ran')
        wait_until(lambda: self.lines(), "the command run again")
        wait_until(lambda: self.left(url) == (0, 0), "the message deleted")
        second.send_signal(signal.SIGTERM)
        self.assertEqual(second.wait(timeout=harness.DEADLINE_S), 0)
        self.assertEqual(self.lines("begun"), ["begun", "2"])
        self.assertEqual(self.lines(), ["done"])

    def test_killed_again_and_again_every_order_is_done_and_few_are_run_twice(self):
        url = self.make_queue()
        orders, parallel, kills = 24, 4, 4
        for i in range(2 * orders):
            self.send(url, {"order": i % orders})
        flags = ["sqs", "--queue", self.queue, "--key-from", "payload", "--key", "order", "--parallel", str(parallel),
                 "--visibility", "3s", "--lease", "3s", "--receive-wait", "1s", "--retry-after", "0s"]
        command = ["--", "sh", "-c", "printf '%s %s\\n' \"$(cat)\" \"$ONCE_DERIVED_KEY\" >>ran"]
        poller = self.start(*flags, *command)
        for kill in range(1, kills + 1):
            wait_until(lambda: self.runs() >= kill * orders // (kills + 1), "some were run")
            poller.kill()
            poller.wait()
            poller = self.start(*flags, *command)
        states = lambda: collections.Counter(  # noqa: E731
            record["state"] for record in json.loads(self.once("ls", "--scope", self.queue, "--json").stdout))
        wait_until(lambda: states() == {"completed": orders}, "all orders done")
        wait_until(lambda: self.left(url) == (0, 0), "all messages deleted")
        poller.send_signal(signal.SIGTERM)
        self.assertEqual(poller.wait(timeout=harness.DEADLINE_S), 0)
        ran = collections.Counter(line.rsplit(" ", 1)[1] for line in self.path("ran").read_text().splitlines())
        self.assertEqual(len(ran), orders, "a key downstream for each order, the same in every attempt")
        # Whoever was killed may have acted or not: at the most what was at work then is run again.
        self.assertLessEqual(sum(ran.values()), orders + kills * parallel)
        self.assertEqual(states(), {"completed": orders})

    def test_work_that_is_longer_than_visibility_and_lease_is_not_run_by_others(self):
        url = self.make_queue()
        self.fifo("gate")
        sent = self.send(url, "1")
        flags = ["sqs", "--queue", self.queue, "--visibility", "6s", "--lease", "6s", "--receive-wait", "1s"]
        command = ["--", "sh", "-c", "echo begun >>begun; read x <gate; echo done >>ran"]
        first = self.start(*flags, *command)
        wait_until(lambda: self.lines("begun"), "the command begun")
        second = self.start(*flags, *command)
        # More than two visibilities later, by the clock of the one who renews the claim.
        revision = lambda: self.writes(sent, "--scope", self.queue)  # noqa: E731
        begun = revision()
        wait_until(lambda: revision() > begun + 7, "renewed for fourteen seconds")
        self.assertEqual(sum(self.left(url)), 1)
        self.open_gate("gate")
        wait_until(lambda: self.lines(), "the work done")
        wait_until(lambda: self.left(url) == (0, 0), "the message deleted")
        for poller in (first, second):
            poller.send_signal(signal.SIGTERM)
            self.assertEqual(poller.wait(timeout=harness.DEADLINE_S), 0)
        self.assertEqual((self.lines("begun"), self.lines()), (["begun"], ["done"]))


if __name__ == "__main__":
    with emulator.running() as ENDPOINT:
        harness.main()
