"""Operations that run once, however often they are called: a client of `once serve`.

    from once_idempotency import Once

    once = Once("sqlite:payments.db")

    @once.idempotent(key="{order_id}")
    def charge(order_id, cents): ...

The first call with a key runs the function, and its result is kept in the store. Every later call gets that result, from
any thread, process or host. If there is no server, or no key, the call raises, and nothing runs.
"""

from ._client import (
    AsyncClaim,
    Claim,
    Once,
    commit,
    commit_async,
    current_async_claim,
    current_claim,
    default_once,
    idempotent,
)
from ._words import Told
from .errors import (
    ClaimLost,
    InProgress,
    KeyMissing,
    KeyReused,
    OnceError,
    OutcomeUnknown,
    Refused,
    Replayed,
    ResultNotKept,
    ResultUnreadable,
    StepReused,
    StoredFailure,
    TooLarge,
    Unavailable,
    Unrecorded,
)

__version__ = "0.0.0"  # tools/client-packages writes that of CMakeLists.txt.
__all__ = [
    "AsyncClaim",
    "Claim",
    "ClaimLost",
    "InProgress",
    "KeyMissing",
    "KeyReused",
    "Once",
    "OnceError",
    "OutcomeUnknown",
    "Refused",
    "Replayed",
    "ResultNotKept",
    "ResultUnreadable",
    "StepReused",
    "StoredFailure",
    "Told",
    "TooLarge",
    "Unavailable",
    "Unrecorded",
    "commit",
    "commit_async",
    "current_async_claim",
    "current_claim",
    "default_once",
    "idempotent",
]
