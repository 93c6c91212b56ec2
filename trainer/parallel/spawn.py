"""Start one process a GPU and be their parent: forward signals, see the first death, take the rest down.

Not torchrun's agent, which answers a stop with SIGKILL after 30 seconds, checkpoint or not, and turns every
exit code into 1. Its variables are the same, so a rank does not know the difference. No torch here: the
parent stays small, and a rank's death is seen by waitpid.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.console import warn
from trainer.parallel.death import (
    LAUNCHER,
    PEER_EXIT,
    Failure,
    read_heartbeat,
    signal_name,
    silent_failure,
    write_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
STOPS = (signal.SIGTERM, signal.SIGINT)
GRACEFUL = (0, 75)
FAILED_GRACE_S = 5.0
"""After a failure the others end by themselves within a second; what has not yet begun to watch is killed."""
DONE_GRACE_S = 120.0
"""After the leader has ended well, for the others to do so."""
MAX_LINE = 1 << 16


@dataclass(slots=True)
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    output: int
    """Reading end of its output, -1 for the leader, which writes to the log itself."""
    pending: bytes = b""
    code: int | None = None
    is_killed: bool = False
    """By us, for a peer's failure."""

    @property
    def is_victim(self) -> bool:
        """Whether another rank's failure is why it ended."""
        return self.is_killed or self.code == PEER_EXIT


@dataclass(slots=True)
class _Job:
    ranks: list[_Rank]
    attempt: Path | None
    role_of: Callable[[int], str]
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    stops: set[int] = field(default_factory=set)
    failed: _Rank | None = None
    deadline: float = float("inf")

    def is_alive(self) -> bool:
        return any(each.code is None for each in self.ranks)


def launch(
    command: list[str],
    count: int,
    *,
    attempt: Path | None = None,
    environ: Mapping[str, str] | None = None,
    role_of: Callable[[int], str] = lambda _: "rank",
) -> int:
    """Run `count` ranks of `command` on this node and return the exit code of the first that failed.

    75 if they were interrupted, 0 if all is done; 128 + n for a rank that died of signal n, which is told in
    `attempt`/error.json, since it could not do so. To be called from the main thread. Output of ranks other
    than the leader is marked `[rankN]: `, as torch does.

    Raises:
        OSError: the command cannot be started.
    """
    directory = Path(tempfile.mkdtemp(prefix="trainer-ranks-"))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, _nothing) for number in (signal.SIGCHLD, *FORWARDED)}
    old_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    job = _Job([], attempt, role_of)
    job.selector.register(wake_read, selectors.EVENT_READ, None)
    try:
        base = dict(os.environ if environ is None else environ)
        for rank in range(count):
            job.ranks.append(_start(command, rank, count, base, directory / "store"))
            if job.ranks[-1].output >= 0:
                job.selector.register(job.ranks[-1].output, selectors.EVENT_READ, job.ranks[-1])
        while job.is_alive():
            _turn(job, wake_read)
    finally:
        for each in job.ranks:
            _end_session(each)
        signal.set_wakeup_fd(old_wake)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake_read)
        os.close(wake_write)
        job.selector.close()
        shutil.rmtree(directory, ignore_errors=True)
    return _exit_code(job)


def rank_environ(base: Mapping[str, str], rank: int, count: int, store: Path) -> dict[str, str]:
    """Return torchrun's variables for one node, and where the ranks find each other."""
    cores = len(os.sched_getaffinity(0))
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        "GLOO_SOCKET_IFNAME": "lo",  # else gloo asks what address the host's name has, which may be none
    }
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TRAINER_STORE": str(store),
        LAUNCHER: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    return {**defaults, **base, **place}


def _start(command: list[str], rank: int, count: int, base: dict[str, str], store: Path) -> _Rank:
    read_end, write_end = os.pipe2(os.O_CLOEXEC) if rank else (-1, None)
    try:
        process = subprocess.Popen(
            command,
            env=rank_environ(base, rank, count, store),
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,  # Ctrl-C in a terminal comes once, from us; and its helpers can be ended
        )
    finally:
        if write_end is not None:
            os.close(write_end)
    if read_end >= 0:
        os.set_blocking(read_end, False)
    return _Rank(rank, process, read_end)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Let the wake-up descriptor tell; an ignored signal would stay ignored in the ranks."""


def _turn(job: _Job, wake_read: int) -> None:
    """Wait for output, a signal or the deadline, and act on it."""
    wait_s = max(0.0, min(1.0, job.deadline - time.monotonic()))
    for key, _ in job.selector.select(wait_s):
        if key.data is None:
            with suppress(BlockingIOError):
                _forward(job, set(os.read(wake_read, 4096)))
        else:
            _relay_output(job, key.data)
    _reap(job)
    if job.is_alive() and time.monotonic() >= job.deadline:
        for each in job.ranks:
            if each.code is None:
                each.is_killed = True
                os.kill(each.process.pid, signal.SIGKILL)
        job.deadline = float("inf")


def _forward(job: _Job, numbers: set[int]) -> None:
    for number in FORWARDED:
        if number in numbers:
            job.stops |= {number} & set(STOPS)
            for each in job.ranks:
                if each.code is None:
                    os.kill(each.process.pid, number)  # not reaped yet, so the number is still its own


def _reap(job: _Job) -> None:
    ended = [each for each in job.ranks if each.code is None and _has_ended(each)]
    for each in ended:
        _end_session(each)
        _relay_output(job, each, last=True)
    # Of several found at once a signal is the cause, an exit code maybe, and who left for a peer never.
    for each in sorted(ended, key=lambda rank: (rank.is_victim, (rank.code or 0) >= 0)):
        assert each.code is not None
        if each.code in GRACEFUL:
            if each.rank == 0 and job.failed is None:
                job.deadline = min(job.deadline, time.monotonic() + DONE_GRACE_S)
        elif job.failed is None or (job.failed.is_victim and not each.is_victim):
            first = job.failed is None
            job.failed = each
            if first:
                job.deadline = time.monotonic() + FAILED_GRACE_S
            _tell_silent_death(job, each)


def _has_ended(each: _Rank) -> bool:
    return os.waitid(os.P_PID, each.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_session(each: _Rank) -> None:
    """Kill what a rank left behind, and it too; before it is reaped, as its number may be another's then."""
    if each.code is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(each.process.pid, signal.SIGKILL)
    each.code = each.process.wait()


def _tell_silent_death(job: _Job, each: _Rank) -> None:
    """Write error.json for a rank that a signal ended, or that left without any."""
    assert each.code is not None
    if each.is_victim or (each.code < 0 and -each.code in job.stops):
        return
    how = f"exit code {each.code}" if each.code > 0 else f"killed by {signal_name(-each.code)}"
    failure: Failure = silent_failure(each.rank, job.role_of(each.rank), f"process {each.process.pid}: {how}")
    if each.code < 0:
        warn(failure.line())
    if job.attempt is None or (each.code > 0 and (job.attempt / "error.json").exists()):
        return
    try:
        write_error(job.attempt / "error.json", failure, read_heartbeat(job.attempt))
    except OSError as error:
        warn(f"{job.attempt / 'error.json'}: {error}; the reason is in this log alone")


def _relay_output(job: _Job, each: _Rank, *, last: bool = False) -> None:
    """Copy whole lines to the log, each with its rank's mark."""
    if each.output < 0:
        return
    data = b""
    with suppress(BlockingIOError):
        while chunk := os.read(each.output, MAX_LINE):
            data += chunk
            if not last:
                break
        else:
            last = True  # the end: nobody holds the other side any more
    lines = (each.pending + data).split(b"\n")
    each.pending = lines.pop()
    if each.pending and (last or len(each.pending) > MAX_LINE):
        lines.append(each.pending)
        each.pending = b""
    mark = b"[rank%d]: " % each.rank
    _write(b"".join((line if line.startswith(b"[rank") else mark + line) + b"\n" for line in lines))
    if last:
        job.selector.unregister(each.output)
        os.close(each.output)
        each.output = -1


def _write(data: bytes) -> None:
    sys.stdout.flush()
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def _exit_code(job: _Job) -> int:
    if job.failed is not None:
        assert job.failed.code is not None
        code = job.failed.code
        return 1 if job.failed.is_victim else 128 - code if code < 0 else code
    return max(each.code or 0 for each in job.ranks)
