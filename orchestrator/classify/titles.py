"""Each failure class in a person's words. Pure."""

from __future__ import annotations

from orchestrator.classify.text import drop_prefix
from orchestrator.types.failure import FailureClass

_F = FailureClass

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
    _F.OOM_FRAGMENTATION: "the GPU's memory was fragmented: enough was reserved, and not in one piece",
    _F.SHM_EXHAUSTED: "shared memory (/dev/shm) is full",
    _F.CUDA_ILLEGAL_ACCESS: "a kernel accessed memory that is not its own",
    _F.CUDA_DEVICE_ASSERT: "an assertion in a kernel failed: an index or a label is out of range",
    _F.CUDA_INIT: "a GPU cannot be used: CUDA does not start",
    _F.GPU_LOST: "a GPU is lost: it fell off the bus",
    _F.GPU_ECC: "a GPU's memory had an error that ECC cannot correct",
    _F.GPU_NVLINK: "the link between GPUs (NVLink) failed",
    _F.AUTH_ERROR: "access was refused: a token is missing, wrong, or has no right to it",
    _F.NETWORK_ERROR: "something on the network could not be reached",
    _F.PORT_IN_USE: "the port is in use by another process",
    _F.PERMISSION_DENIED: "permission was denied",
    _F.TORCHRUN_WRAPPER: "a rank failed, and only the launcher's table is to be seen",
    _F.KILLED_BY_USER: "a person ended it",
    _F.CONTAINER_STOPPED: "its container was stopped",
    _F.CONTAINER_RESTARTED: "its container was restarted under it",
    _F.CONTAINER_FROZEN: "its container is frozen",
    _F.HOST_REBOOTED: "its host was rebooted under it",
    _F.SESSION_LOST: "its tmux session is gone",
    _F.TMUX_ERROR: "tmux did not answer as it should",
    _F.SSH_ERROR: "ssh failed",
    _F.PCT_ERROR: "pct could not enter the container",
    _F.STRAGGLERS: "some ranks are slower than the rest, and all wait for them",
    _F.THROUGHPUT_REGRESSION: "it became slower than it was",
    _F.CRASH_LOOP: "it dies again and again without progress",
    _F.NO_PROGRESS: "its relaunches do not get past where it was",
    _F.RESUMED_FROM_ZERO: "it began at step 0 though there is a checkpoint",
    _F.INTERRUPTED: "it was asked to stop from outside and wrote a checkpoint",
    _F.COMPLETED: "it is finished",
    _F.HEALTHY: "it is healthy",
    _F.UNKNOWN: "it died, and nothing says why",
}


def title(failure: FailureClass) -> str:
    """Return the failure in a person's words."""
    return _TITLES[failure]


def shorten(text: str) -> str:
    """Return at most 160 characters of a line, without a logger's prefix."""
    text = drop_prefix(text)
    return text if len(text) <= 160 else text[:157] + "..."
