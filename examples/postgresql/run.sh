#!/bin/sh
# Five programs move money, each order twice, in a database of its own (ONCE_TEST_POSTGRESQL). The last one takes its
# orders from a queue, where moto plays SQS.
set -eu
cd "$(dirname "$0")"
once() { "$ONCE" "$@"; }
PATH=$(dirname "$(../../tools/python-tools)"):$PATH
bank=$ONCE_TEST_POSTGRESQL
export ONCE_STORE="$bank?allow_unsafe=1"  # The server of the tests does not sync its disk.
once table create
psql -XAtq -v ON_ERROR_STOP=1 "$bank" <<'END'
CREATE TABLE accounts (id text PRIMARY KEY, cents int NOT NULL CHECK (cents >= 0));
CREATE TABLE transfers (id text, source text, target text, cents int);
INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0);
END
by_psql() {
  # [sh]
  once run --key order-2 --scope bank -- sh transfer.sh "$bank" order-2 alice bob 200
  # [/sh]
}
by_psycopg() {
  # [python]
  once run --key order-3 --scope bank -- python3 transfer.py "$bank" order-3 bob alice 50
  # [/python]
}
for _ in 1 2; do
  echo "libpqxx: $("$TRANSFER" "$ONCE_STORE" "$bank" order-1 alice bob 300)"
  echo "libpqxx, local: $("$TRANSFER_LOCAL" "$ONCE_STORE" "$bank" order-6 alice bob 4)"
  echo "psql: $(by_psql)"
  echo "psycopg: $(by_psycopg)"
done
python3 - <<'END'
import boto3, json
sqs = boto3.client("sqs")
queue = sqs.create_queue(QueueName="transfers")["QueueUrl"]
for order in [("order-4", "alice", "bob", 7), ("order-5", "bob", "alice", 9)] * 2:
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(dict(zip(("id", "from", "to", "cents"), order))))
END
echo "sqs: $("$CONSUMER" "$ONCE_STORE" transfers)"
psql -XAtq "$bank" -c "SELECT id, cents FROM accounts ORDER BY id" -c "SELECT count(*), count(DISTINCT id) FROM transfers"
