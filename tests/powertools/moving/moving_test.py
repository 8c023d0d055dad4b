"""The steps of docs/moving-from-powertools.md, each of them tried.

    with-moto python moving_test.py MOVED ONCE      the program of moved.cpp, and once
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

import boto3

HERE = pathlib.Path(__file__).resolve().parent
ONCE, MOVED = sys.argv.pop(), sys.argv.pop()
DYNAMODB = boto3.client("dynamodb")
NODE_TOOLS = pathlib.Path(
    subprocess.run([HERE.parents[2] / "tools/node-tools"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def run(*command, **more):
    environment = os.environ | {"AWS_LAMBDA_FUNCTION_NAME": "my-func", "NODE_NO_WARNINGS": "1"} | more
    done = subprocess.run(
        [str(part) for part in command], env=environment, cwd=HERE, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Moving(unittest.TestCase):
    def setUp(self):
        DYNAMODB.create_table(
            TableName="payments", BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}])
        self.addCleanup(DYNAMODB.delete_table, TableName="payments")

    def move(self, library, before):
        def after(event):
            return run(MOVED, f"powertools-{library}", event, ONCE_STORE=f"dynamodb://payments?dialect=powertools-{library}")

        first = json.dumps({"order_id": "order-17", "amount": 5})
        code, result, log = before(first)
        self.assertEqual((code, json.loads(result)), (0, {"status": "paid", "amount": 5}), log)
        self.assertIn("charging order-17", log)

        # The moved function gives what the library has kept, and does not charge again.
        code, replayed, log = after(first)
        self.assertEqual((code, json.loads(replayed), log), (0, json.loads(result), ""))
        # The same order with another amount is refused, as it was.
        code, _, log = after(json.dumps({"order_id": "order-17", "amount": 6}))
        self.assertEqual(code, 1, log)
        self.assertNotIn("charging", log)
        # While both run, the function before the move finds what the one after it has done.
        second = json.dumps({"order_id": "order-18", "amount": 7})
        code, result, log = after(second)
        self.assertEqual(code, 0, log)
        self.assertIn("charging", log)
        code, replayed, log = before(second)
        self.assertEqual((code, json.loads(replayed)), (0, json.loads(result)), log)
        self.assertNotIn("charging", log)
        # Without a key both run unprotected.
        for side in (before, after):
            code, _, log = side(json.dumps({"order_id": None, "amount": 1}))
            self.assertEqual(code, 0, log)
            self.assertIn("charging", log)
        self.assertEqual(DYNAMODB.scan(TableName="payments")["Count"], 2)

    def test_a_python_function(self):
        self.move("python", lambda event: run(sys.executable, "app.py", event))

    def test_a_typescript_function(self):
        self.move("typescript", lambda event: run(
            NODE_TOOLS / "node_modules/.bin/node", "app.mjs", NODE_TOOLS, event))

    def test_the_program_reads_the_records(self):
        run(sys.executable, "app.py", json.dumps({"order_id": "order-17", "amount": 5}))
        item = DYNAMODB.scan(TableName="payments")["Items"][0]
        key = item["id"]["S"].partition("#")[2]
        code, output, log = run(HERE / "steps_python.sh", ONCE=ONCE, KEY=key)
        self.assertEqual(code, 0, log)
        self.assertEqual(output.count(item["id"]["S"]), 1, output)  # What `once key` derives.
        self.assertIn('{"amount": 5, "status": "paid"}', output)    # What `once show` shows.
        self.assertIn(item["validation"]["S"], output)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    sys.exit(not program.result.wasSuccessful() or program.result.testsRun == 0 or bool(program.result.skipped))
