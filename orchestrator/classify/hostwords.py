"""What a kernel event and a card's health are called, for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.kernel import KernelEvent, Kind
from orchestrator.classify.text import MAX_TEXT
from orchestrator.types.failure import Evidence, Role
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from orchestrator.types.seen import Gpu
    from orchestrator.types.snapshot import Snapshot

OOM = "the kernel's OOM killer ended it: the container ran out of memory"


def describe(event: KernelEvent) -> str:
    """Return the event in a person's words, without the line itself."""
    if event.kind is Kind.OOM_KILL:
        return oom_words(event)
    if event.kind is Kind.XID and event.xid is not None:
        xid = event.xid.xid
        advice = f"; {xid.advice}" if xid.advice else ""
        return f"{card_name(event)}: Xid {xid.code}, {xid.description}{advice}"
    if event.kind is Kind.GPU_GONE:
        return f"{card_name(event)} fell off the bus; the host must be rebooted, or the card reseated"
    return (
        "the driver reports an error"
        if event.kind is Kind.DRIVER
        else "a disk or file system reports an error"
    )


def news(event: KernelEvent) -> str:
    """Return the event as news, whomever it struck."""
    if event.kind is not Kind.OOM_KILL:
        return describe(event)
    place = "host" if event.is_global else "container"
    who = f"{event.process} (host pid {event.pid})" if event.process is not None else "a process"
    return f"the OOM killer ended {who}: the {place} ran out of memory"


def card_name(event: KernelEvent) -> str:
    """Return which card it is about."""
    if event.line.gpu is not None:
        return f"GPU {event.line.gpu} ({event.pci})" if event.pci else f"GPU {event.line.gpu}"
    return f"the GPU at {event.pci}" if event.pci else "a GPU"


def oom_words(event: KernelEvent) -> str:
    """Return whose memory was out, and who was killed for it."""
    place = "host" if event.is_global else "container"
    who = f" ({event.process}, host pid {event.pid})" if event.process is not None else ""
    return f"the kernel's OOM killer ended it: the {place} ran out of memory{who}"


def health(gpu: Gpu) -> str:
    """Return what the driver says is wrong with a card, for people; empty if nothing."""
    count = gpu.ecc_uncorrected or 0
    said = (
        gpu.problem,
        f"the driver asks to {gpu.recovery}" if gpu.recovery else None,
        f"{count} uncorrected ECC error{'s' if count > 1 else ''}" if count else None,
        "bad memory is replaced at the next reset" if gpu.remap_pending else None,
        "no spare memory rows are left" if gpu.remap_failed else None,
    )
    return ", ".join(each for each in said if each)


def evidence(event: KernelEvent, role: Role = Role.CONFIRMATION) -> Evidence:
    """Return the kernel's line as evidence."""
    signature = f"xid_{event.xid.xid.code}" if event.xid is not None else event.kind.value
    return Evidence(source="host", text=event.line.text[:MAX_TEXT], role=role, signature=signature)


def counted(snapshot: Snapshot) -> Evidence | None:
    """Return the container's own count of OOM kills as evidence; it needs nobody's leave on the host."""
    count = snapshot.exit.value.oom_kills if isinstance(snapshot.exit, Present) else None
    if not count:
        return None
    noun = "process" if count == 1 else "processes"
    text = f"the kernel killed {count} {noun} of the container for want of memory during the attempt"
    return Evidence(source="exit.json", text=text, role=Role.CONFIRMATION, signature="oom_kills")
