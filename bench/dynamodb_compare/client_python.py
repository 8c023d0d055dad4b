"""Powertools for AWS Lambda (Python) as one of the clients of compare.py, which says what is asked and answered on each
line:

    client_python.py TABLE EVENT FUNCTION
    client_python.py --versions
"""
import concurrent.futures
import json
import os
import resource
import sys
import time

if sys.argv[1] == "--versions":
    import importlib.metadata
    import platform

    libraries = {name: importlib.metadata.version(name) for name in ("aws-lambda-powertools", "boto3")}
    print(json.dumps({"Python": platform.python_version(), **libraries}))
    sys.exit()

TABLE, TEMPLATE, FUNCTION = sys.argv[1:]
os.environ["AWS_LAMBDA_FUNCTION_NAME"] = FUNCTION  # The beginning of the keys.

from aws_lambda_powertools.utilities.idempotency import (  # noqa: E402
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore.config import Config  # noqa: E402


class Context:
    @staticmethod
    def get_remaining_time_in_millis():
        return 30_000


runs = []  # One entry for each; appending is atomic.
config = IdempotencyConfig(event_key_jmespath="order_id")
config.register_lambda_context(Context())  # Otherwise there is a warning.
# boto3 keeps connections alive; 10 are its default, too few for all the threads.
store = DynamoDBPersistenceLayer(table_name=TABLE, boto_config=Config(max_pool_connections=64))


@idempotent_function(data_keyword_argument="order", persistence_store=store, config=config)
def charge(order):
    runs.append(order["order_id"])
    return {"order_id": order["order_id"], "status": "paid", "amount": order["amount"]}


def work(left):
    """The calls that one thread makes; `left` is shared. Returns how many results were wrong."""
    wrong = 0
    for event, expected in left:
        wrong += charge(order=json.loads(event)) != expected
    return wrong


def cpu_us():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


for line in sys.stdin:
    command = json.loads(line)
    numbers = range(command["first"], command["first"] + command["count"])
    events = [TEMPLATE.replace("0000000000", f"{number:010}") for number in numbers]
    expected = [{"order_id": json.loads(event)["order_id"], "status": "paid", "amount": 4990} for event in events]
    left = iter(list(zip(events, expected)))
    threads = command["in_flight"]
    runs.clear()
    cpu, began = cpu_us(), time.perf_counter()
    if threads == 1:
        wrong = work(left)
    else:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            wrong = sum(pool.map(work, [left] * threads))
    seconds, spent = time.perf_counter() - began, cpu_us() - cpu
    print(json.dumps({"seconds": seconds, "cpu_us": spent, "runs": len(runs), "wrong": wrong}), flush=True)
