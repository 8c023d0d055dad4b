"""Powertools for AWS Lambda (Python) as the other side of cross_test.py: a function made idempotent, driven by JSON lines.

    peer_python.py OPTIONS       {"table": ..., "store": {...}, "config": {...}}: settings of the library, as it names them

    {"event": ..., "remaining_ms": 30000, "result": ...}    calls the function, which returns `result`
    {"event": ..., "remaining_ms": 30000, "hold": true}     says {"running": true} from inside the function and waits for
                                                            {"result": ...} or {"raise": "text"}

Answers {"returned": ..., "ran": true} or {"threw": "ExceptionName", "message": ..., "ran": false}. Without remaining_ms
there is no Lambda context. The function is app.handler.
"""
import json
import sys

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent


class Context:
    def __init__(self, remaining_ms):
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self):
        return self.remaining_ms


def say(answer):
    print(json.dumps(answer), flush=True)


def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def main():
    options = json.loads(sys.argv[1])
    store = DynamoDBPersistenceLayer(table_name=options["table"], **options.get("store", {}))
    config = IdempotencyConfig(**options.get("config", {}))
    prefix = {"key_prefix": options["key_prefix"]} if "key_prefix" in options else {}
    command, ran = {}, False

    def handler(event, context):
        nonlocal ran
        ran = True
        orders = command
        if command.get("hold"):
            say({"running": True})
            orders = hear()
        if "raise" in orders:
            raise ValueError(orders["raise"])
        return orders.get("result")

    handler.__module__, handler.__qualname__ = "app", "handler"
    wrapped = idempotent(handler, persistence_store=store, config=config, **prefix)
    while True:
        command, ran = hear(), False
        remaining = command.get("remaining_ms")
        try:
            returned = wrapped(command["event"], None if remaining is None else Context(remaining))
        except Exception as error:  # Whatever it raises is the answer.
            say({"threw": type(error).__name__, "message": str(error), "ran": ran})
        else:
            say({"returned": returned, "ran": ran})


main()
