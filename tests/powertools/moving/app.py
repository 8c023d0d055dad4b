"""The function as it is before it moves: Powertools for AWS Lambda (Python)."""
import json
import sys

# [before]
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent

store = DynamoDBPersistenceLayer(table_name="payments")
config = IdempotencyConfig(event_key_jmespath="order_id", payload_validation_jmespath="amount")


@idempotent(persistence_store=store, config=config)
def handler(event, context):
    print("charging", event["order_id"], file=sys.stderr)
    return {"status": "paid", "amount": event["amount"]}
# [/before]


class Context:
    @staticmethod
    def get_remaining_time_in_millis():
        return 30_000


if __name__ == "__main__":
    import app  # The library's keys hold the module's name, which is `app` only if it is imported.

    print(json.dumps(app.handler(json.loads(sys.argv[1]), Context()), sort_keys=True))
