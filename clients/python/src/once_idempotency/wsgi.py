"""WSGI middleware, for Flask, Django and any other: requests with an Idempotency-Key run once.

    app.wsgi_app = OnceMiddleware(app.wsgi_app, once=Once("sqlite:shop.db"), principal="X-Api-Key")

`principal` is a header's name, a function of the WSGI environment, or SHARED. See `Rules` for the other options.
"""

from __future__ import annotations

import http
import io
import logging
from typing import Any, Callable, Dict, Iterable, List, Tuple

from . import _protocol
from ._client import Claim, Once, Options, _is_disabled
from ._http import SHARED, Answer, Asked, Problem, Rules
from ._protocol import Stored
from .errors import OnceError, Unrecorded

__all__ = ["SHARED", "OnceMiddleware"]

log = logging.getLogger("once_idempotency")
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
            members = self.once._members(options, key, self.rules.payload(asked, body))
        except Problem as problem:
            return _respond(start_response, problem.answer)
        try:
            claim = self.once._begin(options, members)
        except OnceError as error:
            return _respond(start_response, self.rules.problem(error).answer)
        try:
            answer = self.rules.replayed(claim) if isinstance(claim, Stored) else self._run(claim, environ, body)
        except Problem as problem:
            answer = problem.answer
        return _respond(start_response, answer)

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
            answer = Answer(given["status"], given["headers"], b"".join(written))
        except BaseException as error:
            if isinstance(error, Exception) and self.rules.on_ambiguous == "hold":
                _settle(claim.hold, f"the handler raised {type(error).__name__}: {error}")
            else:
                claim._lapse()
            raise
        return finish(self.rules, claim, answer)


def finish(rules: Rules, claim: Claim, answer: Answer) -> Answer:
    """What the client gets, once it is recorded what became of the request."""
    fate = rules.fate(answer.status)
    if fate == "release":
        _settle(claim.release, f"the answer was {answer.status}")
        return answer
    if fate == "ambiguous":
        if rules.on_ambiguous == "hold":
            _settle(claim.hold, f"the answer was {answer.status}")
        else:
            claim._lapse()
        return answer
    claim._is_ended = True
    try:
        other, _ = claim._transport.run(_protocol.complete(claim._granted, rules.stored(answer), claim._timeout_s))
        return answer if other is None else rules.replayed(other)
    except Unrecorded as error:
        log.error("%s; its answer is given, and it may run again", error)
        return answer
    except OnceError as error:
        log.error("the answer of a request was not recorded: %s", error)
        return rules.problem_of_finish(error).answer
    finally:
        claim._stop()


def _settle(end: Callable[[str], None], reason: str) -> None:
    try:
        end(reason)
    except OnceError as error:
        log.error("the end of a request was not recorded: %s", error)


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
