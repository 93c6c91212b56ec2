"""The vocabulary: frozen values that every stage shares. Pure; imports nothing of ours.

A thing looked at is `Present`, `Absent` or `Blind`. Blind is not absent: it says nothing about the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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


class RunState(str, Enum):
    """What is known of an attempt, from proof."""

    NEW = "new"  # launched, no proof of anything yet
    HEALTHY = "healthy"
    UNSUPERVISED = "unsupervised"  # the trainer lives, its supervisor is gone; never dead
    HUNG = "hung"
    DEAD = "dead"
    FINISHED = "finished"
    STOPPED = "stopped"  # by its user
    BLIND = "blind"
    CONTAINER_STOPPED = "container_stopped"
    CONTAINER_FROZEN = "container_frozen"


class FailureClass(str, Enum):
    """What happened. Titles by the field's own terms."""

    FX_TRACE_RACE = "fx_trace_race"
    OOM_DENSE_FALLBACK = "oom_dense_fallback"
    OOM_CUDA = "oom_cuda"
    OOM_HOST = "oom_host"
    COMPILE_ERROR = "compile_error"
    RECOMPILE_LIMIT = "recompile_limit"
    PYTHON_EXCEPTION = "python_exception"
    IMPORT_ERROR = "import_error"
    CONFIG_ERROR = "config_error"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    SIGNAL_EXIT = "signal_exit"
    DISK_FULL = "disk_full"
    IO_ERROR = "io_error"  # missing or corrupt data or checkpoint
    NAN_LOSS = "nan_loss"
    HANG = "hang"
    OOM_FRAGMENTATION = "oom_fragmentation"
    SHM_EXHAUSTED = "shm_exhausted"
    CUDA_ILLEGAL_ACCESS = "cuda_illegal_access"
    CUDA_DEVICE_ASSERT = "cuda_device_assert"
    CUDA_INIT = "cuda_init"
    GPU_LOST = "gpu_lost"
    GPU_ECC = "gpu_ecc"
    GPU_NVLINK = "gpu_nvlink"
    AUTH_ERROR = "auth_error"
    NETWORK_ERROR = "network_error"
    PORT_IN_USE = "port_in_use"
    PERMISSION_DENIED = "permission_denied"
    TORCHRUN_WRAPPER = "torchrun_wrapper"  # only the launcher's table of exit codes is to be seen
    KILLED_BY_USER = "killed_by_user"
    CONTAINER_STOPPED = "container_stopped"
    CONTAINER_RESTARTED = "container_restarted"
    CONTAINER_FROZEN = "container_frozen"
    HOST_REBOOTED = "host_rebooted"
    SESSION_LOST = "session_lost"  # the tmux session is gone; says nothing about the trainer
    TMUX_ERROR = "tmux_error"
    SSH_ERROR = "ssh_error"
    PCT_ERROR = "pct_error"
    STRAGGLERS = "stragglers"
    THROUGHPUT_REGRESSION = "throughput_regression"
    CRASH_LOOP = "crash_loop"
    NO_PROGRESS = "no_progress"
    RESUMED_FROM_ZERO = "resumed_from_zero"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Role(str, Enum):
    """What a matched line says about the cause."""

    ROOT = "root"
    CASCADE = "cascade"
    CONFIRMATION = "confirmation"
    PREDICTION = "prediction"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One line or reading that shows something.

    `offset` is the byte offset of the line's first byte in the attempt's log; None for a reading.
    `source` is `log`, `error.json`, `exit.json`, `heartbeat`, `gpu`, `host` or `history`.
    """

    source: str
    text: str
    role: Role = Role.ROOT
    signature: str | None = None
    offset: int | None = None
    rank: int | None = None


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


@dataclass(frozen=True, kw_only=True)
class LogMatch:
    """A signature met in the log, in the order of the log."""

    failure: FailureClass
    evidence: Evidence
    last_step_before: int | None = None
    weak: bool = False  # decides only when nothing stronger was seen
    handled: bool = False  # the same rank went on afterwards with finite numbers
    is_traceback: bool = False
    hints: tuple[str, ...] = ()  # what the frames showed: `dense`, `tracing`, `thread`


@dataclass(frozen=True, kw_only=True)
class CustomMatch:
    """A line that a user's own rule knows, and that was not survived.

    Without a `failure` the class is what the catalogue finds.
    """

    rule: str
    label: str
    evidence: Evidence
    failure: FailureClass | None = None


CUSTOM = "custom:"  # begins the signature of a user's own rule


@dataclass(frozen=True, kw_only=True)
class LogReading:
    """What the log showed up to `read_bytes`, as far as classification needs it.

    `matches` is bounded: the first and the newest of each signature. `exception` is the line that ends the
    root of the last uncaught traceback, if the log ends in one. `tail` is the last lines, cleaned.
    """

    read_bytes: int = 0
    matches: tuple[LogMatch, ...] = ()
    exception: Evidence | None = None
    traceback: tuple[str, ...] = ()
    last_step: int | None = None
    tail: tuple[str, ...] = ()
    truncated: bool = False  # only a pane's last lines were seen, not the whole log
    custom: tuple[CustomMatch, ...] = ()  # in the order of the playbook


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that is known of one attempt at one instant (`now`, the near side's clock, UTC)."""

    now: datetime
    run: str
    attempt: int
    liveness: Reading[Liveness]
    heartbeat: Reading[Heartbeat]
    exit: Reading[ExitRecord]
    last_words: Reading[LastWords]
    result: Reading[dict[str, Any]]
    log: LogReading
    gpus: Reading[tuple[Gpu, ...]]
    stop_by: str | None = None  # "user" or "watch": intent written before the first signal
    stop_reason: str | None = None
    started_at: datetime | None = None
    heartbeat_seen_at: datetime | None = None  # near clock, when the newest *step or phase* change was seen
    log_grew_at: datetime | None = None
    step_seen_at: datetime | None = None  # near clock, when the log or the metrics last told a new step
    gpus_still: tuple[GpuStill, ...] = ()
    container: str | None = None  # "running", "stopped", "frozen", "locked:backup", None unknown
    container_lock: str | None = None  # "backup", "snapshot" ...: what Proxmox does with the container
    container_restarted: bool = False  # pid 1 of the container is younger than the attempt
    host_rebooted: bool = False  # the host's boot is another one than when the attempt began
    clock_skew_s: float = 0.0  # the container's clock minus the near one
    host_up_s: float | None = None  # how long pid 1 of the container, or its host, is up
    disk_free_bytes: int | None = None
    kind: str = "trainer"  # or "command": a program of which only its end is known
    host_lines: tuple[HostLine, ...] = ()  # of the host's kernel, since the attempt began and about this run

    @property
    def last_step(self) -> int | None:
        """The newest step that anything tells of: a heartbeat is thinned and may lag behind the others."""
        known = [self.log.last_step]
        if isinstance(self.heartbeat, Present):
            known.append(self.heartbeat.value.step)
        if isinstance(self.last_words, Present):
            known.append(self.last_words.value.step)
        return max((step for step in known if step is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """State, cause and proof. `confidence` is 0 to 1; `summary` is one sentence for a person."""

    state: RunState
    failure: FailureClass | None
    summary: str
    evidence: tuple[Evidence, ...] = ()
    cascades: tuple[Evidence, ...] = ()
    warnings: tuple[Evidence, ...] = ()  # predictions, to be reported when printed
    confidence: float = 1.0
    fingerprint: str | None = None  # same cause, same fingerprint, across attempts
    also: tuple[FailureClass, ...] = ()  # what it may be as well, where the proof is cut off or shared

    @property
    def is_dead(self) -> bool:
        """There is positive proof that the attempt ended without success."""
        return self.state is RunState.DEAD


class ActKind(str, Enum):
    """What a playbook may ask for."""

    NONE = "none"
    WAIT = "wait"
    RELAUNCH = "relaunch"  # as is
    RELAUNCH_WITH = "relaunch_with"  # with the changes of a ladder's rung
    CALL = "call"  # stop and call a person
    GIVE_UP = "give_up"  # the budget is spent

    @property
    def is_relaunch(self) -> bool:
        """Whether a new attempt comes of it, with changes or without."""
        return self in (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH)


class RemedyKind(str, Enum):
    """What is done to a run's files before a relaunch."""

    RESTORE_CACHE = "restore_cache"  # damaged or lost compile artifacts are put back
    PREVIOUS_CHECKPOINT = "previous_checkpoint"  # the newest one is set aside, never removed
    SKIP_BATCH = "skip_batch"  # the step that was being computed is left out


@dataclass(frozen=True)
class Remedy:
    """One remedy; `step` is that of the checkpoint to set aside, or the step to leave out."""

    kind: RemedyKind
    step: int | None = None

    @property
    def text(self) -> str:
        """What it does, for people."""
        if self.kind is RemedyKind.PREVIOUS_CHECKPOINT:
            return f"back to the checkpoint before step {self.step}"
        if self.kind is RemedyKind.SKIP_BATCH:
            return f"step {self.step} is left out"
        return "the compile cache is restored"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What should happen and why. Nothing happens before `not_before` (UTC)."""

    kind: ActKind
    reason: str
    not_before: datetime | None = None
    changes: tuple[tuple[str, str], ...] = ()  # ordered (config key, value), of this rung
    env_changes: tuple[tuple[str, str], ...] = ()
    remedies: tuple[Remedy, ...] = ()
    rung: int | None = None
    attempts_left: int | None = None
    rule: str | None = None


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """What the record keeps of an ended attempt, for budgets and patterns."""

    attempt: int
    failure: FailureClass | None
    fingerprint: str | None
    started_at: datetime | None
    ended_at: datetime | None
    first_step: int | None
    last_step: int | None
    checkpoint_step: int | None
    rung: int | None = None
    by_watch: bool = True


@dataclass(frozen=True, kw_only=True)
class History:
    """The ended attempts of a run, oldest first."""

    attempts: tuple[PastAttempt, ...] = field(default=())
