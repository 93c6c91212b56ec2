"""What the playbook says of one run now: worked out in the watch's own thread, where the run is known."""

from __future__ import annotations

from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, Any

from orchestrator.clock import timestamp
from orchestrator.errors import PlaybookError
from orchestrator.prospects import foresee
from orchestrator.serve.texts import line, settings, text

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.fleet import FleetWatch, RunCard
    from orchestrator.record import Record, RunRow
    from orchestrator.watch.runwatch import RunWatch

LIMIT_S = 2.0
_EMPTY: dict[str, Any] = {
    "source": None,
    "problem": None,
    "rule": None,
    "decision": None,
    "budgets": [],
    "ceiling": None,
    "crash_loop": None,
    "ladder": [],
    "gates": [],
}


def plan_body(
    fleet: FleetWatch, record: Record, clock: Clock, row: RunRow, card: RunCard | None
) -> dict[str, Any]:
    """Return the fields of `models.Plan`.

    Raises:
        RecordError: The record cannot be read.
    """
    history = record.history(row.id)

    def work() -> dict[str, Any] | None:
        run = next((each for each in fleet.runs if each.row.id == row.id), None)
        snapshot = run.tracker.snapshot(clock.now()) if run is not None else None
        if run is None or snapshot is None:
            return None
        found = foresee(run.tracker, snapshot, run.playbook, history, None, row.target.get("ct"))
        return {"source": run.playbook.source, **found, "decision": _decided(run, found["decision"])}

    try:
        found = fleet.ask(work).result(LIMIT_S) if fleet.is_running else None
    except Late:
        return {**_EMPTY, "problem": "the watch did not answer in time"}
    if found is None:
        return {**_EMPTY, **_unwatched(fleet, row, card)}
    return _body(found)


def _decided(run: RunWatch, foreseen: dict[str, Any]) -> dict[str, Any]:
    """Return what the watch has decided, where it has; else what it would."""
    decision = run.decision
    if decision is None:
        return foreseen
    due = decision.not_before
    return {
        **foreseen,
        "kind": decision.kind.value,
        "reason": decision.reason,
        "rule": decision.rule,
        "act_at": timestamp(due) if due is not None else None,
        "changes": dict(decision.changes),
        "env": dict(decision.env_changes),
        "rung": decision.rung,
        "attempts_left": decision.attempts_left,
    }


def _body(found: dict[str, Any]) -> dict[str, Any]:
    decision = found["decision"]
    return {
        **_EMPTY,
        "source": line(found["source"].rsplit("/", 1)[-1]),
        "rule": decision.get("rule"),
        "decision": {
            "kind": decision["kind"],
            "reason": text(decision["reason"]),
            "rule": decision.get("rule"),
            "act_at": decision.get("act_at"),
            "is_due": bool(decision.get("is_due")),
            "changes": settings({**decision.get("changes", {}), **decision.get("env", {})}.items()),
            "rung": decision.get("rung"),
            "attempts_left": decision.get("attempts_left"),
        },
        "budgets": [{**each, "cause": line(each["cause"])} for each in found["budgets"]],
        "ceiling": found["ceiling"],
        "crash_loop": found["crash_loop"],
        "ladder": [{**each, "why": text(each["why"])} for each in found["ladder"]],
        "gates": [{"gate": each["gate"], "why": text(each["why"])} for each in found["gates"]],
    }


def _unwatched(fleet: FleetWatch, row: RunRow, card: RunCard | None) -> dict[str, Any]:
    """Return what is known without a look: which playbook, and why no more."""
    try:
        source = fleet.playbook(row).source
    except PlaybookError as error:
        return {"problem": text(f"its playbook cannot be used: {error.message}")}
    has_ended = card is not None and card.has_ended
    problem = "it has ended, so nothing is done about it" if has_ended else "it has not been seen yet"
    return {"source": line(source.rsplit("/", 1)[-1]), "problem": problem}
