"""`hello`: who and where the guest is."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.guest import clock, paths, processes, venvs

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Link


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `hello`."""
    del verb
    link.send("hello", fields(paths.resolve_state(request.get("state_dir"))))


def fields(state: Path) -> dict[str, Any]:
    """The fields of `hello`; `now` is taken last."""
    return {
        "python": platform.python_version(),
        "tmux": tmux_version(),
        "uid": os.getuid(),
        "boot_id": processes.boot_id(),
        "pid1_start_ticks": processes.pid1_start_ticks(),
        "uptime_s": _uptime_s(),
        "state_dir": str(state),
        "venv_python": venvs.current_python(state),
        "free_bytes": paths.free_bytes(state),
        "shm_free_bytes": paths.free_bytes(Path("/dev/shm")) if Path("/dev/shm").is_dir() else None,
        "now": clock.epoch(),
    }


def tmux_version() -> str | None:
    """`3.3a`, or None if there is no tmux."""
    if shutil.which("tmux") is None:
        return None
    try:
        answer = subprocess.run(
            ["tmux", "-V"], capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip().removeprefix("tmux ") or None


def _uptime_s() -> float | None:
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return None
