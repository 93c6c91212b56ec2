"""A hang: life without progress for longer than the phase allows. Pure; unknown is never hung.

What decides is that neither step nor phase moved, by any source that tells of them, for as long as the phase
may take. In `train` nothing else counts: GPUs at 100 % are what a collective does that waits for a dead peer.
In the other phases a run that prints, or whose GPUs work in bursts, gets twice its limit, and no more.

A program that writes no heartbeat tells no phase, so whatever it prints is life, and only a silent log can be
a hang: by its owner's word, or where it told steps before, and for far longer than between those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.cause import log_cause
from orchestrator.classify.titles import shorten
from orchestrator.durations import format_duration
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Gpu, GpuStill, Heartbeat, Phase, Present

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.limits import Limits
    from orchestrator.types.snapshot import Snapshot

AT_WORK_TIMES = 2.0
SILENT = "its log fell silent"  # also what a stop for that hang is remembered by
_PRINTS_WITHIN = 0.2  # of the limit: what printed so lately is at work
BURST_PCT = 30.0
SPIN_PCT = 90.0
IDLE_PCT = 10.0
SPIN_POWER = 0.6  # of the power while stepping: a GPU that spins draws far less than one that computes
# Imports and downloads print before any step can move; later on, printing is not progress.
_PRINTING_IS_PROGRESS = frozenset({Phase.INIT, Phase.LOAD})


def find_hang(snapshot: Snapshot, heartbeat: Heartbeat, limits: Limits) -> Diagnosis | None:
    """Return the hang, if the phase's limit passed by the near clock since a step or phase last changed."""
    moved_at = _moved_at(snapshot, heartbeat.phase)
    if moved_at is None or _is_held(snapshot):
        return None
    phase, limit_s = heartbeat.phase, limits.limit_s(heartbeat.phase, heartbeat.step_s)
    if phase is not Phase.TRAIN and _is_at_work(snapshot, limit_s):
        limit_s *= AT_WORK_TIMES
    silent_s = (snapshot.now - moved_at).total_seconds()
    if silent_s <= limit_s:
        return None
    text = f"no progress in {phase.value} at step {snapshot.last_step} for {format_duration(silent_s)}"
    reading = Evidence(source="heartbeat", text=text, signature="no_progress")
    return _hung(snapshot, reading, limit_s, f"hang: no progress in {phase.value}")


def find_silence(snapshot: Snapshot, limits: Limits) -> Diagnosis | None:
    """Return the hang of a command without a heartbeat, if its log was silent for longer than it may be."""
    limit_s, since = silence_limit_s(snapshot, limits), snapshot.log_pace.quiet_since
    if limit_s is None or since is None or _is_held(snapshot):
        return None
    if any(_bursts(gpu) or _computes(gpu) for gpu in snapshot.gpus_still):
        limit_s *= AT_WORK_TIMES
    silent_s = (snapshot.now - since).total_seconds()
    if silent_s <= limit_s:
        return None
    step = snapshot.last_step
    at = f" at step {step}" if step is not None else ""
    text = f"its log fell silent{at} for {format_duration(silent_s)}"
    reading = Evidence(source="log", text=text, signature="no_progress")
    return _hung(snapshot, reading, limit_s, f"hang: {SILENT}")


def silence_limit_s(snapshot: Snapshot, limits: Limits) -> float | None:
    """Return how long a command's log may be silent before that is a hang; None: for ever.

    After the last of its steps it may save and upload for long, unless its owner said how long.
    """
    if snapshot.kind != "command" or (snapshot.log.is_last_step and limits.silence_s is None):
        return None
    return limits.silence_limit_s(snapshot.log_pace)


def _is_held(snapshot: Snapshot) -> bool:
    """Whether its stillness is somebody's will: a backup's, or its user's, for whom it saves and stops."""
    is_locked = (snapshot.container or "").startswith("locked") or snapshot.container == "frozen"
    return is_locked or snapshot.stop_by == "user"


def _hung(snapshot: Snapshot, reading: Evidence, limit_s: float, fingerprint: str) -> Diagnosis:
    cause = log_cause(snapshot.log)
    is_known = cause is not None and cause.confidence > 0.7
    root = cause.root if cause is not None and is_known else None
    found = (root, reading, *_readings(snapshot))
    return Diagnosis(
        state=RunState.HUNG,
        failure=cause.failure if cause is not None and is_known else FailureClass.HANG,
        summary=f"hung: {reading.text} (limit {format_duration(limit_s)}){_gpu_words(snapshot)}"
        + (f'; "{shorten(root.text)}"' if root else ""),
        evidence=tuple(each for each in found if each is not None),
        confidence=0.95 if _tells_hang(snapshot) else 0.9,
        fingerprint=cause.fingerprint if cause is not None and is_known else fingerprint,
    )


def _moved_at(snapshot: Snapshot, phase: Phase) -> datetime | None:
    """When anything last told a new step or phase; None if no heartbeat was ever seen to move."""
    if snapshot.heartbeat_seen_at is None:
        return None
    told = [snapshot.heartbeat_seen_at, snapshot.step_seen_at]
    if phase in _PRINTING_IS_PROGRESS:
        told.append(snapshot.log_grew_at)
    return max(each for each in told if each is not None)


def _is_at_work(snapshot: Snapshot, limit_s: float) -> bool:
    grew = snapshot.log_grew_at
    prints = grew is not None and (snapshot.now - grew).total_seconds() < _PRINTS_WITHIN * limit_s
    return prints or any(_bursts(gpu) for gpu in snapshot.gpus_still)


def _bursts(gpu: GpuStill) -> bool:
    return gpu.utilization_pct[1] - gpu.utilization_pct[0] >= BURST_PCT


def _spins(gpu: GpuStill) -> bool:
    is_low = gpu.power_w is None or gpu.stepping_w is None or gpu.power_w[1] < SPIN_POWER * gpu.stepping_w
    return gpu.utilization_pct[0] >= SPIN_PCT and is_low


def _computes(gpu: GpuStill) -> bool:
    """Whether it draws what it drew while steps were told: more than one that spins."""
    is_known = gpu.power_w is not None and gpu.stepping_w is not None
    return is_known and gpu.utilization_pct[0] >= SPIN_PCT and not _spins(gpu)


def _idles(gpu: GpuStill) -> bool:
    return gpu.utilization_pct[1] <= IDLE_PCT


def _tells_hang(snapshot: Snapshot) -> bool:
    """Whether each GPU of the run spins or does nothing: none of them works."""
    return bool(snapshot.gpus_still) and all(_spins(gpu) or _idles(gpu) for gpu in snapshot.gpus_still)


def _gpu_words(snapshot: Snapshot) -> str:
    if not _tells_hang(snapshot):
        return ""
    idle = [gpu.index for gpu in snapshot.gpus_still if _idles(gpu)]
    if not idle:
        return "; its GPUs spin at 100 %, as a collective does that waits for a peer"
    if len(idle) == len(snapshot.gpus_still):
        return "; its GPUs do nothing"
    named = ", ".join(map(str, idle))
    who = f"GPU {named} does" if len(idle) == 1 else f"GPUs {named} do"
    return f"; {who} nothing while the others spin, as where a collective waits for a rank"


def _readings(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """What else was read of the silence; nothing here decides by itself."""
    still = tuple(_confirmation("gpu", _still_text(gpu)) for gpu in snapshot.gpus_still)
    if not still and isinstance(snapshot.gpus, Present):
        still = tuple(
            _confirmation("gpu", _reading_text(gpu))
            for gpu in snapshot.gpus.value
            if gpu.utilization_pct is not None and gpu.power_w is not None
        )
    grew = snapshot.log_grew_at
    quiet = (
        "nothing printed since it is watched"
        if grew is None
        else f"last printed {format_duration(max(0.0, (snapshot.now - grew).total_seconds()))} ago"
    )
    seen = snapshot.container
    container = f"the container is {seen}" if seen else "nothing is known of the container"
    return (*still, _confirmation("log", quiet), _confirmation("host", container))


def _confirmation(source: str, text: str) -> Evidence:
    return Evidence(source=source, text=text, role=Role.CONFIRMATION)


def _reading_text(gpu: Gpu) -> str:
    return f"GPU {gpu.index}: {gpu.utilization_pct:.0f} % at {gpu.power_w:.0f} W"


def _still_text(gpu: GpuStill) -> str:
    power = f" at {_span(gpu.power_w)} W" if gpu.power_w is not None else ""
    before = f", {gpu.stepping_w:.0f} W while it stepped" if gpu.stepping_w is not None else ""
    return f"GPU {gpu.index}: {_span(gpu.utilization_pct)} %{power} since{before}"


def _span(pair: tuple[float, float]) -> str:
    low, high = (f"{value:.0f}" for value in pair)
    return low if low == high else f"{low} to {high}"
