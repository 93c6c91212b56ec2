"""Which processes are of a run, from /proc.

A process is of the run if its environment carries the run's DFLASHCTL_RUN_DIR, or it is the attempt's
trainer, or the supervisor is its ancestor; or it descends from such a process; or it shares a session
with one, whose leader is of the run or has ended. (A leader that is alive and not of the run is a
person's shell: its other members are left alone.) A process id counts only with its start time, for ids
are used again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.guest import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PROC = "/proc"
MARK = "DFLASHCTL_RUN_DIR"


@dataclass(frozen=True)
class Process:
    """A row of the process table; `start_ticks` since boot; `mark` is the run directory it carries."""

    pid: int
    ppid: int
    sid: int
    start_ticks: int
    is_zombie: bool
    mark: str | None = None


@dataclass(frozen=True)
class Roots:
    """What an attempt's attempt.json says, as far as it still holds."""

    supervisor: int | None = None
    trainer: int | None = None


@dataclass(frozen=True)
class Members:
    """The live processes of a run; the supervisor is not among `pids`."""

    pids: tuple[int, ...]
    has_supervisor: bool


def read_stat(pid: int) -> Process | None:
    """Return the row of one process without its mark; None if it is gone."""
    try:
        fd = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return None
    # proc_pid_stat(5): the name is in parentheses and may hold any byte; state is field 3, threads field 20.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    # A leader that ended while other threads run is shown as a zombie and is alive.
    is_zombie = fields[0] in {b"X", b"x"} or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), is_zombie)


def scan() -> dict[int, Process]:
    """Return the process table of our own pid namespace."""
    table: dict[int, Process] = {}
    for name in os.listdir(PROC):  # noqa: PTH208
        if not name.isdigit():
            continue
        row = read_stat(int(name))
        if row is None:
            continue
        mark = None if row.is_zombie else _mark(row.pid)
        table[row.pid] = row if mark is None else _with_mark(row, mark)
    return table


def _with_mark(row: Process, mark: str) -> Process:
    return Process(row.pid, row.ppid, row.sid, row.start_ticks, row.is_zombie, mark)


def _mark(pid: int) -> str | None:
    try:
        fd = os.open(f"{PROC}/{pid}/environ", os.O_RDONLY)
        try:
            data = os.read(fd, 1 << 18)
        finally:
            os.close(fd)
    except OSError:
        return None
    key = MARK.encode() + b"="
    at = 0 if data.startswith(key) else data.find(b"\0" + key) + 1
    if not data.startswith(key, at) or not _is_in_our_namespace(pid):
        return None
    return os.fsdecode(data[at + len(key) :].split(b"\0", 1)[0])


def _is_in_our_namespace(pid: int) -> bool:
    """Whether a process is in our container: a host sees those of its containers, with the same paths."""
    try:
        theirs = os.readlink(f"{PROC}/{pid}/ns/pid")  # noqa: PTH115
        return theirs == os.readlink(f"{PROC}/self/ns/pid")  # noqa: PTH115
    except OSError:
        return False


def roots(info: Mapping[str, Any] | None) -> Roots:
    """Return the supervisor and trainer of an attempt.json that are still the same processes.

    One container start has one (boot id, start of pid 1); ids written before that mean nothing.
    """
    if not info or info.get("boot_id") != boot_id() or info.get("pid1_start_ticks") != pid1_start_ticks():
        return Roots()
    return Roots(
        _same(info.get("supervisor_pid"), info.get("supervisor_start_ticks")),
        _same(info.get("trainer_pid"), info.get("trainer_start_ticks")),
    )


def _same(pid: object, start_ticks: object) -> int | None:
    row = read_stat(pid) if isinstance(pid, int) else None
    return row.pid if row and not row.is_zombie and row.start_ticks == start_ticks else None


def members(table: Mapping[int, Process], run_dir: Path, known: Roots) -> Members:
    """Return the run's live processes in a table; ourselves and our ancestors are never among them."""
    excluded = _ancestors(table, os.getpid()) | {1}
    supervisor = known.supervisor if known.supervisor in table else None
    mark = str(run_dir)
    found = {row.pid for row in table.values() if row.mark == mark or row.pid == known.trainer}
    if supervisor is not None:
        found |= {row.pid for row in table.values() if row.ppid == supervisor}
        excluded.add(supervisor)
    found -= excluded
    while True:
        sessions = {sid for sid in (table[pid].sid for pid in found) if sid in found or sid not in table}
        more = {
            row.pid
            for row in table.values()
            if (row.ppid in found or (row.sid in sessions and row.sid > 0)) and row.pid not in excluded
        }
        if more <= found:
            break
        found |= more
    alive = tuple(sorted(pid for pid in found if not table[pid].is_zombie))
    return Members(alive, supervisor is not None)


def _ancestors(table: Mapping[int, Process], pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def holders(lock: Path, *, shared: bool = False) -> list[int]:
    """Return who holds the lock, by an inherited description: the last way to find one that hides.

    `shared`: of one that several hold together. A look of ours holds either for an instant, the other way.
    """
    kind = b"READ" if shared else b"WRITE"
    found = []
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid() and _holds(f"{PROC}/{name}", lock, kind):
            found.append(int(name))
    return found


def _holds(directory: str, path: Path, kind: bytes) -> bool:
    def is_lock(fd: str) -> bool:
        opened = f"{directory}/fd/{fd}"
        # A container seen from its host has the same path; the file itself tells them apart.
        is_it = os.readlink(opened) == str(path) and os.path.samefile(opened, path)  # noqa: PTH115, PTH121
        # proc_pid_fdinfo(5): a probe of ours has it open too, but without this lock.
        return is_it and b"FLOCK  ADVISORY  " + kind in Path(f"{directory}/fdinfo/{fd}").read_bytes()

    return _any_fd(directory, is_lock)


def has_open(pid: int, path: Path) -> bool:
    """Whether a process of our own pid namespace holds that very file open."""
    directory = f"{PROC}/{pid}"
    return _any_fd(directory, lambda fd: os.path.samefile(f"{directory}/fd/{fd}", path))  # noqa: PTH121


def _any_fd(directory: str, is_wanted: Callable[[str], bool]) -> bool:
    """Whether any of a process's descriptors is wanted; one that cannot be looked at is not."""
    try:
        fds = os.listdir(f"{directory}/fd")  # noqa: PTH208
    except OSError:
        return False
    for fd in fds:
        with suppress(OSError):
            if is_wanted(fd):
                return True
    return False


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def boot_id() -> str | None:
    """The kernel's boot id."""
    try:
        return Path(f"{PROC}/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def pid1_start_ticks() -> int | None:
    """When the container's init started: another one means that the container was started again."""
    row = read_stat(1)
    return row.start_ticks if row else None


def attempt_roots(attempt_dir: Path) -> Roots:
    """`roots` of the attempt in a directory."""
    return roots(files.read_json(attempt_dir / "attempt.json"))
