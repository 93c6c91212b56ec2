"""Whose turn it is to compile on this node: one process at a time, and the others go on beating.

The first fills the cache, and the others load it all at once: they share the lock, so whoever has something
to compile waits for them. A kernel lock on a file, so that a holder that is killed gives it up; which rank
is first does not matter, since each sees its own GPU as cuda:0.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from trainer.console import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.1
BEAT_S = 0.5
FIRST_WORD_S, NEXT_WORD_S = 10.0, 60.0


class Turn(NamedTuple):
    """How one was come by."""

    waited_s: float
    alone: bool
    """Whether nobody else of this node has one; else all that is needed is in the cache."""


@contextmanager
def node_turn(
    directory: Path,
    local_rank: int,
    beat: Callable[[], None],
    cut_off: Callable[[str], None] = lambda _: None,
    filled: Callable[[], bool] = lambda: False,
) -> Iterator[Turn]:
    """Hold `turn.lock` of a directory of this node: alone, or with others once the cache is `filled`.

    `beat` is called each half second of the wait; 10 s of it, and each minute more, are told. `cut_off` is
    called first if the one before that was alone died in its turn: what it wrote may be half written.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "turn.lock").open("a+") as file:
        turn = _wait(file, local_rank, beat, filled)
        try:
            if turn.alone:
                if before := _holder(file):
                    cut_off(before)
                file.truncate(0)
                file.write(f"rank {local_rank}, pid {os.getpid()}")
                file.flush()
            yield turn
        finally:
            if turn.alone:
                file.truncate(0)
            # Not left to close(): a child forked meanwhile shares the lock and would keep it.
            fcntl.flock(file, fcntl.LOCK_UN)


def _wait(file: IO[str], local_rank: int, beat: Callable[[], None], filled: Callable[[], bool]) -> Turn:
    begun = time.monotonic()
    beat_at, word_at = begun, begun + FIRST_WORD_S
    while (alone := _try(file, filled)) is None:
        now = time.monotonic()
        if now >= beat_at:
            beat()
            beat_at = now + BEAT_S
        if now >= word_at:
            holder = _holder(file) or "other processes"
            warn(f"compile: rank {local_rank} waits for {holder}, {now - begun:.0f} s so far ({file.name})")
            word_at = now + NEXT_WORD_S
        threading.Event().wait(POLL_S)
    return Turn(time.monotonic() - begun, alone)


def _try(file: IO[str], filled: Callable[[], bool]) -> bool | None:
    """Take the lock if it is free now, and say whether alone; None if it is not free."""
    # A name in the file under a shared lock is one of a holder that died: a cache that must be swept, alone.
    if filled() and _lock(file, fcntl.LOCK_SH):
        if filled() and not _holder(file):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
    return True if _lock(file, fcntl.LOCK_EX) else None


def _lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    return os.pread(file.fileno(), 256, 0).decode(errors="replace")
