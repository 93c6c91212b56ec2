"""A hang: life without progress for longer than the phase allows. Pure; unknown is never hung."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.classify.cause import log_cause
from orchestrator.classify.titles import shorten
from orchestrator.durations import format_duration
from orchestrator.types import (
    Diagnosis,
    Evidence,
    FailureClass,
    Heartbeat,
    Phase,
    Present,
    Role,
    RunState,
    Snapshot,
)

if TYPE_CHECKING:
    from orchestrator.limits import Limits


def find_hang(snapshot: Snapshot, heartbeat: Heartbeat, limits: Limits) -> Diagnosis | None:
    """Return the hang, if the phase's limit passed by the near clock since a step or phase last changed."""
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
    text = (
        f"no progress in {phase} at step {snapshot.last_step} for {format_duration(silent.total_seconds())}"
    )
    reading = Evidence(source="heartbeat", text=text, signature="no_progress")
    cause = log_cause(snapshot.log)
    is_known = cause is not None and cause.confidence > 0.7
    root = cause.root if cause is not None and is_known else None
    return Diagnosis(
        state=RunState.HUNG,
        failure=cause.failure if cause is not None and is_known else FailureClass.HANG,
        summary=f"hung: {text} (limit {format_duration(limit_s)})"
        + (f'; "{shorten(root.text)}"' if root else ""),
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
