"""powertools.py TABLE: Powertools for AWS Lambda (Python) as one of the clients of rivals.py. The function has a Lambda
context, from which the library takes when a claim expires: its own documents ask for that."""
import sys

import work
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent


class Context:
    def __init__(self, remaining_ms):
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self):
        return self.remaining_ms


@idempotent(persistence_store=DynamoDBPersistenceLayer(table_name=sys.argv[1]),
            config=IdempotencyConfig(event_key_jmespath="key"))
def handler(event, context):
    return work.work(event)


for ask in work.asks():
    try:
        work.say(told=handler(ask, Context(ask["lease_ms"])))
    except Exception as error:  # Whatever it raises is the answer.
        work.say(error=type(error).__name__, why=str(error)[:200])
