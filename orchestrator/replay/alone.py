"""What a playbook does about one log that has nothing beside it: no history, and often no beginning. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orchestrator.decide import decide
from orchestrator.types.decision import ActKind, Decision, History
from orchestrator.types.failure import Diagnosis, FailureClass, RunState

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook
    from orchestrator.types.snapshot import LogReading, Snapshot

_F = FailureClass
_UNDECIDED = (_F.UNKNOWN, _F.TORCHRUN_WRAPPER)
_SHUT = ("ssh_refused", "ssh_key_changed")
_NO_SUCH = re.compile(r"'\S*lxc/\d+\.conf' does not exist|unable to find configuration file")
KINDS = {
    ActKind.NONE: "none",
    ActKind.WAIT: "wait",
    ActKind.RELAUNCH: "relaunch",
    ActKind.RELAUNCH_WITH: "relaunch_with_changes",
    ActKind.CALL: "call_a_person",
    ActKind.GIVE_UP: "call_a_person",
}


def decision_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data: its kind, the changes of a ladder's rung, and why."""
    changes = [{"set": key, "value": value} for key, value in decision.changes]
    changes += [{"env": name, "value": value} for name, value in decision.env_changes]
    changes += [{"do": remedy.kind.value, "value": remedy.text} for remedy in decision.remedies]
    kind = KINDS[decision.kind]
    if changes and decision.kind is ActKind.RELAUNCH:  # as is, but for what is put right before it
        kind = KINDS[ActKind.RELAUNCH_WITH]
    return {"kind": kind, "rule": decision.rule, "changes": changes, "reason": decision.reason}


def decide_alone(diagnosis: Diagnosis, snapshot: Snapshot, playbook: Playbook) -> Decision:
    """Return what the playbook does, as far as one log alone may say so."""
    decision = decide(diagnosis, playbook, History(), snapshot, snapshot.now, 0.0)
    is_dead = diagnosis.state is RunState.DEAD
    if is_dead and snapshot.log.truncated and diagnosis.failure in (None, *_UNDECIDED):
        # The lines above these would say what it was; nothing is done before they are read.
        kind = ActKind.NONE if diagnosis.failure is _F.TORCHRUN_WRAPPER else ActKind.CALL
        return Decision(kind=kind, reason="these lines do not say what happened first; read more of the log")
    if is_dead and diagnosis.failure is _F.PYTHON_EXCEPTION and decision.kind.is_relaunch:
        reason = (
            "an error of the program that no rule knows; whether it comes again at once one log cannot say"
        )
        return Decision(kind=ActKind.CALL, reason=reason, rule=decision.rule)
    if diagnosis.state is RunState.BLIND and _is_shut(diagnosis):
        return Decision(kind=ActKind.CALL, reason="no wait opens that way, and it says nothing about the run")
    if is_dead and diagnosis.failure is _F.FX_TRACE_RACE and _is_misuse(snapshot.log):
        reason = "the trace runs in the very thread that made the call: a misuse that comes again, no race"
        return Decision(kind=ActKind.CALL, reason=reason, rule=decision.rule)
    if diagnosis.state is not RunState.UNSUPERVISED or diagnosis.failure in (None, _F.HEALTHY):
        return decision
    rule = playbook.rule_of(diagnosis)
    kind = ActKind.CALL if rule.act is ActKind.CALL else ActKind.WAIT
    return Decision(kind=kind, reason=f"it may still live. {rule.why}", rule=rule.key)


def _is_shut(diagnosis: Diagnosis) -> bool:
    """Whether the way there stays closed until a person does something: no login, no such container."""
    shown = next(iter(diagnosis.evidence), None)
    return shown is not None and (shown.signature in _SHUT or _NO_SUCH.search(shown.text) is not None)


def _is_misuse(log: LogReading) -> bool:
    return any(match.failure is _F.FX_TRACE_RACE and "tracing" in match.hints for match in log.matches)
