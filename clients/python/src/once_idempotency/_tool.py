"""Tools of agents: functions that run once for each key, and answer in words for the model where they do not run."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import typing
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from . import _keys
from ._client import Options, _is_disabled, _refuse_own, log
from ._keys import ALL, Key, Payload
from ._protocol import Stored
from ._scopes import default_scope
from ._words import BEGAN, NO_KEY, NO_RUN, RUN_KEY, Told, Words
from .errors import (
    ClaimLost,
    InProgress,
    KeyMissing,
    KeyReused,
    OnceError,
    OutcomeUnknown,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    StoredFailure,
    Unavailable,
    Unrecorded,
)

if TYPE_CHECKING:
    from ._client import Once

Tell = Callable[[Told], Any]

# Packages and classes, by their names: a framework that is not used is not imported.
# Arguments that a framework adds, which the model does not send. LangGraph's are InjectedToolArg.
_ADDED = (
    ("mcp", "Context"), ("mcp", "Resolve"), ("agents", "RunContextWrapper"), ("agents", "ToolContext"),
    ("langchain_core", "RunnableConfig"), ("langchain_core", "InjectedToolArg"), ("langchain_core", "_DirectlyInjectedToolArg"),
    ("langchain_core", "CallbackManagerForToolRun"), ("langchain_core", "AsyncCallbackManagerForToolRun"),
)
# What ends a call before its end: the framework asks a person, and calls again with the reply. Not a result, not a failure.
_PAUSES = (("langgraph", "GraphBubbleUp"), ("mcp", "UrlElicitationRequiredError"), ("mcp_types", "InputRequiredResult"))


def _is_one_of(kind: type, names: Tuple[Tuple[str, str], ...]) -> bool:
    return any((one.__module__.split(".")[0], one.__name__) in names for one in kind.__mro__)


def _is_pause(value: Any) -> bool:
    return _is_one_of(type(value), _PAUSES)


def _hints(function: Callable[..., Any]) -> Dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError):  # Of names that are there for a type checker only.
        return {}


def _is_added(hint: Any) -> bool:
    """RunnableConfig, Optional[RunnableConfig], Context[A, B], Annotated[dict, InjectedState]: any part of it."""
    parts = [typing.get_origin(hint), *typing.get_args(hint), *getattr(hint, "__metadata__", ())]
    kind = hint if isinstance(hint, type) else type(hint)
    return _is_one_of(kind, _ADDED) or any(_is_added(part) for part in parts if part is not None)


class ToolOptions(Options):
    """As Options, with other defaults: what a tool has begun is not begun again without a person."""

    otherwise = "fail"

    def __init__(self, words: Words, tell_model: bool, hint: Any, more: Dict[str, Any]):
        given = {"wait": 30, "on_lapse": "hold", "on_error": self.otherwise, **more}
        validate = getattr(hint, "model_validate", None)  # pydantic
        if isinstance(hint, type) and validate is not None and not {"encode", "decode"} & given.keys():
            given.update(encode=lambda made: made.model_dump(mode="json"), decode=validate)
        super().__init__(**given)
        self.words, self.tells_model = words, tell_model

    def fate(self, error: BaseException) -> Optional[str]:
        return "release" if _is_pause(error) else super().fate(error)

    def replayed(self, stored: Stored, key: str) -> Any:
        return self._with("replayed", self.decoded(stored, key))

    def superseded(self, stored: Stored, key: str) -> Any:
        return self._with("superseded", self.decoded(stored, key))

    def lost(self, error: OnceError, result: Any) -> Any:
        log.error("%s; its work has run, and may run again", error)
        return self._with("lost", result)

    def _with(self, name: str, result: Any) -> Any:
        """Only a text has room for another one."""
        if not isinstance(result, str) or not self.tells_model:
            return result
        return Told("replayed" if name == "replayed" else "lost", f"{result}\n\n{self.words.text(name)}")


class _Tool:
    def __init__(
        self, once: Once, function: Callable[..., Any], key: Optional[Key], run: Optional[Key], scope: Optional[str],
        payload: Payload, told: Optional[Tell], tell_model: bool, more: Dict[str, Any],
    ):
        if not inspect.isroutine(function):
            raise TypeError(f"a {type(function).__name__} is no function: write @once.tool(...) below the framework's decorator")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator has no single result: decorate a function that returns one")
        if (key is None) == (run is None):
            raise ValueError(
                "a tool needs key=, the arguments that name what happens once, such as '{order_id}'; or run=, the conversation "
                "in which equal arguments are one call, such as '{ctx.context.thread_id}'"
            )
        hints = _hints(function)
        if payload is ALL:
            names = list(inspect.signature(function).parameters)
            own = [name for name in names if not _is_added(hints.get(name))]
            payload = own[1:] if own[:1] and own[0] in ("self", "cls") else own
        elif payload is None and run is not None:
            raise ValueError("payload=None: then all calls of a run would be one; give key=")
        self.once, self.function, self.told = once, function, told or (lambda text: text)
        self.is_of_run = run is not None
        named = key if key is not None else run
        assert named is not None
        self.arguments = _keys.Arguments(function, named, payload)
        if run is not None:
            more = {"retention": "10m", **more}
        self.words = Words(function.__name__, RUN_KEY if run is not None else _keys.named_in(named))
        more["scope"] = default_scope(function) if scope is None else scope
        self.options = ToolOptions(self.words, tell_model, hints.get("return"), more)
        once._claim_scope(self.options.scope, function)

    def members(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
        bound = self.arguments.bind(args, kwargs)
        text = self.arguments.key_of(args, kwargs, bound)
        compared = self.arguments.payload_of(args, kwargs, bound)
        if self.is_of_run:
            data = compared.get("payload_json")
            digest = compared["fingerprint"] if data is None else f"sha256:{hashlib.sha256(data.encode()).hexdigest()}"
            text, compared = _keys.whole_key([text, digest]), {}
        _refuse_own(self.options.scope, text)
        return self.once._members(self.options, text, compared)

    def instead(self, error: OnceError, has_run: bool) -> Any:
        """What is returned for an error of once. One of the work's own is raised."""
        told = self._told_later(error) if has_run else self._told_before(error)
        if told is None:
            raise error
        return self.told(told)

    def _told_before(self, error: OnceError) -> Optional[Told]:
        told = self.words.told
        if isinstance(error, InProgress):
            return told("in-progress")
        if isinstance(error, KeyReused):
            return told("mismatch")
        if isinstance(error, OutcomeUnknown):
            return told("unknown", BEGAN)
        if isinstance(error, StoredFailure):
            return told("failed", error.message or error.code)
        if isinstance(error, (ResultNotKept, ResultUnreadable)):
            return told("not-kept")
        if isinstance(error, KeyMissing):
            return told("refused", NO_RUN if self.is_of_run else NO_KEY.format(key=json.dumps(self.words.key, ensure_ascii=False)))
        if isinstance(error, (Unavailable, Refused)):
            log.error("the tool '%s' was not called: %s", self.function.__name__, error)
            return told("unavailable") if isinstance(error, Unavailable) else told("refused", "the store refused it")
        return None

    def _told_later(self, error: OnceError) -> Optional[Told]:
        if isinstance(error, (ClaimLost, Unrecorded)):
            log.error("%s", error)
            return self.words.told("unknown", "its claim was lost while it ran")
        return None

    def wrapped(self) -> Callable[..., Any]:
        function, options, once = self.function, self.options, self.once
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                if _is_disabled(options.scope):
                    return await function(*args, **kwargs)
                has_run = False

                async def work(claim: Any) -> Any:
                    nonlocal has_run
                    has_run = True
                    result = await function(*args, **kwargs)
                    if _is_pause(result):
                        await claim.release("it asks for input")
                    return result

                try:
                    return await once._run_async(options, self.members(args, kwargs), work)
                except OnceError as error:
                    return self.instead(error, has_run)

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_disabled(options.scope):
                return function(*args, **kwargs)
            has_run = False

            def work(claim: Any) -> Any:
                nonlocal has_run
                has_run = True
                result = function(*args, **kwargs)
                if _is_pause(result):
                    claim.release("it asks for input")
                return result

            try:
                return once._run(options, self.members(args, kwargs), work)
            except OnceError as error:
                return self.instead(error, has_run)

        return call


def wrapped(once: Once, function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    return _Tool(once, function, *given).wrapped()
