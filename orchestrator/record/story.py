"""Transitions, diagnoses and actions, inside a transaction that the caller opened."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from orchestrator.errors import RecordError
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.record.convert import storable, to_diagnosis, without_env
from orchestrator.record.models import Action, Attempt, DiagnosisEntry, EvidenceLine, Run, Transition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

    from orchestrator.record.rows import DiagnosisRow
    from orchestrator.types.failure import Diagnosis, Evidence, RunState

PARTS = ("evidence", "cascades", "warnings")
# The acts that say whether a stopped run is to go on.
_WORDS = ("stop", "launch", "relaunch", "call")
# Of a start: it was cut, its answer was lost, or another was first.
_PERHAPS_BEGUN = (None, "unknown", "refused: run_alive", "refused: attempt_exists")


def add_transition(
    session: Session,
    run_id: int,
    attempt: int,
    states: tuple[RunState | None, RunState],
    summary: str,
    now: datetime,
) -> bool:
    """Add the change of state and set the run's; False if the attempt is already in that state."""
    from_state, to_state = states
    newest = session.scalar(
        select(Transition)
        .where(Transition.run_id == run_id, Transition.attempt == attempt)
        .order_by(Transition.id.desc())
        .limit(1)
    )
    if newest is not None and newest.to_state == to_state.value:
        return False
    session.add(
        Transition(
            run_id=run_id,
            attempt=attempt,
            at=now,
            from_state=from_state.value if from_state else None,
            to_state=to_state.value,
            summary=storable(summary),
        )
    )
    set_state(session, run_id, attempt, to_state)
    return True


def set_state(session: Session, run_id: int, attempt: int, state: RunState) -> None:
    """Set the run's state, unless what was learned is of an older attempt than the newest."""
    newest = session.scalar(select(func.max(Attempt.n)).where(Attempt.run_id == run_id))
    run = session.get(Run, run_id)
    if run is not None and (newest is None or attempt >= newest):
        run.state = state.value


def add_diagnosis(session: Session, run_id: int, attempt: int, diagnosis: Diagnosis, now: datetime) -> int:
    """Add the diagnosis and return its id; the newest one's id if it says the very same."""
    known = latest(session, run_id, attempt)
    lines = [(part, line) for part in PARTS for line in getattr(diagnosis, part)]
    new = DiagnosisEntry(
        run_id=run_id,
        attempt=attempt,
        at=now,
        state=diagnosis.state.value,
        failure=diagnosis.failure.value if diagnosis.failure else None,
        summary=storable(diagnosis.summary),
        confidence=diagnosis.confidence,
        fingerprint=diagnosis.fingerprint,
    )
    new_lines = [_line(part, line) for part, line in lines]
    if known is not None and to_diagnosis(new, new_lines).diagnosis == known.diagnosis:
        return known.id
    session.add(new)
    session.flush()
    for new_line in new_lines:
        new_line.diagnosis_id = new.id
        session.add(new_line)
        session.flush()  # one by one: the order of the lines is that of their ids
    set_state(session, run_id, attempt, diagnosis.state)
    return new.id


def _line(part: str, line: Evidence) -> EvidenceLine:
    return EvidenceLine(
        part=part,
        source=storable(line.source),
        text=storable(line.text),
        role=line.role.value,
        signature=line.signature,
        offset=line.offset,
        rank=line.rank,
    )


def latest(session: Session, run_id: int, attempt: int | None) -> DiagnosisRow | None:
    """Return the newest diagnosis of the attempt, or of the run's newest diagnosed attempt."""
    query = select(DiagnosisEntry).where(DiagnosisEntry.run_id == run_id)
    if attempt is not None:
        query = query.where(DiagnosisEntry.attempt == attempt)
    entry = session.scalar(query.order_by(DiagnosisEntry.attempt.desc(), DiagnosisEntry.id.desc()).limit(1))
    return with_lines(session, [entry])[0] if entry is not None else None


def diagnoses(session: Session, run_id: int) -> list[DiagnosisRow]:
    """Return the run's diagnoses, oldest first."""
    query = select(DiagnosisEntry).where(DiagnosisEntry.run_id == run_id).order_by(DiagnosisEntry.id)
    return with_lines(session, session.scalars(query).all())


def with_lines(session: Session, entries: Sequence[DiagnosisEntry]) -> list[DiagnosisRow]:
    """Return the diagnoses with their evidence."""
    lines: dict[int, list[EvidenceLine]] = {entry.id: [] for entry in entries}
    ids = list(lines)
    for start in range(0, len(ids), 500):  # SQLite limits the variables of a statement
        some = select(EvidenceLine).where(EvidenceLine.diagnosis_id.in_(ids[start : start + 500]))
        for line in session.scalars(some.order_by(EvidenceLine.id)):
            lines[line.diagnosis_id].append(line)
    return [to_diagnosis(entry, lines[entry.id]) for entry in entries]


def awaits_relaunch(session: Session, run_id: int) -> bool:
    """Whether the last word on a stopped run is a stop for a relaunch, or a start of unknown outcome.

    A start that was refused changes nothing: what came before it holds.
    """
    seen = _seen_last(session, run_id)
    query = select(Action).where(Action.run_id == run_id, Action.kind.in_(_WORDS)).order_by(Action.id.desc())
    for act in session.scalars(query):
        is_open = act.kind in ("launch", "relaunch") and act.outcome in _PERHAPS_BEGUN
        if is_open and (seen is None or seen.attempt < act.attempt):
            return True
        if seen is not None and seen.at > act.intent_at:
            break  # the asker may keep another record; its word was seen in the container
        if act.kind == "stop":
            return act.reason == RELAUNCH_REASON
        if act.outcome == "started" or (act.kind == "call" and act.intent.get("ends")):
            return False
    return seen is not None and seen.summary == f"stopped by its user: {RELAUNCH_REASON}"


def _seen_last(session: Session, run_id: int) -> DiagnosisEntry | None:
    """Return what was seen last of the run's newest attempt."""
    newest = session.scalar(select(func.max(Attempt.n)).where(Attempt.run_id == run_id)) or 0
    query = select(DiagnosisEntry).where(DiagnosisEntry.run_id == run_id, DiagnosisEntry.attempt >= newest)
    return session.scalar(query.order_by(DiagnosisEntry.attempt.desc(), DiagnosisEntry.id.desc()).limit(1))


def intend(
    session: Session,
    run_id: int,
    attempt: int,
    kind: str,
    reason: str,
    intent: Mapping[str, Any],
    now: datetime,
) -> int:
    """Write down what is about to be done; return the action's id."""
    action = Action(
        run_id=run_id,
        attempt=attempt,
        kind=kind.value if isinstance(kind, Enum) else kind,
        reason=storable(reason),
        intent=without_env(intent),
        intent_at=now,
    )
    session.add(action)
    session.flush()
    return action.id


def close(session: Session, action_id: int, outcome: str, now: datetime, error: str | None) -> bool:
    """Write down how the act went; False if that was done before, and the first word stays.

    Raises:
        RecordError: No such action.
    """
    action = session.get(Action, action_id)
    if action is None:
        raise RecordError(f"action {action_id}: no such action in the record")
    if action.outcome_at is not None:
        return False
    action.outcome = storable(outcome)
    action.outcome_at = now
    action.error = storable(error) if error is not None else None
    return True


def open_intents(session: Session, run_id: int) -> Sequence[Action]:
    """Return the run's intents without an outcome, oldest first."""
    query = select(Action).where(Action.run_id == run_id, Action.outcome_at.is_(None)).order_by(Action.id)
    return session.scalars(query).all()


def newest_actions(session: Session) -> dict[int, int]:
    """Return the id of each run's newest action."""
    rows = session.execute(select(Action.run_id, func.max(Action.id)).group_by(Action.run_id))
    return {run_id: action_id for run_id, action_id in rows}
