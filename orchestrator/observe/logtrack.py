"""When one attempt's log grew, and how often it told another step. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.types.snapshot import LogPace

if TYPE_CHECKING:
    from datetime import datetime, timedelta

_WINDOW = 50
# The guest sends what it finds in large pieces: so much at a time is the past being read, and says nothing
# of how fast it was written.
PAST_BYTES = 64 << 10


@dataclass
class LogTrack:
    """One attempt's, by the near clock; bounded."""

    _quiet_since: datetime | None = None
    _pause_s: float = 0.0
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _mark: float | None = None
    _stepped_at: datetime | None = None  # None: not watched, so the next interval is not known
    _is_past: bool = False

    @property
    def tells_steps(self) -> bool:
        """Whether the log told a step at all."""
        return self._mark is not None

    def begin(self, now: datetime) -> None:
        """The attempt is seen for the first time."""
        self._quiet_since = now

    def grew(self, num_bytes: int, now: datetime) -> None:
        """The log has grown by so much."""
        self._is_past = num_bytes >= PAST_BYTES
        if self._quiet_since is not None and not self._is_past:
            self._pause_s = max(self._pause_s, (now - self._quiet_since).total_seconds())
        self._quiet_since = now

    def told(self, mark: float | None, now: datetime) -> None:
        """The newest step line counts `mark`; another one than before is progress, a smaller one too."""
        if mark is None or mark == self._mark:
            return
        if self._stepped_at is not None and not self._is_past:
            self._intervals.append((now - self._stepped_at).total_seconds())
        is_late = self._mark is None or self._is_past  # nobody knows how long the first one was there
        self._mark, self._stepped_at = mark, None if is_late else now

    def forgive(self, gap: timedelta) -> None:
        """Nobody watched for so long, or the clock was set."""
        self._quiet_since = self._quiet_since + gap if self._quiet_since is not None else None
        self._stepped_at = None

    def pace(self) -> LogPace:
        """Return what a diagnosis needs of it."""
        return LogPace(
            quiet_since=self._quiet_since,
            num_steps=len(self._intervals),
            step_s=median(self._intervals) if self._intervals else None,
            pause_s=self._pause_s,
        )
