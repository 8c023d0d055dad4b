"""The functions of examples/lambda, and the one of the tests, under AWS's Runtime Interface Emulator: the program that AWS's
own images and its SAM CLI run a function with, made of the platform's code. The outside check of the runtime.

Usage: emulator_test.py EXAMPLES FUNCTION KILL_BEFORE FAKE_DYNAMODB, where EXAMPLES/payment/bootstrap is one of them.

What was found of the emulator in aws-sam-cli 1.170.0:
- Invocations one right after the other are fine, thousands of them. Two at the same time end it: "ReserveFailed:
  AlreadyReserved" and a panic (its issue 97). So there is one at a time here; a function for
  AWS_LAMBDA_MAX_CONCURRENCY is tested under `once lambda invoke`.
- Errors come with status 200 and the error as the body, as from the API Invoke; only a process that ended gives 502.
- Of an event over 6 MB and 100 bytes it gives the function the beginning, and says nothing.
- After it killed a function it can refuse the next invocation with 502 and ErrGateCanceled, before it starts the function:
  the end of the killed process reaches it while it makes ready for the next. The one after that is fine.
- Of a stream that broke off, it gives what there was, without the error in its trailers.
"""
import concurrent.futures
import contextlib
import copy
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/real_servers"), str(ROOT / "tests/apps")]
import emulator as aws  # noqa: E402
import namespaces  # noqa: E402
from harness import DEADLINE_S, wait_until  # noqa: E402

SOURCES = ROOT / "examples/lambda"
SECRET = "a-secret-4711"  # In events and responses; nobody may print it.


class Emulator:
    """AWS's emulator with a function, in the network namespace of this script."""

    ports = iter(range(9001, 65000))

    def __init__(self, program, folder, **environment):
        self.log = pathlib.Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        self.port = next(Emulator.ports)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [RIE, "--runtime-interface-emulator-address", f"127.0.0.1:{self.port}",
                 "--runtime-api-address", f"127.0.0.1:{next(Emulator.ports)}", program],
                cwd=folder, env=os.environ | {"AWS_LAMBDA_FUNCTION_NAME": "shop"} | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        wait_until(self.listens, "the emulator listens")

    def listens(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the emulator ended: {self.said()}")
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def invoke(self, event):
        """Status and body."""
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.connection.request("POST", "/2015-03-31/functions/function/invocations", body)
        with self.connection.getresponse() as answer:
            return answer.status, answer.read()

    def response(self, event):
        return self.parsed(*self.invoke(event))

    def parsed(self, status, body):
        if status != 200:
            raise AssertionError(f"{status} {body[:1000]}: {self.said()}")
        return json.loads(body)

    def response_after_timeout(self, event):
        """None: the emulator refused, before the function was asked, as its end was still being dealt with."""
        status, body = self.invoke(event)
        if status == 502 and b"ErrGateCanceled" in body:
            return None
        return self.parsed(status, body)

    def responses(self, *events):
        return [self.response(event) for event in events]

    def said(self):
        """What the function and the emulator wrote."""
        return self.log.read_text()

    def count(self, what):
        return sum(what in line for line in self.said().splitlines())

    def end(self):
        """It takes the function along."""
        self.connection.close()
        self.process.terminate()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="once-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.stores = 0

    def run_function(self, program, **environment):
        self.stores += 1
        environment.setdefault("ONCE_STORE", f"sqlite:{self.folder}/{self.stores}.db")
        made = Emulator(program, self.folder, **environment)

        def end():
            made.end()
            said = made.said()
            self.assertEqual(made.process.returncode, 0, said)
            self.assertNotIn("panic", said)
            self.assertNotIn(SECRET, said)

        self.addCleanup(end)
        return made

    def example(self, name, **environment):
        return self.run_function(EXAMPLES / name / "bootstrap", **environment)


def event_of(name):
    return json.loads((SOURCES / name / "event.json").read_text())


def payment(key="secret", **members):
    """With something in it that the function has no use for."""
    event = event_of("payment")
    event["headers"]["idempotency-key"] = key
    event["headers"]["x-card"] = SECRET
    event["body"] = json.dumps(json.loads(event["body"]) | {"card": SECRET} | members)
    return event


class Examples(Case):
    def look_at_payment(self, function):
        other = payment(cents=50_000)
        keyless = payment()
        del keyless["headers"]["idempotency-key"]
        *first, refused, missing, again = function.responses(*[payment()] * 5, other, keyless, payment())
        replays = [*first[1:], again]
        self.assertEqual([one["statusCode"] for one in (*first, refused, missing, again)], [201] * 5 + [422, 400, 201])
        self.assertEqual(json.loads(first[0]["body"])["order_id"], "order-17")
        self.assertEqual([one["body"] for one in replays], [first[0]["body"]] * 5)
        self.assertEqual([one["headers"].get("Idempotent-Replayed") for one in (first[0], *replays)], [None] + ["true"] * 5)
        self.assertEqual((function.count("charged order-17"), function.count("sent the receipt")), (1, 1))

    def test_payment(self):
        self.look_at_payment(self.example("payment"))

    def test_payment_with_dynamodb(self):
        """Region and credentials come to the function by way of the emulator."""
        fake = subprocess.Popen([FAKE_DYNAMODB, "--until-eof", "--table", "orders"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        self.addCleanup(fake.communicate, "")
        endpoint = fake.stdout.readline().strip()
        self.look_at_payment(self.example("payment", **aws.environment(endpoint, {}), ONCE_STORE="dynamodb://orders"))

    def test_order_batch(self):
        function = self.example("order_batch")
        event = event_of("order_batch")
        for record in event["Records"]:
            record["attributes"]["SenderId"] = SECRET
        sold_out = event["Records"][1]["messageId"]
        failed = {"batchItemFailures": [{"itemIdentifier": sold_out}]}
        self.assertEqual(function.responses(event, event, event), [failed] * 3)
        self.assertEqual((function.count("shipped order-17"), function.count("shipped order-18")), (1, 0))
        there = copy.deepcopy(event)
        there["Records"][1]["body"] = there["Records"][1]["body"].replace("SOLD-OUT", "B-4")
        self.assertEqual(function.responses(there, there), [{"batchItemFailures": []}] * 2)
        self.assertEqual((function.count("shipped order-17"), function.count("shipped order-18")), (1, 1))

    def test_event_consumer(self):
        function = self.example("event_consumer")
        event = event_of("event_consumer")
        event["detail"]["note"] = SECRET
        first, *others = function.responses(*[event] * 5)
        self.assertEqual(others, [first] * 4)
        self.assertEqual(function.count("mailed c-981 about order-17"), 1)
        self.assertNotEqual(function.response(event | {"id": "another"}), first)
        self.assertEqual(function.count("mailed c-981 about order-17"), 2)
        broken = function.response(b'{"note":"' + SECRET.encode())
        self.assertEqual(broken["errorType"], "Once.InvalidEvent")
        self.assertEqual(function.response(event), first)

    def test_an_event_of_six_megabytes(self):
        function = self.example("event_consumer")
        event = event_of("event_consumer")
        event["detail"]["note"] = SECRET * ((6_000_000 - len(json.dumps(event))) // len(SECRET))
        first, *others = function.responses(event, event, event)
        self.assertEqual(others, [first] * 2)
        self.assertEqual(function.count("mailed c-981 about order-17"), 1)


class Timeouts(Case):
    """Functions that are stopped before one of their steps, until the emulator kills them at their timeout. The retry runs
    when the lease is over, which is at the deadline, and goes on behind the steps that were finished."""

    # What each does, by the log of the library that stops it: it asks, gets the event, writes, syncs and notes the claim, then
    # each step and the result. So before its fourth step nothing is known of it; before the seventh it has acted, and
    # nobody was told; before the eighth its first step, of two, is on record, and the second has not begun.
    UNCLAIMED, ACTED, ONE_STEP = 4, 7, 8
    TIMEOUT_S = 6  # A batch begins nothing in its last second.

    def run_into_timeout(self, name, event, before):
        """What the first answer is, the one after it that is no conflict, and a replay; and the function."""
        function = self.example(name, AWS_LAMBDA_FUNCTION_TIMEOUT=str(self.TIMEOUT_S), LD_PRELOAD=KILL_BEFORE,
                                ONCE_KILL_BEFORE=str(before), ONCE_KILL_FROM="connect", ONCE_KILL_SIGNAL="STOP",
                                ONCE_KILL_MARK=f"{self.folder}/{name}-{before}.stopped")
        status, first = function.invoke(event)
        self.assertEqual((status, first.decode()), (200, f"Task timed out after {self.TIMEOUT_S}.00 seconds"))
        second = wait_until(lambda: (answer := function.response_after_timeout(event)) and not self.is_conflict(answer) and answer,
                            "it is taken over")
        return function, second, function.response(event)

    @staticmethod
    def is_conflict(answer):
        return (answer.get("errorType") == "Once.Conflict" or "urn:once:problem:in-progress" in answer.get("body", "")
                or bool(answer.get("batchItemFailures")))

    def payment(self, before, key):
        function, second, replay = self.run_into_timeout("payment", payment(key), before)
        self.assertEqual((second["statusCode"], second["headers"].get("Idempotent-Replayed")), (201, None))
        self.assertEqual((replay["statusCode"], replay["headers"].get("Idempotent-Replayed")), (201, "true"))
        self.assertEqual(replay["body"], second["body"])
        self.assertEqual(function.count("sent the receipt for order-17"), 1)
        self.assertEqual(function.count("charged order-17"), 1)

    def order_batch(self):
        event = event_of("order_batch")
        event["Records"] = event["Records"][:1]
        function, second, replay = self.run_into_timeout("order_batch", event, self.ONE_STEP)
        self.assertEqual([second, replay], [{"batchItemFailures": []}] * 2)
        self.assertEqual((function.count("reserved for order-17"), function.count("shipped order-17")), (1, 1))

    def event_consumer(self):
        function, second, replay = self.run_into_timeout("event_consumer", event_of("event_consumer"), self.ACTED)
        self.assertEqual(replay, second)
        self.assertIn("mail", second)
        # It has no steps, so the mail service is asked a second time: with the same key, by which it knows.
        mails = [line for line in function.said().splitlines() if line.startswith("mailed c-981 about order-17, key ")]
        self.assertEqual((len(mails), len(set(mails))), (2, 1))

    def held(self):
        os.mkfifo(f"{self.folder}/gate")  # Which nobody opens.
        function = self.run_function(FUNCTION, AWS_LAMBDA_FUNCTION_TIMEOUT="5", NOTES=f"{self.folder}/notes",
                                     GATE=f"{self.folder}/gate")
        event = {"do": "charge", "id": SECRET, "hold": True}
        self.assertEqual(function.invoke(event | {"gate": True}), (200, b"Task timed out after 5.00 seconds"))
        answer = wait_until(lambda: (answer := function.response_after_timeout(event)) and answer["errorType"] != "Conflict"
                            and answer, "it is held")
        self.assertEqual(answer["errorType"], "NotCharged")
        self.assertEqual(answer["errorMessage"], "unknown: ")
        self.assertEqual(pathlib.Path(self.folder, "notes").read_text(), f"charge {SECRET}\n")

    def test_the_retry_goes_by_the_policy(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for run in [pool.submit(self.payment, self.UNCLAIMED, "unclaimed"),
                        pool.submit(self.payment, self.ONE_STEP, "charged"),
                        pool.submit(self.order_batch), pool.submit(self.event_consumer), pool.submit(self.held)]:
                run.result()


class Runtime(Case):
    """What the examples do not do."""

    def function(self, **environment):
        return self.run_function(FUNCTION, NOTES=f"{self.folder}/notes", **environment)

    def test_hundreds_back_to_back(self):
        function = self.function()
        for number in range(500):
            event = {"do": "echo", "number": number, "text": SECRET}
            self.assertEqual(function.response(event), event)

    def test_errors_are_answers_and_the_process_lives_on(self):
        function = self.function()
        *errors, note = function.responses({"do": "note"}, {"do": "fail"}, {"do": "none", "text": SECRET}, {"do": "note"})[1:]
        self.assertEqual(errors, [
            {"errorMessage": "the card was declined", "errorType": "Declined", "stackTrace": []},
            {"errorMessage": "unknown event", "errorType": "std::runtime_error", "stackTrace": []}])
        self.assertEqual(note["handled"], 4)
        self.assertEqual(function.count("once: handler_failed: the handler threw Declined"), 1)
        self.assertNotIn("the card was declined", function.said())

    def test_a_process_that_ends_is_started_again(self):
        function = self.function()
        status, body = function.invoke({"do": "exit"})
        self.assertEqual((status, json.loads(body)["errorType"]), (502, "Runtime.ExitError"))
        self.assertEqual(function.response({"do": "note"})["handled"], 1)

    def test_a_handler_that_cannot_be_made(self):
        function = self.function(INIT="fail")
        for _ in range(2):
            status, body = function.invoke({"do": "echo"})
            self.assertEqual((status, json.loads(body)), (
                502, {"errorMessage": "no configuration", "errorType": "std::runtime_error", "stackTrace": []}))

    def test_events_and_responses_up_to_six_megabytes(self):
        function = self.function()
        shell = len(json.dumps({"do": "echo", "text": ""}))
        event = {"do": "echo", "text": "x" * (6 * 1024 * 1024 - shell)}
        self.assertEqual(function.response(event), event)
        large = function.response({"do": "double", "text": SECRET * 250_000})
        self.assertEqual(large["errorType"], "Function.ResponseSizeTooLarge")
        self.assertRegex(function.said(), re.compile("once: response_refused: the response has [0-9]+ bytes, more than"))
        self.assertEqual(function.response({"do": "note"})["handled"], 3)

    def test_streams(self):
        function = self.function(STREAM="1")
        self.assertEqual(function.invoke({"pieces": [SECRET, "b" * 1_000_000, "c"]}),
                         (200, SECRET.encode() + b"b" * 1_000_000 + b"c"))
        self.assertEqual(function.invoke({"pieces": ["x"], "head": {"statusCode": 404}}),
                         (200, b'{"statusCode":404}' + bytes(8) + b"x"))
        self.assertEqual(function.invoke({"pieces": []}), (200, b""))
        self.assertEqual(function.response({"pieces": [], "break": True})["errorType"], "Broken")
        self.assertEqual(function.invoke({"pieces": ["a", "b"], "break": True}), (200, b"ab"))
        self.assertEqual(function.invoke({"pieces": ["a", "b"]}), (200, b"ab"))
        self.assertEqual(function.count("the handler threw Broken after a part of its response was sent"), 1)


if __name__ == "__main__":
    RIE = subprocess.run([ROOT / "tools/lambda-emulator"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Two ports have to be named before the emulator listens: in a network of our own they are free.
    namespaces.enter("net", "ip link set lo up", "a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    EXAMPLES, FUNCTION, KILL_BEFORE, FAKE_DYNAMODB = (pathlib.Path(os.path.abspath(sys.argv.pop(1))) for _ in range(4))
    result = unittest.main(exit=False).result
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun == 0)
