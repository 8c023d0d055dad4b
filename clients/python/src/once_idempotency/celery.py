"""Celery: a task that runs once for each key, however often it is delivered.

    @once_task(app, once, key="{order_id}")
    def charge(order_id, cents): ...

The task acknowledges late, so that a worker's death delivers it again; the delivery that takes over has the steps of the
one before. A delivery that meets a running one is tried again later.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from ._client import Once
from ._keys import Key
from .errors import InProgress, Unavailable, Unrecorded

__all__ = ["once_task"]


def once_task(app: Any, once: Once, *, key: Key, scope: Any = None, task: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`task` has options of `app.task`, such as {"name": "charge"}; the others are those of `Once.idempotent`."""
    given = {"acks_late": True, "reject_on_worker_lost": True, "max_retries": None, **(task or {})}
    if given.get("bind"):
        raise ValueError("bind=True would make the task itself an argument: use celery.current_task")
    if not given["acks_late"]:
        raise ValueError("acks_late=False loses a task whose worker dies: nothing would run it again")
    options.setdefault("wait", 0)  # A worker does not wait for another one: the task is tried again.

    def decorate(function: Callable[..., Any]) -> Any:
        protected = once.idempotent(key=key, scope=scope, **options)(function)

        @functools.wraps(function)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return protected(*args, **kwargs)
            except InProgress as error:
                raise self.retry(exc=error, countdown=max(1.0, error.retry_after_s)) from error
            except Unrecorded:  # It ran: to run it again is not for this to decide.
                raise
            except Unavailable as error:  # Nothing ran, or the work asked for it, and raised it.
                raise self.retry(exc=error, countdown=5.0) from error

        del run.__wrapped__  # Celery would take the signature without `self` for its own check of arguments.
        return app.task(bind=True, **given)(run)

    return decorate
