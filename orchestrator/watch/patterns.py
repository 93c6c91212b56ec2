"""Patterns over a run's steps and attempts, each looked for now and then, told once, and kept on record."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from orchestrator.classify.history import (
    AGAIN_WELL,
    Pattern,
    StepTime,
    crash_loop,
    no_progress,
    resumed_from_zero,
    slowdown,
    stragglers,
    throughput_regression,
)
from orchestrator.ledger import best, open_ledger
from orchestrator.types.decision import ActKind, History
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
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

LOOK_EVERY_S = 30.0
MAX_ROWS = 1_500
_ALIVE = frozenset({RunState.HEALTHY, RunState.UNSUPERVISED})
_SLOW = FailureClass.THROUGHPUT_REGRESSION


class Patterns:
    """Those of one run. Steps are compared only with steps of attempts that did the same work."""

    def __init__(self, row: RunRow, record: Record, teller: Teller, playbook: Playbook) -> None:
        self._row = row
        self._record = record
        self._teller = teller
        self._playbook = playbook
        self._attempt: int | None = None
        self._rows: deque[StepTime] | None = None
        self._last_step = -1
        self._is_new = False
        self._looked_at: datetime | None = None
        self._earlier: int | None = None  # the newest checkpoint of attempts before this one
        self._told: set[FailureClass] = set()

    def begin(self, attempt: int) -> None:
        """A new attempt: what was told of the old one may be told of it, too."""
        self._attempt, self._rows, self._earlier = attempt, None, None
        self._told.clear()

    def feed(self, attempt: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take in new lines of metrics.jsonl."""
        if self._rows is None or attempt != self._attempt:
            return  # the record has them, and gives them at the next look
        for line in lines:
            row = _step_time(attempt, line)
            if row is not None and row.step > self._last_step:  # what the record gave is not taken twice
                self._rows.append(row)
                self._last_step, self._is_new = row.step, True

    def look(self, tracker: RunTracker, snapshot: Snapshot, diagnosis: Diagnosis, now: datetime) -> None:
        """Look for patterns of a living run, not more often than every LOOK_EVERY_S.

        Raises:
            RecordError: The record cannot be read or written.
        """
        is_due = self._looked_at is None or abs((now - self._looked_at).total_seconds()) >= LOOK_EVERY_S
        if not is_due or diagnosis.state not in _ALIVE or snapshot.attempt != self._attempt:
            return
        self._looked_at = now
        if self._earlier is None:
            past = self._record.history(self._row.id).attempts
            self._earlier = best(each for each in past if each.attempt < snapshot.attempt)
        if self._rows is None and tracker.view is not None and tracker.view.metrics_offset > 0:
            self._load(snapshot.attempt)  # not before: the first step comes after environment.json
        beat = snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None
        zero = resumed_from_zero(beat, snapshot.attempt, self._earlier, tracker.checkpoint_step)
        found = [zero]
        if self._is_new and self._rows is not None:
            self._is_new = False
            rows = list(self._rows)
            found += [throughput_regression(rows, snapshot.attempt), stragglers(_of(rows, snapshot.attempt))]
            if _SLOW in self._told and (slowdown(rows, snapshot.attempt) or 1.0) < AGAIN_WELL:
                self._told.discard(_SLOW)
        for pattern in found:
            if pattern is not None and pattern.failure not in self._told:
                self._tell(pattern, snapshot.attempt, now)
                self._keep(pattern, snapshot.attempt, diagnosis, now)

    def died(self, history: History, snapshot: Snapshot, now: datetime) -> None:
        """Tell what the ends of this and earlier attempts have in common."""
        ledger, book = open_ledger(history, snapshot), self._playbook
        found = (
            no_progress(ledger, snapshot.last_step),
            crash_loop(ledger, now, book.loop_deaths, book.loop_window_s),
        )
        for pattern in found:
            if pattern is not None and pattern.failure not in self._told:
                self._tell(pattern, snapshot.attempt, now)

    def _load(self, attempt: int) -> None:
        attempts = {row.n: row for row in self._record.attempts(self._row.id) if row.n <= attempt}
        own = _work(attempts.get(attempt))
        alike = {n for n, row in attempts.items() if _work(row) == own} | {attempt}
        kept = (
            StepTime(row.attempt, row.step, row.step_s)
            for row in self._record.metrics(self._row.id)
            if row.kind == "train" and row.step_s is not None and row.attempt in alike
        )
        self._rows, self._is_new = deque(kept, maxlen=MAX_ROWS), True
        self._last_step = max((row.step for row in self._rows if row.attempt == attempt), default=-1)

    def _tell(self, pattern: Pattern, attempt: int, now: datetime) -> None:
        self._told.add(pattern.failure)
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


def _of(rows: Iterable[StepTime], attempt: int) -> list[StepTime]:
    return [row for row in rows if row.attempt == attempt]


def _work(row: AttemptRow | None) -> str:
    """What decides how long a step takes: the configuration and the machine, as far as they are known."""
    spec = (row.spec if row is not None else None) or {}
    machine = (row.environment if row is not None else None) or {}
    keys = ["config", "config_toml", "overrides", "gpus"] + ["argv"] * (spec.get("kind") == "command")
    told = {key: spec.get(key) for key in keys}
    return json.dumps([told, machine.get("gpus"), machine.get("cpu")], sort_keys=True, default=str)


def _step_time(attempt: int, line: Mapping[str, Any]) -> StepTime | None:
    step, step_s = line.get("step"), line.get("step_s")
    if line.get("kind") != "train" or not isinstance(step, int) or not isinstance(step_s, (int, float)):
        return None
    return StepTime(attempt, step, float(step_s), _rank_times(line.get("rank_s")))


def _rank_times(told: object) -> dict[int, float] | None:
    """Return the seconds of each rank's own work; `rank_s` is a list, by drafter rank."""
    if not isinstance(told, list) or not all(isinstance(each, (int, float)) for each in told):
        return None
    return {rank: float(value) for rank, value in enumerate(told)}
