"""What is known of one attempt, as its files came over the stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.classify import CustomReader, LogScanner
from orchestrator.observe.gputrack import GpuTrack
from orchestrator.observe.logtrack import LogTrack
from orchestrator.types.seen import Absent, ExitRecord, Heartbeat, LastWords, Phase, Present, Reading

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from orchestrator.types.snapshot import LogReading

_PHASE_WINDOW = 20


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
    custom: CustomReader = field(default_factory=CustomReader)
    heartbeat_seen_at: datetime | None = None
    log_grew_at: datetime | None = None
    first_step: int | None = None
    step_times: list[float] = field(default_factory=list)
    phase_times: dict[Phase, list[float]] = field(default_factory=dict)  # of phases that ended, newest last
    gpu_track: GpuTrack = field(default_factory=GpuTrack)
    log_track: LogTrack = field(default_factory=LogTrack)
    step_seen_at: datetime | None = None
    _told_step: int | None = None
    _phase_since: datetime | None = None
    _reading: tuple[int, LogReading] | None = None

    def log_reading(self) -> LogReading:
        """Return what the log showed; worked out once for every new byte, not for every look."""
        if self._reading is None or self._reading[0] != self.log_offset:
            reading = replace(self.scanner.reading(), custom=self.custom.matches())
            self._reading = (self.log_offset, reading)
        return self._reading[1]

    def log_begins_anew(self, custom: CustomReader) -> None:
        """Somebody emptied the log: what it shows is what is in it now."""
        self.log_offset, self._reading = 0, None
        self.scanner, self.custom = LogScanner(), custom

    def beat(self, fresh: Heartbeat, now: datetime) -> None:
        """A heartbeat came: note whether step or phase moved, and how long a phase took that ended."""
        before = self.heartbeat.value if isinstance(self.heartbeat, Present) else None
        if before is None or (before.phase, before.step) != (fresh.phase, fresh.step):
            self.heartbeat_seen_at = now
            self.gpu_track.moved(now)
        if before is not None and before.phase is not fresh.phase:
            if self._phase_since is not None:
                times = self.phase_times.setdefault(before.phase, [])
                times.append((now - self._phase_since).total_seconds())
                del times[:-_PHASE_WINDOW]
            self._phase_since = now  # the first phase seen had begun before: its length is not known
        if self.first_step is None and fresh.phase is Phase.TRAIN:
            self.first_step = fresh.resumed_from_step or 0

    def told_step(self, step: int | None, now: datetime) -> None:
        """The log or the metrics told a step: progress, though the heartbeat may not say so."""
        if step is None or (self._told_step is not None and step <= self._told_step):
            return
        self._told_step, self.step_seen_at = step, now
        self.gpu_track.moved(now)

    def forgive(self, gap: timedelta) -> None:
        """Nobody watched for so long, or the clock was set: that time counts for no hang."""
        for name in ("heartbeat_seen_at", "log_grew_at", "step_seen_at", "_phase_since"):
            seen = getattr(self, name)
            if seen is not None:
                setattr(self, name, seen + gap)
        self.log_track.forgive(gap)
