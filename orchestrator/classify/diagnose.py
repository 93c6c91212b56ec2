"""State and cause of one attempt at one instant, from proof. Pure: it looks at nothing but its arguments."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.classify.cause import Cause, exit_signal, find_cause, log_cause
from orchestrator.durations import format_duration
from orchestrator.limits import Limits
from orchestrator.types import (
    Absent,
    Blind,
    Diagnosis,
    Evidence,
    ExitRecord,
    FailureClass,
    Heartbeat,
    Liveness,
    Phase,
    Present,
    Role,
    RunState,
    Snapshot,
)

_F = FailureClass
_S = RunState

_TITLES: dict[FailureClass, str] = {
    _F.FX_TRACE_RACE: "a compiled function was called while another thread was tracing (FX)",
    _F.OOM_DENSE_FALLBACK: "attention fell back to dense and asked for more memory than there is",
    _F.OOM_CUDA: "the GPU ran out of memory",
    _F.OOM_HOST: "the container ran out of memory",
    _F.COMPILE_ERROR: "compilation failed",
    _F.RECOMPILE_LIMIT: "the recompile limit was reached",
    _F.PYTHON_EXCEPTION: "an exception ended it",
    _F.IMPORT_ERROR: "a module could not be imported",
    _F.CONFIG_ERROR: "its command or configuration is wrong",
    _F.NCCL_TIMEOUT: "a collective timed out: one rank did not come",
    _F.NCCL_ERROR: "communication between ranks failed",
    _F.SIGNAL_EXIT: "a signal ended it",
    _F.DISK_FULL: "the disk is full",
    _F.IO_ERROR: "data or a checkpoint is missing or corrupt",
    _F.NAN_LOSS: "the loss is no finite number",
    _F.HANG: "it hung",
    _F.KILLED_BY_USER: "a person ended it",
    _F.CONTAINER_STOPPED: "its container was stopped",
    _F.CONTAINER_RESTARTED: "its container was restarted under it",
    _F.INTERRUPTED: "it was asked to stop from outside and wrote a checkpoint",
    _F.COMPLETED: "it is finished",
    _F.HEALTHY: "it is healthy",
    _F.UNKNOWN: "it died, and nothing says why",
}


def diagnose(snapshot: Snapshot, limits: Limits) -> Diagnosis:
    """Return what is known of the attempt. Unknown is never dead, and never hung."""
    warnings = tuple(m.evidence for m in snapshot.log.matches if m.evidence.role is Role.PREDICTION)
    diagnosis = _from_container(snapshot) or _from_liveness(snapshot, limits)
    return _with_warnings(diagnosis, warnings)


def title(failure: FailureClass) -> str:
    """Return the failure in a person's words."""
    return _TITLES[failure]


def _with_warnings(diagnosis: Diagnosis, warnings: tuple[Evidence, ...]) -> Diagnosis:
    fields = {name: getattr(diagnosis, name) for name in Diagnosis.__dataclass_fields__}
    return Diagnosis(**{**fields, "warnings": warnings})


def _from_container(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.container == "frozen":
        return _plain(
            _S.CONTAINER_FROZEN,
            None,
            "the container is frozen (a backup or a suspend); the run waits with it",
        )
    if snapshot.container != "stopped":
        return None
    # The end of a run that ended before its container did is still the truth about the run.
    if isinstance(snapshot.exit, Present) and (_is_finished(snapshot) or snapshot.stop_by == "user"):
        return _gone(snapshot)
    return _plain(
        _S.CONTAINER_STOPPED, _F.CONTAINER_STOPPED, "the container is stopped; the run did not crash"
    )


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
            _S.HEALTHY, None, "the trainer has ended; its supervisor is about to say how", confidence=0.5
        )
    if isinstance(snapshot.exit, Absent) and snapshot.started_at is None:
        return _plain(_S.NEW, None, f"attempt {snapshot.attempt} is being started", confidence=0.5)
    if (
        isinstance(snapshot.exit, Present)
        and snapshot.exit.value.is_success
        and isinstance(snapshot.result, Blind)
    ):
        return _blind(snapshot.result.reason)
    return _gone(snapshot)


def _gone(snapshot: Snapshot) -> Diagnosis:
    """There is proof that nothing of the attempt runs any more."""
    if _is_finished(snapshot):
        return _finished(snapshot)
    if snapshot.stop_by == "user":
        reason = f": {snapshot.stop_reason}" if snapshot.stop_reason else ""
        return _plain(_S.STOPPED, _F.KILLED_BY_USER, f"stopped by its user{reason}")
    if snapshot.container_restarted and _ended_with_container(snapshot):
        text = "the container is younger than the attempt: it was restarted under it"
        evidence = Evidence(source="host", text=text, signature="container_restarted")
        return _dead(snapshot, Cause(failure=_F.CONTAINER_RESTARTED, root=evidence, confidence=0.9))
    cause = find_cause(snapshot)
    if snapshot.stop_by == "watch":
        return _dead(snapshot, _stopped_by_watch(snapshot, cause))
    return _dead(snapshot, cause)


def _is_finished(snapshot: Snapshot) -> bool:
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
    step = _step(snapshot)
    at = f" at step {step}" if step is not None else ""
    return _plain(_S.FINISHED, _F.COMPLETED, f"finished{at}")


def _ended_with_container(snapshot: Snapshot) -> bool:
    """True unless the attempt has an end of its own; a container's shutdown sends SIGTERM, then SIGKILL."""
    if not isinstance(snapshot.exit, Present):
        return True
    record = snapshot.exit.value
    return record.code == 75 or exit_signal(record) in ("SIGTERM", "SIGKILL", "SIGHUP")


def _stopped_by_watch(snapshot: Snapshot, cause: Cause) -> Cause:
    """Our own signal is not the cause; what made us send it is."""
    if cause.failure not in (_F.SIGNAL_EXIT, _F.INTERRUPTED, _F.UNKNOWN, _F.KILLED_BY_USER, _F.NCCL_ERROR):
        return cause
    phase = _phase(snapshot)
    root = Evidence(source="heartbeat", text=f"no progress in {phase}", signature="no_progress")
    words = f"it hung and was stopped by the watch ({snapshot.stop_reason or 'no progress'})"
    return Cause(failure=_F.HANG, root=root, words=words, evidence=(cause.root,), confidence=0.9)


def _dead(snapshot: Snapshot, cause: Cause) -> Diagnosis:
    step = _step(snapshot)
    at = f"died at step {step}" if step is not None else "died"
    words = cause.words or title(cause.failure)
    quoted = "" if cause.root.source == "exit.json" else f' ("{_shorten(cause.root.text)}")'
    rank = f" on rank {cause.root.rank}" if cause.root.rank else ""
    known_causes = tuple(e for e in cause.evidence if e.role is Role.PREDICTION)
    others = tuple(e for e in cause.evidence if e.role is not Role.PREDICTION)
    return Diagnosis(
        state=_S.DEAD,
        failure=cause.failure,
        summary=f"{at}{rank}: {words}{quoted}",
        evidence=(*known_causes, cause.root, *others, *_exit_evidence(snapshot, cause)),
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


def _alive(snapshot: Snapshot, liveness: Liveness, limits: Limits) -> Diagnosis:
    if isinstance(snapshot.exit, Present):
        count = len(liveness.pids)
        if not liveness.supervisor:
            text = f"its main process ended, but {count} of its processes are still there; they hold the run"
            return _plain(_S.UNSUPERVISED, None, text, confidence=0.9)
        return _plain(
            _S.HEALTHY, None, "the trainer has ended; its last processes are being ended", confidence=0.5
        )
    if not liveness.supervisor:
        return _plain(
            _S.UNSUPERVISED,
            None,
            "the trainer is alive, its supervisor is gone; nobody will write how it ends",
        )
    if not isinstance(snapshot.heartbeat, Present):
        return _without_heartbeat(snapshot)
    return _hang(snapshot, snapshot.heartbeat.value, limits) or _healthy(snapshot, snapshot.heartbeat.value)


def _without_heartbeat(snapshot: Snapshot) -> Diagnosis:
    if isinstance(snapshot.heartbeat, Blind):
        return _plain(
            _S.HEALTHY,
            None,
            f"alive; its heartbeat could not be read: {snapshot.heartbeat.reason}",
            confidence=0.5,
        )
    if snapshot.log.read_bytes == 0:
        return _plain(_S.NEW, None, "started, no sign of its own yet")
    step = snapshot.log.last_step
    at = f" at step {step}" if step is not None else ""
    return _plain(
        _S.HEALTHY,
        _F.HEALTHY,
        f"alive{at}; it writes no heartbeat, so a hang would not be seen",
        confidence=0.7,
    )


def _hang(snapshot: Snapshot, heartbeat: Heartbeat, limits: Limits) -> Diagnosis | None:
    """A phase limit passed by the near clock since a step or phase change was seen; None if that cannot be said."""
    seen_at = snapshot.heartbeat_seen_at
    if seen_at is None or (snapshot.container or "").startswith("locked"):
        return None
    # Imports and downloads print before any step can move; later on, printing is not progress.
    if heartbeat.phase is Phase.INIT and snapshot.log_grew_at is not None:
        seen_at = max(seen_at, snapshot.log_grew_at)
    limit_s = limits.limit_s(heartbeat.phase, heartbeat.step_s)
    silent = snapshot.now - seen_at
    if silent <= timedelta(seconds=limit_s):
        return None
    phase = heartbeat.phase.value
    text = f"no progress in {phase} at step {heartbeat.step} for {format_duration(silent.total_seconds())}"
    reading = Evidence(source="heartbeat", text=text, signature="no_progress")
    cause = log_cause(snapshot.log)
    is_known = cause is not None and cause.confidence > 0.7
    root = cause.root if cause is not None and is_known else None
    return Diagnosis(
        state=_S.HUNG,
        failure=cause.failure if cause is not None and is_known else _F.HANG,
        summary=f"hung: {text} (limit {format_duration(limit_s)})"
        + (f'; "{_shorten(root.text)}"' if root else ""),
        evidence=tuple(e for e in (root, reading, *_gpu_evidence(snapshot)) if e is not None),
        confidence=0.9,
        fingerprint=cause.fingerprint if cause is not None and is_known else f"hang: no progress in {phase}",
    )


def _gpu_evidence(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """Full utilization at idle-like power is a collective that spins; nothing is decided by it."""
    if not isinstance(snapshot.gpus, Present):
        return ()
    return tuple(
        Evidence(
            source="gpu",
            text=f"GPU {g.index}: {g.utilization_pct:.0f} % at {g.power_w:.0f} W",
            role=Role.CONFIRMATION,
        )
        for g in snapshot.gpus.value
        if g.utilization_pct is not None and g.power_w is not None
    )


def _healthy(snapshot: Snapshot, heartbeat: Heartbeat) -> Diagnosis:
    total = f" of {heartbeat.total_steps}" if heartbeat.total_steps is not None else ""
    loss = f", loss {heartbeat.loss:.4g}" if heartbeat.loss is not None else ""
    return _plain(_S.HEALTHY, _F.HEALTHY, f"{heartbeat.phase.value}, step {heartbeat.step}{total}{loss}")


def _step(snapshot: Snapshot) -> int | None:
    if isinstance(snapshot.heartbeat, Present):
        return snapshot.heartbeat.value.step
    return snapshot.log.last_step


def _phase(snapshot: Snapshot) -> str:
    return (
        snapshot.heartbeat.value.phase.value
        if isinstance(snapshot.heartbeat, Present)
        else "an unknown phase"
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def _blind(reason: str) -> Diagnosis:
    return _plain(
        _S.BLIND, None, f"could not look: {reason}; this says nothing about the run", confidence=0.0
    )


def _plain(state: RunState, failure: FailureClass | None, summary: str, confidence: float = 1.0) -> Diagnosis:
    return Diagnosis(state=state, failure=failure, summary=summary, confidence=confidence)
