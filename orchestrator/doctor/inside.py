"""What a run needs of the container beside GPUs: Python, tmux, locale, room, limits, the clock. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.doctor.findings import Verdict, bad, numbers, ok, size, unknown, warn

if TYPE_CHECKING:
    from orchestrator.doctor.readings import Inside, Readings

PROVISION = "`dflashctl provision`"
OLDEST_PYTHON = (3, 10)
OLDEST_TMUX = (3, 2)
DISK_FLOOR = 1 << 30  # under it the playbook starts nothing
DISK_ROOMY = 20 << 30  # a few checkpoints and the log
SHM_ROOMY = 1 << 30
MEMORY_FLOOR = 2 << 30
MEMORY_ROOMY = 16 << 30
OPEN_FILES = 4096
PROCESSES = 4096
SKEW_S = 2.0


def _inside(read: Readings) -> Inside | Verdict:
    """Return what the guest said, or why it said nothing."""
    if read.inside is not None:
        return read.inside
    trouble = read.inside_trouble
    return unknown(trouble.message, trouble.hint) if trouble else unknown("the guest was not asked")


def python3(read: Readings) -> Verdict:
    """Whether the guest can run."""
    entered = read.entered
    if entered is None:
        return unknown("the container was not asked")
    if entered.python is None:
        fix = (
            f"{PROVISION} installs it (apt install python3)"
            if "/" not in read.guest_python
            else "is guest_python right in the inventory?"
        )
        return bad(f"there is no {read.guest_python}", fix)
    version = numbers(entered.python)
    if not version:
        return unknown(f"{read.guest_python} says {entered.python!r}")
    if version < OLDEST_PYTHON:
        fix = "install a newer python3 there, or name one in the inventory (guest_python: /path)"
        return bad(f"{read.guest_python} is {entered.python}; the guest needs 3.10 or newer", fix)
    return ok(entered.python)


def tmux(read: Readings) -> Verdict:
    """Whether runs have a terminal to live in."""
    entered = read.entered
    if entered is None:
        return unknown("the container was not asked")
    if entered.tmux is None:
        return bad("there is none", f"{PROVISION} installs it (apt install tmux)")
    found = re.search(r"(\d+)\.(\d+)", entered.tmux)
    if found is None:
        return unknown(f"its version reads {entered.tmux!r}")
    if (int(found[1]), int(found[2])) < OLDEST_TMUX:
        return bad(f"{entered.tmux}; 3.2a or newer is needed", "apt install tmux from a newer release")
    return ok(entered.tmux)


def guest(read: Readings) -> Verdict:
    """Whether the guest could be put there and answered."""
    if read.inside is not None:
        return ok(f"it answers; runs are kept in {read.inside.state_dir}")
    trouble = read.inside_trouble
    if trouble is None:
        return unknown("it was not asked")
    is_bad = trouble.kind in ("guest_error", "guest_refused")
    return (bad if is_bad else unknown)(trouble.message, trouble.hint)


def locale(read: Readings) -> Verdict:
    """Whether C.UTF-8 is there: without it tmux rewrites what is no ASCII."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.locale is None:
        return unknown("not told")
    if inside.locale:
        return ok("C.UTF-8")
    return warn(
        "there is no C.UTF-8; tmux shows what is no ASCII as `_`", "apt install locales, or a newer libc"
    )


def disk(read: Readings) -> Verdict:
    """Whether there is room for logs and checkpoints."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.free_bytes is None:
        return unknown(f"the file system of {inside.state_dir} does not say")
    total = f" of {size(inside.total_bytes)}" if inside.total_bytes else ""
    seen = f"{size(inside.free_bytes)}{total} free at {inside.state_dir}"
    fix = "`dflashctl prune` removes old checkpoints; or another --state-dir"
    if inside.free_bytes < DISK_FLOOR:
        return bad(f"{seen}; nothing is started under {size(DISK_FLOOR)}", fix)
    return warn(seen, fix) if inside.free_bytes < DISK_ROOMY else ok(seen)


def shm(read: Readings) -> Verdict:
    """Whether there is shared memory for NCCL and data loaders."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.shm_free_bytes is None and inside.has_shm is not False:
        return unknown("not told")
    if inside.shm_free_bytes is None:
        return bad("there is no /dev/shm", "mount a tmpfs there: lxc.mount.entry: tmpfs dev/shm tmpfs rw 0 0")
    total = f" of {size(inside.shm_total_bytes)}" if inside.shm_total_bytes else ""
    seen = f"{size(inside.shm_free_bytes)}{total} free"
    if inside.shm_free_bytes < SHM_ROOMY:
        return warn(
            seen, "NCCL and data loaders use it: `mount -o remount,size=16G /dev/shm` in the container"
        )
    return ok(seen)


def memory(read: Readings) -> Verdict:
    """Whether the container's limit leaves room, and whether the kernel killed for want of it."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.memory_free_bytes is None:
        return unknown("neither the cgroup nor /proc/meminfo tells it")
    ours = (inside.memory_limit_bytes, read.container.memory_bytes if read.container else None)
    limit = min((each for each in ours if each is not None), default=None)
    free = inside.memory_free_bytes if limit is None else min(inside.memory_free_bytes, limit)
    seen = f"{size(free)} free, "
    if limit is not None:
        seen += f"limit {size(limit)}"
    else:
        seen += "no limit of its own" if inside.memory_told else "limit not told"
    fix = (
        f"`pct set {read.ct} --memory MIB` on the host"
        if read.ct is not None
        else "end what takes the memory"
    )
    if free < MEMORY_FLOOR:
        return bad(seen, fix)
    if inside.oom_kills:
        return warn(f"{seen}; the kernel has killed {inside.oom_kills} for want of it since it started", fix)
    return warn(seen, fix) if free < MEMORY_ROOMY else ok(seen)


def limits(read: Readings) -> Verdict:
    """Whether enough files and processes may be opened."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    told = (("open files", inside.open_files, OPEN_FILES), ("processes", inside.processes, PROCESSES))
    known = [(what, count, least) for what, count, least in told if count is not None]
    if not known:
        return unknown("not told")
    seen = ", ".join(f"{what} {'no limit' if count < 0 else count}" for what, count, _ in known)
    if any(0 <= count < least for _, count, least in known):
        return warn(
            seen, f"many ranks and data loaders want {OPEN_FILES}: /etc/security/limits.conf, prlimit"
        )
    return ok(seen)


def clock(read: Readings) -> Verdict:
    """Whether both clocks agree, as far as the round trip lets us see."""
    skew = read.skew
    if skew is None:
        return unknown("not measured")
    beyond = abs(skew.seconds) - skew.within_s
    if beyond <= SKEW_S:
        return ok(f"the same within {max(abs(skew.seconds), skew.within_s):.1f} s")
    which = "ahead of" if skew.seconds > 0 else "behind"
    return warn(
        f"{abs(skew.seconds):.0f} s {which} this machine's", "set both by NTP (`timedatectl`); ages are off"
    )
