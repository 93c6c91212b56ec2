"""What would happen to a run next, from one look, the record and the playbook. Nothing is done."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS
from orchestrator.cli.reaching import site_of
from orchestrator.clock import timestamp
from orchestrator.decide import decide
from orchestrator.durations import format_duration
from orchestrator.errors import BlindError, ConfigError, GuestRefused
from orchestrator.gates import Gates, begun_elsewhere, closed_gates
from orchestrator.ladder import facts
from orchestrator.ledger import Ledger, open_ledger
from orchestrator.types.decision import Decision
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.observe import RunTracker
    from orchestrator.playbook import Playbook, Rule
    from orchestrator.record import RunRow
    from orchestrator.types.decision import History
    from orchestrator.types.snapshot import Snapshot


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
            **_said(blind),
            "decision": {"kind": "wait", "reason": f"{error}; this says nothing of it"},
        }
    finally:
        site.close()
    snapshot = tracker.snapshot(SETTINGS.clock.now())
    if snapshot is None:
        new = Diagnosis(state=RunState.NEW, failure=None, summary="never started there")
        return {**base, **_said(new), "decision": {"kind": "none", "reason": "it was never started there"}}
    return {**base, **_foresee(tracker, snapshot, book, history, supposed, row.target.get("ct"))}


def _foresee(
    tracker: RunTracker,
    snapshot: Snapshot,
    book: Playbook,
    history: History,
    supposed: FailureClass | None,
    ct: int | None,
) -> dict[str, Any]:
    """Return what would be decided now, and what is left of budget, ceiling and ladder. Pure."""
    now = snapshot.now
    diagnosis = _diagnosis(tracker, snapshot, book, history, supposed)
    known = facts(tracker.spec, tracker.view.environment if tracker.view else None)
    decision = decide(diagnosis, book, history, snapshot, now, 0.0, known)
    ledger = open_ledger(history, snapshot)
    rule = book.rule_of(diagnosis)
    is_over = diagnosis.state in (RunState.DEAD, RunState.HUNG)
    return {
        **_said(diagnosis),
        "decision": _decision(decision, now, _ended_at(tracker, snapshot, ledger)),
        "budgets": _budgets(ledger, book, rule, diagnosis if is_over else None),
        "ceiling": {"attempts": ledger.num_today(now), "allowed": book.max_attempts_per_day},
        "crash_loop": {
            "deaths": ledger.num_deaths(now, book.loop_window_s) - (not is_over),
            "allowed": book.loop_deaths - 1,
            "within_s": book.loop_window_s,
        },
        "ladder": _ladder(rule, ledger.rung(diagnosis.fingerprint), decision) if is_over else [],
        "gates": _gates(tracker, snapshot, book, supposed, ct) if decision.kind.is_relaunch else [],
    }


def _diagnosis(
    tracker: RunTracker, snapshot: Snapshot, book: Playbook, history: History, supposed: FailureClass | None
) -> Diagnosis:
    from orchestrator.classify import diagnose

    found = diagnose(snapshot, book.limits_for(tracker.median_step_s, tracker.median_phase_s))
    if supposed is None:
        return found
    # The cause itself cannot be foreseen; the newest one of that class is the likeliest.
    same = [a.fingerprint for a in history.attempts if a.failure is supposed and a.fingerprint]
    summary = f"as if it died of {supposed.value} now"
    return Diagnosis(
        state=RunState.DEAD,
        failure=supposed,
        summary=summary,
        fingerprint=same[-1] if same else f"{supposed.value}: supposed",
    )


def _said(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "state": diagnosis.state.value,
        "failure": diagnosis.failure.value if diagnosis.failure else None,
        "fingerprint": diagnosis.fingerprint,
        "summary": diagnosis.summary,
    }


def _ended_at(tracker: RunTracker, snapshot: Snapshot, ledger: Ledger) -> datetime:
    """When the attempt ended by the near clock: from then an acting watch counts its wait."""
    if ledger.own is not None and ledger.own.ended_at is not None:
        return ledger.own.ended_at
    if isinstance(snapshot.exit, Present):
        return min(snapshot.now, snapshot.exit.value.at - timedelta(seconds=tracker.clock_skew_s))
    return snapshot.now


def _decision(decision: Decision, now: datetime, ended_at: datetime) -> dict[str, Any]:
    wait = decision.not_before - now if decision.not_before is not None else None
    at = ended_at + wait if wait is not None else None
    return {
        "kind": decision.kind.value,
        "reason": decision.reason,
        "rule": decision.rule,
        "act_at": timestamp(at) if at is not None else None,
        "is_due": at is not None and at <= now,
        "changes": dict(decision.changes),
        "env": dict(decision.env_changes),
        "remedies": [{"kind": each.kind.value, "step": each.step} for each in decision.remedies],
        "rung": decision.rung,
        "attempts_left": decision.attempts_left,
    }


def _budgets(ledger: Ledger, book: Playbook, rule: Rule, diagnosis: Diagnosis | None) -> list[dict[str, Any]]:
    """Return what is spent of each cause since a checkpoint last advanced, this death's first."""
    causes = {a.fingerprint: a.failure for a in ledger.chain if a.fingerprint}
    own = diagnosis.fingerprint if diagnosis is not None else None
    if diagnosis is not None and own:
        causes = {own: diagnosis.failure, **causes}
    return [
        {
            "cause": cause,
            "spent": ledger.num_spent(cause),
            "allowed": (rule if cause == own else book.rule(failure or FailureClass.UNKNOWN)).attempts,
        }
        for cause, failure in causes.items()
    ]


def _ladder(rule: Rule, begin: int, decision: Decision) -> list[dict[str, Any]]:
    rows = []
    for place, rung in enumerate(rule.ladder):
        place_of = decision.rung if decision.rung is not None else len(rule.ladder)
        state = "tried" if place < begin else "passed over" if place < place_of else "to come"
        rows.append(
            {"rung": place + 1, "state": "next" if place == decision.rung else state, "why": rung.why}
        )
    return rows


def _gates(
    tracker: RunTracker, snapshot: Snapshot, book: Playbook, supposed: FailureClass | None, ct: int | None
) -> list[dict[str, str]]:
    from orchestrator.launch import spec_from_document

    try:
        gpus = spec_from_document(tracker.spec or {}).gpus
    except ConfigError as error:
        return [{"gate": "spec", "why": str(error)}]
    closed = closed_gates(snapshot, gpus, Gates.of(book)) + begun_elsewhere(tracker.spec or {}, ct)
    # What a run that lives holds itself is no gate of the attempt after it.
    own = {"alive"} if supposed is not None else set()
    return [{"gate": c.gate, "why": c.why} for c in closed if c.gate not in own and not (own and c.holders)]


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
            f"crash loop: {loop['deaths']} deaths within {within}; over {loop['allowed']} call a person"
        )
    lines += [
        f"ladder: rung {rung['rung']} {rung['state']}: {rung['why']}" for rung in body.get("ladder", ())
    ]
    lines += [f"gate closed: {gate['why']}" for gate in body.get("gates", ())]
    return lines
