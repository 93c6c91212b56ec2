"""What happened to a run: its state, the class of its failure, and the proof."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RunState(str, Enum):
    """What is known of an attempt, from proof."""

    NEW = "new"  # launched, no proof of anything yet
    HEALTHY = "healthy"
    UNSUPERVISED = "unsupervised"  # the trainer lives, its supervisor is gone; never dead
    HUNG = "hung"
    ENDING = "ending"  # the trainer has ended, and what is left of its attempt not yet
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
