"""State and cause of one attempt at one instant, from proof. Pure: it looks at nothing but its arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import place
from orchestrator.classify.custom import apply_custom
from orchestrator.classify.ended import gone, is_finished
from orchestrator.classify.hang import find_hang, find_silence, silence_limit_s
from orchestrator.classify.hostside import explain_hang, host_warnings
from orchestrator.durations import format_duration
from orchestrator.types.failure import Diagnosis, FailureClass, Role, RunState
from orchestrator.types.seen import Absent, Blind, Heartbeat, Liveness, Present

if TYPE_CHECKING:
    from orchestrator.limits import Limits
    from orchestrator.types.snapshot import Snapshot

_F = FailureClass
_S = RunState


def diagnose(snapshot: Snapshot, limits: Limits) -> Diagnosis:
    """Return what is known of the attempt. Unknown is never dead, and never hung."""
    diagnosis = _from_container(snapshot) or _from_liveness(snapshot, limits)
    is_alive = diagnosis.state in (_S.HEALTHY, _S.UNSUPERVISED, _S.ENDING)
    # A living run may have lost a thread, a rank or its loss; that is said before the process ends of it.
    warnings = tuple(
        m.evidence
        for m in snapshot.log.matches
        if m.evidence.role is Role.PREDICTION
        or (is_alive and m.evidence.role is Role.ROOT and not m.weak and not m.handled)
    )
    if is_alive:
        warnings = (*warnings, *host_warnings(snapshot))
    if diagnosis.state is _S.HUNG:
        diagnosis = explain_hang(diagnosis, snapshot)
    return replace(apply_custom(diagnosis, snapshot), warnings=warnings)


def _from_container(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.container == "frozen":
        return place.frozen(snapshot)
    if snapshot.container != "stopped":
        return None
    # The end of a run that ended before its container did is still the truth about the run.
    if isinstance(snapshot.exit, Present) and (is_finished(snapshot) or snapshot.stop_by == "user"):
        return gone(snapshot)
    return place.stopped(snapshot)


def _from_liveness(snapshot: Snapshot, limits: Limits) -> Diagnosis:
    if isinstance(snapshot.liveness, Blind):
        return _blind(snapshot.liveness.reason)
    if isinstance(snapshot.liveness, Absent):
        return _plain(_S.NEW, None, f"attempt {snapshot.attempt} was not found; nothing is known of it yet")
    liveness = snapshot.liveness.value
    if not liveness.is_gone:
        return _alive(snapshot, liveness, limits)
    if isinstance(snapshot.exit, Blind):
        return _blind(snapshot.exit.reason)
    if isinstance(snapshot.exit, Absent) and liveness.supervisor:
        return _plain(
            _S.ENDING, None, "the trainer has ended; its supervisor is about to say how", confidence=0.5
        )
    if isinstance(snapshot.exit, Absent) and snapshot.started_at is None:
        return _plain(_S.NEW, None, f"attempt {snapshot.attempt} is being started", confidence=0.5)
    if (
        isinstance(snapshot.exit, Present)
        and snapshot.exit.value.is_success
        and isinstance(snapshot.result, Blind)
    ):
        return _blind(snapshot.result.reason)
    return gone(snapshot)


def _alive(snapshot: Snapshot, liveness: Liveness, limits: Limits) -> Diagnosis:
    if isinstance(snapshot.exit, Present):
        if not liveness.supervisor:
            return _left_behind(snapshot, liveness)
        return _plain(
            _S.ENDING, None, "the trainer has ended; its last processes are being ended", confidence=0.5
        )
    if not liveness.supervisor:
        # What it waits for does not come sooner for want of a supervisor; but one that never had one was
        # begun by hand, and is its person's.
        is_ours = snapshot.started_at is not None
        return (_hang(snapshot, limits) if is_ours else None) or _plain(
            _S.UNSUPERVISED,
            None,
            "the trainer is alive, its supervisor is gone; nobody will write how it ends",
        )
    if not isinstance(snapshot.heartbeat, Present):
        return _without_heartbeat(snapshot, limits)
    return find_hang(snapshot, snapshot.heartbeat.value, limits) or _healthy(snapshot.heartbeat.value)


def _hang(snapshot: Snapshot, limits: Limits) -> Diagnosis | None:
    if isinstance(snapshot.heartbeat, Present):
        return find_hang(snapshot, snapshot.heartbeat.value, limits)
    return find_silence(snapshot, limits) if isinstance(snapshot.heartbeat, Absent) else None


def _left_behind(snapshot: Snapshot, liveness: Liveness) -> Diagnosis:
    """Its main process ended, but not all of it is gone: how it ended is told, and nothing is concluded."""
    pids = liveness.pids
    who = f"its pid{'s' if len(pids) > 1 else ''} {', '.join(map(str, pids[:8]))}" if pids else "somebody"
    held = (
        f"{who} still {'live and hold' if len(pids) > 1 else 'lives and holds' if pids else 'holds'} the run"
    )
    ended = gone(snapshot)
    hint = "`dflashctl stop` ends what can be ended, a restart of the container the rest"
    return replace(
        ended, state=_S.UNSUPERVISED, summary=f"{ended.summary}; but {held}; {hint}", confidence=0.9
    )


def _without_heartbeat(snapshot: Snapshot, limits: Limits) -> Diagnosis:
    if isinstance(snapshot.heartbeat, Blind):
        return _plain(
            _S.HEALTHY,
            None,
            f"alive; its heartbeat could not be read: {snapshot.heartbeat.reason}",
            confidence=0.5,
        )
    hang = find_silence(snapshot, limits)
    if hang is not None:
        return hang
    if snapshot.log.read_bytes == 0:
        return _plain(_S.NEW, None, "started, no sign of its own yet")
    step = snapshot.log.last_step
    at = f" at step {step}" if step is not None else ""
    text = f"alive{at}; it writes no heartbeat, {_how_a_hang_shows(snapshot, limits)}"
    return _plain(_S.HEALTHY, _F.HEALTHY, text, confidence=0.7)


def _how_a_hang_shows(snapshot: Snapshot, limits: Limits) -> str:
    limit_s = silence_limit_s(snapshot, limits)
    if limit_s is not None:
        return f"so a log that is silent for {format_duration(limit_s)} is a hang"
    if snapshot.kind == "command" and snapshot.log.is_last_step:
        return "and after the last of its steps it may be silent"
    if snapshot.kind == "command" and snapshot.log.mark is not None:
        return "so a hang is seen once a watch has learned how often its log tells a step"
    asks = "; a playbook's `limits: {silence: 30m}` would say how long its log may be silent"
    return f"so a hang would not be seen{asks if snapshot.kind == 'command' else ''}"


def _healthy(heartbeat: Heartbeat) -> Diagnosis:
    total = f" of {heartbeat.total_steps}" if heartbeat.total_steps is not None else ""
    loss = f", loss {heartbeat.loss:.4g}" if heartbeat.loss is not None else ""
    guarded = f"; {heartbeat.guarded}" if heartbeat.guarded else ""
    text = f"{heartbeat.phase.value}, step {heartbeat.step}{total}{loss}{guarded}"
    return _plain(_S.HEALTHY, _F.HEALTHY, text)


def _blind(reason: str) -> Diagnosis:
    return _plain(
        _S.BLIND, None, f"could not look: {reason}; this says nothing about the run", confidence=0.0
    )


def _plain(state: RunState, failure: FailureClass | None, summary: str, confidence: float = 1.0) -> Diagnosis:
    return Diagnosis(state=state, failure=failure, summary=summary, confidence=confidence)
