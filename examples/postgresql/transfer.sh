#!/bin/sh
# transfer.sh BANK ORDER FROM TO CENTS, under `once run`: moves money by psql, and finishes the operation with it.
# [transfer]
exec psql -Xq -o /dev/null -v ON_ERROR_STOP=1 -v order="$2" -v from="$3" -v to="$4" -v cents="$5" \
  -v key="$ONCE_STORED_KEY_HEX" -v owner="$ONCE_OWNER" "$1" <<'END'
BEGIN;
UPDATE accounts SET cents = cents - :cents WHERE id = :'from';
UPDATE accounts SET cents = cents + :cents WHERE id = :'to';
INSERT INTO transfers VALUES (:'order', :'from', :'to', :cents);
SELECT once.finish_or_raise(:'key', :'owner', 'moved ' || :cents);
COMMIT;
END
# [/transfer]
