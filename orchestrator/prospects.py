"""What would be done about a run next, as plain data: the decision, and what is left of every bound. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.classify import diagnose
from orchestrator.clock import timestamp
from orchestrator.decide import decide
from orchestrator.errors import ConfigError
from orchestrator.gates import Gates, begun_elsewhere, closed_gates
from orchestrator.ladder import facts
from orchestrator.launch import spec_from_document
from orchestrator.ledger import Ledger, open_ledger
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.observe import RunTracker
    from orchestrator.playbook import Playbook, Rule
    from orchestrator.types.decision import Decision, History
    from orchestrator.types.snapshot import Snapshot


def foresee(
    tracker: RunTracker,
    snapshot: Snapshot,
    book: Playbook,
    history: History,
    supposed: FailureClass | None,
    ct: int | None,
) -> dict[str, Any]:
    """Return what would be decided now, and what is left of budget, ceiling and ladder.

    `supposed`: as if it died of that now; `ct`: the container's number.
    """
    now = snapshot.now
    diagnosis = _diagnosis(tracker, snapshot, book, history, supposed)
    known = facts(tracker.spec, tracker.view.environment if tracker.view else None)
    decision = decide(diagnosis, book, history, snapshot, now, 0.0, known)
    ledger = open_ledger(history, snapshot)
    rule = book.rule_of(diagnosis)
    is_over = diagnosis.state in (RunState.DEAD, RunState.HUNG)
    return {
        **said(diagnosis),
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


def said(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return state, cause and summary."""
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
    try:
        gpus = spec_from_document(tracker.spec or {}).gpus
    except ConfigError as error:
        return [{"gate": "spec", "why": str(error)}]
    closed = closed_gates(snapshot, gpus, Gates.of(book)) + begun_elsewhere(tracker.spec or {}, ct)
    # What a run that lives holds itself is no gate of the attempt after it.
    own = {"alive"} if supposed is not None else set()
    return [{"gate": c.gate, "why": c.why} for c in closed if c.gate not in own and not (own and c.holders)]
