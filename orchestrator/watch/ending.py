"""What the record keeps of an attempt: who began it, what became of it, and whether a person was called."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.observe import RunTracker
    from orchestrator.record import Record
    from orchestrator.types.decision import Decision
    from orchestrator.types.snapshot import Snapshot

_FAR = frozenset({RunState.DEAD, RunState.FINISHED, RunState.STOPPED, RunState.HUNG})
_UNTOLD = frozenset({RunState.NEW, RunState.HEALTHY, RunState.ENDING, RunState.BLIND})


def save_origin(record: Record, run_id: int, attempt: int, spec: Mapping[str, Any]) -> None:
    """Write down what run.json says of who began the attempt.

    The watcher that began it may have been killed before it wrote that, or may keep another record.

    Raises:
        RecordError: The record cannot be written.
    """
    by, rung, changes = spec.get("by"), spec.get("rung"), spec.get("changes")
    if by not in ("user", "watch"):
        return
    record.save_attempt(
        run_id,
        attempt,
        by=by,
        rung=rung if isinstance(rung, int) else None,
        changes={str(k): str(v) for k, v in changes.items()} if isinstance(changes, dict) else {},
    )


def save_sight(
    record: Record,
    run_id: int,
    tracker: RunTracker,
    before: Diagnosis | None,
    diagnosis: Diagnosis,
    snapshot: Snapshot,
) -> None:
    """Write down what is seen now, where it is other than before.

    Raises:
        RecordError: The record cannot be written.
    """
    old, state, now = before.state if before else None, diagnosis.state, snapshot.now
    with record.together():
        record.transition(run_id, snapshot.attempt, old, state, diagnosis.summary, now)
        if state in _FAR:
            _save_end(record, run_id, tracker, diagnosis, snapshot)
        if state not in _UNTOLD:
            record.diagnosis(run_id, snapshot.attempt, diagnosis, now)


def _save_end(
    record: Record, run_id: int, tracker: RunTracker, diagnosis: Diagnosis, snapshot: Snapshot
) -> None:
    """Write down how far the attempt came and how it ended; of one that hangs, all but the end."""
    view = tracker.view
    exit_record = snapshot.exit.value if isinstance(snapshot.exit, Present) else None
    record.save_attempt(
        run_id,
        snapshot.attempt,
        ended_at=None if diagnosis.state is RunState.HUNG else _ended_at(tracker, snapshot),
        failure=diagnosis.failure,
        fingerprint=diagnosis.fingerprint,
        first_step=view.first_step if view else None,
        last_step=snapshot.last_step,
        checkpoint_step=tracker.checkpoint_step,
        exit_code=exit_record.code if exit_record else None,
        exit_signal=exit_record.signal if exit_record else None,
    )


def save_call(
    record: Record,
    run_id: int,
    attempt: int,
    decision: Decision,
    summary: str,
    now: datetime,
    *,
    ends: bool,
) -> None:
    """Write down that a person was called; `ends`: it is left to them, and nothing is tried any more.

    Raises:
        RecordError: The record cannot be written.
    """
    intent = {"diagnosis": summary, "ends": ends}
    action = record.intend(run_id, attempt, decision.kind.value, decision.reason, intent, now)
    record.outcome(action, "told", now)


def _ended_at(tracker: RunTracker, snapshot: Snapshot) -> datetime:
    """Return when it ended by the near clock: budgets must not take a late look for a late death."""
    if not isinstance(snapshot.exit, Present):
        return snapshot.now
    return min(snapshot.now, snapshot.exit.value.at - timedelta(seconds=tracker.clock_skew_s))
