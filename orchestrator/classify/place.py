"""What became of the container and the host under a run, with the proof. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.exits import Cause, exit_signal
from orchestrator.durations import format_duration
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from orchestrator.types.snapshot import Snapshot

_F = FailureClass
_PAUSES = {"backup": "a backup", "snapshot": "a snapshot", "suspended": "a suspend", "migrate": "a migration"}


def frozen(snapshot: Snapshot) -> Diagnosis:
    """Return the diagnosis of a run whose container is frozen: it waits, and is neither dead nor hung."""
    lock = snapshot.container_lock
    why = _PAUSES.get(lock or "", "a backup or a suspend")
    said = f"lxc-info: FROZEN{f'; pct status: lock: {lock}' if lock else ''}"
    return Diagnosis(
        state=RunState.CONTAINER_FROZEN,
        failure=_F.CONTAINER_FROZEN,
        summary=f"the container is frozen ({why}); the run waits with it",
        evidence=(Evidence(source="host", text=said, signature="container_frozen"),),
    )


def stopped(snapshot: Snapshot) -> Diagnosis:
    """Return the diagnosis of a run whose container is off."""
    lock = f", lock: {snapshot.container_lock}" if snapshot.container_lock else ""
    said = Evidence(source="host", text=f"pct status: stopped{lock}", signature="container_stopped")
    return Diagnosis(
        state=RunState.CONTAINER_STOPPED,
        failure=_F.CONTAINER_STOPPED,
        summary="the container is stopped; the run did not crash",
        evidence=(said,),
    )


def restarted(snapshot: Snapshot) -> Cause | None:
    """Return the restart, of host or container, that ended the attempt; None if it has an end of its own."""
    if not (snapshot.container_restarted or snapshot.host_rebooted) or not _ended_with_container(snapshot):
        return None
    up = f"; up for {format_duration(snapshot.host_up_s)}" if snapshot.host_up_s is not None else ""
    if snapshot.host_rebooted:
        text = f"the host's boot is another one than when the attempt began{up}"
        root = Evidence(source="host", text=text, signature="host_rebooted")
        return Cause(failure=_F.HOST_REBOOTED, root=root, mark="rebooted", confidence=0.95)
    text = f"the container is younger than the attempt: it was restarted under it{up}"
    root = Evidence(source="host", text=text, signature="container_restarted")
    return Cause(failure=_F.CONTAINER_RESTARTED, root=root, mark="restarted", confidence=0.9)


def _ended_with_container(snapshot: Snapshot) -> bool:
    """True unless the attempt has an end of its own; a container's shutdown sends SIGTERM, then SIGKILL."""
    if not isinstance(snapshot.exit, Present):
        return True
    record = snapshot.exit.value
    return record.code == 75 or exit_signal(record) in ("SIGTERM", "SIGKILL", "SIGHUP")
