"""The guest's clock; no other module of the guest reads it or waits."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now() -> str:
    """RFC 3339 UTC with microseconds, as every file of ours has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251


def epoch() -> float:
    """Seconds since 1970, for the near side to measure the clocks' difference."""
    return time.time()  # noqa: TID251


def ticking() -> float:
    """Seconds that only grow; a container's clock may be set."""
    return time.monotonic()


def wait(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)  # noqa: TID251
