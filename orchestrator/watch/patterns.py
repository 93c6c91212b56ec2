"""Patterns over a run's steps and attempts, each looked for now and then, told once, and kept on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.classify.course import Course, work
from orchestrator.classify.history import Pattern, StepTime
from orchestrator.ledger import best, open_ledger
from orchestrator.types.decision import ActKind, History
from orchestrator.types.failure import Diagnosis
from orchestrator.types.seen import Present
from orchestrator.watch.events import Level
from orchestrator.watch.telling import evidence_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from orchestrator.observe import RunTracker
    from orchestrator.playbook import Playbook
    from orchestrator.record import AttemptRow, Record, RunRow
    from orchestrator.types.snapshot import Snapshot
    from orchestrator.watch.telling import Teller


class Patterns:
    """Those of one run."""

    def __init__(self, row: RunRow, record: Record, teller: Teller, playbook: Playbook) -> None:
        self._row = row
        self._record = record
        self._teller = teller
        self._playbook = playbook
        self._course = Course()
        self._earlier: int | None = None  # the newest checkpoint of attempts before this one

    def begin(self, attempt: int) -> None:
        """A new attempt: what was told of the old one may be told of it, too."""
        self._course.begin(attempt)
        self._earlier = None

    def feed(self, attempt: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take in new lines of metrics.jsonl."""
        self._course.feed(attempt, lines)

    def look(self, tracker: RunTracker, snapshot: Snapshot, diagnosis: Diagnosis, now: datetime) -> None:
        """Look for patterns of a living run, now and then.

        Raises:
            RecordError: The record cannot be read or written.
        """
        if not self._course.is_due(snapshot.attempt, diagnosis.state, now):
            return
        if self._earlier is None:
            past = self._record.history(self._row.id).attempts
            self._earlier = best(each for each in past if each.attempt < snapshot.attempt)
        if not self._course.is_loaded and tracker.view is not None and tracker.view.metrics_offset > 0:
            # Not before: the first step comes after environment.json.
            self._course.load(self._kept(snapshot.attempt))
        beat = snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None
        for pattern in self._course.living(beat, self._earlier, tracker.checkpoint_step):
            self._tell(pattern, snapshot.attempt, now)
            self._keep(pattern, snapshot.attempt, diagnosis, now)

    def died(self, history: History, snapshot: Snapshot, now: datetime) -> None:
        """Tell what the ends of this and earlier attempts have in common."""
        ledger, book = open_ledger(history, snapshot), self._playbook
        for pattern in self._course.died(
            ledger, snapshot.last_step, now, book.loop_deaths, book.loop_window_s
        ):
            self._tell(pattern, snapshot.attempt, now)

    def _kept(self, attempt: int) -> list[StepTime]:
        attempts = {row.n: row for row in self._record.attempts(self._row.id) if row.n <= attempt}
        own = _work(attempts.get(attempt))
        alike = {n for n, row in attempts.items() if _work(row) == own} | {attempt}
        return [
            StepTime(row.attempt, row.step, row.step_s)
            for row in self._record.metrics(self._row.id)
            if row.kind == "train" and row.step_s is not None and row.attempt in alike
        ]

    def _tell(self, pattern: Pattern, attempt: int, now: datetime) -> None:
        rule = self._playbook.rule(pattern.failure)
        is_call = rule.act is ActKind.CALL
        detail = {
            "failure": pattern.failure.value,
            "act": rule.act.value,
            "why": rule.why,
            "evidence": [evidence_json(each) for each in pattern.evidence],
        }
        level = Level.BAD if is_call else Level.WARNING
        self._teller.emit("pattern", now, pattern.summary, level=level, detail=detail, attempt=attempt)

    def _keep(self, pattern: Pattern, attempt: int, diagnosis: Diagnosis, now: datetime) -> None:
        kept = Diagnosis(
            state=diagnosis.state, failure=pattern.failure, summary=pattern.summary, evidence=pattern.evidence
        )
        self._record.diagnosis(self._row.id, attempt, kept, now)
        rule = self._playbook.rule(pattern.failure)
        if rule.act is ActKind.CALL:
            intent = {"diagnosis": pattern.summary}
            action = self._record.intend(self._row.id, attempt, rule.act.value, rule.why, intent, now)
            self._record.outcome(action, "told", now)


def _work(row: AttemptRow | None) -> str:
    return work(row.spec, row.environment) if row is not None else work(None, None)
