"""All that is on record of one run, as the API has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.clock import timestamp
from orchestrator.compare import Attempt, choose, compare
from orchestrator.report.attempts import is_death
from orchestrator.report.words import value_said
from orchestrator.serve.cards import titled
from orchestrator.serve.texts import line, moment, optional, settings, text
from orchestrator.types.failure import RunState
from orchestrator.watch.events import Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.record import AttemptRow, DiagnosisRow, EventRow, Record, RunRow
    from orchestrator.types.failure import Evidence

MAX_EVENTS = 1_000
MAX_ATTEMPTS = 500
MAX_DIAGNOSES = 500
MAX_CHANGES = 200
_LEVELS = {
    RunState.HEALTHY.value: Level.GOOD,
    RunState.FINISHED.value: Level.GOOD,
    RunState.DEAD.value: Level.BAD,
    RunState.HUNG.value: Level.BAD,
    RunState.BLIND.value: Level.WARNING,
}


class Known(NamedTuple):
    """What the record says, read once."""

    row: RunRow
    attempts: list[AttemptRow]
    diagnoses: list[DiagnosisRow]
    events: list[EventRow]


def read(record: Record, row: RunRow) -> Known:
    """Read it; the newest of what is much.

    Raises:
        RecordError: The record cannot be read.
    """
    return Known(
        row,
        record.attempts(row.id)[-MAX_ATTEMPTS:],
        record.diagnoses(row.id)[-MAX_DIAGNOSES:],
        record.events(row.id, limit=MAX_EVENTS),
    )


def history_body(known: Known) -> dict[str, Any]:
    """Return the fields of `models.RunDetail` that the record alone gives."""
    return {
        "created_at": timestamp(known.row.created_at),
        "attempts": [attempt_body(each) for each in known.attempts],
        "timeline": [_happening(each) for each in known.events],
        "diagnoses": [_diagnosis(each) for each in known.diagnoses],
        "actions": _actions(known.events),
        "environment": environment_body(known.row, known.attempts),
    }


def attempt_body(row: AttemptRow) -> dict[str, Any]:
    """Return the fields of `models.Attempt`."""
    return {
        "n": row.n,
        "started_at": moment(row.started_at),
        "ended_at": moment(row.ended_at),
        "failure": row.failure.value if row.failure is not None else None,
        "failure_title": titled(row.failure),
        "fingerprint": line(row.fingerprint) if row.fingerprint is not None else None,
        "first_step": row.first_step,
        "last_step": row.last_step,
        "checkpoint_step": row.checkpoint_step,
        "exit_code": row.exit_code,
        "exit_signal": row.exit_signal,
        "rung": row.rung,
        "changes": settings(row.changes.items()),
        "by": row.by,
        "is_death": is_death(row),
    }


def _happening(event: EventRow) -> dict[str, Any]:
    return {
        "key": event.key,
        "at": timestamp(event.at),
        "attempt": event.attempt,
        "kind": event.kind,
        "level": _level(event).value,
        "text": text(event.text),
    }


def _level(event: EventRow) -> Level:
    if event.kind in ("transition", "diagnosis"):
        state = event.detail.get("to" if event.kind == "transition" else "state")
        return _LEVELS.get(str(state), Level.INFO)
    return Level.WARNING if event.kind == "outcome" and event.detail.get("error") else Level.INFO


def _diagnosis(row: DiagnosisRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "attempt": row.attempt,
        "at": timestamp(row.at),
        "state": row.state.value,
        "failure": row.failure.value if row.failure is not None else None,
        "failure_title": titled(row.failure),
        "summary": text(row.summary),
        "confidence": row.confidence,
        "fingerprint": line(row.fingerprint) if row.fingerprint is not None else None,
        "evidence": _proofs(row.evidence),
        "cascades": _proofs(row.cascades),
        "warnings": _proofs(row.warnings),
    }


def _proofs(lines: Iterable[Evidence]) -> list[dict[str, Any]]:
    return [
        {
            "source": line(each.source),
            "text": text(each.text),
            "role": each.role.value,
            "signature": each.signature,
            "offset": each.offset,
            "rank": each.rank,
        }
        for each in lines
    ]


def _actions(events: Sequence[EventRow]) -> list[dict[str, Any]]:
    """Return the acts with how each went, oldest first."""
    outcomes = {each.detail.get("id"): each for each in events if each.kind == "outcome"}
    return [_action(each, outcomes.get(each.detail.get("id"))) for each in events if each.kind == "action"]


def _action(event: EventRow, outcome: EventRow | None) -> dict[str, Any]:
    said = outcome.detail if outcome is not None else {}
    kind = str(event.detail.get("action"))
    return {
        "id": int(event.detail.get("id", 0)),
        "attempt": event.attempt,
        "at": timestamp(event.at),
        "kind": line(kind),
        "reason": text(event.text.removeprefix(f"{kind}: ")),
        "outcome": optional(said.get("outcome")),
        "outcome_at": moment(outcome.at) if outcome is not None else None,
        "error": optional(said.get("error")),
    }


def environment_body(row: RunRow, attempts: Sequence[AttemptRow]) -> dict[str, Any] | None:
    """Return what differs between the last attempt that made progress and the newest; None without two."""
    made = {
        each.n: Attempt(
            run=row.name,
            number=each.n,
            environment=each.environment,
            spec=each.spec,
            made_progress=each.exit_code == 0 or (each.last_step or 0) > (each.first_step or 0),
        )
        for each in attempts
    }
    pair = choose(made)
    if pair is None:
        return None
    found = compare(*pair)
    return {
        "old": pair[0].number,
        "new": pair[1].number,
        "notes": [text(note) for note in found.notes],
        "changes": [
            {
                "group": each.group,
                "key": line(each.key),
                "old": value_said(each.key, each.old) if each.old is not None else None,
                "new": value_said(each.key, each.new) if each.new is not None else None,
            }
            for each in found.changes[:MAX_CHANGES]
        ],
        "num_more": max(0, len(found.changes) - MAX_CHANGES),
    }
