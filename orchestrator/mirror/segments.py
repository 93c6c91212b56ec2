"""Files of frames: found by hopping from header to header, read one frame at a time, never half of one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.mirror import frames

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.mirror.frames import Frame


@dataclass(frozen=True)
class Placed:
    """A frame and where it is: at byte `at` of a file."""

    frame: Frame
    path: Path
    at: int


def scan(path: Path, start: int = 0) -> tuple[list[Placed], int]:
    """Return the whole frames from byte `start` on, and the byte after the last of them.

    Raises:
        OSError: The file cannot be read.
    """
    found: list[Placed] = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        while start < size:
            frame = frames.header(os.pread(fd, frames.MAX_HEAD, start))
            if frame is None or start + frame.size > size:
                break
            found.append(Placed(frame, path, start))
            start += frame.size
    finally:
        os.close(fd)
    return found, start


def load(placed: Placed) -> bytes | None:
    """Return the log's bytes in a frame; None if it was removed meanwhile or is damaged."""
    with suppress(OSError):
        fd = os.open(placed.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            member = os.pread(fd, placed.frame.size, placed.at)
        finally:
            os.close(fd)
        return frames.decode(member, placed.frame)
    return None


def append(path: Path, data: bytes, at: int) -> int:
    """Write at byte `at`, the file's end as it should be; return its new end. What a failed write left goes.

    Raises:
        OSError: It cannot be written; nothing of `data` counts.
    """
    fd = os.open(path, os.O_RDWR | (0 if at else os.O_CREAT) | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size < at:
            raise FileNotFoundError(errno.ENOENT, "another file is there now", str(path))
        if size > at:
            os.ftruncate(fd, at)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, memoryview(data)[done:], at + done)
    except OSError:
        with suppress(OSError):
            if os.fstat(fd).st_size > at:
                os.ftruncate(fd, at)
        raise
    finally:
        os.close(fd)
    return at + len(data)
