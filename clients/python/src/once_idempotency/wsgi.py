"""WSGI middleware, for Flask, Django and any other: requests with an Idempotency-Key run once.

    app.wsgi_app = OnceMiddleware(app.wsgi_app, once=Once("sqlite:shop.db"), principal="X-Api-Key")

`principal` is a header's name, a function of the WSGI environment, or SHARED. See `Rules` for the other options.
"""

from __future__ import annotations

import http
import io
from typing import Any, Callable, Dict, Iterable, List, Tuple

from ._client import Claim, Once, Options, _is_disabled
from ._http import SHARED, Answer, Asked, Problem, Rules, begin, finish, give_up

__all__ = ["SHARED", "OnceMiddleware"]

Environ = Dict[str, Any]
App = Callable[[Environ, Any], Iterable[bytes]]


class OnceMiddleware:
    def __init__(self, app: App, *, once: Once, **rules: Any):
        self.app = app
        self.once = once
        self.rules = Rules(**rules)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        try:
            asked = _asked(environ)
            key = self.rules.key(asked)
            if key is None or _is_disabled(asked.path):
                return self.app(environ, start_response)
            options = Options(self.rules.scope(asked, environ), **self.rules.policy)
            body = self._body(environ)
        except Problem as problem:
            return _respond(start_response, problem.answer)
        transport, timeout_s = self.once._blocking, self.once._timeout_s
        got = transport.run(begin(self.once, self.rules, options, key, asked, body))
        if isinstance(got, Answer):
            return _respond(start_response, got)
        claim = Claim(transport, options, got, timeout_s)
        answer = self._run(claim, environ, body)
        return _respond(start_response, transport.run(finish(self.rules, claim, answer)))

    def _body(self, environ: Environ) -> bytes:
        length = environ.get("CONTENT_LENGTH")
        limit = self.rules.max_request_bytes + 1
        source = environ["wsgi.input"]
        if length:
            wanted = min(int(length), limit)
            body: bytes = source.read(wanted)
            if len(body) < wanted:
                raise Problem("request-incomplete", 400, "The body is not whole", "Nothing was carried out.")
            return body
        if environ.get("wsgi.input_terminated"):
            return bytes(source.read(limit))
        if environ.get("HTTP_TRANSFER_ENCODING"):  # Where it ends is not known here, so nothing could be compared.
            raise Problem("length-missing", 411, "The length of the body is missing", "Nothing was carried out.")
        return b""

    def _run(self, claim: Claim, environ: Environ, body: bytes) -> Answer:
        given: Dict[str, Any] = {}
        written: List[bytes] = []

        def start(status: str, headers: List[Tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
            given.update(status=int(status.split(" ", 1)[0]), headers=list(headers))
            return written.append

        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), "once.claim": claim}
        try:
            parts = self.app(inner, start)
            try:
                written.extend(parts)
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()
            return Answer(given["status"], given["headers"], b"".join(written))
        except BaseException as error:
            raised(self.rules, claim, error)
            raise


def raised(rules: Rules, claim: Claim, error: BaseException) -> None:
    """By the handler."""
    if isinstance(error, Exception):
        claim._transport.run(give_up(rules, claim, f"the handler raised {type(error).__name__}: {error}"))
    else:
        claim._lapse()


def _asked(environ: Environ) -> Asked:
    headers = [
        (name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")
    ]
    if environ.get("CONTENT_TYPE"):
        headers.append(("content-type", environ["CONTENT_TYPE"]))
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    path = path.encode("latin-1").decode("utf-8", "backslashreplace")  # Two paths are never one.
    return Asked(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers)


def _respond(start_response: Any, answer: Answer) -> Iterable[bytes]:
    try:
        phrase = http.HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    headers = [(name, value) for name, value in answer.headers]
    if "content-length" not in {name.lower() for name, _ in headers} and answer.status not in (204, 304):
        headers.append(("Content-Length", str(len(answer.body))))
    start_response(f"{answer.status} {phrase}", headers)
    return [answer.body]
