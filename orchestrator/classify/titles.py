"""Each failure class in a person's words. Pure."""

from __future__ import annotations

from orchestrator.classify.text import drop_prefix
from orchestrator.types import FailureClass

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
    _F.KILLED_BY_USER: "a person ended it",
    _F.CONTAINER_STOPPED: "its container was stopped",
    _F.CONTAINER_RESTARTED: "its container was restarted under it",
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
