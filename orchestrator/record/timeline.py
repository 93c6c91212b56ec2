"""Everything that happened, merged in the order of time, inside a transaction that the caller opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from orchestrator.record.models import Action, Attempt, DiagnosisEntry, Run, Transition
from orchestrator.record.rows import EventRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy.orm import InstrumentedAttribute, Session

# Of several at one instant: what was seen comes before what was concluded, and that before what was done.
_ORDER = ("started", "ended", "transition", "diagnosis", "action", "outcome")


def events(session: Session, run_id: int | None, since: datetime | None, limit: int) -> list[EventRow]:
    """Return the newest `limit` events from `since` on (inclusive), oldest first; of all runs for None."""
    found = [
        event
        for source in (_started, _ended, _transitions, _diagnoses, _actions, _outcomes)
        for event in source(_Query(session, run_id, since, limit))
    ]
    found.sort(key=lambda event: (event.at, _ORDER.index(event.kind), event.attempt))
    return found[-limit:] if limit > 0 else []


class _Query:
    """The same window on each table."""

    def __init__(self, session: Session, run_id: int | None, since: datetime | None, limit: int) -> None:
        self._session, self._run_id, self._since, self._limit = session, run_id, since, limit

    def rows(self, table: type[Any], at: InstrumentedAttribute[Any]) -> Iterator[tuple[str, Any]]:
        """Yield (run name, row), the newest first."""
        query = select(Run.name, table).join(Run, table.run_id == Run.id).where(at.is_not(None))
        if self._run_id is not None:
            query = query.where(table.run_id == self._run_id)
        if self._since is not None:
            query = query.where(at >= self._since)
        for row in self._session.execute(query.order_by(at.desc()).limit(self._limit)):
            yield row[0], row[1]


def _started(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(Attempt, Attempt.started_at):
        text = f"attempt {row.n} started" + (f" by {row.by}" if row.by else "")
        if row.changes:
            text += " with " + ", ".join(f"{key}={value}" for key, value in row.changes.items())
        detail = {"by": row.by, "session": row.session, "rung": row.rung, "changes": row.changes}
        key = f"started:{row.run_id}:{row.n}"
        yield EventRow(
            at=row.started_at, run=run, attempt=row.n, kind="started", text=text, detail=detail, key=key
        )


def _ended(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(Attempt, Attempt.ended_at):
        how = f"signal {row.exit_signal}" if row.exit_signal is not None else None
        if how is None and row.exit_code is not None:
            how = f"exit code {row.exit_code}"
        step = f"step {row.last_step}" if row.last_step is not None else None
        said = ", ".join(part for part in (row.failure, how, step) if part)
        detail = {
            "failure": row.failure,
            "fingerprint": row.fingerprint,
            "exit_code": row.exit_code,
            "exit_signal": row.exit_signal,
            "first_step": row.first_step,
            "last_step": row.last_step,
            "checkpoint_step": row.checkpoint_step,
        }
        yield EventRow(
            at=row.ended_at,
            run=run,
            attempt=row.n,
            kind="ended",
            text=f"attempt {row.n} ended" + (f": {said}" if said else ""),
            detail=detail,
            key=f"ended:{row.run_id}:{row.n}",
        )


def _transitions(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(Transition, Transition.at):
        yield EventRow(
            at=row.at,
            run=run,
            attempt=row.attempt,
            kind="transition",
            text=f"{row.from_state or 'new'} -> {row.to_state}" + (f": {row.summary}" if row.summary else ""),
            detail={"from": row.from_state, "to": row.to_state, "summary": row.summary},
            key=f"transition:{row.id}",
        )


def _diagnoses(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(DiagnosisEntry, DiagnosisEntry.at):
        detail = {
            "id": row.id,
            "state": row.state,
            "failure": row.failure,
            "confidence": row.confidence,
            "fingerprint": row.fingerprint,
        }
        yield EventRow(
            at=row.at,
            run=run,
            attempt=row.attempt,
            kind="diagnosis",
            text=f"{row.failure or row.state}: {row.summary}",
            detail=detail,
            key=f"diagnosis:{row.id}",
        )


def _actions(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(Action, Action.intent_at):
        yield EventRow(
            at=row.intent_at,
            run=run,
            attempt=row.attempt,
            kind="action",
            text=f"{row.kind}: {row.reason}",
            detail={"id": row.id, "action": row.kind, "intent": row.intent},
            key=f"action:{row.id}",
        )


def _outcomes(query: _Query) -> Iterator[EventRow]:
    for run, row in query.rows(Action, Action.outcome_at):
        yield EventRow(
            at=row.outcome_at,
            run=run,
            attempt=row.attempt,
            kind="outcome",
            text=f"{row.kind}: {row.outcome}" + (f": {row.error}" if row.error else ""),
            detail={"id": row.id, "action": row.kind, "outcome": row.outcome, "error": row.error},
            key=f"outcome:{row.id}",
        )
