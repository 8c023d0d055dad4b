"""The clock by which leases are measured: it runs while the machine is suspended, and is never set."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
if _CLOCK is None:
    _CLOCK = getattr(time, "CLOCK_MONOTONIC", None)  # On macOS it runs during suspend too.


def uptime() -> float:
    """Seconds since some moment."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
