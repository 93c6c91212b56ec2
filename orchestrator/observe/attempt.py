"""What is known of one attempt, as its files came over the stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.classify import LogScanner
from orchestrator.types import Absent, ExitRecord, Heartbeat, LastWords, LogReading, Reading

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(kw_only=True)
class AttemptView:
    """What is known of one attempt."""

    number: int
    seen_at: datetime | None = None  # first, by the near clock
    log_offset: int = 0
    metrics_offset: int = 0
    heartbeat: Reading[Heartbeat] = field(default_factory=Absent)
    exit: Reading[ExitRecord] = field(default_factory=Absent)
    last_words: Reading[LastWords] = field(default_factory=Absent)
    result: Reading[dict[str, Any]] = field(default_factory=Absent)
    environment: dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    scanner: LogScanner = field(default_factory=LogScanner)
    heartbeat_seen_at: datetime | None = None
    log_grew_at: datetime | None = None
    first_step: int | None = None
    step_times: list[float] = field(default_factory=list)
    _reading: tuple[int, LogReading] | None = None

    def log_reading(self) -> LogReading:
        """Return what the log showed; worked out once for every new byte, not for every look."""
        if self._reading is None or self._reading[0] != self.log_offset:
            self._reading = (self.log_offset, self.scanner.reading())
        return self._reading[1]

    def forgive(self, gap: timedelta) -> None:
        """Nobody watched for so long: that time counts for no hang."""
        if self.heartbeat_seen_at is not None:
            self.heartbeat_seen_at += gap
        if self.log_grew_at is not None:
            self.log_grew_at += gap
