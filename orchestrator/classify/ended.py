"""How an attempt ended of which nothing runs any more: finished, stopped, or dead and of what. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify import place
from orchestrator.classify.cause import find_cause
from orchestrator.classify.exits import Cause, exit_signal
from orchestrator.classify.hang import SILENT
from orchestrator.classify.titles import shorten, title
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Absent, ExitRecord, Heartbeat, Present, Reading

if TYPE_CHECKING:
    from orchestrator.types.snapshot import Snapshot

_F = FailureClass
_S = RunState


def gone(snapshot: Snapshot) -> Diagnosis:
    """Return how it ended; there is proof that nothing of the attempt runs any more."""
    if is_finished(snapshot):
        return _finished(snapshot)
    if snapshot.stop_by == "user":
        reason = f": {snapshot.stop_reason}" if snapshot.stop_reason else ""
        return Diagnosis(state=_S.STOPPED, failure=_F.KILLED_BY_USER, summary=f"stopped by its user{reason}")
    restarted = place.restarted(snapshot)
    if restarted is not None:
        return _dead(snapshot, restarted)
    cause = find_cause(snapshot)
    if snapshot.stop_by == "watch":
        return _dead(snapshot, _stopped_by_watch(snapshot, cause))
    return _dead(snapshot, cause)


def is_finished(snapshot: Snapshot) -> bool:
    """Whether it ended as it should, by its exit and its result."""
    if isinstance(snapshot.exit, Absent):  # its supervisor was gone, so the trainer's own word is the last
        return isinstance(snapshot.result, Present)
    if not isinstance(snapshot.exit, Present) or not snapshot.exit.value.is_success:
        return False
    return isinstance(snapshot.result, Present) or snapshot.kind == "command"


def _finished(snapshot: Snapshot) -> Diagnosis:
    lost = next(
        (m for m in snapshot.log.matches if m.evidence.signature == "nonfinite_loss" and not m.handled), None
    )
    if lost is not None:
        words = "it exited with 0, but its last losses are no finite numbers"
        return _dead(snapshot, Cause(failure=_F.NAN_LOSS, root=lost.evidence, words=words, confidence=0.9))
    step = snapshot.last_step
    at = f" at step {step}" if step is not None else ""
    beat = snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None
    guarded = f"; {beat.guarded}" if beat is not None and beat.guarded else ""
    summary = f"finished{at}{guarded}{_ended_with_it(snapshot)}"
    return Diagnosis(state=_S.FINISHED, failure=_F.COMPLETED, summary=summary)


def _ended_with_it(snapshot: Snapshot) -> str:
    """Say what a command left running: a trainer that it put into the background did not finish."""
    pids = snapshot.exit.value.leftover if isinstance(snapshot.exit, Present) else ()
    if not pids or snapshot.kind != "command" or isinstance(snapshot.result, Present):
        return ""
    what, named = "process" if len(pids) == 1 else "processes", ", ".join(map(str, pids[:8]))
    was = "was" if len(pids) == 1 else "were"
    return (
        f"; {len(pids)} {what} that it left running (pid {named}) {was} ended with it: if that was "
        "the trainer, launch it in the foreground"
    )


def _stopped_by_watch(snapshot: Snapshot, cause: Cause) -> Cause:
    """Our own signal is not the cause; what made us send it is."""
    if cause.failure not in (_F.SIGNAL_EXIT, _F.INTERRUPTED, _F.UNKNOWN, _F.KILLED_BY_USER, _F.NCCL_ERROR):
        return cause
    if snapshot.kind == "command" and not isinstance(snapshot.heartbeat, Present):
        root = Evidence(source="log", text=SILENT, signature="no_progress")
    else:
        text = f"no progress in {_phase(snapshot)}"
        root = Evidence(source="heartbeat", text=text, signature="no_progress")
    words = f"it hung and was stopped by the watch ({snapshot.stop_reason or 'no progress'})"
    return Cause(failure=_F.HANG, root=root, words=words, evidence=(cause.root,), confidence=0.9)


def _dead(snapshot: Snapshot, cause: Cause) -> Diagnosis:
    step = snapshot.last_step
    at = f"died at step {step}" if step is not None else "died"
    words = cause.words or title(cause.failure)
    quoted = "" if cause.root.source == "exit.json" else f' ("{shorten(cause.root.text)}")'
    who = cause.who or (f"rank {cause.root.rank}" if cause.root.rank else "")
    return Diagnosis(
        state=_S.DEAD,
        failure=cause.failure,
        summary=f"{at}{f' on {who}' if who else ''}: {words}{quoted}",
        evidence=(
            cause.root,
            *cause.evidence,
            *_exit_evidence(snapshot, cause),
            *_guard_evidence(snapshot.heartbeat),
        ),
        cascades=cause.cascades,
        confidence=min(cause.confidence, 0.7) if snapshot.log.truncated else cause.confidence,
        fingerprint=cause.fingerprint,
    )


def _exit_evidence(snapshot: Snapshot, cause: Cause) -> tuple[Evidence, ...]:
    if not isinstance(snapshot.exit, Present) or cause.root.source == "exit.json":
        return ()
    record: ExitRecord = snapshot.exit.value
    signal = exit_signal(record)
    text = f"ended by {signal}" if signal is not None else f"exit code {record.code}"
    return (Evidence(source="exit.json", text=text, role=Role.CONFIRMATION),)


def _guard_evidence(heartbeat: Reading[Heartbeat]) -> tuple[Evidence, ...]:
    if not isinstance(heartbeat, Present) or not heartbeat.value.guarded:
        return ()
    text = f"before it: {heartbeat.value.guarded}"
    return (Evidence(source="heartbeat", text=text, role=Role.CONFIRMATION),)


def _phase(snapshot: Snapshot) -> str:
    return (
        snapshot.heartbeat.value.phase.value
        if isinstance(snapshot.heartbeat, Present)
        else "an unknown phase"
    )
