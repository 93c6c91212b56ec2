"""The checkpoints of a run: complete only with the file COMPLETE in them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.guest.paths import RunDir

STEP = re.compile(r"step-(\d+)")


def directory(run: RunDir, spec: Mapping[str, Any] | None) -> Path:
    """Where a run's checkpoints are, by its spec."""
    named = (spec or {}).get("checkpoint_dir")
    return Path(named) if isinstance(named, str) and named else run.path / "checkpoints"


def steps(path: Path) -> dict[int, bool]:
    """Return step -> whether it is complete, ascending."""
    try:
        names = os.listdir(path)  # noqa: PTH208
    except (OSError, ValueError):  # ValueError: the spec's path is none
        return {}
    found = {int(m.group(1)): name for name in names if (m := STEP.fullmatch(name))}
    return {step: (path / found[step] / "COMPLETE").exists() for step in sorted(found)}


def newest(path: Path) -> int | None:
    """The step of the newest complete checkpoint."""
    return max((step for step, is_complete in steps(path).items() if is_complete), default=None)


def num_bytes(path: Path) -> int:
    """Bytes of the files below `path`; links are not followed."""
    total = 0
    for parent, _, names in os.walk(path, onerror=None):
        for name in names:
            try:
                total += os.lstat(f"{parent}/{name}").st_size
            except OSError:
                continue
    return total
