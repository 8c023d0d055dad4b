"""idemkit_method.py URL: idemkit's decorator on PostgreSQL as one of the clients of rivals.py."""
import asyncio
import os
import sys
import warnings

import work
from idemkit import MethodConfig, PostgresBackend, idempotent

warnings.simplefilter("ignore", UserWarning)  # That there is one tenant only, and that the lease is short.


async def main():
    backend = PostgresBackend.from_url(sys.argv[1], min_size=1, max_size=4)
    loop = asyncio.get_running_loop()
    asks = work.asks()
    while ask := await loop.run_in_executor(None, next, asks, None):
        lease_s = ask["lease_ms"] / 1000

        @idempotent(backend=backend, config=MethodConfig(key_fields=["order"], lease_ttl_seconds=lease_s,
                                                         wait_timeout_seconds=lease_s))
        async def charge(*, order, ask=ask):
            # As work.work(), but it awaits, so that the library can renew its lease and cancel it.
            work.note(ask, "begun")
            if ask["acts"] == "first":
                work.note(ask, "effect")
            for _ in range(ask["work_ms"] // work.SLICE_MS):
                await asyncio.sleep(work.SLICE_MS / 1000)
            if ask["acts"] == "last":
                work.note(ask, "effect")
            return f"{ask['by']}:{os.getpid()}"

        try:
            work.say(told=await charge(order=ask["key"]))
        except Exception as error:  # Whatever it raises is the answer.
            work.say(error=type(error).__name__, why=str(error)[:200])


asyncio.run(main())
