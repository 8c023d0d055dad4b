"""`Once`: functions, coroutines and blocks that run once."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
import inspect
import json
import logging
import math
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from . import _address, _blocking, _commit, _keys, _protocol
from ._clock import uptime
from ._keys import ALL, Key, Payload
from ._protocol import JSON, MAX_RESULT_BYTES, NOT_KEPT, Granted, Protocol, Stored
from ._scopes import default_scope, is_again, origin
from ._wire import Unreachable
from ._words import Told
from .errors import (
    ClaimLost,
    InProgress,
    OnceError,
    Replayed,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    TooLarge,
    Unavailable,
    Unrecorded,
)

if TYPE_CHECKING:
    from . import _aio

log = logging.getLogger("once_idempotency")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
C = TypeVar("C", bound="_ClaimBase")
Duration = Union[int, float, str, datetime.timedelta]
Fates = Union[str, Mapping[Type[BaseException], str]]
Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FATES = ("release", "fail", "hold")


def seconds(value: Duration, name: str) -> float:
    """30, 0.5, "30s", "3d" or a timedelta."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        digits = value.rstrip("mshd")
        unit = _UNITS.get(value[len(digits):])
        try:
            if unit is None:
                raise ValueError
            value = float(digits) * unit
        except ValueError:
            raise ValueError(f"{name}={value!r} is no duration, such as 30, '30s' or '3d'") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{name}={value!r} is no duration, such as 30, '30s' or '3d'")
    return float(value)


def _ms(value: Duration, name: str) -> int:
    return round(seconds(value, name) * 1000)


class Options:
    """How calls of one operation are claimed, and what becomes of them. Checked when the function is decorated."""

    otherwise = "release"  # Becomes of an error that `on_error` does not name.

    def __init__(
        self,
        scope: str,
        lease: Duration = 30,
        wait: Duration = 10,
        retention: Optional[Duration] = None,
        failure_retention: Optional[Duration] = None,
        expected: Optional[Duration] = None,
        on_lapse: str = "takeover",
        on_error: Fates = "release",
        on_unrecorded: str = "return",
        retry_failures: bool = False,
        derive: Sequence[str] = (),
        encode: Optional[Encode] = None,
        decode: Optional[Decode] = None,
        max_duration: Optional[Duration] = None,
    ):
        if not isinstance(scope, str):
            raise TypeError("scope= is a text, the name of the operation")
        if on_lapse not in ("takeover", "hold"):
            raise ValueError("on_lapse= is 'takeover' or 'hold'")
        if on_unrecorded not in ("return", "raise"):
            raise ValueError("on_unrecorded= is 'return' or 'raise'")
        for fate in [on_error] if isinstance(on_error, str) else on_error.values():
            if fate not in _FATES:
                raise ValueError(f"on_error={fate!r} is none of {', '.join(_FATES)}")
        self.scope = scope
        self.wait_s = seconds(wait, "wait")
        self.max_duration_s = math.inf if max_duration is None else seconds(max_duration, "max_duration")
        self.on_error = on_error
        self.on_unrecorded = on_unrecorded
        self.encode, self.decode = encode, decode
        self.members: Dict[str, Any] = {"scope": scope, "lease_ms": _ms(lease, "lease")}
        for name, value in (("retention", retention), ("failure_retention", failure_retention), ("expected", expected)):
            if value is not None:
                self.members[f"{name}_ms"] = _ms(value, name)
        if on_lapse != "takeover":
            self.members["on_lapse"] = on_lapse
        if retry_failures:
            self.members["retry_failures"] = True
        if derive:
            self.members["derive"] = list(derive)

    def fate(self, error: BaseException) -> Optional[str]:
        """None: the claim lapses. An interrupt or a cancellation says nothing of what the work has done."""
        if not isinstance(error, Exception):
            return None
        if isinstance(self.on_error, str):
            return self.on_error
        for kind in type(error).__mro__:
            if kind in self.on_error:
                return self.on_error[kind]
        return self.otherwise

    @property
    def retention_ms(self) -> int:
        return cast(int, self.members.get("retention_ms", 86_400_000))

    def encoded(self, value: Any) -> Stored:
        """What is stored of the result. The work has run, so this never fails: it says that there is no result."""
        try:
            plain = self.encode(value) if self.encode is not None else value
            text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return Stored(text.encode("utf-8"), JSON)
        except Exception as error:  # Whatever a codec of the user raises.
            why = f"a result of type {type(value).__name__} is not JSON: {error}"
            return Stored(why.encode("utf-8", "replace")[:1000], NOT_KEPT)

    def decoded(self, stored: Stored, key: str) -> Any:
        if stored.content_type == NOT_KEPT:
            raise ResultNotKept(f"'{key}' ran, and {stored.body.decode('utf-8', 'replace')}; it is not run again")
        if stored.content_type != JSON:
            raise ResultUnreadable(
                f"'{key}' ran, and its result is of the type {stored.content_type!r}, not {JSON}",
                stored.body, stored.content_type,
            )
        try:
            value = json.loads(stored.body)
        except ValueError as error:
            raise ResultUnreadable(f"'{key}' ran, and its result is no JSON: {error}", stored.body, JSON) from error
        return self.decode(value) if self.decode is not None else value

    def replayed(self, stored: Stored, key: str) -> Any:
        """What a call returns that did not run."""
        return self.decoded(stored, key)

    def superseded(self, stored: Stored, key: str) -> Any:
        """What a call returns that ran, where another attempt's result counts."""
        return self.decoded(stored, key)

    def lost(self, error: OnceError, result: Any) -> Any:
        """The same where no result is stored."""
        if isinstance(error, ClaimLost) or self.on_unrecorded == "raise":
            raise error
        log.error("%s; its work has run, and may run again", error)
        return result


class _ClaimBase:
    """What both kinds of claim have. What ends in -ing is a protocol, which the transport of either carries out."""

    _stop: Callable[[], None]  # Ends the renewals.
    _schema: Optional[str] = None  # Of the store, if the result is JSON: a middleware's is not.

    def __init__(self, options: Options, granted: Granted, timeout_s: float):
        self._options = options
        self._granted = granted
        granted.renew_until = uptime() + options.max_duration_s
        self._timeout_s = timeout_s
        self._is_ended = False
        self._may_complete = True
        self._pid = os.getpid()

    @property
    def key(self) -> str:
        return self._granted.key

    @property
    def scope(self) -> str:
        return self._granted.scope

    @property
    def attempt(self) -> int:
        """1, or more if attempts before it did not finish."""
        return self._granted.attempt

    @property
    def token(self) -> int:
        """The fencing token. It grows with each attempt: give it to whatever can refuse an older one."""
        return self._granted.token

    @property
    def derived_keys(self) -> Mapping[str, str]:
        """Keys for services downstream, by the names in `derive=`. The same in each attempt."""
        return self._granted.derived_keys

    @property
    def valid_for_s(self) -> float:
        """How long the claim is certainly ours, without another renewal."""
        return max(0.0, self._granted.valid_until - uptime())

    def _require_own(self) -> None:
        if os.getpid() != self._pid:
            raise ClaimLost(f"the claim of '{self.key}' belongs to process {self._pid}, which forked this one")

    def _begin_end(self) -> None:
        self._require_own()
        if self._is_ended:
            raise OnceError(f"the claim of '{self.key}' has ended already")
        self._is_ended = True

    def _lapse(self) -> None:
        """No more signs of life. Nothing is sent: what the work has done is not known."""
        self._is_ended = True
        self._stop()

    def _checking(self) -> Protocol[None]:
        self._require_own()
        if self._granted.lost is not None:
            raise self._granted.lost
        yield from _protocol.assure(self._granted, self._timeout_s)

    def _noting(self, text: str) -> Protocol[None]:
        self._require_own()
        try:
            yield from _protocol.renew(self._granted, self._timeout_s, text)
        except Unreachable as error:
            log.info("the note for '%s' was not written: %s", self.key, error)

    def _look_at_step(self, name: str) -> Optional[Any]:
        self._require_own()
        if not name or len(name.encode("utf-8")) > 255:
            raise ValueError("a step's name has 1 to 255 bytes")
        if name not in self._granted.steps:
            return None
        return (json.loads(self._granted.steps[name]),)

    def _keeping_step(self, name: str, value: Any) -> Protocol[None]:
        try:
            data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the step '{name}' ran, and is not recorded: its result is not JSON: {error}") from error
        yield from _protocol.step(self._granted, name, data, self._timeout_s)

    # ---- A transaction of the work's own

    def _committing(self, connection: Any, result: Any) -> Tuple[Stored, str, Tuple[Any, ...]]:
        """The result, and the last statement with its values."""
        self._require_own()
        if self._is_ended or self._schema is None or not self._granted.owner:
            raise OnceError(
                f"nothing is committed: the claim of '{self.key}' has ended, or is a middleware's, or of a server that this "
                "package does not know"
            )
        _commit.require_transaction(connection)
        stored = self._options.encoded(result)
        if stored.content_type == NOT_KEPT:
            raise TypeError(f"nothing is committed: {_why(stored)}")
        if len(stored.body) > MAX_RESULT_BYTES:
            raise TooLarge(f"nothing is committed: the result of '{self.key}' has {len(stored.body)} bytes")
        return (stored, *_commit.finish(self._schema, self._granted, self._options.retention_ms, stored))

    def _not_committed(self, error: BaseException, is_finished: bool) -> None:
        """The claim is still the work's. `is_finished`: COMMIT was sent, or is about to be."""
        self._granted.handed_out = False
        if is_finished:
            if _commit.is_rolled_back(error):
                self._granted.in_doubt = None
        elif self._granted.in_doubt is None:
            self._granted.is_unseen = _commit.state_of(error) == _commit.CLAIM_LOST
            _commit.explain(error, self._schema or "", self.key)

    def _committed(self) -> Protocol[None]:
        self._is_ended = True
        self._stop()
        return _protocol.committed(self._granted)

    def _result_in_doubt(self) -> Any:
        assert self._granted.in_doubt is not None
        return self._options.decoded(self._granted.in_doubt, self.key)

    def _require_no_doubt(self) -> None:
        """Work that returns must not have a result recorded whose rows may have been rolled back."""
        if self._granted.in_doubt is not None and not self._is_ended:
            raise Unrecorded(f"the work of '{self.key}' returned, but its transaction may not have been committed")

    def _completing_block(self, result: Any) -> Protocol[Any]:
        if not self._may_complete and not self._is_ended:
            raise OnceError("the function's result completes the claim: return it")
        self._require_no_doubt()
        self._begin_end()
        return (yield from self._completing(result))

    def _completing(self, result: Any) -> Protocol[Any]:
        self._is_ended = True
        stored = self._options.encoded(result)
        try:
            other, is_kept = yield from _protocol.complete(self._granted, stored, self._timeout_s)
        except (ClaimLost, Unrecorded) as error:
            return self._options.lost(error, result)
        finally:
            self._stop()
        if other is not None:
            return self._options.superseded(other, self.key)
        if not is_kept:
            log.warning("'%s' ran, and its result was not kept: %s", self.key, _why(stored))
        return result

    def _ending(self, word: str, *texts: str) -> Protocol[None]:
        """`word` is fail, release or hold."""
        self._begin_end()
        try:
            other = yield from _protocol.end(self._granted, word, texts, self._timeout_s)
            if other is not None:  # Another attempt's result counts, which the next call gets.
                log.warning("the claim of '%s' was lost, and another attempt has stored a result", self.key)
        finally:
            self._stop()

    def _settling(self, word: str, *texts: str) -> Protocol[None]:
        """As _ending, where there is something that the caller must see before a failure of it."""
        try:
            yield from self._ending(word, *texts)
        except _protocol.Committed:
            raise
        except OnceError as error:
            log.error("the end of '%s' was not recorded: %s", self.key, error)

    def _lapses(self, error: BaseException) -> bool:
        """Whether nothing is to be sent for this error of the work."""
        if self._is_ended:
            return True
        # After a commit() that may have been carried out, or did not see the claim, the server knows how it stands.
        is_lost = isinstance(error, ClaimLost) and self._granted.in_doubt is None and not self._granted.is_unseen
        if is_lost or self._options.fate(error) is None or os.getpid() != self._pid:
            self._lapse()
        return self._is_ended

    def _throwing(self, error: BaseException) -> Protocol[bool]:
        """Whether the transaction that was in doubt has been committed after all."""
        fate = self._options.fate(error) or "hold"
        texts = (type(error).__name__, str(error)) if fate == "fail" else (f"{type(error).__name__}: {error}",)
        try:
            yield from self._settling(fate, *texts)
        except _protocol.Committed:
            return True
        return False


class Claim(_ClaimBase):
    """The right to run the operation, for code that blocks. It is renewed meanwhile."""

    def __init__(self, transport: _blocking.Transport, options: Options, granted: Granted, timeout_s: float):
        super().__init__(options, granted, timeout_s)
        self._transport = transport
        self._stop = lambda: transport.remove(granted)
        transport.add(granted, timeout_s)

    def check(self) -> None:
        """Look before you leap: returns if the claim is certainly still ours, else raises `ClaimLost`."""
        self._transport.run(self._checking())

    def note(self, text: str) -> None:
        """For operators, who see it with the record: how far the work is."""
        self._transport.run(self._noting(text))

    def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The result of `function(*args, **kwargs)`, which is kept in the record: an attempt that takes over gets it,
        and does not run the function. Results are JSON."""
        found = self._look_at_step(name)
        if found is not None:
            return cast(T, found[0])
        self.check()
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            raise TypeError(f"the step '{name}' is a coroutine: use an `async def` and await claim.step(...)")
        self._transport.run(self._keeping_step(name, value))
        return value

    def complete(self, result: Any) -> Any:
        """Stores the result, and returns the one that counts: after a takeover, the other attempt's."""
        return self._transport.run(self._completing_block(result))

    def fail(self, code: str, message: str = "") -> None:
        """Stores a failure, which is replayed to later callers as `StoredFailure`."""
        self._transport.run(self._ending("fail", code, message))

    def release(self, reason: str = "") -> None:
        """Nothing was done: the next caller may run it at once."""
        self._transport.run(self._ending("release", reason))

    def hold(self, reason: str) -> None:
        """The outcome is not known: nothing is run until an operator has decided."""
        self._transport.run(self._ending("hold", reason))

    def commit(self, connection: Any, result: T) -> T:
        """Records the result in the connection's transaction, and commits it: the work's rows and its result, or neither.

        The store is PostgreSQL, and the connection one of psycopg or psycopg2 to its database. It goes last, and the work
        returns the same result. An attempt that lost its claim commits nothing, and gets `ClaimLost`. After any error the
        transaction is rolled back, and the claim is still the work's: after a deadlock it may repeat the transaction. If
        the connection broke while it committed, the caller of the function gets the result, if it was committed.
        """
        _commit.require_driver(connection, is_async=False)
        is_finished = False
        try:
            stored, statement, values = self._committing(connection, result)
            self.check()
            self._granted.handed_out = True
            cursor = connection.cursor()
            cursor.execute(statement, values)
            cursor.close()
            is_finished, self._granted.in_doubt = True, stored  # An earlier commit() was rolled back: the claim was there.
            connection.commit()
        except BaseException as error:
            try:
                with contextlib.suppress(Exception):  # It may have ended already.
                    connection.rollback()
            finally:
                if self._granted.handed_out:
                    self._not_committed(error, is_finished)
            raise
        self._transport.run(self._committed())
        return result

    def _thrown(self, error: BaseException) -> bool:
        """Whether the transaction that was in doubt has been committed after all."""
        return not self._lapses(error) and self._transport.run(self._throwing(error))


class AsyncClaim(_ClaimBase):
    """The right to run the operation, for coroutines. It is renewed meanwhile, as long as the loop runs."""

    def __init__(self, transport: _aio.Transport, options: Options, granted: Granted, timeout_s: float):
        super().__init__(options, granted, timeout_s)
        self._transport = transport
        renewed = transport.renewed(granted, timeout_s)
        self._stop = renewed.stop
        renewed.start()

    async def check(self) -> None:
        """Look before you leap: returns if the claim is certainly still ours, else raises `ClaimLost`."""
        await self._transport.run(self._checking())

    async def note(self, text: str) -> None:
        """For operators, who see it with the record: how far the work is."""
        await self._transport.run(self._noting(text))

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As Claim.step(), of a coroutine function or a plain one."""
        found = self._look_at_step(name)
        if found is not None:
            return found[0]
        await self.check()
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        await self._transport.run_to_its_end(self._keeping_step(name, value))
        return value

    async def complete(self, result: Any) -> Any:
        """Stores the result, and returns the one that counts: after a takeover, the other attempt's."""
        return await self._transport.run_to_its_end(self._completing_block(result))

    async def fail(self, code: str, message: str = "") -> None:
        """Stores a failure, which is replayed to later callers as `StoredFailure`."""
        await self._transport.run_to_its_end(self._ending("fail", code, message))

    async def release(self, reason: str = "") -> None:
        """Nothing was done: the next caller may run it at once."""
        await self._transport.run_to_its_end(self._ending("release", reason))

    async def hold(self, reason: str) -> None:
        """The outcome is not known: nothing is run until an operator has decided."""
        await self._transport.run_to_its_end(self._ending("hold", reason))

    async def commit(self, connection: Any, result: T) -> T:
        """As Claim.commit(), of a psycopg.AsyncConnection."""
        _commit.require_driver(connection, is_async=True)
        is_finished = False
        try:
            stored, statement, values = self._committing(connection, result)
            await self.check()
            self._granted.handed_out = True
            cursor = connection.cursor()
            await cursor.execute(statement, values)
            await cursor.close()
            is_finished, self._granted.in_doubt = True, stored
            await connection.commit()
        except BaseException as error:
            try:
                with contextlib.suppress(Exception):
                    await connection.rollback()
            finally:  # Also if the task is cancelled once more.
                if self._granted.handed_out:
                    self._not_committed(error, is_finished)
            raise
        await self._transport.run_to_its_end(self._committed())
        return result

    async def _thrown(self, error: BaseException) -> bool:
        return not self._lapses(error) and await self._transport.run_to_its_end(self._throwing(error))


def _why(stored: Stored) -> str:
    return stored.body.decode("utf-8", "replace") if stored.content_type == NOT_KEPT else "it is too large"


_claims: "contextvars.ContextVar[Tuple[Union[Claim, AsyncClaim], ...]]" = contextvars.ContextVar("once_claims", default=())


def current_claim() -> Claim:
    """The claim of the decorated function that runs."""
    return _current(Claim)


def current_async_claim() -> AsyncClaim:
    """The claim of the decorated coroutine that runs."""
    return _current(AsyncClaim)


def _found(kind: Type[T]) -> Optional[T]:
    for claim in reversed(_claims.get()):
        if isinstance(claim, kind) and not claim._is_ended:
            return claim
    return None


def _current(kind: Type[T]) -> T:
    claim = _found(kind)
    if claim is None:
        raise OnceError(f"no {kind.__name__} here: this code was not called by an idempotent function")
    return claim


def commit(connection: Any, result: T) -> T:
    """`current_claim().commit(connection, result)`. Where ONCE_DISABLED is set there is no claim, and it only commits."""
    claim = _found(Claim)
    if claim is not None:
        return claim.commit(connection, result)
    if _SWITCH.get(os.environ.get("ONCE_DISABLED", "").lower()):  # The decorator has reported it.
        connection.commit()
        return result
    connection.rollback()
    raise OnceError("nothing is committed: no claim here, because this code was not called by an idempotent function")


async def commit_async(connection: Any, result: T) -> T:
    """The same in coroutines: `await current_async_claim().commit(connection, result)`."""
    claim = _found(AsyncClaim)
    if claim is not None:
        return await claim.commit(connection, result)
    if _SWITCH.get(os.environ.get("ONCE_DISABLED", "").lower()):
        await connection.commit()
        return result
    await connection.rollback()
    raise OnceError("nothing is committed: no claim here, because this code was not called by an idempotent coroutine")


def _refuse_own(scope: str, key: str) -> None:
    """Work that calls itself with its own key would wait for itself."""
    for claim in _claims.get():
        if claim.key == key and claim.scope == scope and not claim._is_ended and claim._pid == os.getpid():
            raise InProgress(f"'{key}' is asked for by its own work, which would wait for itself")


class Block:
    """What `once.claim()` returns: use it by `with`, or by `async with`."""

    def __init__(self, once: "Once", options: Options, members: Mapping[str, Any]):
        self._once, self._options, self._members = once, options, members
        self._claim: Optional[Union[Claim, AsyncClaim]] = None
        self._token: Any = None

    def __enter__(self) -> Claim:
        claim = self._once._begin(self._options, self._members)
        if isinstance(claim, Stored):
            raise Replayed(self._options.decoded(claim, self._members["key"]))
        return self._entered(claim)

    def _entered(self, claim: T) -> T:
        self._claim = cast(Union[Claim, AsyncClaim], claim)
        self._token = _claims.set((*_claims.get(), self._claim))
        return claim

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        claim = self._claim
        assert isinstance(claim, Claim)
        _claims.reset(self._token)
        if error is None:
            self._require_end(claim)
        elif claim._thrown(error):
            raise Replayed(claim._result_in_doubt()) from error

    @staticmethod
    def _require_end(claim: Union[Claim, AsyncClaim]) -> None:
        if claim._is_ended:
            return
        claim._lapse()
        raise OnceError(
            f"the block of '{claim.key}' ended without complete(), fail(), release() or hold(): its claim lapses, "
            "and the work may run again"
        )

    async def __aenter__(self) -> AsyncClaim:
        claim = await self._once._begin_async(self._options, self._members)
        if isinstance(claim, Stored):
            raise Replayed(self._options.decoded(claim, self._members["key"]))
        return self._entered(claim)

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        claim = self._claim
        assert isinstance(claim, AsyncClaim)
        _claims.reset(self._token)
        if error is None:
            self._require_end(claim)
        elif await claim._thrown(error):
            raise Replayed(claim._result_in_doubt()) from error


_all: "weakref.WeakSet[Once]" = weakref.WeakSet()


def _after_fork() -> None:
    for once in _all:
        once._blocking.reset()
        once._reset_aio()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Once:
    """A client of one `once serve`. One for a program, used by all its threads, loops and forked processes.

    `server` is "unix:PATH", "https://HOST:PORT", or "http://127.0.0.1:PORT" on this machine. With `store`, such as
    "sqlite:once.db", the program `once` serves it on demand. Without both, ONCE_SERVER or ONCE_STORE says it. Nothing is
    connected before the first call. `timeout` is how long an unreachable server is tried again before a call raises
    `Unavailable`.

    An address needs `token_file` (default: ONCE_TOKEN_FILE), a file with a token. It is read again when the server does
    not know the token any more. With https, `cert_file` and `key_file` are a client certificate in place of the token, in
    PEM. The server's certificate and its name are always verified: by `ca_file` (default: ONCE_CA_FILE), else by the
    authorities of the system. A file that is replaced counts for the next connection. `schema` is the PostgreSQL store's,
    for `commit()`.
    """

    def __init__(
        self,
        store: Optional[str] = None,
        *,
        server: Optional[str] = None,
        token_file: Optional[str] = None,
        ca_file: Optional[str] = None,
        cert_file: Optional[str] = None,
        key_file: Optional[str] = None,
        program: Optional[str] = None,
        timeout: Duration = 10,
        holder: Optional[str] = None,
        schema: str = "once",
    ):
        self._schema = schema
        self._where = _address.Where(
            _address.Named(server, store, token_file, ca_file, cert_file, key_file, program))
        self._blocking = _blocking.Transport(self._where)
        self._made: Dict[str, _aio.Transport] = {}
        self._timeout_s = seconds(timeout, "timeout")
        self._holder = holder
        self._scopes: Dict[str, Tuple[Callable[..., Any], Tuple[Any, ...]]] = {}  # Each function, and its origin.
        _all.add(self)

    def close(self) -> None:
        """Closes idle connections. The client may be used again."""
        self._blocking.close()

    def forget(self) -> None:
        """Closes idle connections, and reads the environment again at the next call."""
        self._where.forget()
        self.close()
        self._reset_aio()

    def _reset_aio(self) -> None:
        for transport in self._made.values():
            transport.reset()

    @property
    def _aio(self) -> _aio.Transport:
        """asyncio is imported when a loop needs it: half of the time that the import of this package took."""
        if "aio" not in self._made:
            from . import _aio

            self._made.setdefault("aio", _aio.Transport(self._where))
        return self._made["aio"]

    async def aclose(self) -> None:
        """Closes the idle connections of this loop."""
        self._aio.close()

    def idempotent(
        self,
        *,
        key: Key,
        scope: Optional[str] = None,
        payload: Payload = ALL,
        data_keyword_argument: Optional[str] = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Decorates a function or a coroutine function: it runs once for each key, and later calls get its result.

        `key` is a template of the arguments, such as "order-{order.id}", or a function of them that returns a text, a
        number or a list of these. `scope` is the operation's name, by default the function's with its module; a script's
        function, a lambda and a nested function need one. `payload` names the arguments that are compared (default:
        all); a call with the same key and others raises `KeyReused`. None compares nothing. `data_keyword_argument` is
        Powertools' name for a single one. The others are those of `Options`: lease, wait, retention, failure_retention,
        expected, on_lapse, on_error, on_unrecorded, retry_failures, derive, encode, decode, max_duration.
        """
        if data_keyword_argument is not None:
            if payload is not ALL:
                raise ValueError("data_keyword_argument= and payload= say the same: give one")
            payload = (data_keyword_argument,)

        def decorate(function: F) -> F:
            return cast(F, self._wrapped(function, key, scope, payload, options))

        return decorate

    def tool(
        self,
        *,
        key: Optional[Key] = None,
        run: Optional[Key] = None,
        scope: Optional[str] = None,
        payload: Payload = ALL,
        told: Optional[Callable[[Told], Any]] = None,
        tell_model: bool = True,
        **options: Any,
    ) -> Callable[[F], F]:
        """Decorates a tool of an agent, below the framework's own decorator: it acts once for each key.

        A call that does not run returns a `Told`, a text that says to the model what happened and what to do: never an
        error, which a framework or a model might answer by another call. `key` names the arguments that name what must
        happen once, such as "{order_id}". Or `run` names the conversation, such as "{ctx.context.thread_id}": in one run,
        calls with equal arguments are one, for ten minutes. Both may be a function of the arguments. Arguments that the
        framework adds, such as its context, do not count. `told` turns a `Told` into what the tool must return instead, if
        that is no text. `tell_model=False` leaves the note out of a replayed text. The others are those of `idempotent`,
        with the defaults on_lapse="hold", on_error="fail" and wait=30.
        """
        from . import _tool

        def decorate(function: F) -> F:
            return cast(F, _tool.wrapped(self, function, key, run, scope, payload, told, tell_model, dict(options)))

        return decorate

    def _wrapped(self, function: Callable[..., Any], key: Key, scope: Optional[str], payload: Payload, more: Dict[str, Any]) -> Any:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator has no single result: decorate a function that returns one")
        if scope is None:
            scope = default_scope(function)
        arguments = _keys.Arguments(function, key, payload)
        options = Options(scope, **more)
        self._claim_scope(scope, function)

        def call(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
            bound = arguments.bind(args, kwargs)
            text = arguments.key_of(args, kwargs, bound)
            _refuse_own(options.scope, text)
            return self._members(options, text, arguments.payload_of(args, kwargs, bound))

        call_of = getattr(function, "__call__", None)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_of):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                if _is_disabled(options.scope):
                    return await function(*args, **kwargs)
                return await self._run_async(options, call(args, kwargs), lambda _: function(*args, **kwargs))

            return run_async

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if _is_disabled(options.scope):
                return function(*args, **kwargs)
            return self._run(options, call(args, kwargs), lambda _: function(*args, **kwargs))

        return run

    def _claim_scope(self, scope: str, function: Callable[..., Any]) -> None:
        """Two functions in one scope would give their results to one another's callers."""
        if not scope:
            raise ValueError("the scope is the operation's name, such as 'charge'")
        made = function, origin(function)
        known, known_origin = self._scopes.setdefault(scope, made)
        if not is_again(known, known_origin, function):
            names = " and ".join(getattr(one, "__qualname__", repr(one)) for one in (known, function))
            raise ValueError(
                f"two functions, {names}, have the scope '{scope}': give each a scope= of its own, or use call() for work "
                "that is made anew for each call"
            )
        self._scopes[scope] = made

    def claim(self, scope: str, key: Any, *, payload: Any = None, **options: Any) -> Block:
        """For `with` and `async with`: a claim for the block, which must end it, such as by `complete()`.

        If the operation has run, the block is not entered: `Replayed` is raised, with the result. `payload` is compared.
        """
        return Block(self, *self._asked(scope, key, payload, options))

    def call(self, scope: str, key: Any, function: Callable[[Claim], Any], *, payload: Any = None, **options: Any) -> Any:
        """Runs `function(claim)` once for this key, and returns its result, or the stored one."""
        checked, members = self._asked(scope, key, payload, options)
        return self._run(checked, members, function)

    async def call_async(self, scope: str, key: Any, function: Callable[[AsyncClaim], Any], *, payload: Any = None, **options: Any) -> Any:
        """As `call`, of a coroutine function."""
        checked, members = self._asked(scope, key, payload, options)
        return await self._run_async(checked, members, function)

    def _asked(self, scope: str, key: Any, payload: Any, options: Dict[str, Any]) -> Tuple[Options, Dict[str, Any]]:
        if _is_disabled(scope):
            raise Unavailable("ONCE_DISABLED is set: there is no claim for this work; use the decorator")
        if not scope:
            raise ValueError("the scope is the operation's name, such as 'report'")
        checked = Options(scope, **options)
        text = _keys.whole_key(key)
        _refuse_own(scope, text)
        return checked, self._members(checked, text, {} if payload is None else _keys.compared(payload))

    # ---- one call

    def _members(self, options: Options, key: str, compared: Mapping[str, str]) -> Dict[str, Any]:
        holder = self._holder or f"pid {os.getpid()}"
        return {**options.members, "key": key, **compared, "holder": f"{holder} {options.scope}"[:200]}

    def _begin(self, options: Options, members: Mapping[str, Any]) -> Union[Claim, Stored]:
        got = self._blocking.run(_protocol.begin(members, options.wait_s, self._timeout_s))
        return got if isinstance(got, Stored) else self._for_json(Claim(self._blocking, options, got, self._timeout_s))

    async def _begin_async(self, options: Options, members: Mapping[str, Any]) -> Union[AsyncClaim, Stored]:
        got = await self._aio.run(_protocol.begin(members, options.wait_s, self._timeout_s))
        return got if isinstance(got, Stored) else self._for_json(AsyncClaim(self._aio, options, got, self._timeout_s))

    def _for_json(self, claim: C) -> C:
        claim._schema = self._schema
        return claim

    def _run(self, options: Options, members: Mapping[str, Any], work: Callable[[Claim], Any]) -> Any:
        claim = self._begin(options, members)
        if isinstance(claim, Stored):
            return options.replayed(claim, members["key"])
        claim._may_complete = False
        mark = _claims.set((*_claims.get(), claim))
        try:
            result = work(claim)
            if inspect.isawaitable(result) or inspect.isgenerator(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError("the function returned a coroutine or a generator, which has not run: use `async def`")
            claim._require_no_doubt()
        except BaseException as error:
            if claim._thrown(error):
                return claim._result_in_doubt()
            raise
        finally:
            _claims.reset(mark)
        if claim._is_ended:
            return result
        claim._require_own()
        return self._blocking.run(claim._completing(result))

    async def _run_async(self, options: Options, members: Mapping[str, Any], work: Callable[[AsyncClaim], Any]) -> Any:
        claim = await self._begin_async(options, members)
        if isinstance(claim, Stored):
            return options.replayed(claim, members["key"])
        claim._may_complete = False
        mark = _claims.set((*_claims.get(), claim))
        try:
            result = await work(claim)
            claim._require_no_doubt()
        except BaseException as error:
            if await claim._thrown(error):
                return claim._result_in_doubt()
            raise
        finally:
            _claims.reset(mark)
        if claim._is_ended:
            return result
        claim._require_own()
        return await self._aio.run_to_its_end(claim._completing(result))


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False, "": False}


def _is_disabled(scope: str) -> bool:
    """Whether ONCE_DISABLED switches protection off, as docs/testing.md has it. Each such run is reported."""
    word = os.environ.get("ONCE_DISABLED", "")
    off = _SWITCH.get(word.lower())
    if off is None:
        raise ValueError(f"ONCE_DISABLED is {word!r}: neither 1 nor 0")
    if off:
        log.warning("ONCE_DISABLED is set: '%s' runs unprotected, so that it may run twice", scope)
    return off


_default = Once()


def default_once() -> Once:
    """The client that ONCE_SERVER or ONCE_STORE names."""
    return _default


def idempotent(
    *,
    key: Key,
    scope: Optional[str] = None,
    payload: Payload = ALL,
    data_keyword_argument: Optional[str] = None,
    **options: Any,
) -> Callable[[F], F]:
    """`default_once().idempotent(...)`: the environment is read at the first call of a function."""
    return _default.idempotent(
        key=key, scope=scope, payload=payload, data_keyword_argument=data_keyword_argument, **options
    )
