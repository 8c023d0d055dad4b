#!/bin/bash
# The steps of docs/moving-from-powertools.md that need only the program. Run by moving_test.py on a table with a record.
set -euo pipefail
once() { "$ONCE" "$@"; }
export AWS_LAMBDA_FUNCTION_NAME=my-func

# [look]
export ONCE_STORE='dynamodb://payments?dialect=powertools-python'
once ls --state completed
once show --scope my-func.app.handler --key "$KEY"
# [/look]

# [key]
echo '{"order_id": "order-17", "amount": 5}' |
  once key --dialect powertools-python --scope my-func.app.handler --expression order_id --fingerprint amount -
# [/key]
