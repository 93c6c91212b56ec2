"""Memory, as the container itself is told: limit, what is free, and what was killed for want of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # cgroup v1 says "none" by a number of this size
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


def room(root: Path = ROOT, own: Path = OWN, meminfo: Path = Path("/proc/meminfo")) -> dict[str, Any]:
    """Return `limit_bytes` (null: none, or unknown), `free_bytes` (null: unknown), `told`: one was read."""
    unified, legacy = _own_paths(own)
    places = [(each, "memory.max", "memory.current") for each in _upwards(root, unified)]
    for each in _upwards(root / "memory", legacy):
        places.append((each, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    available = _available(meminfo)
    frees = [] if available is None else [available]
    limits: list[int] = []
    is_told = False
    for folder, limit_name, usage_name in places:
        text = _text(folder / limit_name)
        is_told = is_told or text is not None
        if text is None or not text.isdigit() or int(text) >= _NO_LIMIT:
            continue
        limits.append(int(text))
        usage = _text(folder / usage_name)
        if usage is not None and usage.isdigit():
            frees.append(max(0, int(text) - int(usage) + _reclaimable(folder)))
    return {
        "limit_bytes": min(limits, default=None),
        "free_bytes": min(frees, default=None),
        "told": is_told,
    }


def _upwards(root: Path, relative: str) -> list[Path]:
    """Return the group and those that hold it, whose limits count as well."""
    folders = [root / relative]
    while folders[-1] != root:
        folders.append(folders[-1].parent)
    return folders


def _reclaimable(folder: Path) -> int:
    """Return the bytes of files that the kernel keeps only as long as nobody wants the memory."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def _available(meminfo: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text(meminfo) or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
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
