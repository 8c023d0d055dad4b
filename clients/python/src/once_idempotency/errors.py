"""What a call may raise. Each error has a `word`, the same in every client and in the server's problems."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Type


class OnceError(Exception):
    """The base of all errors here. `word` is for programs, the text for people."""

    word = "error"

    def __reduce__(self) -> Any:
        """Errors pass between processes, by pickle or by what a queue of tasks does, with all that they hold."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: Type[OnceError], args: Tuple[Any, ...], held: Dict[str, Any]) -> OnceError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(held)
    return error


class KeyMissing(OnceError):
    """The call has no key, or a part of it is missing. Nothing ran."""

    word = "key-missing"


class InProgress(OnceError):
    """Another caller runs the operation, and did not finish within `wait`. Nothing ran here.

    `retry_after_s` says when it is worth asking again.
    """

    word = "in-progress"

    def __init__(self, message: str, retry_after_s: float = 1.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class KeyReused(OnceError):
    """The key was used with another payload. Nothing ran."""

    word = "key-reused"


class OutcomeUnknown(OnceError):
    """The operation began, and its outcome is not known. It is not run again until an operator has decided."""

    word = "outcome-unknown"


class ClaimLost(OnceError):
    """The lease ended while the work ran, and no result is stored. What the work has done is not recorded."""

    word = "claim-lost"


class Unavailable(OnceError):
    """No server, or no store. Nothing ran, if the call's begin raises it; the text says so. `Unrecorded` and
    `claim.check()` are of work that runs."""

    word = "unavailable"


class Unrecorded(Unavailable):
    """The work ran, and its end could not be recorded within a lease. Raised only with `on_unrecorded="raise"`."""

    word = "unrecorded"


class Refused(OnceError):
    """The server refused the request: a value out of its range, or a wrong token. `status` and `reason` say more, and
    the text whether the work ran: a finish may be refused too."""

    word = "refused"

    def __init__(self, message: str, status: int = 0, reason: str = ""):
        super().__init__(message)
        self.status = status
        self.reason = reason


class StoredFailure(OnceError):
    """The operation failed before, and that failure is its result. It did not run again."""

    word = "failed"

    def __init__(self, code: str, message: str = "", result: Optional[bytes] = None, content_type: str = ""):
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.result = result
        self.content_type = content_type

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class ResultNotKept(OnceError):
    """The operation ran, and its result was too large to keep, or was not JSON. It is not run again."""

    word = "result-not-kept"


class ResultUnreadable(OnceError):
    """The operation ran, and its result is not what this function can read. `body` has it."""

    word = "result-unreadable"

    def __init__(self, message: str, body: bytes = b"", content_type: str = ""):
        super().__init__(message)
        self.body = body
        self.content_type = content_type


class StepReused(OnceError):
    """The step was finished before with another result: a step's name is used once."""

    word = "step-reused"


class TooLarge(OnceError):
    """The record has no room for this step."""

    word = "too-large"


class Replayed(OnceError):
    """Not an error: the block of `with once.claim(...)` is not entered, because the operation ran. `result` has it."""

    word = "replayed"

    def __init__(self, result: Any):
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return "the operation ran before; its result is in `result`"
