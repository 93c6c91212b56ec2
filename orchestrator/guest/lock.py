"""The run's lock: every trainer process inherits its open file description, so its holder is the run."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from orchestrator.guest import clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAKE_LIMIT_S = 2.0
LOOKS = 3
LOOK_AGAIN_S = 0.002


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock; takes it shared for an instant, on a description of our own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)  # closing the only descriptor releases it
    return False


def is_shared(path: Path) -> bool:
    """Whether somebody holds the lock, alone or with others; another look holds it for an instant only."""
    for _ in range(LOOKS):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            clock.wait(LOOK_AGAIN_S)
        else:
            return False
        finally:
            os.close(fd)
    return True


def take(path: Path, limit_s: float = TAKE_LIMIT_S) -> int | None:
    """Take the lock for good and return its descriptor, or None if it is still held after `limit_s`.

    The limit outlasts the instants of `is_held`.
    """
    deadline = clock.ticking() + limit_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            if _is_still(fd, path):
                return fd
            os.close(fd)  # `remove` unlinked it under us
        if clock.ticking() >= deadline:
            return None
        clock.wait(0.02)


@contextlib.contextmanager
def turn(folder: Path, limit_s: float = TAKE_LIMIT_S) -> Iterator[None]:
    """Let one at a time look at a folder's files and replace them; who waits too long goes on anyway."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = clock.ticking() + limit_s
        while clock.ticking() < deadline:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            clock.wait(0.01)
        yield
    finally:
        os.close(fd)


def _is_still(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False
