"""Powertools for AWS Lambda and the C++ engine on one table: what each leaves, the other finds.

    with-moto python cross_test.py DRIVER PythonTest|TypescriptTest [unittest's arguments]

DRIVER is the program of driver.cpp. Nothing here waits for a length of time: what must lapse is asked for until it has,
with a limit.
"""
import json
import os
import pathlib
import select
import subprocess
import sys
import time
import unittest

import boto3

HERE = pathlib.Path(__file__).resolve().parent
DRIVER = sys.argv.pop(1)
FUNCTION = "my-func"
LIMIT_S = 30  # For anything to happen, on a slow machine too.

DYNAMODB = boto3.client("dynamodb")
OUR_LEASE_MS = 1_500  # One that is to lapse. The time of the server's answers is known to within half a second.
THEIR_LEASE_MS = 300


class Process:
    """A program that answers each line of JSON with one."""

    ended = False

    def __init__(self, *command):
        environment = os.environ | {
            "AWS_LAMBDA_FUNCTION_NAME": FUNCTION,
            "NODE_NO_WARNINGS": "1",
        }
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise AssertionError(f"no answer to {question} from {self.process.args} (exit code {self.process.poll()})")
        return json.loads(line)

    def end(self):
        """Kills it, as a machine that goes down."""
        self.ended = True
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


TABLES = set()
PROCESSES = {}


def process(*what):
    """The running process of this kind, or a new one."""
    *settings, start = what
    name = json.dumps(settings)
    if name not in PROCESSES or PROCESSES[name].ended:
        PROCESSES[name] = start()
    return PROCESSES[name]


class Python:
    name = "python"
    scope = f"{FUNCTION}.app.handler"
    in_progress_error = "IdempotencyAlreadyInProgressError"
    mismatch_error = "IdempotencyValidationError"
    nothing = None  # What a function that returns nothing returns when it is replayed.

    @staticmethod
    def settings(table, layout):
        names = {"sort_key_attr": "sk"} if layout.composite else {}
        if layout.renamed:
            names |= {
                "key_attr": "k", "expiry_attr": "exp", "in_progress_expiry_attr": "ipe", "status_attr": "st",
                "data_attr": "d", "validation_key_attr": "v",
            }
        config = {"event_key_jmespath": "id"}
        if layout.validated:
            config["payload_validation_jmespath"] = layout.validated
        return {"table": table, "store": names, "config": config} | (
            {"key_prefix": layout.prefix} if layout.prefix else {})

    @staticmethod
    def start(settings):
        return Process(sys.executable, "-W", "ignore", HERE / "peer_python.py", json.dumps(settings))


class Typescript:
    name = "typescript"
    scope = FUNCTION
    in_progress_error = "IdempotencyAlreadyInProgressError"
    mismatch_error = "IdempotencyValidationError"
    nothing = "(undefined)"

    @staticmethod
    def settings(table, layout):
        names = {"sortKeyAttr": "sk"} if layout.composite else {}
        if layout.renamed:
            names |= {
                "keyAttr": "k", "expiryAttr": "exp", "inProgressExpiryAttr": "ipe", "statusAttr": "st",
                "dataAttr": "d", "validationKeyAttr": "v",
            }
        config = {"eventKeyJmesPath": "id"}
        if layout.validated:
            config["payloadValidationJmesPath"] = layout.validated
        return {"table": table, "store": names, "config": config} | (
            {"key_prefix": layout.prefix} if layout.prefix else {})

    @staticmethod
    def start(settings):
        tools = subprocess.run([HERE.parent.parent / "tools/node-tools"], check=True, stdout=subprocess.PIPE, text=True)
        folder = pathlib.Path(tools.stdout.strip())
        return Process(folder / "node_modules/.bin/node", HERE / "peer_typescript.mjs", folder, json.dumps(settings))


class Layout:
    def __init__(self, composite=False, renamed=False, validated=None, prefix=None):
        self.composite, self.renamed, self.validated, self.prefix = composite, renamed, validated, prefix

    def key(self):
        return "k" if self.renamed else "id"

    def words(self):
        return [name for name, value in vars(self).items() if value]


class Cross:
    """The tests, for one library."""

    library = None

    def setUp(self):
        self.layout = Layout()

    def event(self, name="", **more):
        """An event of this test alone."""
        return {"id": f"{self._testMethodName} {name}"} | more

    # -- the sides: one table for each layout, and processes that are used again --

    def table(self):
        table = "-".join([self.library.name, *self.layout.words()])
        if table not in TABLES:
            names = [self.layout.key()] + (["sk"] if self.layout.composite else [])
            DYNAMODB.create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ["HASH", "RANGE"])],
            )
            TABLES.add(table)
        return table

    def peer(self):
        settings = self.library.settings(self.table(), self.layout)
        return process(self.library.name, settings, lambda: self.library.start(settings))

    def ours(self, **options):
        settings = {
            "dialect": f"powertools-{self.library.name}",
            "scope": self.layout.prefix or self.library.scope,
            "expression": "id",
            "partition_key": self.layout.key(),
        } | options
        if self.layout.composite:
            settings["sort_key"] = "sk"
        if self.layout.validated:
            settings["validation"] = self.layout.validated
        if self.layout.renamed:
            settings["attributes"] = {
                "status": "st", "expiration": "exp", "in_progress_expiration": "ipe", "data": "d", "validation": "v"}
        table = self.table()
        return process(table, settings, lambda: Process(DRIVER, table, json.dumps(settings)))

    def key(self, event):
        key = {"S": self.ours().ask(do="key", event=event)["key"]}
        if not self.layout.composite:
            return {self.layout.key(): key}
        return {self.layout.key(): {"S": f"idempotency#{FUNCTION}"}, "sk": key}

    def item(self, event):
        return DYNAMODB.get_item(TableName=self.table(), Key=self.key(event), ConsistentRead=True).get("Item")

    # -- what happens --

    def complete(self, ours, event, result):
        self.assertEqual(ours.ask(do="begin", event=event)["kind"], "claimed")
        self.assertEqual(ours.ask(do="complete", result=result)["kind"], "recorded")

    def until(self, wanted, ask):
        """Asks until the answer is wanted."""
        end = time.monotonic() + LIMIT_S
        while True:
            answer = ask()
            if wanted(answer):
                return answer
            self.assertLess(time.monotonic(), end, answer)
            time.sleep(0.02)

    def same(self, got, wanted):
        """Equal as JSON, where the order of members and 1 or 1.0 do not count."""
        self.assertEqual(json.loads(json.dumps(got)), json.loads(json.dumps(wanted)))

    RESULTS = [
        {"statusCode": 200, "body": '{"ok": true}', "nested": {"list": [1, 2.5, None, True, False, ""], "e": {}, "l": []}},
        {"é😀": "ü\n\u2028\"\\", "zero": 0, "big": 9007199254740991, "small": 1e-07, "negative": -1.5},
        [1, [2, [3]]],
        "hello",
        "{\"not\": \"parsed\"}",
        42,
        -0.5,
        True,
        None,
    ]

    def test_the_library_replays_what_we_completed(self):
        ours, peer = self.ours(), self.peer()
        for number, result in enumerate(self.RESULTS):
            event = self.event(f"ours {number}")
            self.complete(ours, event, result)
            answer = peer.ask(event=event, remaining_ms=30_000, result="not this")
            self.assertFalse(answer["ran"], answer)
            self.same(answer.get("returned", answer), result)
            self.same(ours.ask(do="begin", event=event)["result"], result)

    def test_we_replay_what_the_library_completed(self):
        ours, peer = self.ours(), self.peer()
        for number, result in enumerate(self.RESULTS):
            event = self.event(f"theirs {number}")
            self.assertTrue(peer.ask(event=event, remaining_ms=30_000, result=result)["ran"])
            answer = ours.ask(do="begin", event=event)
            self.assertEqual(answer["kind"], "replayed")
            self.same(answer["result"], result)

    def test_an_item_of_ours_is_an_item_of_theirs(self):
        self.layout = Layout(validated="amount")
        ours, peer = self.ours(), self.peer()
        event, result = self.event(amount=5), {"b": [1, 1.5], "a": "é"}
        self.complete(ours, event, result)
        mine = self.item(event)
        DYNAMODB.delete_item(TableName=self.table(), Key=self.key(event))
        peer.ask(event=event, remaining_ms=30_000, result=result)
        theirs = self.item(event)
        expiration, in_progress_expiration = theirs.pop("expiration"), theirs.pop("in_progress_expiration")
        self.assertLess(abs(int(mine["expiration"]["N"]) - int(expiration["N"])), LIMIT_S)
        self.assertGreater(int(in_progress_expiration["N"]), 0)
        for name, value in theirs.items():
            self.assertEqual(mine[name], value)
        extra = set(mine) - set(theirs) - {"expiration"}
        self.assertLessEqual({"owner", "token", "attempt", "revision"}, extra)
        for name in extra:
            self.assertEqual(list(mine[name]), ["S"], name)

    def test_nothing_returned(self):
        ours, peer = self.ours(), self.peer()
        self.assertEqual(ours.ask(do="begin", event=self.event())["kind"], "claimed")
        self.assertEqual(ours.ask(do="complete")["kind"], "recorded")
        answer = peer.ask(event=self.event(), result="not this")
        self.assertEqual((answer["ran"], answer["returned"]), (False, self.library.nothing))
        self.assertEqual(ours.ask(do="begin", event=self.event())["result"], "(nothing)")
        peer.ask(event=self.event("b"))
        answer = ours.ask(do="begin", event=self.event("b"))
        self.assertEqual((answer["kind"], answer["result"]), ("replayed", None))

    def test_their_claim_is_a_conflict_for_us(self):
        ours, peer = self.ours(), self.peer()
        for remaining in ({"remaining_ms": 30_000}, {}):  # With a Lambda context and without.
            event = self.event(str(remaining))
            self.assertEqual(peer.ask(event=event, hold=True, **remaining), {"running": True})
            self.assertEqual(ours.ask(do="begin", event=event)["kind"], "conflict")
            self.assertTrue(peer.ask(result=[7])["ran"])
            answer = ours.ask(do="begin", event=event)
            self.assertEqual((answer["kind"], answer["result"]), ("replayed", [7]))

    def test_our_claim_is_a_conflict_for_them(self):
        ours, peer = self.ours(), self.peer()
        event = self.event()
        self.assertEqual(ours.ask(do="begin", event=event)["kind"], "claimed")
        answer = peer.ask(event=event, remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], answer.get("threw")), (False, self.library.in_progress_error))
        ours.ask(do="heartbeat")
        self.assertEqual(ours.ask(do="complete", result=[7])["kind"], "recorded")
        answer = peer.ask(event=event, remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], answer["returned"]), (False, [7]))

    def test_what_we_release_they_may_run(self):
        ours, peer = self.ours(), self.peer()
        self.assertEqual(ours.ask(do="begin", event=self.event())["kind"], "claimed")
        self.assertEqual(ours.ask(do="release")["kind"], "recorded")
        self.assertTrue(peer.ask(event=self.event(), result=1)["ran"])

    def test_what_failed_there_we_may_run(self):
        ours, peer = self.ours(), self.peer()
        self.assertIn("threw", peer.ask(event=self.event(), **{"raise": "no"}))
        self.complete(ours, self.event(), 1)

    def test_we_take_over_their_lapsed_claim(self):
        ours, peer = self.ours(), self.peer()
        event = self.event()
        self.assertEqual(peer.ask(event=event, remaining_ms=THEIR_LEASE_MS, hold=True), {"running": True})
        peer.end()
        answer = self.until(lambda a: a["kind"] != "conflict", lambda: ours.ask(do="begin", event=event))
        self.assertEqual((answer["kind"], answer["attempt"]), ("claimed", 2))
        self.assertEqual(ours.ask(do="complete", result=["ours"])["kind"], "recorded")
        answer = self.peer().ask(event=event, remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], answer["returned"]), (False, ["ours"]))

    def test_they_take_over_our_lapsed_claim(self):
        ours, peer = self.ours(lease_ms=OUR_LEASE_MS), self.peer()
        event = self.event()
        self.assertEqual(ours.ask(do="begin", event=event)["kind"], "claimed")
        answer = self.until(lambda a: a["ran"], lambda: peer.ask(event=event, remaining_ms=30_000, result=["theirs"]))
        self.assertEqual(answer["returned"], ["theirs"])
        answer = ours.ask(do="complete", result=["ours"])
        self.assertEqual((answer["kind"], answer["result"]), ("superseded", ["theirs"]))
        self.assertEqual(ours.ask(do="begin", event=event)["result"], ["theirs"])

    def test_while_they_run_what_they_took_over_our_finish_is_refused(self):
        ours, peer = self.ours(lease_ms=OUR_LEASE_MS), self.peer()
        event = self.event()
        self.assertEqual(ours.ask(do="begin", event=event)["kind"], "claimed")
        self.until(lambda a: "running" in a, lambda: peer.ask(event=event, remaining_ms=30_000, hold=True))
        self.assertEqual(ours.ask(do="complete", result=["ours"])["kind"], "lost")
        self.assertEqual(peer.ask(result=["theirs"])["returned"], ["theirs"])
        self.assertEqual(ours.ask(do="begin", event=event)["result"], ["theirs"])

    def test_their_expired_record_is_ours_to_run(self):
        ours, peer = self.ours(retention_ms=1), self.peer()
        self.complete(ours, self.event(), 1)
        answer = self.until(lambda a: a["ran"], lambda: peer.ask(event=self.event(), remaining_ms=30_000, result=2))
        self.assertEqual(answer["returned"], 2)
        self.expire(self.event())
        self.complete(self.ours(), self.event(), 3)

    def expire(self, event):
        """The record's time is over."""
        DYNAMODB.update_item(
            TableName=self.table(), Key=self.key(event), UpdateExpression="SET expiration = :past",
            ExpressionAttributeValues={":past": {"N": str(int(time.time()) - 1)}})

    def test_another_payload_is_a_mismatch_both_ways(self):
        self.layout = Layout(validated="amount")
        ours, peer = self.ours(), self.peer()
        self.complete(ours, self.event("ours", amount=5), 1)
        answer = peer.ask(event=self.event("ours", amount=6), remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], answer.get("threw")), (False, self.library.mismatch_error))
        self.same(peer.ask(event=self.event("ours", amount=5), remaining_ms=30_000)["returned"], 1)

        peer.ask(event=self.event("theirs", amount=5), remaining_ms=30_000, result=2)
        self.assertEqual(ours.ask(do="begin", event=self.event("theirs", amount=6))["kind"], "mismatch")
        self.assertEqual(ours.ask(do="begin", event=self.event("theirs", amount=5))["kind"], "replayed")
        self.assertEqual(peer.ask(event=self.event("run", amount=5), remaining_ms=30_000, hold=True), {"running": True})
        self.assertEqual(ours.ask(do="begin", event=self.event("run", amount=6))["kind"], "mismatch")

    def test_what_is_validated_may_be_json_within_the_event(self):
        self.layout = Layout(validated="powertools_json(body).amount")
        ours, peer = self.ours(), self.peer()
        event = lambda name, amount, note="": self.event(name, body=json.dumps({"amount": amount, "note": note}))
        self.complete(ours, event("ours", 5), 1)
        answer = peer.ask(event=event("ours", 6), remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], answer.get("threw")), (False, self.library.mismatch_error))
        self.same(peer.ask(event=event("ours", 5, "other"), remaining_ms=30_000)["returned"], 1)

        self.assertTrue(peer.ask(event=event("theirs", 5), remaining_ms=30_000, result=2)["ran"])
        self.assertEqual(ours.ask(do="begin", event=event("theirs", 6))["kind"], "mismatch")
        self.assertEqual(ours.ask(do="begin", event=event("theirs", 5, "other"))["result"], 2)

    def both_ways(self):
        ours, peer = self.ours(), self.peer()
        self.complete(ours, self.event("ours", amount=5), {"a": 1})
        self.assertFalse(peer.ask(event=self.event("ours", amount=5), remaining_ms=30_000)["ran"])
        self.assertTrue(peer.ask(event=self.event("theirs", amount=5), remaining_ms=30_000, result={"b": 2})["ran"])
        self.assertEqual(ours.ask(do="begin", event=self.event("theirs", amount=5))["result"], {"b": 2})
        self.assertEqual(peer.ask(event=self.event("run", amount=5), remaining_ms=THEIR_LEASE_MS, hold=True), {"running": True})
        peer.end()
        answer = self.until(
            lambda a: a["kind"] != "conflict", lambda: ours.ask(do="begin", event=self.event("run", amount=5)))
        self.assertEqual(answer["kind"], "claimed")
        self.assertEqual(ours.ask(do="complete", result=1)["kind"], "recorded")
        return [self.item(self.event(name, amount=5)) for name in ("ours", "theirs", "run")]

    def test_a_table_with_a_sort_key(self):
        self.layout = Layout(composite=True)
        for item in self.both_ways():
            self.assertEqual(item["id"]["S"], f"idempotency#{FUNCTION}")

    def test_other_names_for_attributes(self):
        self.layout = Layout(renamed=True, validated="amount")
        for item in self.both_ways():
            self.assertLessEqual({"k", "exp", "st", "d", "v"}, set(item))

    def test_a_prefix_instead_of_the_functions_name(self):
        self.layout = Layout(prefix="tenant-9")
        for item in self.both_ways():
            self.assertTrue(item["id"]["S"].startswith("tenant-9#"))

    # -- what unconditional writes do: docs/moving-from-powertools.md --

    def test_a_zombie_that_finishes_over_our_claim_wins(self):
        ours, zombie = self.ours(), self.peer()
        event = self.event()
        self.assertEqual(zombie.ask(event=event, remaining_ms=THEIR_LEASE_MS, hold=True), {"running": True})
        self.until(lambda a: a["kind"] == "claimed", lambda: ours.ask(do="begin", event=event))
        self.assertEqual(zombie.ask(result=["zombie"])["returned"], ["zombie"])
        answer = ours.ask(do="complete", result=["ours"])
        self.assertEqual((answer["kind"], answer["result"]), ("superseded", ["zombie"]))
        self.assertEqual(ours.ask(do="begin", event=event)["result"], ["zombie"])
        self.assertEqual(self.peer().ask(event=event, remaining_ms=30_000)["returned"], ["zombie"])

    def test_a_zombie_that_fails_deletes_our_claim(self):
        ours, zombie = self.ours(), self.peer()
        event = self.event()
        self.assertEqual(zombie.ask(event=event, remaining_ms=THEIR_LEASE_MS, hold=True), {"running": True})
        self.until(lambda a: a["kind"] == "claimed", lambda: ours.ask(do="begin", event=event))
        self.assertIn("threw", zombie.ask(**{"raise": "no"}))
        self.assertIsNone(self.item(event))
        self.assertEqual(ours.ask(do="complete", result=["ours"])["kind"], "lost")
        self.assertIsNone(self.item(event))

    def after_we_finished(self, orders):
        ours, zombie, event = self.ours(), self.peer(), self.event()
        self.assertEqual(zombie.ask(event=event, remaining_ms=THEIR_LEASE_MS, hold=True), {"running": True})
        self.until(lambda a: a["kind"] == "claimed", lambda: ours.ask(do="begin", event=event))
        self.assertEqual(ours.ask(do="complete", result=["ours"])["kind"], "recorded")
        zombie.ask(**orders)
        return ours.ask(do="begin", event=event)

    def test_a_zombie_that_returns_after_we_finished_replaces_our_result(self):
        self.assertEqual(self.after_we_finished({"result": ["zombie"]})["result"], ["zombie"])

    def test_a_zombie_that_fails_after_we_finished_deletes_our_record(self):
        self.assertEqual(self.after_we_finished({"raise": "no"})["kind"], "claimed")

    def test_a_zombie_of_ours_changes_nothing(self):
        zombie, peer = self.ours(lease_ms=OUR_LEASE_MS), self.peer()
        event = self.event()
        self.assertEqual(zombie.ask(do="begin", event=event)["kind"], "claimed")
        self.until(lambda a: "running" in a, lambda: peer.ask(event=event, remaining_ms=30_000, hold=True))
        before = self.item(event)
        zombie.ask(do="release")
        self.assertEqual(self.item(event), before)
        self.assertEqual(peer.ask(result=["theirs"])["returned"], ["theirs"])

    def test_a_result_that_the_table_cannot_hold_is_never_run_again(self):
        ours, peer = self.ours(), self.peer()
        self.assertEqual(ours.ask(do="begin", event=self.event())["kind"], "claimed")
        answer = ours.ask(do="complete", text="not JSON")
        self.assertIn("codec_json.hpp", answer["last_error"])
        self.assertEqual(answer["kind"], "recorded")
        self.assertEqual(ours.ask(do="begin", event=self.event())["result"], "(not kept)")
        answer = peer.ask(event=self.event(), remaining_ms=30_000, result="not this")
        self.assertFalse(answer["ran"], answer)
        self.assertIn("threw", answer)


class PythonTest(Cross, unittest.TestCase):
    library = Python

    def test_falsy_results_are_null_there_and_whole_here(self):
        ours, peer = self.ours(), self.peer()
        for number, result in enumerate([0, 0.0, False, "", [], {}]):
            event = self.event(f"falsy {number}")
            self.complete(ours, event, result)
            self.assertEqual(peer.ask(event=event, remaining_ms=30_000), {"returned": None, "ran": False})
            self.assertEqual(ours.ask(do="begin", event=event)["result"], result)
            event = self.event(f"theirs {number}")
            peer.ask(event=event, remaining_ms=30_000, result=result)
            self.assertEqual(ours.ask(do="begin", event=event)["result"], result)  # Older versions write null.

    def test_integers_of_any_size(self):
        ours, peer = self.ours(), self.peer()
        peer.ask(event=self.event(), remaining_ms=30_000, result=2**64 + 1)
        self.assertIn(str(2**64 + 1), self.item(self.event())["data"]["S"])
        self.assertEqual(ours.ask(do="begin", event=self.event())["kind"], "replayed")


class TypescriptTest(Cross, unittest.TestCase):
    library = Typescript

    def test_falsy_results_are_kept(self):
        ours, peer = self.ours(), self.peer()
        for number, result in enumerate([0, False, "", [], {}]):
            event = self.event(f"falsy {number}")
            self.complete(ours, event, result)
            self.assertEqual(peer.ask(event=event, remaining_ms=30_000), {"returned": result, "ran": False})
            event = self.event(f"theirs {number}")
            peer.ask(event=event, remaining_ms=30_000, result=result)
            self.assertEqual(ours.ask(do="begin", event=event)["result"], result)

    def test_a_number_that_javascript_cannot_hold_is_refused(self):
        ours, peer = self.ours(), self.peer()
        self.assertEqual(ours.ask(do="begin", event=self.event())["kind"], "claimed")
        self.assertIn("9007199254740993", ours.ask(do="complete", result=9007199254740993)["last_error"])
        answer = peer.ask(event=self.event(), remaining_ms=30_000, result="not this")
        self.assertEqual((answer["ran"], "threw" in answer), (False, True), answer)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    for one in PROCESSES.values():
        if not one.ended:
            one.end()
    sys.exit(not program.result.wasSuccessful() or program.result.testsRun == 0 or bool(program.result.skipped))
