"""Whose turn it is to compile on this node: one process at a time, and the others go on beating.

The first fills the cache and the others load it. A kernel lock on a file, so that a holder that is killed
gives it up; which rank is first does not matter, since each sees its own GPU as cuda:0.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from trainer.console import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.1
BEAT_S = 0.5
FIRST_WORD_S, NEXT_WORD_S = 10.0, 60.0


@contextmanager
def node_turn(
    directory: Path,
    local_rank: int,
    beat: Callable[[], None],
    cut_off: Callable[[str], None] = lambda _: None,
) -> Iterator[float]:
    """Hold `turn.lock` of a directory of this node alone; gives the seconds waited for it.

    `beat` is called each half second of the wait; 10 s of it, and each minute more, are told. `cut_off` is
    called first if the holder before died in its turn: what it was writing may be half written.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "turn.lock").open("a+") as file:
        waited = _wait(file, local_rank, beat)
        file.seek(0)
        before = file.read()
        try:
            if before:
                cut_off(before)
            file.truncate(0)
            file.write(f"rank {local_rank}, pid {os.getpid()}")
            file.flush()
            yield waited
        finally:
            file.truncate(0)
            # Not left to close(): a child forked meanwhile shares the lock and would keep it.
            fcntl.flock(file, fcntl.LOCK_UN)


def _wait(file: IO[str], local_rank: int, beat: Callable[[], None]) -> float:
    begun = time.monotonic()
    beat_at, word_at = begun, begun + FIRST_WORD_S
    while not _try(file):
        now = time.monotonic()
        if now >= beat_at:
            beat()
            beat_at = now + BEAT_S
        if now >= word_at:
            file.seek(0)
            holder = file.read() or "another process"
            warn(f"compile: rank {local_rank} waits for {holder}, {now - begun:.0f} s so far ({file.name})")
            word_at = now + NEXT_WORD_S
        threading.Event().wait(POLL_S)
    return time.monotonic() - begun


def _try(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
