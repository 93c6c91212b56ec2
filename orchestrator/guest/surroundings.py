"""The container around a run: disk, shared memory, memory, limits, locale. Reads only."""

from __future__ import annotations

import locale
import os
import resource
import shutil
from pathlib import Path
from typing import Any

from orchestrator.guest import memory

SHM = Path("/dev/shm")


def fields(state: Path) -> dict[str, Any]:
    """What is not of the GPUs; what cannot be read is null."""
    free, total = _usage(state)
    shm_free, shm_total = _usage(SHM) if SHM.is_dir() else (None, None)
    return {
        "state_dir": str(state),
        "uid": os.getuid(),
        "locale": _has_utf8(),
        "free_bytes": free,
        "total_bytes": total,
        "shm_free_bytes": shm_free,
        "shm_total_bytes": shm_total,
        "has_shm": SHM.is_dir(),
        "memory": memory.room(),
        "oom_kills": memory.oom_kills(),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "processes": _limit(resource.RLIMIT_NPROC),
    }


def _usage(path: Path) -> tuple[int | None, int | None]:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.free, usage.total


def _limit(which: int) -> int:
    """Return the hard limit, to which a program may raise its own; -1: there is none."""
    hard = resource.getrlimit(which)[1]
    return -1 if hard == resource.RLIM_INFINITY else hard


def _has_utf8() -> bool:
    try:
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
    except locale.Error:
        return False
    return True
