"""When a run has its turn. Pure.

A large watch that diagnosed every run at every turn would do nothing else. What may be a death is looked at
in the turn in which it comes.
"""

from __future__ import annotations

from datetime import datetime, timedelta

CALM_TURN_S = 0.5  # of a run that lives and says nothing but steps
CALM_WORDS = frozenset({"log", "metrics", "gpu", "disk", "pong"})  # no news of life or death
_NOTHING = timedelta(0)


class Pace:
    """One run's. Instants are of the wall clock, which may be set back."""

    def __init__(self) -> None:
        self._is_touched = True
        self._turned_at: datetime | None = None
        self._seen_at: datetime | None = None

    def touch(self, kind: str = "") -> None:
        """Something came that the next turn must look at, if it is no calm word."""
        self._is_touched = self._is_touched or kind not in CALM_WORDS

    def is_due(self, now: datetime, *, is_calm: bool) -> bool:
        """Whether the run has its turn now; a calm one has it every CALM_TURN_S."""
        turned_s = abs((now - self._turned_at).total_seconds()) if self._turned_at is not None else None
        if is_calm and not self._is_touched and turned_s is not None and turned_s < CALM_TURN_S:
            return False
        self._is_touched, self._turned_at = False, now
        return True

    def set_back_by(self, now: datetime) -> timedelta:
        """Return by how much the clock was set back since the last call; zero if it was not."""
        before, self._seen_at = self._seen_at, now
        return max(_NOTHING, before - now) if before is not None else _NOTHING
