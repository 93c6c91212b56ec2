"""NVIDIA's device nodes here, and whether they are those of the driver that is loaded now."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

DEV = Path("/dev")
NUMBERS = Path("/proc/devices")
MODULE = Path("/proc/driver/nvidia/version")
# Opening one of a GPU itself may wake the GPU, which takes seconds; these two are needed by every program.
OPENED = ("nvidiactl", "nvidia-uvm")
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)*)\b")


def nodes(dev: Path = DEV, numbers: Path = NUMBERS) -> list[dict[str, Any]] | None:
    """Return `name`, `current`, `error` of each node; None if the folder cannot be read."""
    try:
        names = sorted(name for name in os.listdir(dev) if name.startswith("nvidia"))  # noqa: PTH208
    except OSError:
        return None
    majors = _majors(numbers)
    found = []
    for name in names:
        try:
            status = os.stat(dev / name)  # noqa: PTH116
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            current = is_current(name, os.major(status.st_rdev), majors)
            error = _opening(dev / name) if name in OPENED else None
            found.append({"name": name, "current": current, "error": error})
    return found


def is_current(name: str, major: int, majors: dict[str, int]) -> bool | None:
    """Whether a node's number is its driver's. uvm's is given anew at each boot; None: it cannot be told."""
    if not any(driver.startswith("nvidia") for driver in majors):
        return None  # a sandbox that hides the kernel's drivers
    if name.startswith("nvidia-uvm"):
        return majors.get("nvidia-uvm") == major
    if name == "nvidiactl" or re.fullmatch(r"nvidia\d+", name):
        return major in [number for driver, number in majors.items() if driver != "nvidia-uvm"]
    return None


def module_version(path: Path = MODULE) -> str | None:
    """Return the version of the kernel's module, of which there is one for host and containers."""
    try:
        found = _VERSION.search(path.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def library_version(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Return the version of the NVML that this process has loaded, by its file's name."""
    try:
        text = maps.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"(/\S*/libnvidia-ml\.so\S*)", text)
    version = re.search(r"\.so\.(\d{3}\.\d+(?:\.\d+)*)$", os.path.realpath(found[1])) if found else None
    return version[1] if version else None


def _majors(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").partition("Block devices")[0].splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def _opening(path: Path) -> str | None:
    """Return what opening it says; None if it opens."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or str(error)
    return None
