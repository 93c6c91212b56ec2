"""The stacks of some processes: by py-spy, by the signal they registered, else what the kernel says."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.guest import clock, files, processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.guest.stacks import Rank

PY_SPY_LIMIT_S = 15.0
SIGNAL_LIMIT_S = 5.0
SETTLED_S = 0.3  # a stack that has not grown for so long is whole
MAX_DUMP_BYTES = 1 << 20
_STATES = {
    "R": "running",
    "S": "waits",
    "D": "waits in the kernel, deaf to signals",
    "T": "was stopped by a signal",
    "t": "is held by a debugger",
}


@dataclass(frozen=True)
class Dump:
    """What one process said; `how` is `py-spy`, `faulthandler` or `none`."""

    pid: int
    name: str
    state: str
    wchan: str
    how: str
    text: str

    def fields(self) -> dict[str, Any]:
        """As the `stack` line has it."""
        return {"pid": self.pid, "name": self.name, "state": self.state, "wchan": self.wchan, "how": self.how}


def dump(ranks: Sequence[Rank]) -> tuple[list[Dump], list[str]]:
    """Ask each process; return what each said, in their order, and what went wrong.

    py-spy sees more, but it needs the right to trace; who does not answer it is asked by signal.
    """
    problems: list[str] = []
    spy = find_py_spy(ranks[0].pid if ranks else None)
    told = _by_py_spy(spy, ranks, problems) if spy else {}
    silent = [rank for rank in ranks if rank.pid not in told and rank.signal is not None]
    signalled = _by_signal(silent)
    dumps = []
    for rank in ranks:
        how = "py-spy" if rank.pid in told else "faulthandler" if signalled.get(rank.pid) else "none"
        text = told.get(rank.pid) or signalled.get(rank.pid) or ""
        name, state, wchan = _kernel_words(rank.pid)
        if how == "none":
            who = f"rank {rank.rank}" if rank.rank is not None else name
            problems.append(f"{who} (process {rank.pid}) gave no stack; it {_said(state)}")
        dumps.append(Dump(rank.pid, name, state, wchan, how, text))
    return dumps, problems


def find_py_spy(pid: int | None) -> str | None:
    """Return py-spy: beside the Python of a process, else in PATH."""
    beside = None
    if pid is not None:
        command = _read(f"/proc/{pid}/cmdline").split(b"\0", 1)[0]
        beside = os.path.dirname(os.fsdecode(command)) or None  # noqa: PTH120
    return (shutil.which("py-spy", path=beside) if beside else None) or shutil.which("py-spy")


def _by_py_spy(spy: str, ranks: Sequence[Rank], problems: list[str]) -> dict[int, str]:
    """All at once: eight ranks that wait for each other are then seen in one moment."""
    begun: list[tuple[Rank, subprocess.Popen[bytes], IO[bytes]]] = []
    deadline = clock.ticking() + PY_SPY_LIMIT_S
    for rank in ranks:
        out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  a pipe that nobody reads would block it
        command = [spy, "dump", "--full-filenames", "--pid", str(rank.pid)]
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, close_fds=True
            )
        except OSError as error:
            problems.append(f"{spy} cannot be run: {error.strerror}")
            return {}
        begun.append((rank, child, out))
    told: dict[int, str] = {}
    failed: set[str] = set()
    for rank, child, said in begun:
        try:
            code: int | None = child.wait(timeout=max(0.0, deadline - clock.ticking()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = None
        said.seek(0)
        text = said.read(MAX_DUMP_BYTES).decode("utf-8", "replace")
        said.close()
        if code == 0:
            told[rank.pid] = _without_command(text)
        else:
            last = (text.strip().splitlines() or ["no word"])[0]
            failed.add(f"py-spy: {last}" if code is not None else f"py-spy took over {PY_SPY_LIMIT_S:.0f} s")
    problems += sorted(failed)
    return told


def _without_command(text: str) -> str:
    """Leave out the command with its arguments, which py-spy says first: they may hold a secret.

    An argument may have several lines. Those of a stack are indented, so the last line that begins like
    this is the head's.
    """
    begin = text.rfind("\nPython v")
    return text[begin:].lstrip("\n") if text.startswith("Process ") and begin >= 0 else text


def _by_signal(ranks: Sequence[Rank]) -> dict[int, str]:
    """Signal each, then wait until its file has grown and come to rest."""
    before = {rank.pid: files.size_of(rank.file) for rank in ranks if rank.file}
    for rank in ranks:
        # Looked at again: between the look and the signal another process may have got the number.
        if rank.file and rank.signal and processes.has_open(rank.pid, rank.file):
            processes.send_signal([rank.pid], rank.signal)
    sizes = dict(before)
    deadline = clock.ticking() + SIGNAL_LIMIT_S
    changed_at = clock.ticking()
    while clock.ticking() < deadline:
        now = {rank.pid: files.size_of(rank.file) for rank in ranks if rank.file}
        if now != sizes:
            sizes, changed_at = now, clock.ticking()
        has_all = all(sizes[pid] > before[pid] for pid in before)
        if has_all and clock.ticking() - changed_at > SETTLED_S:
            break
        clock.wait(0.05)
    return {
        rank.pid: files.read_piece(rank.file, before[rank.pid], MAX_DUMP_BYTES).decode("utf-8", "replace")
        for rank in ranks
        if rank.file
    }


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal: without one it would die of it (proc_pid_status(5))."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def is_python(pid: int) -> bool:
    """Whether the program of a process is a Python."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return False
    return Path(program).name.startswith("python")


def _kernel_words(pid: int) -> tuple[str, str, str]:
    name = _read(f"/proc/{pid}/comm").strip().decode("utf-8", "replace")
    stat = _read(f"/proc/{pid}/stat")
    state = stat[stat.rfind(b")") + 2 :][:1].decode("ascii", "replace")
    wchan = _read(f"/proc/{pid}/wchan").strip().decode("ascii", "replace")
    return name, state, "" if wchan == "0" else wchan


def _said(state: str) -> str:
    return _STATES.get(state, "is gone" if not state else f"is in state {state}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()[: 1 << 16]
    except OSError:
        return b""
