"""What the host's kernel and the driver say of a death or a hang, joined to it by time and by card. Pure.

Hardware comes before software: a card that fell off the bus beats every NCCL line. But a line of the kernel
explains only what it can have caused, and only if nothing went on for long after it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.classify.hostwords import OOM, card_name, counted, describe, evidence, health, oom_words
from orchestrator.classify.kernel import KernelEvent, Kind, read_all
from orchestrator.classify.xid import Blame
from orchestrator.types.failure import Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.classify.exits import Cause
    from orchestrator.types.failure import Diagnosis
    from orchestrator.types.snapshot import Snapshot

_F = FailureClass

_NEAR = timedelta(minutes=10)
_LONG = timedelta(hours=2)  # a collective waits for its timeout before it dies of a card that is gone
_OOM_NEAR = timedelta(minutes=2)
_AFTER = timedelta(seconds=30)  # a process is long in dying where its card is gone
_WENT_ON = timedelta(minutes=2)
_COLLECTIVE = frozenset({_F.NCCL_TIMEOUT, _F.NCCL_ERROR, _F.HANG})
_CARDS = frozenset({_F.GPU_LOST, _F.GPU_ECC, _F.GPU_NVLINK})
# How the failure of a card looks from the program; a wrong configuration is never a card's doing.
_LOOKS = _COLLECTIVE | _CARDS | {_F.CUDA_ILLEGAL_ACCESS, _F.CUDA_INIT, _F.SIGNAL_EXIT, _F.UNKNOWN}
_LOOKS |= {_F.TORCHRUN_WRAPPER}
_MAY_KNOW = frozenset({_F.OOM_HOST, *_LOOKS}) - _CARDS - {_F.HANG, _F.CUDA_INIT}
_DEVICE_WORDS = ("CUDA", "cuda", "NCCL", "cuDNN", "CUBLAS", "NVML")
_KILLED_PEER = frozenset({_F.NCCL_ERROR, _F.TORCHRUN_WRAPPER})
_DISKS = frozenset({_F.IO_ERROR, _F.DISK_FULL, _F.SIGNAL_EXIT, _F.UNKNOWN})


def may_know(diagnosis: Diagnosis) -> bool:
    """Whether the host's kernel may know more of a death than was said yet."""
    is_open = diagnosis.state is RunState.DEAD and diagnosis.failure in _MAY_KNOW
    return is_open and not any(evidence.source == "host" for evidence in diagnosis.evidence)


def ask_host(cause: Cause, snapshot: Snapshot) -> Cause:
    """Return the cause as the host's kernel and the driver know it; the same if they know nothing of it."""
    events = read_all(snapshot.host_lines)
    cause = (
        _card(cause, events, snapshot) or _memory(cause, events, snapshot) or _kernel(cause, events, snapshot)
    )
    return replace(
        cause, evidence=(*cause.evidence, *_driver_words(cause, snapshot), *_disks(cause, events, snapshot))
    )


def explain_hang(hang: Diagnosis, snapshot: Snapshot) -> Diagnosis:
    """Return the hang with the card that failed as its cause, if the kernel names one."""
    event = _failed_card(read_all(snapshot.host_lines), snapshot, _LONG)
    if event is None or hang.failure not in _LOOKS:
        return hang
    failure, words = _card_words(event)
    root = evidence(event, Role.ROOT)
    return replace(
        hang,
        failure=failure,
        summary=f"{hang.summary}; {words}",
        evidence=(root, *hang.evidence, *_readings(snapshot)),
        fingerprint=f"{failure.value}: {_mark(event)}",
    )


def host_warnings(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """Return what foretells the end of a run that lives: a failed card of its own."""
    events = (e for e in read_all(snapshot.host_lines) if e.line.gpu is not None and _is_hardware(e))
    return tuple(evidence(event, Role.PREDICTION) for event in events)[:8]


# -- cards


def _card(cause: Cause, events: tuple[KernelEvent, ...], snapshot: Snapshot) -> Cause | None:
    event = _failed_card(events, snapshot, _LONG if cause.failure in _COLLECTIVE else _NEAR)
    if event is None or not _looks_like_a_card(cause):
        return None
    failure, words = _card_words(event)
    if cause.failure is failure:
        known = replace(cause, evidence=(evidence(event), *cause.evidence))
        return replace(known, confidence=max(cause.confidence, 0.98))
    consequences = tuple(evidence(e, Role.CASCADE) for e in events if _blame(e) is Blame.CONSEQUENCE)
    return replace(
        cause,
        failure=failure,
        root=evidence(event, Role.ROOT),
        words=words,
        evidence=(cause.root, *cause.evidence),
        cascades=(*cause.cascades, *consequences[:4]),
        confidence=0.97 if event.line.gpu is not None else 0.75,
        mark=_mark(event),
        who="",
    )


def _failed_card(
    events: tuple[KernelEvent, ...], snapshot: Snapshot, before: timedelta
) -> KernelEvent | None:
    """Return the first hardware failure that may explain how it is now: the later ones follow from it."""
    cards = (event for event in events if _is_hardware(event))
    return next((e for e in cards if _is_near(e, snapshot, before) and not _went_on(e, snapshot)), None)


def _looks_like_a_card(cause: Cause) -> bool:
    if cause.failure is _F.PYTHON_EXCEPTION:
        return any(word in cause.root.text for word in _DEVICE_WORDS)
    return cause.failure in _LOOKS


def _is_hardware(event: KernelEvent) -> bool:
    return event.kind is Kind.GPU_GONE or _blame(event) is Blame.HARDWARE


def _blame(event: KernelEvent) -> Blame | None:
    return event.xid.xid.blame if event.xid is not None else None


def _card_words(event: KernelEvent) -> tuple[FailureClass, str]:
    failure = event.xid.xid.failure if event.xid is not None else None
    return failure or _F.GPU_LOST, describe(event)


def _mark(event: KernelEvent) -> str:
    where = f"gpu {event.line.gpu}" if event.line.gpu is not None else event.pci or "a gpu"
    return f"xid {event.xid.xid.code} on {where}" if event.xid is not None else f"off the bus: {where}"


# -- memory


def _memory(cause: Cause, events: tuple[KernelEvent, ...], snapshot: Snapshot) -> Cause | None:
    """A SIGKILL is the OOM killer's only when the kernel says so."""
    is_kill = cause.failure is _F.SIGNAL_EXIT and any(
        mark in cause.fingerprint for mark in ("ended by sigkill", "no exit record", "rank vanished")
    )
    if not is_kill and cause.failure not in _KILLED_PEER and cause.failure is not _F.OOM_HOST:
        return None
    killed = [e for e in events if e.kind is Kind.OOM_KILL and _is_near(e, snapshot, _OOM_NEAR)]
    # That a peer was killed must be near in time; a line without one proves no more than a SIGKILL does.
    killed = [e for e in killed if e.line.at is not None or cause.failure not in _KILLED_PEER]
    said = next((m.evidence for m in snapshot.log.matches if m.evidence.signature == "oom_killer"), None)
    said = said or (counted(snapshot) if is_kill else None)
    if not killed and (said is None or not is_kill):
        return None
    event = max(killed, key=lambda e: e.process is not None, default=None)
    proof = evidence(event) if event is not None else said
    words = oom_words(event) if event is not None else OOM
    proofs = tuple(dict.fromkeys(e for e in (proof, said) if e is not None))
    rest = tuple(e for e in cause.evidence if e not in proofs)
    mark = cause.mark if is_kill else "killed by the kernel"
    return replace(
        cause,
        failure=_F.OOM_HOST,
        words=cause.words if cause.failure is _F.OOM_HOST and cause.words else words,
        evidence=(*proofs, *rest),
        confidence=max(cause.confidence, 0.95),
        mark=cause.mark if cause.failure is _F.OOM_HOST else mark,
    )


# -- what else the kernel and the driver say


def _kernel(cause: Cause, events: tuple[KernelEvent, ...], snapshot: Snapshot) -> Cause:
    """A page fault of the GPU is the program's own; it needs a card that is known to be the run's."""
    event = next(
        (
            e
            for e in events
            if _blame(e) is Blame.PROGRAM and e.line.gpu is not None and _is_near(e, snapshot, _NEAR)
        ),
        None,
    )
    if event is None or event.xid is None or _went_on(event, snapshot) or not _looks_like_a_card(cause):
        return cause
    is_stop = cause.failure is _F.SIGNAL_EXIT and "sig" in (cause.root.signature or "")
    if cause.failure is _F.CUDA_ILLEGAL_ACCESS or cause.failure in _CARDS or is_stop:
        return replace(cause, evidence=(*cause.evidence, evidence(event)))
    xid = event.xid.xid
    words = f"a kernel of the program failed on {card_name(event)}: Xid {xid.code}, {xid.description}"
    return replace(
        cause,
        failure=_F.CUDA_ILLEGAL_ACCESS,
        root=evidence(event, Role.ROOT),
        words=words,
        evidence=(cause.root, *cause.evidence),
        confidence=0.8,
        mark=f"xid {xid.code}",
    )


def _disks(cause: Cause, events: tuple[KernelEvent, ...], snapshot: Snapshot) -> tuple[Evidence, ...]:
    if cause.failure not in _DISKS:
        return ()
    near = (e for e in events if e.kind is Kind.DISK and _is_near(e, snapshot, _NEAR))
    return tuple(evidence(event) for event in near)[:2]


def _driver_words(cause: Cause, snapshot: Snapshot) -> tuple[Evidence, ...]:
    return _readings(snapshot) if _looks_like_a_card(cause) else ()


def _readings(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """Return what the driver itself says is wrong with a card."""
    if not isinstance(snapshot.gpus, Present):
        return ()
    told = ((gpu, health(gpu)) for gpu in snapshot.gpus.value)
    return tuple(
        Evidence(source="gpu", text=f"GPU {gpu.index}: {said}", role=Role.CONFIRMATION)
        for gpu, said in told
        if said
    )[:8]


# -- time


def _is_near(event: KernelEvent, snapshot: Snapshot, before: timedelta) -> bool:
    """Whether it happened shortly before the end; what has no time is not left out."""
    ended = _ended_at(snapshot)
    if event.line.at is None or ended is None:
        return True
    return -before <= event.line.at - ended <= _AFTER


def _ended_at(snapshot: Snapshot) -> datetime | None:
    """When the attempt ended, or was last heard of, by the container's clock."""
    if isinstance(snapshot.exit, Present):
        return snapshot.exit.value.at
    return snapshot.heartbeat.value.at if isinstance(snapshot.heartbeat, Present) else None


def _went_on(event: KernelEvent, snapshot: Snapshot) -> bool:
    """Whether steps were made long after it: then it was survived, and is no cause."""
    seen = [at for at in (snapshot.heartbeat_seen_at, snapshot.step_seen_at) if at is not None]
    if event.line.at is None or not seen:
        return False
    skew = timedelta(seconds=snapshot.clock_skew_s)
    moved_at = max(seen)
    if isinstance(snapshot.heartbeat, Present):  # a watch that came late saw an old step late
        moved_at = min(moved_at, snapshot.heartbeat.value.at - skew)
    return moved_at - (event.line.at - skew) > _WENT_ON
