"""The telling half of a run's watch: lines of the log, diagnoses, decisions and blindness, each told once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.durations import format_duration
from orchestrator.masking import Masker
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState
from orchestrator.watch.events import Level, Sink, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.record import Record, RunRow
    from orchestrator.types.seen import Heartbeat

_LEVELS = {
    RunState.HEALTHY: Level.INFO,
    RunState.ENDING: Level.INFO,
    RunState.FINISHED: Level.GOOD,
    RunState.DEAD: Level.BAD,
    RunState.HUNG: Level.BAD,
    RunState.BLIND: Level.WARNING,
    RunState.UNSUPERVISED: Level.WARNING,
    RunState.CONTAINER_STOPPED: Level.WARNING,
    RunState.CONTAINER_FROZEN: Level.WARNING,
}
_SAID_BY_STATE = frozenset({FailureClass.HEALTHY.value, FailureClass.COMPLETED.value})
_MASKED = frozenset({"log", "metrics"})  # by the guest, which knows the values too
_SHAPES = Masker()
MAX_LINE_BYTES = 1 << 16
REMIND_AFTER_S = (30.0, 120.0, 600.0, 3600.0)  # then every hour


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """Return a piece of evidence as plain data."""
    return {key: getattr(value, "value", value) for key, value in asdict(evidence).items()}


@dataclass
class _LogShown:
    """One attempt's log: up to where it was told, and the beginning of a line that has no end yet."""

    offset: int
    partial: bytes = b""


class Teller:
    """Tells one run's events. `attempt` is the newest one seen."""

    def __init__(self, row: RunRow, record: Record, sink: Sink) -> None:
        self.attempt: int | None = None
        self._row = row
        self._record = record
        self._sink = sink
        self._logs: dict[int, _LogShown] = {}
        self._first: int | None = None  # attempt seen; those after it began before our eyes
        self._blind_since: datetime | None = None
        self._blind_why: tuple[str, str] = ("", "")
        self._reminders = 0
        self._guarded: tuple[int, int, int] | None = None

    def emit(
        self,
        kind: str,
        now: datetime,
        text: str,
        *,
        level: Level = Level.INFO,
        detail: Mapping[str, Any] | None = None,
        attempt: int | None = None,
    ) -> None:
        """Tell one thing about this run; a token that a message quotes is starred out."""
        if kind not in _MASKED:
            text, detail = _SHAPES.text(text), _SHAPES.json(dict(detail or {}))
        event = WatchEvent(
            kind=kind,
            at=now,
            run=self._row.name,
            target=self._row.target_key,
            attempt=self.attempt if attempt is None else attempt,
            text=text,
            level=level,
            detail=detail or {},
        )
        self._sink.emit(event)

    def begin(self, attempt: int) -> None:
        """A new newest attempt was seen."""
        self._first = attempt if self._first is None else self._first
        self.attempt = attempt

    # -- the log

    def shown(self, attempt: int) -> int | None:
        """Return up to where the attempt's log was told; None if nothing of it came."""
        return self._logs[attempt].offset if attempt in self._logs else None

    def log(self, attempt: int, data: bytes, offset: int, now: datetime) -> None:
        """Tell whole lines; a watch that was killed and restarted repeats none that were told before."""
        if attempt not in self._logs:
            self._logs[attempt] = _LogShown(self._begin_of(attempt))
        shown = self._logs[attempt]
        hidden = shown.offset - offset
        if hidden >= len(data):
            return
        lines = (shown.partial + data[max(hidden, 0) :]).split(b"\n")
        shown.partial = lines.pop()
        if len(shown.partial) > MAX_LINE_BYTES:
            lines, shown.partial = [*lines, shown.partial], b""
        for line in lines:
            self._line(attempt, line, now)
        shown.offset = offset + len(data) - len(shown.partial)

    def log_anew(self, attempt: int, now: datetime) -> None:
        """The log was emptied: what comes is told from its beginning."""
        self.end_log(attempt, now)
        self._logs[attempt] = _LogShown(0)

    def _begin_of(self, attempt: int) -> int:
        """What another watch tells of an attempt that begins now is no reason to leave it out here."""
        return (
            self._record.cursor(self._row.id, attempt).log_offset
            if attempt <= (self._first or attempt)
            else 0
        )

    def end_log(self, attempt: int, now: datetime) -> None:
        """Tell a last line that has no end: the attempt writes no more."""
        shown = self._logs.get(attempt)
        if shown is not None and shown.partial:
            self._line(attempt, shown.partial, now)
            shown.offset, shown.partial = shown.offset + len(shown.partial), b""

    def _line(self, attempt: int, line: bytes, now: datetime) -> None:
        text = line.rstrip(b"\r").rsplit(b"\r", 1)[-1][:MAX_LINE_BYTES].decode("utf-8", "replace")
        self.emit("log", now, text, level=Level.DETAIL, attempt=attempt)

    # -- the trainer's guard

    def guard(self, attempt: int, beat: Heartbeat, now: datetime) -> None:
        """Tell that the trainer left out a step or went back to a checkpoint, when it did more of it."""
        counts = (attempt, beat.skipped_steps, beat.rollbacks)
        if counts == self._guarded or not beat.guarded:
            return
        self._guarded = counts
        detail = {"skipped_steps": beat.skipped_steps, "rollbacks": beat.rollbacks, "step": beat.step}
        text = f"{beat.guarded}, the training goes on"
        self.emit("guard", now, text, level=Level.WARNING, detail=detail, attempt=attempt)

    # -- blindness

    def lost(self, code: str, reason: str, now: datetime, *, was_seen: bool) -> None:
        """The stream broke. Told here only before the first look; afterwards the diagnosis tells it."""
        is_news = self._blind_since is None or code != self._blind_why[0]
        self._blind_since = self._blind_since or now
        self._blind_why = (code, reason)
        if is_news and not was_seen:
            text = f"could not look: {reason}; this says nothing about the run"
            self.emit("blind", now, text, level=Level.WARNING)

    def still_blind(self, now: datetime, looked_at: datetime | None) -> None:
        """Tell from time to time for how long nothing has been seen."""
        if self._blind_since is None:
            return
        age_s = (now - self._blind_since).total_seconds()
        if age_s < _remind_after(self._reminders):
            return
        while age_s >= _remind_after(self._reminders):  # one word, though the clock jumped over several
            self._reminders += 1
        text = f"blind for {format_duration(round(age_s))}: {self._blind_why[1]}{_last_look(looked_at, now)}"
        self.emit("blind", now, text, level=Level.WARNING, detail={"blind_s": round(age_s, 3)})

    def sees(self, now: datetime) -> str:
        """The stream is back; returns for how long it was not, in words."""
        since, self._blind_since, self._reminders = self._blind_since, None, 0
        return (
            f"; it was not seen for {format_duration(round((now - since).total_seconds()))}" if since else ""
        )

    # -- diagnosis and decision

    def diagnosis(self, diagnosis: Diagnosis, now: datetime, looked_at: datetime | None) -> None:
        """Tell a diagnosis that is news."""
        state = diagnosis.state
        after = _last_look(looked_at, now) if state is RunState.BLIND else self.sees(now)
        if state is RunState.NEW:
            return
        kind = "blind" if state is RunState.BLIND else "diagnosis"
        if state in (RunState.HEALTHY, RunState.ENDING, RunState.STOPPED):
            kind = "state"
        detail = {
            "state": state.value,
            "failure": diagnosis.failure.value if diagnosis.failure else None,
            "confidence": diagnosis.confidence,
            "fingerprint": diagnosis.fingerprint,
            "evidence": [evidence_json(item) for item in diagnosis.evidence],
            "cascades": [evidence_json(item) for item in diagnosis.cascades],
        }
        text = f"{_titled(diagnosis)}{after}"
        self.emit(kind, now, text, level=_LEVELS.get(state, Level.INFO), detail=detail)

    def decision(self, decision: Decision, now: datetime, *, acting: bool) -> None:
        """Tell what was decided."""
        wait_s = (decision.not_before - now).total_seconds() if decision.not_before else 0.0
        text = f"{decision.kind.value}: {decision.reason.removeprefix('relaunch ')}"
        if decision.kind.is_relaunch and not acting:
            text += " (observe-only: nothing is done)"
        detail = {
            "kind": decision.kind.value,
            "rule": decision.rule,
            "attempts_left": decision.attempts_left,
            "changes": dict(decision.changes),
            "env_changes": dict(decision.env_changes),
            "remedies": [{"kind": each.kind.value, "step": each.step} for each in decision.remedies],
            "rung": decision.rung,
            "in_s": round(max(wait_s, 0.0), 3),
        }
        level = Level.BAD if decision.kind in (ActKind.CALL, ActKind.GIVE_UP) else Level.INFO
        self.emit("decision", now, text, level=level, detail=detail)


def _titled(diagnosis: Diagnosis) -> str:
    """Return state, failure and summary; what the summary says by itself is not said before it."""
    state, summary = diagnosis.state.value, diagnosis.summary
    if diagnosis.state is RunState.BLIND:
        return summary
    summary = summary.removeprefix(f"{state}: ")
    if summary.startswith(state):
        return summary
    named = diagnosis.failure.value if diagnosis.failure else state
    is_said = named in _SAID_BY_STATE or named == state or (state, named) == ("hung", "hang")
    failure = "" if is_said else f": {named}"
    return f"{state}{failure} - {summary}"


def _remind_after(number: int) -> float:
    last = len(REMIND_AFTER_S) - 1
    return REMIND_AFTER_S[min(number, last)] * (1 + max(0, number - last))


def _last_look(looked_at: datetime | None, now: datetime) -> str:
    if looked_at is None:
        return "; it was never seen"
    return f"; the last look was {format_duration(round((now - looked_at).total_seconds()))} ago"
