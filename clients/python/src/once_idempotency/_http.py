"""Requests with an `Idempotency-Key`: what is one, what becomes of its response. No framework and no I/O here."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

from . import _protocol
from ._client import AsyncClaim, Claim, Duration, Once, Options
from ._keys import _BUGS
from ._keys import compared as _compared
from ._protocol import NOT_KEPT, Granted, Protocol, Stored
from .errors import (
    ClaimLost,
    InProgress,
    KeyReused,
    OnceError,
    OutcomeUnknown,
    ResultNotKept,
    StoredFailure,
    Unavailable,
    Unrecorded,
)

ANSWER = "application/vnd.once.http-response+json"  # How a response is stored.
SHARED: Any = type("SHARED", (), {"__repr__": lambda self: "SHARED"})()
log = logging.getLogger("once_idempotency")
Headers = List[Tuple[str, str]]

_RELEASED = {401, 403, 407, 408, 409, 421, 425, 429}  # Nothing was done.
_ERRORS_KEPT = {500, 501, 505}
_NOT_STORED = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "date", "server", "set-cookie", "www-authenticate", "content-length",
}
_UNSTABLE_HEADERS = re.compile(r"signature|^(dpop|date|x-amz-date|x-amz-security-token|x-request-id|traceparent)$", re.I)
_UNSTABLE_SCHEMES = re.compile(r"(aws4-hmac-sha256|hmac|signature|digest|oauth|dpop|hawk|negotiate|sharedkey)\b", re.I)
_JWT = re.compile(r"eyJ[\w-]*\.eyJ[\w-]*\.[\w-]*")


@dataclass(frozen=True)
class Asked:
    """A request, as a framework gives it. Names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Sequence[Tuple[str, str]]
    principal: Optional[str] = None

    def all(self, name: str) -> List[str]:
        return [value for header, value in self.headers if header == name]


@dataclass(frozen=True)
class Answer:
    """A response, whole."""

    status: int
    headers: Headers
    body: bytes


class Problem(Exception):
    """A response of this package."""

    def __init__(self, word: str, status: int, title: str, detail: str, retry_after_s: Optional[float] = None):
        super().__init__(detail)
        body = {"type": f"urn:once:problem:{word}", "title": title, "status": status, "detail": detail}
        headers = [("content-type", "application/problem+json"), ("cache-control", "no-store")]
        if retry_after_s is not None:
            headers.append(("retry-after", str(max(1, round(retry_after_s + 0.5)))))
        self.answer = Answer(status, headers, json.dumps(body).encode())


def begin(
    once: Once, rules: "Rules", options: Options, key: str, asked: Asked, body: bytes
) -> Protocol[Union[Granted, Answer]]:
    """A claim for the request, or what the client gets at once."""
    try:
        members = once._members(options, key, rules.payload(asked, body))
        got = yield from _protocol.begin(members, options.wait_s, once._timeout_s)
        return rules.replayed(got) if isinstance(got, Stored) else got
    except OnceError as error:
        return rules.problem(error).answer
    except Problem as problem:
        return problem.answer


def give_up(rules: "Rules", claim: Union[Claim, AsyncClaim], reason: str) -> Protocol[None]:
    """What the request has done is not known."""
    if rules.on_ambiguous == "hold":
        yield from claim._settling("hold", reason)
    else:
        claim._lapse()


def finish(rules: "Rules", claim: Union[Claim, AsyncClaim], answer: Answer) -> Protocol[Answer]:
    """What the client gets, once it is recorded what became of the request."""
    fate = rules.fate(answer.status)
    if fate == "release":
        yield from claim._settling("release", f"the answer was {answer.status}")
        return answer
    if fate == "ambiguous":
        yield from give_up(rules, claim, f"the answer was {answer.status}")
        return answer
    claim._is_ended = True
    try:
        other, _ = yield from _protocol.complete(claim._granted, rules.stored(answer), claim._timeout_s)
        return answer if other is None else rules.replayed(other)
    except Unrecorded as error:
        log.error("%s; its answer is given, and it may run again", error)
        return answer
    except OnceError as error:
        log.error("the answer of a request was not recorded: %s", error)
        return (_CLAIM_LOST if isinstance(error, ClaimLost) else _NOT_RECORDED).answer
    except Problem as problem:
        return problem.answer
    finally:
        claim._stop()


class Rules:
    """For all requests of a service. `principal` says whose key it is; there is no default, because clients that share
    one get one another's answers. It is the name of a header, a function of the request, or SHARED."""

    def __init__(
        self,
        principal: Union[str, Callable[..., Optional[str]]],
        service: str = "",
        methods: Sequence[str] = ("POST", "PATCH"),
        key_header: str = "Idempotency-Key",
        optional_key: bool = False,
        max_request_bytes: int = 1024 * 1024,
        max_answer_bytes: int = 1024 * 1024,
        on_ambiguous: str = "hold",
        wait: Duration = 0,
        lease: Duration = 30,
        retention: Duration = "1d",
        max_duration: Duration = "10m",
    ):
        if isinstance(principal, str) and (not principal or _UNSTABLE_HEADERS.search(principal)):
            raise ValueError(f"the header {principal!r} changes with each request: a retry would be another client's")
        if not (isinstance(principal, str) or callable(principal) or principal is SHARED):
            raise TypeError("principal= is the name of a header, a function of the request, or SHARED")
        known = {"POST", "PATCH", "PUT", "DELETE"}
        if isinstance(methods, str) or not methods or not set(methods) <= known:
            raise ValueError(f"methods= are of {', '.join(sorted(known))}")
        if on_ambiguous not in ("hold", "takeover"):
            raise ValueError("on_ambiguous= is 'hold' or 'takeover'")
        self.principal = principal
        self.service = service
        self.methods = set(methods)
        self.key_header = key_header.lower()
        self.optional_key = optional_key
        self.max_request_bytes, self.max_answer_bytes = max_request_bytes, max_answer_bytes
        self.on_ambiguous = on_ambiguous
        # A handler that never ends its response does not keep its key for ever.
        self.policy: Dict[str, Any] = {
            "wait": wait, "lease": lease, "retention": retention, "on_lapse": on_ambiguous, "max_duration": max_duration,
        }
        Options("", **self.policy)  # Mistakes are reported where they are made.

    def key(self, asked: Asked) -> Optional[str]:
        """None: the request passes through. Raises `Problem` for one that must not."""
        if asked.method not in self.methods:
            if asked.method.upper() in self.methods:
                raise Problem("method-unclear", 400, "The method is not in capitals", "Nothing was carried out.")
            return None
        keys = {key for value in asked.all(self.key_header) for key in _keys_in(value)}
        if len(keys) > 1:
            raise Problem("keys-differ", 400, "Two idempotency keys", "Send one. Nothing was carried out.")
        if keys:
            return keys.pop()
        if self.optional_key:
            return None
        raise Problem(
            "key-missing", 400, "Idempotency key is missing",
            "This operation needs an idempotency key. Send a new one for each operation, such as a UUID, and the same one "
            "with every retry. Nothing was carried out.",
        )

    def scope(self, asked: Asked, request: Any) -> str:
        path = asked.path
        if len(path.encode()) > 128:
            path = path.encode()[:128].decode("utf-8", "ignore") + hashlib.sha256(path.encode()).hexdigest()
        return f"{self.service}/{asked.method} {path} {hashlib.sha256(self._who(asked, request).encode()).hexdigest()}"

    def _who(self, asked: Asked, request: Any) -> str:
        if self.principal is SHARED:
            return ""
        if isinstance(self.principal, str):
            values = asked.all(self.principal.lower())
            who = values[0] if len(values) == 1 else None
        else:
            who = self.principal(request)
        is_known = isinstance(who, (str, int)) and not isinstance(who, bool) and str(who).strip().lower() not in {"", *_BUGS}
        if not is_known:  # All clients would be one, and get one another's answers.
            raise Problem(
                "principal-missing", 400, "The client is not known", "A key belongs to a client. Nothing was carried out."
            )
        if isinstance(who, str) and (_JWT.search(who) or _UNSTABLE_SCHEMES.match(who)):
            raise Problem(
                "principal-unstable", 400, "The credentials change with each request",
                "A retry would be another client's. Nothing was carried out.",
            )
        return f"{type(who).__name__}:{who}"

    def payload(self, asked: Asked, body: bytes) -> Dict[str, str]:
        """Two requests are the same if their parts are: JSON by its meaning, forms without their boundary."""
        if len(body) > self.max_request_bytes:
            raise Problem("body-too-large", 413, "The body is too large", "Nothing was carried out.")
        compared: Dict[str, Any] = {"host": asked.all("host"), "query": asked.query}
        kind = (asked.all("content-type") or [""])[0]
        name = kind.split(";")[0].strip().lower()
        boundary = re.search(r'boundary="?([^";]+)"?', kind) if name == "multipart/form-data" else None
        if boundary:
            body = body.replace(boundary[1].encode("latin-1"), b"boundary")
        value = _json(body) if name == "application/json" or name.endswith("+json") else _NO_JSON
        if value is not _NO_JSON:
            try:
                return _compared({**compared, "json": value})
            except (ValueError, RecursionError):  # A number without limits, or half a character: it has no single meaning.
                pass
        return _compared({**compared, "bytes": hashlib.sha256(body).hexdigest()})

    def fate(self, status: int) -> str:
        """complete, release or ambiguous."""
        if status in _RELEASED:
            return "release"
        if 200 <= status < 500 or status in _ERRORS_KEPT:
            return "complete"
        return "ambiguous"

    def stored(self, answer: Answer) -> Stored:
        if len(answer.body) > self.max_answer_bytes:
            return Stored(f"a response of {len(answer.body)} bytes is too large to keep".encode(), NOT_KEPT)
        headers = [(name, value) for name, value in answer.headers if name.lower() not in _NOT_STORED]
        whole = {"status": answer.status, "headers": headers, "body": base64.b64encode(answer.body).decode()}
        return Stored(json.dumps(whole, separators=(",", ":")).encode(), ANSWER)

    def replayed(self, stored: Stored) -> Answer:
        if stored.content_type == NOT_KEPT:
            raise _NOT_KEPT_PROBLEM
        if stored.content_type != ANSWER:
            raise Problem("record-unreadable", 500, "The stored answer cannot be read", "The operation is not run again.")
        whole = json.loads(stored.body)
        headers = [(str(name), str(value)) for name, value in whole["headers"]]
        return Answer(int(whole["status"]), [*headers, ("Idempotent-Replayed", "true")], base64.b64decode(whole["body"]))

    @staticmethod
    def problem(error: OnceError) -> Problem:
        """Of a begin: this request has done nothing."""
        if isinstance(error, InProgress):
            return Problem(
                "in-progress", 409, "The operation is in progress", "Send the same request again after Retry-After.",
                error.retry_after_s,
            )
        for kind, problem in _PROBLEMS.items():
            if isinstance(error, kind):
                return problem
        return Problem("internal", 500, "The request could not be protected", "Nothing was carried out.")


_NOT_KEPT_PROBLEM = Problem(
    "answer-not-kept", 410, "The answer was too large to keep", "The operation ran, and is not run again."
)
_PROBLEMS: Dict[Type[OnceError], Problem] = {
    KeyReused: Problem(
        "key-reused", 422, "Idempotency key is already used",
        "The key was used with another request. This request was not carried out.",
    ),
    OutcomeUnknown: Problem(
        "outcome-unknown", 409, "The outcome is not known",
        "The operation began, and is not run again until an operator has decided.",
    ),
    StoredFailure: Problem(
        "operation-failed", 500, "The operation has failed",
        "It ran earlier and is recorded as failed. It does not run again with this idempotency key.",
    ),
    ResultNotKept: _NOT_KEPT_PROBLEM,
    Unavailable: Problem("store-unavailable", 503, "The store cannot be used", "Nothing was carried out.", 1.0),
}
# Of a finish: the request was carried out.
_CLAIM_LOST = Problem(
    "claim-lost", 409, "Another request took over this operation",
    "This request lost its claim while it ran, and its answer was not kept. Send it again after the time in Retry-After to "
    "get the answer that counts.", 1.0,
)
_NOT_RECORDED = Problem(
    "not-recorded", 503, "The answer could not be recorded",
    "The operation was carried out, but its answer could not be recorded. Send the same request again after the time in "
    "Retry-After.", 1.0,
)
_NO_JSON = object()


def _json(body: bytes) -> Any:
    def pairs(found: List[Tuple[str, Any]]) -> Dict[str, Any]:
        if len({name for name, _ in found}) != len(found):
            raise ValueError  # Which of two members counts, the service decides.
        return dict(found)

    try:
        return json.loads(body, object_pairs_hook=pairs, parse_constant=_not_json, parse_int=_exact)
    except (ValueError, RecursionError):
        return _NO_JSON


def _not_json(text: str) -> Any:
    raise ValueError(text)


def _exact(text: str) -> int:
    """The server compares numbers as doubles, and refuses one that would become another."""
    value = int(text)
    return value if abs(value) <= 2**53 else _not_json(text)


_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"\s*(?:;[^,"]*)?')


def _keys_in(value: str) -> List[str]:
    """The keys of one header line: quoted as the draft has them, or bare; intermediaries join lines with commas."""
    keys = []
    rest = value.strip()
    while True:
        if rest.startswith('"'):
            quoted = _QUOTED.match(rest)
            if not quoted:
                raise _invalid("it is wrongly quoted")
            keys.append(re.sub(r"\\(.)", r"\1", quoted[1]))
            rest = rest[quoted.end():].strip()
            if rest and not rest.startswith(","):
                raise _invalid("there is something after the quotes")
            rest = rest[1:]
        else:
            bare, _, rest = rest.partition(",")
            if '"' in bare:
                raise _invalid("it is wrongly quoted")
            keys.append(bare.strip())
        if not rest.strip():
            break
        rest = rest.strip()
    for key in keys:
        if not key or len(key) > 255 or not key.isascii() or not key.isprintable():
            raise _invalid("it has 1 to 255 printable ASCII characters")
        if key.strip().lower() in _BUGS:
            raise _invalid("it is what a program with a bug sends in place of a key")
    return keys


def _invalid(why: str) -> Problem:
    return Problem("key-invalid", 400, "Idempotency key is invalid", f"{why[0].upper()}{why[1:]}. Nothing was carried out.")
