#!/bin/sh
# Keeps what a command was given, without the card's number: an operator sees the rest later.
set -eu
once=${ONCE:-once}
once() { "$once" "$@"; }

export ONCE_STORE=sqlite:orders.db
# [keep]
echo '{"order":17,"card":{"number":"4111111111111111","name":"Ann"}}' |
  once run --key order-17 --fingerprint stdin --keep-input stdin --input-without card.number -- wc -l
once show --key order-17 | sed -n '/^input/,/^  |/p'
# [/keep]
if grep -q 4111 orders.db*; then echo "the number is in the store"; fi
