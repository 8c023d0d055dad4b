"""The functions of examples/lambda under `once lambda invoke`, each with the embedded store and with DynamoDB (moto): one
effect however often the event comes, and the replay. What a function does it says on standard error.

Usage: examples_test.py ONCE_PROGRAM FOLDER KILL_BEFORE, where FOLDER/payment/bootstrap is one of them, and the last is the
library made of kill_before.cpp. Or behind --aws-lambda-cpp BUILD_FOLDER: the template for AWS's own runtime, built against an installed package of what is in that folder.
"""
import collections
import concurrent.futures
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/real_servers"))
import emulator  # noqa: E402

SOURCES = ROOT / "examples/lambda"
LIMIT_S = 120
TEMPLATE = None  # The build folder, with --aws-lambda-cpp.
if "--aws-lambda-cpp" in sys.argv:
    at = sys.argv.index("--aws-lambda-cpp")
    TEMPLATE = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at : at + 2]
    PROGRAM, FOLDER = os.path.abspath(sys.argv.pop(1)), None
else:
    PROGRAM, FOLDER = os.path.abspath(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1)).resolve()
    KILL_BEFORE = os.path.abspath(sys.argv.pop(1))

# What a function with two steps does from the moment at which it asks for an event: it gets it, notes in the
# new lock file how it has found the log, writes and syncs the claim, both steps and the result in the embedded store and
# notes each, and gives its answer, which is confirmed.
STEPS_OF_TWO = ["sendmsg", "recv", "pwrite"] + ["pwrite64", "fdatasync", "pwrite"] * 4 + ["sendmsg", "recv"]
Fate = collections.namedtuple("Fate", "charged sent replayed")


def event_of(name):
    return json.loads((SOURCES / name / "event.json").read_text())


class Function:
    """A function with a store of its own."""

    def __init__(self, test, program, environment):
        self.test = test
        self.program = program
        self.environment = environment

    def invoke(self, *events, repeat=1, options=(), codes=(0,)):
        """(what came of each invocation, what the function said). One environment, so all but the first are warm."""
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for number, event in enumerate(events):
                files.append(pathlib.Path(folder, f"{number}.json"))
                files[-1].write_text(event if isinstance(event, str) else json.dumps(event))
            done = subprocess.run(
                [PROGRAM, "lambda", "invoke", "--json", "--repeat", str(repeat), *options, self.program, *files],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                timeout=LIMIT_S, check=False)
        self.test.assertIn(done.returncode, codes, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def responses(self, *events, **options):
        """Their responses, where all of them gave one."""
        outcomes, said = self.invoke(*events, **options)
        self.test.assertEqual({one["outcome"] for one in outcomes}, {"response"}, said)
        return [one["response"] for one in outcomes], said


class Case(unittest.TestCase):
    maxDiff = None
    name = None

    def each_store(self, look, name=None):
        """Calls look(function) with each store, new every time."""
        name = name or self.name
        program = FOLDER / name / "bootstrap"
        with tempfile.TemporaryDirectory() as folder:
            with self.subTest(store="sqlite"):
                look(Function(self, program, os.environ | {"ONCE_STORE": f"sqlite:{folder}/once.db"}))
        with self.subTest(store="dynamodb"):
            table = f"{name}-{self._testMethodName}"[:255]
            environment = DYNAMODB | {"ONCE_STORE": f"dynamodb://{table}"}
            subprocess.run([PROGRAM, "table", "create"], env=environment, check=True, stdout=subprocess.DEVNULL)
            look(Function(self, program, environment))

    def said(self, text, what, times):
        self.assertEqual(sum(what in line for line in text.splitlines()), times, text)


def header(response, name):
    return {key.lower(): value for key, value in response["headers"].items()}.get(name)


class Payment(Case):
    name = "payment"

    def with_body(self, **members):
        event = event_of("payment")
        event["body"] = json.dumps(json.loads(event["body"]) | members)
        return event

    def test_one_charge_and_the_same_answer_each_time(self):
        def look(function):
            responses, said = function.responses(event_of("payment"), repeat=3)
            again, more = function.responses(event_of("payment"))  # A cold start.
            self.said(said + more, "charged order-17", 1)
            self.said(said + more, "sent the receipt for order-17", 1)
            for response in responses + again:
                self.assertEqual((response["statusCode"], response["body"]), (201, responses[0]["body"]))
                self.assertEqual(json.loads(response["body"])["order_id"], "order-17")
            self.assertEqual([header(one, "idempotent-replayed") for one in responses + again], [None] + ["true"] * 3)

        self.each_store(look)

    def test_another_amount_under_the_same_key_is_refused(self):
        def look(function):
            responses, said = function.responses(event_of("payment"), self.with_body(cents=50_000))
            self.assertEqual([one["statusCode"] for one in responses], [201, 422])
            self.said(said, "charged", 1)

        self.each_store(look)

    def test_what_cannot_be_charged_is_not(self):
        def look(function):
            keyless = event_of("payment")
            del keyless["headers"]["idempotency-key"]
            events = [self.with_body(cents=0), self.with_body(cents=1_000_001), self.with_body(cents="5"),
                      event_of("payment") | {"body": "{"}]
            for number, event in enumerate(events):
                event["headers"]["idempotency-key"] += str(number)
            responses, said = function.responses(keyless, *events)
            self.assertEqual([one["statusCode"] for one in responses], [400] * 5)
            self.said(said, "charged", 0)

        self.each_store(look)

    def test_another_caller_has_keys_of_his_own(self):
        def look(function):
            other = event_of("payment")
            other["requestContext"]["authorizer"]["iam"]["userArn"] = "arn:aws:iam::111122223333:user/other"
            responses, said = function.responses(event_of("payment"), other)
            self.assertEqual([one["statusCode"] for one in responses], [201, 201])
            self.said(said, "charged", 2)

        self.each_store(look)

    def test_killed_before_any_of_its_steps_it_charges_once(self):
        """The ledger of the card is what its service was asked for, once for each key, as it honours them."""
        fates = self.fates(event_of("payment"), STEPS_OF_TWO)
        self.assertEqual(
            [(fate.charged, fate.sent, fate.replayed) for fate in fates],
            [(1, 1, False)] * 6  # Nobody knew of it, or of the claim alone.
            + [(2, 1, False)]  # Charged, and the step not on record: asked again, with the same key.
            + [(1, 1, False)] * 2  # The charge is on record: the retry goes on after it.
            + [(1, 2, False)]  # The same for the receipt.
            + [(1, 1, False)] * 3
            + [(1, 1, True)] * 4)  # The answer is on record: replayed.

    def fates(self, event, steps):
        """Kills the function before each step of its first invocation, and gives the event again when the lease is over.

        What became of it, by step: how often it asked its services, and whether the answer in the end was a replay."""
        def fate(number, folder):
            mark, log = f"{folder}/{number}.killed", pathlib.Path(folder, f"{number}.steps")
            log.touch()
            store = {"ONCE_STORE": f"sqlite:{folder}/{number}.db"}
            # The lease ends with the timeout, so the retry is much later.
            later = {"LD_PRELOAD": KILL_BEFORE, "ONCE_CLOCK_AHEAD_S": "3600"}
            function, retry = (Function(self, FOLDER / "payment/bootstrap", os.environ | store | more) for more in ({}, later))
            plan = {"LD_PRELOAD": KILL_BEFORE, "ONCE_KILL_BEFORE": number, "ONCE_KILL_FROM": "connect",
                    "ONCE_KILL_MARK": mark, "ONCE_KILL_LOG": log}
            flags = ["--timeout", "15m"]
            kill = [word for name in plan for word in ("--env", f"{name}={plan[name]}")]
            ((first,), said) = function.invoke(event, options=[*flags, *kill], codes=(0, 238))
            done = log.read_text().split()
            self.assertEqual((done[:number], os.path.exists(mark)), (steps[:number], True))
            # Killed when its answer is on its way it may have been taken, and not before.
            self.assertIn(first["outcome"], ("died", "response") if number == len(steps) else ("died",), said)
            ((last,), more) = retry.invoke(event, options=flags)
            said += more
            self.assertEqual((last["response"]["statusCode"], first.get("response", last["response"])["body"]),
                             (201, last["response"]["body"]))
            lines = said.splitlines()
            charges = [line for line in lines if line.startswith("charged order-17, key ")]
            receipts = [line for line in lines if line.startswith("sent the receipt for order-17, key ")]
            self.assertEqual((len(set(charges)), len(set(receipts))), (1, 1), said)
            return Fate(len(charges), len(receipts), header(last["response"], "idempotent-replayed") == "true")

        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(steps)) as pool:
            return list(pool.map(lambda number: fate(number, folder), range(1, len(steps) + 1)))


class OrderBatch(Case):
    name = "order_batch"

    def test_each_order_is_shipped_once_and_only_failures_come_again(self):
        def look(function):
            event = event_of("order_batch")
            sold_out = event["Records"][1]["messageId"]
            responses, said = function.responses(event, repeat=2)
            self.assertEqual(responses, [{"batchItemFailures": [{"itemIdentifier": sold_out}]}] * 2)
            self.said(said, "shipped order-17", 1)  # Two messages tell of it, and each comes twice.
            self.said(said, "reserved for order-18", 0)

            there = copy.deepcopy(event)
            there["Records"] = [there["Records"][1]]
            there["Records"][0]["body"] = there["Records"][0]["body"].replace("SOLD-OUT", "B-4")
            responses, said = function.responses(there, repeat=2)
            self.assertEqual(responses, [{"batchItemFailures": []}] * 2)
            self.said(said, "shipped order-18", 1)

        self.each_store(look)

    def test_what_is_no_order_fails_alone(self):
        def look(function):
            event = event_of("order_batch")
            del event["Records"][2]
            event["Records"][1]["body"] = '{"order_id":"order-19","sku":"A-17","quantity":0}'
            ((response,), said) = function.responses(event)
            self.assertEqual([one["itemIdentifier"] for one in response["batchItemFailures"]],
                             [event["Records"][1]["messageId"]])
            self.said(said, "shipped", 1)

        self.each_store(look)


class EventConsumer(Case):
    name = "event_consumer"

    def test_one_mail_for_all_deliveries_of_an_event(self):
        def look(function):
            event = event_of("event_consumer")
            responses, said = function.responses(event, repeat=3)
            self.assertEqual(responses, [responses[0]] * 3)
            self.said(said, "mailed c-981 about order-17", 1)
            _, said = function.responses(event | {"id": "another"})
            self.said(said, "mailed c-981 about order-17", 1)

        self.each_store(look)


class AwsLambdaCpp(unittest.TestCase):
    """The template for AWS's own runtime, as its users build it."""

    def test_one_effect_and_the_same_response(self):
        def output_of(*command):
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False, timeout=600)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}")
            return done.stdout

        runtime = subprocess.run([ROOT / "tools/aws-lambda-cpp"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        with tempfile.TemporaryDirectory() as folder:
            prefix = f"{folder}/prefix"
            output_of("cmake", "--install", TEMPLATE, "--prefix", prefix)
            output_of("cmake", "-G", "Ninja", "-S", SOURCES / "aws_lambda_cpp", "-B", f"{folder}/build",
                      f"-DCMAKE_PREFIX_PATH={runtime};{prefix}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
            output_of("cmake", "--build", f"{folder}/build")
            function = Function(self, f"{folder}/build/bootstrap", os.environ | {"ONCE_STORE": f"sqlite:{folder}/once.db"})
            responses, said = function.responses({"order_id": 17}, repeat=3)
            self.assertEqual(responses, [{"status": "done"}] * 3)
            self.assertEqual(said.count("handled"), 1, said)
            # Not the end of it: the next one is answered by the same process.
            outcomes, said = function.invoke("{", {"order_id": 17}, codes=range(1, 256))
            self.assertEqual([one["outcome"] for one in outcomes], ["error", "response"], said)
            self.assertEqual(outcomes[0]["error_type"], "Once.InvalidEvent")
            self.assertEqual([one["cold"] for one in outcomes], [True, False])


def main():
    global DYNAMODB
    if TEMPLATE:
        result = unittest.main(exit=False, argv=[sys.argv[0], "AwsLambdaCpp", *sys.argv[1:]]).result
    else:
        with emulator.running() as endpoint:
            DYNAMODB = emulator.environment(endpoint)
            result = unittest.main(exit=False, argv=[sys.argv[0], "Payment", "OrderBatch", "EventConsumer", *sys.argv[1:]]
                                   if len(sys.argv) == 1 else sys.argv).result
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun == 0)


if __name__ == "__main__":
    main()
