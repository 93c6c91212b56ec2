"""What would happen to a run next, from one look, the record and the playbook. Nothing is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS
from orchestrator.cli.reaching import site_of
from orchestrator.durations import format_duration
from orchestrator.errors import BlindError, GuestRefused
from orchestrator.prospects import foresee, said
from orchestrator.types.failure import Diagnosis, RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.playbook import Playbook
    from orchestrator.record import RunRow
    from orchestrator.types.decision import History
    from orchestrator.types.failure import FailureClass


def look_ahead(
    row: RunRow, history: History, book: Playbook, supposed: FailureClass | None
) -> dict[str, Any]:
    """Look at a run, and return what an acting watch would do next; `supposed`: as if it died of that now."""
    from orchestrator.observe import look

    base = {
        "run": row.name,
        "target": row.target_key,
        "playbook": book.source,
        "supposed": supposed is not None,
    }
    site = site_of(row)
    try:
        tracker = look(site, row.name, SETTINGS.clock, gpus=True, custom=book.custom)
    except (BlindError, GuestRefused) as error:
        blind = Diagnosis(state=RunState.BLIND, failure=None, summary=str(error))
        return {
            **base,
            **said(blind),
            "decision": {"kind": "wait", "reason": f"{error}; this says nothing of it"},
        }
    finally:
        site.close()
    snapshot = tracker.snapshot(SETTINGS.clock.now())
    if snapshot is None:
        new = Diagnosis(state=RunState.NEW, failure=None, summary="never started there")
        return {**base, **said(new), "decision": {"kind": "none", "reason": "it was never started there"}}
    return {**base, **foresee(tracker, snapshot, book, history, supposed, row.target.get("ct"))}


def prospect_lines(body: Mapping[str, Any]) -> list[str]:
    """Return it for people."""
    decision = body["decision"]
    lines = [f"{body['run']} at {body['target']}: {body['summary']}", f"playbook: {body['playbook']}"]
    lines.append(f"next: {decision['kind']}. {decision['reason']}")
    if decision.get("act_at"):
        due = "due since" if decision["is_due"] else "not before"
        lines.append(f"  {due} {decision['act_at']}, by a watch that acts (`dflashctl watch`)")
    for item in body.get("budgets", ()):
        left = max(0, item["allowed"] - item["spent"])
        lines.append(f"budget: {item['cause']}: {item['spent']} of {item['allowed']} spent, {left} left")
    if "ceiling" in body:
        ceiling, loop = body["ceiling"], body["crash_loop"]
        lines.append(f"ceiling: {ceiling['attempts']} of {ceiling['allowed']} attempts in 24 hours")
        within = format_duration(loop["within_s"])
        lines.append(
            f"crash loop: {loop['deaths']} deaths within {within} since a checkpoint last advanced;"
            f" over {loop['allowed']} call a person"
        )
    lines += [
        f"ladder: rung {rung['rung']} {rung['state']}: {rung['why']}" for rung in body.get("ladder", ())
    ]
    lines += [f"gate closed: {gate['why']}" for gate in body.get("gates", ())]
    return lines
