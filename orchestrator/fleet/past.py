"""What the record alone knows of a run: shown of one that is over, and of one that nobody has seen yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.fleet.card import RunCard
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from orchestrator.record import AttemptRow, DiagnosisRow, MetricRow, Record, RunRow

_ENDS = frozenset({RunState.DEAD, RunState.HUNG})


def card_of_row(row: RunRow, *, remark: str = "") -> RunCard:
    """Return what its row alone tells of a run."""
    return RunCard(
        id=row.id,
        name=row.name,
        target=row.target_key,
        state=row.state,
        remark=remark,
        kind=str(row.spec.get("kind") or "trainer"),
    )


def card_of_past(row: RunRow, attempt: AttemptRow | None, last: DiagnosisRow | None) -> RunCard:
    """Return what the record tells of a run that is over, by its newest attempt and its last diagnosis."""
    return replace(_card(row, attempt, last, None), has_ended=True, known_at=None)


def read_past(record: Record, row: RunRow) -> RunCard:
    """Return the card of a run that is over.

    Raises:
        RecordError: The record cannot be read.
    """
    return card_of_past(row, _newest(record, row), record.latest_diagnosis(row.id))


def read_known(record: Record, row: RunRow) -> RunCard:
    """Return what was known of a run when it was last seen, its newest metrics included.

    Raises:
        RecordError: The record cannot be read.
    """
    attempt = _newest(record, row)
    if attempt is None:
        return card_of_row(row)
    steps = [each for each in record.metrics(row.id, attempt.n) if each.kind == "train"]
    last = record.latest_diagnosis(row.id, attempt.n)
    is_end = last is not None and last.state in _ENDS  # a warning is no end
    return _card(row, attempt, last if is_end else None, steps[-1] if steps else None)


def needs_past(card: RunCard) -> bool:
    """Whether this watch cannot see the run and never did, so that the record alone knows of it."""
    return card.blind is not None and card.attempt is None


def remembered(card: RunCard, past: RunCard) -> RunCard:
    """Return the card with what the record knew, as of the past: the run itself is blind."""
    return replace(
        card,
        state=RunState.BLIND,
        failure=past.failure,
        attempt=past.attempt,
        step=past.step,
        loss=past.loss,
        checkpoint_step=past.checkpoint_step,
        started_at=past.started_at,
        known_at=past.known_at,
    )


def _newest(record: Record, row: RunRow) -> AttemptRow | None:
    attempts = record.attempts(row.id)
    return attempts[-1] if attempts else None


def _card(
    row: RunRow, attempt: AttemptRow | None, last: DiagnosisRow | None, metric: MetricRow | None
) -> RunCard:
    card = card_of_row(row)
    if last is not None:
        card = replace(card, summary=last.summary, failure=last.failure, known_at=last.at)
    if attempt is None:
        return card
    times = (attempt.started_at, attempt.ended_at, card.known_at, metric.at if metric is not None else None)
    steps = (attempt.last_step, metric.step if metric is not None else None)
    return replace(
        card,
        attempt=attempt.n,
        step=max((step for step in steps if step is not None), default=None),
        loss=metric.loss if metric is not None else None,
        checkpoint_step=attempt.checkpoint_step,
        started_at=attempt.started_at,
        known_at=max((at for at in times if at is not None), default=None),
    )
