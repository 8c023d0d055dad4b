"""What to send, and what an answer means, without any input or output.

Each function is a generator: it yields a `Send` and gets a `Response`, or `Unreachable` is raised in it; or it yields a
`Pause`. `_blocking` and `_aio` carry that out. So both speak one protocol.
"""

from __future__ import annotations

import json
import logging
import math
import os
from binascii import a2b_base64
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generator, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from ._clock import uptime
from ._wire import Pause, Response, Send, Unreachable
from .errors import (
    ClaimLost,
    InProgress,
    KeyReused,
    OnceError,
    OutcomeUnknown,
    Refused,
    ResultNotKept,
    StepReused,
    StoredFailure,
    TooLarge,
    Unavailable,
    Unrecorded,
)

NOT_KEPT = "application/vnd.once.not-kept"  # A result that could not be kept; its bytes say why, for people.
MAX_RESULT_BYTES = 2 * 1024 * 1024
JSON = "application/json"

Effect = Union[Send, Pause]
log = logging.getLogger("once_idempotency")


@dataclass(frozen=True)
class Stored:
    """A result, as bytes."""

    body: bytes
    content_type: str


@dataclass(eq=False)
class Granted:
    """A claim. `valid_until` is of `uptime()`: until then it is certainly ours. `renew_until` bounds its renewals."""

    id: str
    scope: str
    key: str
    attempt: int
    token: int
    lease_s: float
    valid_until: float
    steps: Dict[str, bytes] = field(default_factory=dict)
    derived_keys: Mapping[str, str] = field(default_factory=dict)
    renew_until: float = math.inf
    lost: Optional[ClaimLost] = None
    stored_key: str = ""
    owner: str = ""  # Empty: of a server whose claims are of another version.
    handed_out: bool = False  # To a transaction, which ends the claim: a renewal then finds it gone.
    in_doubt: Optional[Stored] = None  # The result of a transaction that may have been committed.
    is_unseen: bool = False  # The work's connection did not find the claim. The server may.

    def path(self, word: str) -> str:
        return f"/v1/claims/{self.id}/{word}"


T = TypeVar("T")
Protocol = Generator[Effect, Response, T]


def random_id() -> str:
    """From the kernel, at this moment: two copies of this process never draw the same."""
    return os.urandom(16).hex()


def pauses() -> Callable[[], float]:
    """10 ms, doubling to 1 s, each cut by up to a half so that clients do not come together."""
    state = [0.01]

    def following() -> float:
        full = state[0]
        state[0] = min(full * 2, 1.0)
        return full * (0.5 + os.urandom(1)[0] / 512)

    return following


def begin(members: Mapping[str, Any], wait_s: float, timeout_s: float) -> Protocol[Union[Granted, Stored]]:
    """A claim that is certainly ours now, or the stored result. Raises what else there is."""
    waited_until = uptime() + wait_s
    while True:
        granted = yield from _begin(members, max(waited_until - uptime(), 0.0), timeout_s)
        if isinstance(granted, Stored) or granted.valid_until > uptime():
            return granted
        # After a long wait, or a suspended machine. Nothing has run: if it is lost, another one is as good.
        try:
            yield from assure(granted, timeout_s)
            return granted
        except ClaimLost:
            continue


def _begin(members: Mapping[str, Any], wait_s: float, timeout_s: float) -> Protocol[Union[Granted, Stored]]:
    # The same bytes each time: that is how the server knows a call again whose answer was lost.
    wanted = {**members, "wait_ms": int(wait_s * 1000), "request_id": random_id()}
    body = json.dumps(wanted, ensure_ascii=False).encode("utf-8")
    give_up = uptime() + wait_s + timeout_s
    pause = pauses()
    while True:
        sent = uptime()
        try:
            response = yield Send("POST", "/v1/claims", body, JSON, max(give_up - sent, 0.001))
            if response.status == 201:
                return _granted(members, response, sent)
        except Unreachable as error:
            if error.fatal or uptime() >= give_up:
                raise Unavailable(f"nothing was run: {error}") from error
            yield Pause(min(pause(), max(give_up - uptime(), 0.0)))
            continue
        if response.status == 503 or response.status >= 500 and not response.is_of_once:
            word, detail = response.problem()
            if uptime() + response.retry_after_s >= give_up:
                raise Unavailable(f"nothing was run: {word or response.status}: {detail}")
            yield Pause(response.retry_after_s)
            continue
        try:
            return _other_begin(response, f"'{members['key']}'")
        except (Unreachable, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"nothing was run: the server's answer is malformed: {error!r}") from error


def _granted(members: Mapping[str, Any], response: Response, sent: float) -> Granted:
    got = response.json()
    try:
        return Granted(
            id=_quoted(got["claim"]),
            scope=members.get("scope", ""),
            key=members["key"],
            attempt=int(got["attempt"]),
            token=int(got["token"]),
            lease_s=got["lease_ms"] / 1000,
            valid_until=sent + got["valid_for_ms"] / 1000,
            steps={name: a2b_base64(text) for name, text in got["steps"].items()},
            derived_keys=dict(got["derived_keys"]),
            stored_key=got["stored_key_hex"],
            owner=got["claim"][2:34] if got["claim"].startswith("01") else "",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreachable(f"the server's claim is malformed: {error!r}", fatal=True) from error


def _other_begin(response: Response, key: str) -> Stored:
    if response.status == 200 and response.answer == "replayed":
        return stored(response)
    if response.status == 200 and response.answer == "failed":
        got = response.json()
        result = a2b_base64(got["result"]) if "result" in got else None
        raise StoredFailure(str(got.get("code", "")), str(got.get("message", "")), result, str(got.get("content_type", "")))
    word, detail = response.problem()
    if word == "in-progress":
        after_ms = json.loads(response.body).get("retry_after_ms", 1000)
        raise InProgress(f"another call with the key {key} is running", after_ms / 1000)
    if word == "key-reused":
        raise KeyReused(f"the key {key} was used with another payload; nothing was run")
    if word == "outcome-unknown":
        raise OutcomeUnknown(f"the outcome of {key} is unknown; nothing is run until an operator has decided")
    if word == "answer-not-kept":
        raise ResultNotKept(f"{key} ran, and its result was too large to keep; it is not run again")
    raise refused(response, f"nothing was run for {key}")


def stored(response: Response) -> Stored:
    return Stored(response.body, response.content_type)


def refused(response: Response, what: str) -> Refused:
    """`what` also says whether anything ran."""
    word, detail = response.problem()
    advice = f"; {response.advice}" if response.advice else ""
    return Refused(f"{what}: the server refused it: {response.status} {word}: {detail}{advice}", response.status, word)


def renew(granted: Granted, timeout_s: float, note: str = "") -> Protocol[None]:
    """One sign of life. Raises `ClaimLost`, or `Unreachable` if nothing is known."""
    sent = uptime()
    body = json.dumps({"note": note}).encode() if note else None
    response = yield Send("POST", granted.path("renew"), body, JSON, timeout_s)
    if response.status == 200 and response.answer == "renewed":
        try:
            valid_for_s = response.json()["valid_for_ms"] / 1000
        except (KeyError, TypeError) as error:
            raise Unreachable("the server's answer to a renewal is malformed") from error
        granted.valid_until = max(granted.valid_until, sent + valid_for_s)
        return
    if response.status == 503 or not response.is_of_once:
        raise Unreachable("the server could not renew the claim yet")
    if response.status in (409, 200):  # 200: superseded, by another attempt's result.
        raise lost(granted)
    raise refused(response, f"the claim of '{granted.key}' is not renewed")


def renewal(granted: Granted, timeout_s: float) -> Protocol[Optional[float]]:
    """One of those while the work runs. In how many seconds to renew again; None: it is of no use."""
    if uptime() >= granted.renew_until:
        log.warning("the work of '%s' runs for longer than max_duration: its claim is not renewed, and lapses", granted.key)
        return None
    try:
        # A third of the lease is left for more tries, and one slow answer must not cost other claims theirs.
        yield from renew(granted, min(timeout_s, granted.lease_s / 3))
    except ClaimLost as error:
        if granted.handed_out or granted.in_doubt is not None:
            return None
        granted.lost = error
        log.warning("%s", error)
        return None
    except Unreachable as error:
        log.info("the claim of '%s' is not renewed yet: %s", granted.key, error)
        return min(granted.lease_s / 20, 1.0)
    except OnceError as error:
        log.warning("%s", error)
    return granted.lease_s / 3


def assure(granted: Granted, timeout_s: float) -> Protocol[None]:
    """Look before you leap: returns when the claim is certainly ours."""
    pause = pauses()
    give_up = uptime() + timeout_s
    while granted.valid_until <= uptime():
        try:
            yield from renew(granted, max(give_up - uptime(), 0.001))
        except Unreachable as error:
            if error.fatal or uptime() >= give_up:
                raise Unavailable(f"whether the claim of '{granted.key}' still stands is not known: {error}") from error
        if granted.valid_until <= uptime():
            if uptime() >= give_up:
                raise Unavailable(f"the claim of '{granted.key}' is over each time before it can be used: raise the lease")
            yield Pause(pause())


def lost(granted: Granted) -> ClaimLost:
    return ClaimLost(
        f"the claim of '{granted.key}' was lost while the work ran, and no result is stored; look what the work has done"
    )


def _persist(granted: Granted, method: str, word: str, body: Optional[bytes], content_type: str, timeout_s: float) -> Protocol[Response]:
    """Sends until it is answered, for one lease from now: then the claim is over, whenever it was renewed."""
    give_up = uptime() + granted.lease_s
    pause = pauses()
    while True:
        why = ""
        try:
            response = yield Send(method, granted.path(word), body, content_type, timeout_s)
            if response.is_of_once and response.status not in (401, 500, 502, 503, 504):
                return response
            why = f"{response.status} {response.problem()[0] or 'of another server'}"
        except Unreachable as error:
            why = str(error)
        if uptime() >= give_up:
            raise Unrecorded(f"the end of '{granted.key}' could not be recorded: {why}")
        yield Pause(pause())


def finish(
    granted: Granted, word: str, body: Optional[bytes], content_type: str, timeout_s: float
) -> Protocol[Optional[Stored]]:
    """None: recorded. Else the result of the attempt that took over."""
    response = yield from _persist(granted, "POST", word, body, content_type, timeout_s)
    if response.status == 200 and response.answer == "recorded":
        return None
    if response.status == 200 and response.answer == "superseded":
        return stored(response)
    if response.status == 413:
        raise TooLarge(response.problem()[1])
    if response.status == 409:
        if granted.in_doubt is not None and response.problem()[0] == "already-finished":
            raise Committed(f"the transaction of '{granted.key}' was committed, and its result is stored")
        raise lost(granted)
    raise refused(response, f"the work of '{granted.key}' ran, and its end is not recorded")


class Committed(OnceError):
    """The transaction that was in doubt."""


def committed(granted: Granted) -> Protocol[None]:
    """Ends the claim in the server, which would find out by its next renewal. A release changes nothing of what is
    committed, and is refused. Else a driver took a COMMIT for done that rolled back: some do, after another statement of
    the transaction has failed meanwhile."""
    try:
        response = yield Send("POST", granted.path("release"), b'{"reason":"COMMIT rolled back"}', JSON, 1.0)
    except Unreachable as error:
        log.info("the server does not know yet that '%s' was committed: %s", granted.key, error)
        return
    if response.status == 200 and response.answer == "recorded":
        raise OnceError(
            f"nothing is committed for '{granted.key}', and a retry runs: the driver reported a COMMIT that rolled back. Use the "
            "connection in one thread or task only"
        )


def complete(granted: Granted, result: Stored, timeout_s: float) -> Protocol[Tuple[Optional[Stored], bool]]:
    """What `finish` returns, and whether the result is kept. One that is too large is replaced by a note of that."""
    try:
        if len(result.body) <= MAX_RESULT_BYTES:
            other = yield from finish(granted, "complete", result.body, result.content_type, timeout_s)
            return other, result.content_type != NOT_KEPT
    except TooLarge:
        pass
    why = f"a result of {len(result.body)} bytes was too large to keep"
    other = yield from finish(granted, "complete", why.encode(), NOT_KEPT, timeout_s)
    return other, False


def end(granted: Granted, word: str, texts: Sequence[str], timeout_s: float) -> Protocol[Optional[Stored]]:
    """`texts` are code and message of fail, and the reason of release and hold."""
    if word == "fail":
        body = {"code": _cut(texts[0], 255) or "failed", "message": _cut(texts[1], 4096)}
    else:
        body = {"reason": _cut(texts[0], 1000) or word}
    return (yield from finish(granted, word, json.dumps(body).encode(), JSON, timeout_s))


def step(granted: Granted, name: str, result: bytes, timeout_s: float) -> Protocol[None]:
    path = f"steps/{_quoted(name)}"
    response = yield from _persist(granted, "PUT", path, result, JSON, timeout_s)
    if response.status == 200 and response.answer == "recorded":
        granted.steps[name] = result
        return
    word, detail = response.problem()
    if response.status == 413:
        raise TooLarge(f"the step '{name}' has no room in the record: {detail}")
    if word == "already-finished":
        raise StepReused(f"the step '{name}' was finished with another result: a name is used once")
    if response.status in (409, 200):
        raise lost(granted)
    raise refused(response, f"the step '{name}' ran, and is not recorded")


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~")


def _quoted(text: str) -> str:
    """For a path; a name of dots alone would be another one. urllib.parse takes long to import."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8"))


def _cut(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
