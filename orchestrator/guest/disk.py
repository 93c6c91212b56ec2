"""How full the disk of the state directory is, and how large the logs on it are."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from orchestrator.guest import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def fields(state: Path, logs: Mapping[str, Path]) -> dict[str, Any] | None:
    """Return the fields of `disk`, with the bytes of each run's log; None if the file system does not say."""
    try:
        usage = shutil.disk_usage(state)
    except OSError:
        return None
    sizes = {run: files.size_of(path) for run, path in logs.items()}
    return {
        "free_bytes": usage.free,
        "total_bytes": usage.total,
        "log_bytes": sum(sizes.values()),
        "logs": sizes,
    }
