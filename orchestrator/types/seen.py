"""What is seen of a run: readings, and what the trainer, its supervisor and the guest say.

A thing looked at is `Present`, `Absent` or `Blind`. Blind is not absent: it says nothing about the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")


@dataclass(frozen=True)
class Present(Generic[T]):
    """It is there, and this is its value."""

    value: T


@dataclass(frozen=True)
class Absent:
    """We looked, and it is not there."""


@dataclass(frozen=True)
class Blind:
    """We could not look."""

    reason: str


Reading = Present[T] | Absent | Blind


class Phase(str, Enum):
    """What the trainer is doing."""

    INIT = "init"
    LOAD = "load"
    COMPILE = "compile"
    WARMUP = "warmup"
    TRAIN = "train"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the guest read it; a number it could not read is None."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    pids: tuple[int, ...] = ()
    problem: str | None = None
    pci: str | None = None  # "0000:3b:00", as the kernel names it
    recovery: str | None = None  # what the driver asks for: "reset the GPU"
    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    remap_pending: bool | None = None  # a reset would replace bad memory rows or pages
    remap_failed: bool | None = None  # no spare rows are left


@dataclass(frozen=True)
class HostLine:
    """A line of the host's kernel log. `at` by the container's clock; `gpu`: the GPU that it names."""

    text: str
    at: datetime | None = None
    gpu: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuStill:
    """A GPU of the run since its last sign of progress: lowest and highest reading.

    `stepping_w` is the median power while the run made steps, None if that was never read.
    """

    index: int
    utilization_pct: tuple[float, float]
    power_w: tuple[float, float] | None = None
    stepping_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The trainer's own word; see DESIGN.md."""

    phase: Phase
    step: int
    at: datetime
    total_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    recompiles: int = 0
    skipped_steps: int = 0
    rollbacks: int = 0
    peak_memory_bytes: int | None = None
    resumed_from_step: int | None = None
    checkpoint_step: int | None = None

    @property
    def guarded(self) -> str:
        """What the trainer's guard did in this attempt, for people; empty if nothing."""
        counts = ((self.skipped_steps, "step", "left out"), (self.rollbacks, "return", "to a checkpoint"))
        told = (f"{n} {noun}{'s' if n > 1 else ''} {rest}" for n, noun, rest in counts if n)
        return ", ".join(told)


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How the attempt's main process ended, by the supervisor."""

    code: int | None
    signal: int | None
    at: datetime
    duration_s: float
    error: str | None = None
    oom_kills: int | None = None  # of the container's processes, by the kernel, during the attempt
    leftover: tuple[int, ...] = ()  # processes that outlived its main one, and were ended

    @property
    def is_success(self) -> bool:
        """Exit code 0; still to be checked against the result file."""
        return self.code == 0


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The trainer's error.json."""

    exception: str
    message: str
    traceback: str = ""
    rank: int = 0
    phase: str | None = None
    step: int | None = None
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """Proof of life or of its absence, by the guest."""

    lock_held: bool
    pids: tuple[int, ...]
    supervisor: bool
    session: bool

    @property
    def is_gone(self) -> bool:
        """The lock is free and no process of the run is left."""
        return not self.lock_held and not self.pids
