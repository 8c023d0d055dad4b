"""Flask: requests with an Idempotency-Key run once.

    init_app(app, Once("sqlite:shop.db"), principal=lambda request: request.headers.get("X-Api-Key"))
"""

from __future__ import annotations

from typing import Any, Callable

from ._client import Once
from .wsgi import SHARED, OnceMiddleware

__all__ = ["SHARED", "init_app"]


def init_app(app: Any, once: Once, *, principal: Any, **rules: Any) -> None:
    """`principal` is a header's name, a function of a `flask.Request`, or SHARED. See `Rules` for the others."""
    who: Any = principal
    if callable(principal):

        def who(environ: Any, ask: Callable[[Any], Any] = principal) -> Any:
            return ask(app.request_class(environ))

    app.wsgi_app = OnceMiddleware(app.wsgi_app, once=once, principal=who, **rules)
