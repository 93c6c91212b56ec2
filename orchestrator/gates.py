"""What must hold before a trainer may start: the old one gone, room on its GPUs and its disk. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.types.seen import Absent, Blind, Gpu, Present, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.playbook import Playbook
    from orchestrator.types.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Limits that must hold before a trainer may start."""

    gpu_floor_bytes: int
    min_free_bytes: int

    @classmethod
    def of(cls, book: Playbook) -> Gates:
        """Those of a playbook."""
        return cls(gpu_floor_bytes=book.gpu_floor_bytes, min_free_bytes=book.min_free_bytes)


@dataclass(frozen=True)
class Closed:
    """A gate that is closed. `gate` is its name, which stays while the numbers in `why` move.

    `holders` are the host's ids of the processes that a GPU's driver names; None if it is no full GPU.
    """

    gate: str
    why: str
    holders: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What of it is news when it is new: the gate, and each that holds it."""
        return (self.gate, *(f"{self.gate} pid {pid}" for pid in self.holders or ()))


def closed_gates(snapshot: Snapshot, gpus: tuple[int, ...] | None, gates: Gates) -> tuple[Closed, ...]:
    """Return the gates that forbid a relaunch now; empty if none does."""
    closed: list[Closed] = []
    if isinstance(snapshot.liveness, Present):
        if not snapshot.liveness.value.is_gone:
            left = ", ".join(map(str, snapshot.liveness.value.pids[:8])) or "the lock is held"
            closed.append(Closed("alive", f"processes of attempt {snapshot.attempt} are left: {left}"))
    else:
        why = snapshot.liveness.reason if isinstance(snapshot.liveness, Blind) else "no proof that it is gone"
        closed.append(Closed("blind", f"blind: {why}"))
    if snapshot.container not in (None, "running"):
        closed.append(Closed("container", f"the container is {snapshot.container}"))
    if snapshot.stop_by == "user":
        closed.append(Closed("stopped", "its user stopped it"))
    if isinstance(snapshot.result, Present):
        closed.append(Closed("finished", "it has finished: result.json is there"))
    if snapshot.disk_free_bytes is not None and snapshot.disk_free_bytes < gates.min_free_bytes:
        free, floor = snapshot.disk_free_bytes / 2**20, gates.min_free_bytes / 2**20
        closed.append(Closed("disk", f"{free:.0f} MiB free on the run's disk, under {floor:.0f} MiB"))
    closed.extend(_gpu_gates(snapshot.gpus, gpus, gates.gpu_floor_bytes))
    return tuple(closed)


def begun_elsewhere(document: Mapping[str, Any], ct: int | None) -> tuple[Closed, ...]:
    """Return the gate of a container that was copied: the run in it may go on in the one it was begun in."""
    begun = document.get("ct")
    if not isinstance(begun, int) or ct is None or begun == ct:
        return ()
    why = (
        f"it was begun in container {begun}, and this is {ct}; if that is meant, `dflashctl relaunch` it here"
    )
    return (Closed("copy", why),)


def _gpu_gates(
    reading: Reading[tuple[Gpu, ...]], wanted: tuple[int, ...] | None, floor_bytes: int
) -> list[Closed]:
    if isinstance(reading, Blind):
        return [Closed("gpus", f"the GPUs cannot be read: {reading.reason}")]
    if isinstance(reading, Absent):
        # Without a driver a run is on CPUs, unless it names GPUs.
        return [Closed("gpus", f"there is no driver for the GPUs {list(wanted)}")] if wanted else []
    by_index = {gpu.index: gpu for gpu in reading.value}
    closed: list[Closed] = []
    for index in sorted(by_index) if wanted is None else wanted:
        gpu = by_index.get(index)
        if gpu is None or gpu.problem:
            closed.append(Closed(f"gpu {index}", f"GPU {index}: {gpu.problem if gpu else 'missing'}"))
        elif gpu.memory_used_bytes is not None and gpu.memory_used_bytes > floor_bytes:
            holders = f" by pid {', '.join(map(str, gpu.pids))} (host pids)" if gpu.pids else ""
            held = f"GPU {index} holds {gpu.memory_used_bytes / 2**30:.1f} GiB{holders}"
            closed.append(Closed(f"gpu {index}", held, gpu.pids))
    return closed
