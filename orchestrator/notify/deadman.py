"""The ping that stops when the watch no longer sees: somebody else then raises the alarm."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Protocol

from orchestrator.types.failure import RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.errors import Exit
    from orchestrator.types.failure import Diagnosis
    from orchestrator.types.seen import Liveness, Reading

FRESH_S = 30.0  # a stream sends something every few seconds
TIMEOUT_S = 10.0
_UNSEEN = frozenset({RunState.BLIND, RunState.CONTAINER_STOPPED, RunState.CONTAINER_FROZEN})


class _Tracker(Protocol):
    @property
    def liveness(self) -> Reading[Liveness]: ...
    @property
    def looked_at(self) -> datetime | None: ...


class _Run(Protocol):
    @property
    def tracker(self) -> _Tracker: ...
    @property
    def diagnosis(self) -> Diagnosis | None: ...
    @property
    def ended(self) -> Exit | None: ...


class Runs(Protocol):
    """The watched runs, each with what says whether it was really seen."""

    @property
    def runs(self) -> Sequence[_Run]:
        """All of them."""
        ...


def saw_all(runs: Sequence[_Run], now: datetime) -> bool:
    """Whether this pass saw every run that is not over; a stopped or frozen container hides what is in it."""
    return all(run.ended is not None or _is_seen(run, now) for run in runs)


def _is_seen(run: _Run, now: datetime) -> bool:
    looked_at, diagnosis = run.tracker.looked_at, run.diagnosis
    if looked_at is None or diagnosis is None or diagnosis.state in _UNSEEN:
        return False
    return isinstance(run.tracker.liveness, Present) and abs((now - looked_at).total_seconds()) <= FRESH_S


def ping(url: str) -> str | None:
    """Ping; return why it did not go, without the URL, or None."""
    request = urllib.request.Request(url, headers={"User-Agent": "dflashctl"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
        is_known = isinstance(reason, OSError) and reason.strerror
        return str(reason.strerror) if isinstance(reason, OSError) and is_known else type(reason).__name__
    except (OSError, http.client.HTTPException, ValueError) as error:
        return type(error).__name__
    return None
