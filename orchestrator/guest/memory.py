"""How often the kernel killed a process here for want of memory, as the container itself is told."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the count of this container's memory cgroup so far; None if the kernel does not tell it."""
    unified, legacy = _own_paths(own)
    places = (
        root / "memory.events",  # a container's own root; a machine's root has none
        root / unified / "memory.events",
        root / "memory" / legacy / "memory.oom_control",
        root / "memory" / "memory.oom_control",
    )
    for place in places:
        try:
            found = _KILLS.search(place.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return None


def since(before: int | None) -> int | None:
    """Return how many there were since the count was `before`; None if either is not known."""
    now = oom_kills()
    return None if before is None or now is None else max(0, now - before)


def _own_paths(own: Path) -> tuple[str, str]:
    """Return this process's cgroup in the unified hierarchy and in the memory controller's, relative."""
    unified = legacy = ""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return unified, legacy
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            unified = path.lstrip("/")
        elif "memory" in controllers.split(","):
            legacy = path.lstrip("/")
    return unified, legacy
