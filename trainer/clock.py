"""The only place that reads the wall clock."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> str:
    """The present as RFC 3339 UTC with microseconds, such as `2026-11-29T19:31:31.000000Z`."""
    now = datetime.now(timezone.utc)  # noqa: TID251 - this module owns the clock
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
