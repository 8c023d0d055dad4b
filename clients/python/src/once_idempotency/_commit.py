"""A result that is committed with the work's own rows, in the PostgreSQL that is the store. Any driver of DB-API does."""

from __future__ import annotations

import inspect
from typing import Any, Tuple

from ._protocol import Granted, Stored
from .errors import ClaimLost, OnceError

CLAIM_LOST = "ON001"  # What the store's function raises.


def finish(schema: str, granted: Granted, retention_ms: int, stored: Stored) -> Tuple[str, Tuple[Any, ...]]:
    """The last statement of the transaction, and its values."""
    quoted = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
    statement = f"SELECT {quoted}.finish_or_raise(%s::text, %s::text, %s::bytea, %s::text, %s::interval)"
    return statement, (granted.stored_key, granted.owner, stored.body, stored.content_type, f"{retention_ms} milliseconds")


def state_of(error: BaseException) -> str:
    """SQLSTATE, as psycopg and psycopg2 name it; empty if the database has not said why."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def is_rolled_back(error: BaseException) -> bool:
    """Whether this error of COMMIT says so. A connection that broke says nothing, and neither does a pooler's word that its
    own connection to the database did."""
    state = state_of(error)
    return state != "" and state[:2] not in ("08", "57", "58", "XX") and state != "40003"


def require_driver(connection: Any, is_async: bool) -> None:
    """Else what is called of it would do nothing."""
    if not callable(getattr(connection, "cursor", None)) or not callable(getattr(connection, "commit", None)):
        raise TypeError(
            f"nothing is committed: a {type(connection).__name__} is no connection of psycopg or psycopg2; SQLAlchemy has "
            "one at session.connection().connection.driver_connection"
        )
    if inspect.iscoroutinefunction(connection.commit) != is_async:
        name = "commit(), or use call()" if is_async else "commit_async(), in a coroutine"
        raise TypeError(f"nothing is committed: a {type(connection).__name__} needs {name}")


def require_transaction(connection: Any) -> None:
    if getattr(connection, "autocommit", False) is True:
        raise OnceError(
            "nothing is committed: in autocommit mode the rows are committed already, each by itself; set autocommit to False "
            "before the first statement"
        )


def explain(error: BaseException, schema: str, key: str) -> None:
    """What the store's function, or its absence, means for the work."""
    state = state_of(error)
    if state == CLAIM_LOST:
        raise ClaimLost(
            f"nothing is committed: this transaction does not find the claim of '{key}'. Another attempt or an operator has "
            "taken it. Or the transaction began before the claim, under repeatable read; or the connection is to another "
            "database than the store's"
        ) from error
    if state in ("42883", "3F000"):
        raise OnceError(
            f"nothing is committed: the connection's database has no {schema}.finish_or_raise(). It must be the store's: name "
            "its schema by Once(schema=...), and run `once table create` after an upgrade"
        ) from error
    if state == "42501":
        raise OnceError(
            "nothing is committed: the connection's role may not finish claims: run `once table create --role ROLE`"
        ) from error
