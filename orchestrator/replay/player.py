"""A recording through the whole reader, classifier and playbook: what would have been told and decided.

No clock and no container: the times are the recording's, and what was relaunched is in the recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.classify import diagnose
from orchestrator.decide import decide
from orchestrator.errors import ConfigError
from orchestrator.ladder import facts
from orchestrator.observe import RunTracker
from orchestrator.replay.alone import decision_json
from orchestrator.replay.patterns import Patterns
from orchestrator.replay.timeline import Moment, moments
from orchestrator.types.decision import ActKind, Decision, History, PastAttempt
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState
from orchestrator.types.seen import Present
from orchestrator.types.snapshot import LogPace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from orchestrator.classify.history import Pattern
    from orchestrator.playbook import Playbook
    from orchestrator.replay.recording import Recording
    from orchestrator.types.seen import Heartbeat
    from orchestrator.types.snapshot import Snapshot

LOOK_S = 5.0  # between two diagnoses while nothing but the log and numbers come
_AT_ONCE = frozenset({"run", "exit", "last_words", "result"})
_UNTOLD = frozenset({RunState.NEW})
_DECIDED = frozenset({RunState.DEAD, RunState.HUNG, RunState.CONTAINER_STOPPED, RunState.FINISHED})
_ENDED = (_DECIDED | {RunState.STOPPED}) - {RunState.HUNG}


@dataclass(frozen=True, kw_only=True)
class Told:
    """One thing that would have been told: `attempt`, `prediction`, `diagnosis`, `pattern` or `decision`."""

    at: datetime
    attempt: int
    kind: str
    text: str
    detail: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


def play(recording: Recording, playbook: Playbook) -> Iterator[Told]:
    """Yield what would have been told, in order.

    Raises:
        ConfigError: A file of the recording is not what it should be.
    """
    player = _Player(recording, playbook)
    for moment in moments(recording):
        try:
            yield from player.take(moment)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"attempt {moment.attempt}: its {moment.message['type']}"
            raise ConfigError(f"{what} is not what DESIGN.md says: {error!r}") from error


class _Player:
    """What is known up to one moment."""

    def __init__(self, recording: Recording, playbook: Playbook) -> None:
        self._known = {attempt.number: attempt.known for attempt in recording.attempts}
        self._playbook = playbook
        self._tracker = RunTracker(recording.run)
        self._tracker.container = "running"
        self._tracker.custom = playbook.custom
        self._patterns = Patterns(recording, playbook)
        self._past: list[PastAttempt] = []
        self._diagnosis: Diagnosis | None = None
        self._looked_at: datetime | None = None
        self._began_at: datetime | None = None

    def take(self, moment: Moment) -> Iterator[Told]:
        """Take in what came and yield what is news."""
        sighting = self._tracker.apply(moment.message, moment.at)
        if sighting.attempt is not None:
            self._diagnosis, self._looked_at, self._began_at = None, None, moment.at
            self._patterns.begin(sighting.attempt)
            text = f"attempt {sighting.attempt}"
            yield Told(at=moment.at, attempt=moment.attempt, kind="attempt", text=text)
        for evidence in sighting.predictions:
            yield Told(
                at=moment.at,
                attempt=moment.attempt,
                kind="prediction",
                text=evidence.text,
                evidence=(evidence,),
            )
        self._patterns.feed(sighting)
        is_due = self._looked_at is None or (moment.at - self._looked_at).total_seconds() >= LOOK_S
        if is_due or moment.message["type"] in _AT_ONCE:
            yield from self._look(moment)

    def _look(self, moment: Moment) -> Iterator[Told]:
        self._looked_at = moment.at
        seen = self._tracker.snapshot(moment.at)
        if seen is None:
            return
        # The times of a recorded log are made up, so its silence is none.
        snapshot = replace(seen, host_lines=moment.host_lines, log_pace=LogPace())
        limits = self._playbook.limits_for(self._tracker.median_step_s, self._tracker.median_phase_s)
        diagnosis = diagnose(snapshot, limits)
        before, self._diagnosis = self._diagnosis, diagnosis
        if not _is_same(before, diagnosis) and diagnosis.state not in _UNTOLD:
            yield from self._news(diagnosis, snapshot, moment)
        for pattern in self._patterns.look(self._tracker, snapshot, diagnosis, self._past):
            yield self._told_pattern(pattern, snapshot, moment.at)

    def _news(self, diagnosis: Diagnosis, snapshot: Snapshot, moment: Moment) -> Iterator[Told]:
        """Yield a diagnosis that is other than before, and what follows from it."""
        yield Told(
            at=moment.at,
            attempt=snapshot.attempt,
            kind="diagnosis",
            text=diagnosis.summary,
            detail=_diagnosis_json(diagnosis),
            evidence=diagnosis.evidence,
        )
        if diagnosis.state in _ENDED:
            self._remember(diagnosis, snapshot, moment.at)
        if diagnosis.state not in _DECIDED:
            return
        history, view = History(attempts=tuple(self._past)), self._tracker.view
        # What hung and was stopped by the watch was decided about at the hang, before its end.
        is_end_of_hang = diagnosis.failure is FailureClass.HANG and snapshot.stop_by == "watch"
        if diagnosis.state is RunState.DEAD and not is_end_of_hang:
            for pattern in self._patterns.died(history, snapshot, moment.at):
                yield self._told_pattern(pattern, snapshot, moment.at)
        known = facts(self._tracker.spec, view.environment if view is not None else None)
        decision = decide(diagnosis, self._playbook, history, snapshot, moment.at, 0.0, known)
        yield _told_decision(decision, snapshot, moment.at)

    def _told_pattern(self, pattern: Pattern, snapshot: Snapshot, at: datetime) -> Told:
        """A pattern informs; what is done is the decision's alone."""
        why = self._playbook.rule(pattern.failure).why
        return Told(
            at=at,
            attempt=snapshot.attempt,
            kind="pattern",
            text=pattern.summary,
            detail={"class": pattern.failure.value, "informs_only": True, "why": why},
            evidence=pattern.evidence,
        )

    def _remember(self, diagnosis: Diagnosis, snapshot: Snapshot, at: datetime) -> None:
        """Keep an ended attempt as the record would, for the budgets of those after it."""
        known, spec = self._known.get(snapshot.attempt, {}), self._tracker.spec or {}
        by = known.get("by") or (spec.get("by") if spec.get("attempt") == snapshot.attempt else None)
        beat = snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None
        checkpoint = beat.checkpoint_step if beat is not None else None
        past = PastAttempt(
            attempt=snapshot.attempt,
            failure=diagnosis.failure,
            fingerprint=diagnosis.fingerprint,
            started_at=snapshot.started_at or self._began_at,
            ended_at=at,
            first_step=self._first_step(known, beat),
            last_step=snapshot.last_step,
            checkpoint_step=checkpoint if checkpoint is not None else _number(known.get("checkpoint_step")),
            rung=_number(known.get("rung")),
            by_watch=by != "user",
        )
        self._past = [a for a in self._past if a.attempt != past.attempt] + [past]

    def _first_step(self, known: Mapping[str, Any], beat: Heartbeat | None) -> int | None:
        """Where it began, by the record; a last heartbeat alone tells it unless it came too early."""
        told = (
            _number(known.get("first_step")),
            self._tracker.view.first_step if self._tracker.view else None,
        )
        found = next((step for step in told if step is not None), None)
        return found if found is not None or beat is None else beat.resumed_from_step


def _is_same(before: Diagnosis | None, now: Diagnosis) -> bool:
    key = (now.state, now.failure, now.fingerprint)
    return before is not None and (before.state, before.failure, before.fingerprint) == key


def _diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "state": diagnosis.state.value,
        "class": diagnosis.failure.value if diagnosis.failure else None,
        "confidence": round(diagnosis.confidence, 3),
        "fingerprint": diagnosis.fingerprint,
    }


def _told_decision(decision: Decision, snapshot: Snapshot, at: datetime) -> Told:
    wait_s = (decision.not_before - at).total_seconds() if decision.not_before is not None else 0.0
    detail = {**decision_json(decision), "in_s": round(wait_s, 3), "attempts_left": decision.attempts_left}
    if decision.kind is ActKind.GIVE_UP:
        detail["kind"] = ActKind.GIVE_UP.value  # of a whole run the budget is known
    return Told(
        at=at,
        attempt=snapshot.attempt,
        kind="decision",
        text=f"{detail['kind']}: {decision.reason}",
        detail=detail,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
