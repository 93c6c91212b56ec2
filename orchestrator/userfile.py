"""Files that people name or edit: read whole, never waited for, and bounded.

A watch reads them in the thread in which it looks at all its runs. A named pipe would hold that thread for
ever, and a device or a log by mistake would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 8 << 20

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_bytes(path: Path, *, limit: int = MAX_BYTES, waits: bool = False) -> bytes:
    """Return a plain file's content; with `waits` also a pipe's or a terminal's, to its end.

    Raises:
        OSError: It cannot be read, is no plain file, or holds more than `limit` bytes.
    """
    _check(path.stat().st_mode, waits=waits)  # before it is opened: a device may take that for an order
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if waits else os.O_NONBLOCK))
    try:
        _check(os.fstat(fd).st_mode, waits=waits)
        pieces, left = [], limit + 1
        while left and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(fd)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {limit / 2**20:g} MiB; is it the file you mean?")
    return b"".join(pieces)


def read_text(path: Path, *, limit: int = MAX_BYTES, waits: bool = False, errors: str = "strict") -> str:
    """Return its text, with the line ends of this system.

    Raises:
        OSError: As of `read_bytes`.
        UnicodeDecodeError: It is not UTF-8.
    """
    text = read_bytes(path, limit=limit, waits=waits).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check(mode: int, *, waits: bool) -> None:
    if stat.S_ISREG(mode) or (waits and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "no file")
    raise OSError(errno.EINVAL, f"it is {kind}; put a plain file in its place")
