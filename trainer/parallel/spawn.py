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
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.console import warn
from trainer.parallel.child import Child, start_child
from trainer.parallel.death import (
    read_heartbeat,
    signal_name,
    silent_failure,
    write_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
GRACEFUL = (0, 75)
FAILED_GRACE_S = 5.0
"""After a failure the others end by themselves within a second; what has not yet begun to watch is killed."""
DONE_GRACE_S = 120.0
"""After the leader has ended well, for the others to do so."""


@dataclass(slots=True)
class _Job:
    ranks: list[Child]
    attempt: Path | None
    role_of: Callable[[int], str]
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    stops: set[int] = field(default_factory=set)
    failed: Child | None = None
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
            job.ranks.append(start_child(command, rank, count, base, directory))
            job.selector.register(job.ranks[-1].output, selectors.EVENT_READ, job.ranks[-1])
        while job.is_alive():
            _turn(job, wake_read)
    finally:
        for each in job.ranks:
            each.end_session()
        signal.set_wakeup_fd(old_wake)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake_read)
        os.close(wake_write)
        job.selector.close()
        shutil.rmtree(directory, ignore_errors=True)
    return _exit_code(job)


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
            each.is_killed = each.is_killed or each.code is None
            each.signal(signal.SIGKILL)
        job.deadline = float("inf")


def _forward(job: _Job, numbers: set[int]) -> None:
    for number in FORWARDED:
        if number in numbers:
            job.stops |= {number} & set(STOPS)
            for each in job.ranks:
                each.signal(number)


def _reap(job: _Job) -> None:
    ended = [each for each in job.ranks if each.code is None and each.has_ended()]
    for each in ended:
        each.end_session()
        _relay_output(job, each, last=True)
    # Of several found at once a signal is the cause, an exit code maybe, and who left for a peer never.
    for each in sorted(ended, key=lambda rank: (rank.is_victim, (rank.code or 0) >= 0)):
        assert each.code is not None
        if each.code in GRACEFUL:
            if each.rank == 0 and job.failed is None:
                job.deadline = min(job.deadline, time.monotonic() + DONE_GRACE_S)
        elif each.is_killed and job.failed is None:
            warn(f"rank {each.rank}: still there {DONE_GRACE_S:.0f} s after the leader had ended; killed")
        elif job.failed is None or (job.failed.is_victim and not each.is_victim):
            first = job.failed is None
            job.failed = each
            if first:
                job.deadline = time.monotonic() + FAILED_GRACE_S
            _tell_silent_death(job, each)


def _tell_silent_death(job: _Job, each: Child) -> None:
    """Write error.json for a rank that a signal ended, or that left without any."""
    assert each.code is not None
    if each.is_victim or (each.code < 0 and -each.code in job.stops):
        return
    how = f"exit code {each.code}" if each.code > 0 else f"killed by {signal_name(-each.code)}"
    failure = silent_failure(each.rank, job.role_of(each.rank), f"process {each.process.pid}: {how}")
    if each.code < 0:
        warn(failure.line())
    if job.attempt is None or (each.code > 0 and (job.attempt / "error.json").exists()):
        return
    try:
        write_error(job.attempt / "error.json", failure, read_heartbeat(job.attempt))
    except OSError as error:
        warn(f"{job.attempt / 'error.json'}: {error}; the reason is in this log alone")


def _relay_output(job: _Job, each: Child, *, last: bool = False) -> None:
    """Copy whole lines to the log; `last` when the rank has ended, whoever still holds the other side."""
    if each.output < 0:
        return
    data, is_last = each.read(everything=last)
    _write(each.marker.feed(data, last=is_last))
    if is_last:
        job.selector.unregister(each.output)
        each.close()


def _write(data: bytes) -> None:
    sys.stdout.flush()
    with suppress(OSError):  # a full disk or a closed terminal must not end the job from here
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def _exit_code(job: _Job) -> int:
    if job.failed is not None:
        assert job.failed.code is not None
        code = job.failed.code
        return 1 if job.failed.is_victim else 128 - code if code < 0 else code
    return max(0 if each.is_killed else each.code or 0 for each in job.ranks)
