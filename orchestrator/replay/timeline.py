"""A recording as the messages that a watch would have got, each at its time. No clock.

The log has no times of its own: its bytes are spread evenly over the attempt, and the last comes before the
end. Where nothing happened the guest's answers to pings are put in, as they would have come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.observe.parse import instant
from orchestrator.types.seen import HostLine
from orchestrator.wire import Message, pack_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orchestrator.replay.recording import RecordedAttempt, Recording

PING_S = 10.0
MAX_PINGS = 2_000  # in one silence: what a longer one shows was shown by then
_FILES = (
    ("environment", "environment.json"),
    ("heartbeat", "heartbeat.json"),
    ("last_words", "error.json"),
    ("result", "result.json"),
)
_NO_TIME = datetime(2000, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What came at one time: a message of the guest, and the host's kernel lines up to then."""

    at: datetime
    attempt: int
    message: Message
    host_lines: tuple[HostLine, ...] = ()


@dataclass(kw_only=True)
class _Span:
    """When an attempt began and ended, and what came meanwhile."""

    attempt: int
    begin: datetime
    end: datetime
    on_disk: int | None = None  # the newest checkpoint at its end
    told: list[tuple[datetime, Message]] = field(default_factory=list)

    def tell(self, at: object, kind: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON
        """Put in a message; a time that is none, or lies outside the attempt, becomes the nearest one."""
        when = _instant(at) or self.begin
        when = min(max(when, self.begin), self.end)
        self.told.append((when, {"type": kind, "attempt": self.attempt, **fields}))


def moments(recording: Recording) -> Iterator[Moment]:
    """Yield what happened, in order, attempt by attempt.

    Raises:
        ConfigError: A file of the recording is not what it should be.
    """
    for place, attempt in enumerate(recording.attempts):
        after = recording.attempts[place + 1] if place + 1 < len(recording.attempts) else None
        span = _span(recording, attempt, after)
        _fill(span, recording, attempt, after)
        span.told.sort(key=lambda told: told[0])  # stable: at one time as they were put in
        _end(span, recording, attempt, after)
        rows = [(_instant(row.get("at")) or span.begin, row) for row in attempt.lines("kernel.jsonl")]
        to_come = [_host_line(when, row) for when, row in sorted(rows, key=lambda row: row[0], reverse=True)]
        seen: tuple[HostLine, ...] = ()
        for at, told in _with_pings(span.told):
            while to_come and (to_come[-1].at or at) <= at:
                seen = (*seen, to_come.pop())
            message = told
            if "piece" in told:  # only now, so that a large log is not held as a whole
                message = {**told, "data": pack_bytes(attempt.log_bytes(told["piece"]))}
            yield Moment(at=at, attempt=attempt.number, message=message, host_lines=seen)


def _span(recording: Recording, attempt: RecordedAttempt, after: RecordedAttempt | None) -> _Span:
    info, known = attempt.read("attempt.json") or {}, attempt.known
    exit_ = attempt.read("exit.json") or {}
    metrics = attempt.lines("metrics.jsonl")
    first = metrics[0].get("at") if metrics else None
    last = metrics[-1].get("at") if metrics else None
    next_info = (after.read("attempt.json") or {}) if after is not None else {}
    begin = _first(info.get("started_at"), known.get("started_at"), first, exit_.get("at"))
    end = _first(
        exit_.get("at"), known.get("ended_at"), next_info.get("started_at"), recording.recorded_at, last
    )
    begin = begin or end or _NO_TIME
    # That of the newest attempt was looked up when it was recorded; the record knows those that ended.
    looked = recording.meta.get("checkpoint_step") if after is None else None
    steps = (looked, known.get("checkpoint_step"))
    on_disk = next((each for each in steps if isinstance(each, int)), None)
    return _Span(attempt=attempt.number, begin=begin, end=max(begin, end or begin), on_disk=on_disk)


def _fill(span: _Span, recording: Recording, attempt: RecordedAttempt, after: RecordedAttempt | None) -> None:
    info = attempt.read("attempt.json")
    span.tell(span.begin, "hello", now=span.begin.timestamp(), **_identity(info))
    pids = [info["trainer_pid"]] if info and isinstance(info.get("trainer_pid"), int) else [1]
    alive = {"lock_held": True, "pids": pids, "supervisor": True, "session": True}
    _tell_run(span, span.begin, attempt, alive, stop=None)
    slices = attempt.log_slices()
    total, done = sum(piece.size for piece in slices), 0
    for piece in slices:
        done += piece.size
        at = span.begin + (span.end - span.begin) * (done / total)
        span.tell(at, "log", offset=piece.at, piece=piece)
    for place, row in enumerate(attempt.lines("metrics.jsonl")):
        span.tell(row.get("at"), "metrics", offset=place, next_offset=place + 1, lines=[row])
    for row in attempt.lines("gpus.jsonl"):
        span.tell(row.get("at"), "gpu", gpus=row.get("gpus"), source=row.get("source", "nvml"))
    for kind, name in _FILES:
        if (value := attempt.read(name)) is not None:
            span.tell(value.get("at"), kind, value=value)
    stop = _stop(recording, attempt, after)
    if stop is not None:
        _tell_run(span, stop.get("at"), attempt, alive, stop)


def _end(span: _Span, recording: Recording, attempt: RecordedAttempt, after: RecordedAttempt | None) -> None:
    """Put in how it ended, after all else, or that it had not; nothing, where nobody knows."""
    exit_, alive = attempt.read("exit.json"), recording.meta.get("alive")
    if exit_ is None and recording.meta.get("unreached"):  # it may be there, where nobody could look
        return
    is_gone = exit_ is not None or after is not None
    if not is_gone and isinstance(alive, dict):
        is_gone = not alive.get("lock_held") and not alive.get("pids")
    if not is_gone:
        if isinstance(alive, dict):  # it was seen alive when it was recorded
            span.tell(span.end, "pong")
        return
    identity = after.read("attempt.json") if after is not None else recording.meta.get("container")
    if isinstance(identity, dict) and _identity(identity)["boot_id"] is not None:
        span.tell(span.end, "hello", now=span.end.timestamp(), **_identity(identity))
    if exit_ is not None:
        span.tell(span.end, "exit", value=exit_)
    gone = {"lock_held": False, "pids": [], "supervisor": False, "session": True}
    _tell_run(span, span.end, attempt, gone, _stop(recording, attempt, after))


def _tell_run(
    span: _Span, at: object, attempt: RecordedAttempt, alive: dict[str, Any], stop: dict[str, Any] | None
) -> None:
    span.tell(
        at,
        "run",
        spec=attempt.read("run.json"),
        attempt_info=attempt.read("attempt.json"),
        alive=alive,
        stop=stop,
        checkpoint_step=span.on_disk,
    )


def _stop(
    recording: Recording, attempt: RecordedAttempt, after: RecordedAttempt | None
) -> dict[str, Any] | None:
    """Return who stopped it: by the run's own stop.json, or else by the record's row of the attempt."""
    told = recording.meta.get("stop") if after is None else None
    stop = told if isinstance(told, dict) else attempt.known.get("stop")
    return stop if isinstance(stop, dict) and stop.get("attempt") in (None, attempt.number) else None


def _identity(info: dict[str, Any] | None) -> dict[str, Any]:
    return {key: (info or {}).get(key) for key in ("boot_id", "pid1_start_ticks")}


def _with_pings(told: Iterable[tuple[datetime, Message]]) -> Iterator[tuple[datetime, Message]]:
    before: datetime | None = None
    for at, message in told:
        for count in range(1, MAX_PINGS + 1):
            due = before + timedelta(seconds=count * PING_S) if before is not None else at
            if due >= at:
                break
            yield due, {"type": "pong"}
        yield at, message
        before = at


def _host_line(at: datetime, row: dict[str, Any]) -> HostLine:
    gpu = row.get("gpu")
    return HostLine(text=str(row.get("line") or ""), at=at, gpu=gpu if isinstance(gpu, int) else None)


def _first(*texts: object) -> datetime | None:
    return next((at for text in texts if (at := _instant(text)) is not None), None)


def _instant(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return instant(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
