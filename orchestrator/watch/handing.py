"""A relaunch that was cut between its stop and its start: whoever watches the run finishes it, or says so.

Nobody can know of another machine's process that it is dead. So it gets the time that a start may take, and
if it lives all the same, the attempt's number lets one of the two start it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.act import START_TIMEOUT_S, is_gone
from orchestrator.errors import ConfigError
from orchestrator.handover import handover_of
from orchestrator.launch import DEFAULT_STOP_GRACE_S, RELAUNCH_REASON
from orchestrator.types.decision import ActKind, Decision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Any

    from orchestrator.types.snapshot import Snapshot

LIMIT = timedelta(seconds=90)  # the call that starts it may take 60 s
# Who only looks waits for another to finish it, who may begin at that limit.
OTHERS = LIMIT + timedelta(seconds=START_TIMEOUT_S)
GONE = timedelta(seconds=2)  # it is certainly dead: what it did last shows by then


class Handing:
    """One run's."""

    def __init__(self) -> None:
        self.is_due = False  # it is to be finished here
        self._stopped_since: datetime | None = None
        self._lives_since: datetime | None = None
        self._is_told = False

    def begin(self) -> None:
        """A new attempt was seen: nothing is waited for."""
        self.is_due, self._stopped_since, self._lives_since, self._is_told = False, None, None, False

    def decide(self, stop: Mapping[str, Any] | None, now: datetime, *, acting: bool) -> Decision | None:
        """Return what to do about one stopped for another that does not come; None while it may."""
        try:
            handover = handover_of(stop)
        except ConfigError as error:
            return self._call(now, f": {error.message}")
        if handover is None:
            return self._call(now, "")
        wait = OTHERS if not acting else GONE if is_gone(handover.actor) else LIMIT
        if not self._is_stopped_for(wait, now):
            return None
        self.is_due = True
        reason = "its user asked for a relaunch, which was cut after the stop"
        return Decision(kind=ActKind.RELAUNCH, reason=reason)

    def lives_on(self, spec: Mapping[str, Any] | None, snapshot: Snapshot) -> str | None:
        """Return words about an attempt that lives though it was to be stopped for a relaunch; once."""
        if snapshot.stop_by != "user" or snapshot.stop_reason != RELAUNCH_REASON:
            self._lives_since = None
            return None
        grace_s = (spec or {}).get("stop_grace_s")
        grace = timedelta(seconds=grace_s if isinstance(grace_s, (int, float)) else DEFAULT_STOP_GRACE_S)
        self._lives_since = _earlier(self._lives_since, snapshot.now)
        if self._is_told or snapshot.now - self._lives_since < grace + LIMIT:
            return None
        self._is_told = True
        return (
            f"attempt {snapshot.attempt} was to be stopped for a relaunch, which was cut; it lives on: "
            "`dflashctl relaunch` asks for it again"
        )

    def _call(self, now: datetime, why: str) -> Decision | None:
        if not self._is_stopped_for(LIMIT, now):
            return None
        reason = f"it was stopped for a relaunch that did not come{why}; `dflashctl relaunch` starts it"
        return Decision(kind=ActKind.CALL, reason=reason)

    def _is_stopped_for(self, wait: timedelta, now: datetime) -> bool:
        self._stopped_since = _earlier(self._stopped_since, now)
        return now - self._stopped_since >= wait


def _earlier(since: datetime | None, now: datetime) -> datetime:
    """Return since when; a clock that was set back begins it anew."""
    return now if since is None else min(since, now)
