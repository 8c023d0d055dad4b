"""transfer.py BANK ORDER FROM TO CENTS, under `once run`: moves money by psycopg, and finishes the operation with it."""
import os
import sys

import psycopg


# [transfer]
def transfer(bank, order, source, target, cents):
    with psycopg.connect(bank) as connection:  # Commits at its end, or rolls back.
        connection.execute("UPDATE accounts SET cents = cents - %s WHERE id = %s", (cents, source))
        connection.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (cents, target))
        connection.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", (order, source, target, cents))
        connection.execute("SELECT once.finish_or_raise(%s, %s, %s)",
                           (os.environ["ONCE_STORED_KEY_HEX"], os.environ["ONCE_OWNER"], f"moved {cents}"))
# [/transfer]


bank, order, source, target, cents = sys.argv[1:]
transfer(bank, order, source, target, int(cents))
