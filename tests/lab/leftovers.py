"""What a lab may leave behind, and how it is removed: processes, cgroups, labs whose owner died."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

DETACHED = "detached"


def owner_line(pid: int | None) -> str:
    """A pid with its start time, since pids come round again."""
    if pid is None:
        return f"{DETACHED}\n"
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        ticks = "gone"
    return f"{pid} {ticks}\n"


def is_stale(line: str) -> bool:
    """Whether an owner's line names a process that is gone; a detached lab has none to lose."""
    line = line.strip()
    return line != DETACHED and line != owner_line(int(line.split()[0])).strip()


def kill_marked(mark: str) -> None:
    """Kill what logins of this lab left running; their environment carries the mark that sshd set."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # it ended meanwhile
            continue


def remove_lxc_locks(state: Path) -> None:
    """Remove the lock files that LXC keeps for the lab's containers, and directories left empty."""
    run_lxc = Path("/run/lxc")
    locks = run_lxc / "lock" / str(state).lstrip("/")
    shutil.rmtree(locks, ignore_errors=True)
    for parent in locks.parents:
        if run_lxc not in (parent, *parent.parents):
            return
        try:
            parent.rmdir()
        except OSError:  # another lab's, or a container's that is not ours
            return


def remove_cgroups(name: str) -> None:
    """Remove the lab's directory from every cgroup hierarchy; LXC leaves the outer ones."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        top = Path(mount) / name
        if not kind.startswith("cgroup") or not top.is_dir():
            continue
        for directory, _, _ in os.walk(top, topdown=False):
            Path(directory).rmdir()
