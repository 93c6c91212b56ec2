"""What is known of one attempt, as its files came over the stream."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.classify import CustomReader, LogScanner
from orchestrator.observe import parse
from orchestrator.observe.gputrack import GpuTrack
from orchestrator.observe.logtrack import LogTrack
from orchestrator.types.seen import Absent, ExitRecord, Heartbeat, LastWords, Phase, Present, Reading
from orchestrator.wire import Message, finite_number, unpack_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from orchestrator.types.failure import Evidence
    from orchestrator.types.snapshot import LogReading
    from orchestrator.userrules import CustomRule

_PHASE_WINDOW = 20
_STEP_WINDOW = 50


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What one message brought that a person or the record wants."""

    attempt: int | None = None  # a new newest attempt
    of: int | None = None  # the attempt that the log or metrics are of
    log: bytes = b""
    log_offset: int = 0
    is_log_anew: bool = False  # somebody emptied the log: what was told of it before is no part of it
    metrics: tuple[dict[str, Any], ...] = ()
    predictions: tuple[Evidence, ...] = ()
    heartbeat: bool = False
    environment: bool = False


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
    rules: Sequence[CustomRule] = ()  # the rules of the user's own that the log is read for
    custom: CustomReader = field(init=False)
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

    def __post_init__(self) -> None:
        self.custom = CustomReader(self.rules)

    def log_reading(self) -> LogReading:
        """Return what the log showed; worked out once for every new byte, not for every look."""
        if self._reading is None or self._reading[0] != self.log_offset:
            reading = replace(self.scanner.reading(), custom=self.custom.matches())
            self._reading = (self.log_offset, reading)
        return self._reading[1]

    @property
    def began_at(self) -> datetime | None:
        """When its supervisor started it, by the container's clock; None while that is not known."""
        started = self.info.get("started_at") if self.info else None
        if isinstance(started, str):
            with suppress(ValueError, OverflowError):  # what is no time is not known, and no fault of ours
                return parse.instant(started)
        return None

    def take(self, message: Message, now: datetime) -> Sighting:
        """Take in one message of this attempt's files.

        Raises:
            LookupError, TypeError, ValueError: It is not what the wire's contract says.
        """
        kind, value = message["type"], message.get("value")
        if kind == "log":
            return self._take_log(message, now)
        if kind == "metrics":
            self.metrics_offset = int(message.get("next_offset") or message["offset"])
            rows = tuple(message["lines"])
            self._note_steps(rows, now)
            return Sighting(of=self.number, metrics=rows)
        if kind == "heartbeat":
            fresh = parse.reading(value, parse.heartbeat, "heartbeat.json")
            if isinstance(fresh, Present):
                self._beat(fresh.value, now)
            self.heartbeat = fresh
            return Sighting(heartbeat=True)
        if kind == "exit":
            self.exit = parse.reading(value, parse.exit_record, "exit.json")
        elif kind == "last_words":
            self.last_words = parse.reading(value, parse.last_words, "error.json")
        elif kind == "result":
            self.result = parse.reading(value, dict, "result.json")
        elif kind == "environment":
            self.environment = value
            return Sighting(environment=True)
        return Sighting()

    def _take_log(self, message: Message, now: datetime) -> Sighting:
        data, offset = unpack_bytes(message["data"]), int(message["offset"])
        is_anew = message.get("anew") is True
        if is_anew:
            self._begin_log_anew()
        # After a reconnect the guest begins where we asked; what overlaps was seen already.
        seen = self.log_offset - offset
        if seen > 0:
            data, offset = data[seen:], self.log_offset
        if not data:
            return Sighting()
        predictions = self.scanner.feed(data, offset)
        self.custom.feed(data, offset)
        self.log_offset = offset + len(data)
        self.log_grew_at = now
        self.log_track.grew(len(data), now)
        return Sighting(
            of=self.number, log=data, log_offset=offset, is_log_anew=is_anew, predictions=predictions
        )

    def _begin_log_anew(self) -> None:
        """Somebody emptied the log: what it shows is what is in it now."""
        self.log_offset, self._reading = 0, None
        self.scanner, self.custom = LogScanner(), CustomReader(self.rules)

    def _note_steps(self, rows: tuple[Mapping[str, Any], ...], now: datetime) -> None:
        for row in rows:
            if isinstance(row.get("step"), int) and not isinstance(row["step"], bool):
                self.told_step(row["step"], now)
            step_s = finite_number(row.get("step_s")) if row.get("kind") == "train" else None
            if step_s is not None:
                self.step_times.append(step_s)
        del self.step_times[:-_STEP_WINDOW]

    def _beat(self, fresh: Heartbeat, now: datetime) -> None:
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
