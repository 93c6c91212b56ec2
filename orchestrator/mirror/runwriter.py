"""Writing one run's logs: who holds its lock, and which attempts are being written."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.mirror import layout
from orchestrator.mirror.writing import AttemptWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from orchestrator.mirror.layout import RunKey


JOINED_BYTES = 4 << 20


@dataclass(frozen=True)
class Came:
    """Something of one attempt: bytes of its log, or what happened to it (`anew`, `ended`)."""

    attempt: int
    at: float  # epoch seconds
    what: str = "log"
    offset: int = 0
    data: bytes = b""


class RunWriter:
    """One run's. A call that raises OSError may be made again: what was written is not written twice."""

    def __init__(self, root: Path, key: RunKey, segment_bytes: int) -> None:
        self.key = key
        self.folder = root / key.folder
        self.written = 0  # bytes of files, ever
        self._root = root
        self._segment_bytes = segment_bytes
        self._lock: int | None = None
        self._writers: dict[int, AttemptWriter] = {}

    @property
    def is_owner(self) -> bool:
        """Whether the run's lock is ours."""
        return self._lock is not None

    def take_lock(self) -> bool:
        """Take the lock, or see that the one we have is still the one that others see.

        Raises:
            OSError: There is no writing there.
        """
        if self._lock is not None and not _is_there(self.folder / "lock", self._lock):
            self.forget()
        if self._lock is None:
            layout.make_folder(self._root, self.key)
            self._lock = layout.take_lock(self.folder)
        return self.is_owner

    def apply(self, came: Came) -> bool:
        """Write it; returns whether the attempt's log was emptied.

        Raises:
            OSError: It cannot be written.
        """
        writer = self._writer(came.attempt)
        before = writer.written
        was_emptied = False
        if came.what == "log":
            was_emptied = writer.add(came.offset, came.data, came.at)
        elif came.what == "anew":
            was_emptied = writer.begin_anew(came.at)
        else:
            writer.end(came.at)
        self.written += writer.written - before
        return was_emptied

    def forget(self, attempt: int | None = None) -> None:
        """Look again at what is there before the next byte; without an attempt, give up the lock too."""
        if attempt is not None:
            self._writers.pop(attempt, None)
            return
        self._writers.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _writer(self, attempt: int) -> AttemptWriter:
        if attempt not in self._writers:
            for number in [number for number in self._writers if number < attempt]:
                self._writers[number].seal()  # of an attempt that is over everything came before this one's
                del self._writers[number]
            self._writers[attempt] = AttemptWriter(self.folder, attempt, segment_bytes=self._segment_bytes)
        return self._writers[attempt]


def joined(batch: Iterable[Came]) -> deque[Came]:
    """Make one of pieces that follow each other, not too long; the time is that of the last."""
    found: deque[Came] = deque()
    parts: list[Came] = []
    stop = 0
    for came in batch:
        is_log = bool(parts) and came.what == parts[0].what == "log"
        follows = is_log and (came.attempt, came.offset) == (parts[0].attempt, stop)
        if not follows or stop - parts[0].offset >= JOINED_BYTES:
            found += _one(parts)
            parts = []
        parts.append(came)
        stop = came.offset + len(came.data)
    return found + _one(parts)


def newest(batch: Iterable[Came], limit: int) -> deque[Came]:
    """Return the newest so many bytes, and all that is no bytes."""
    batch = list(batch)
    excess = size_of(batch) - limit
    kept: deque[Came] = deque()
    for each in batch:
        cut = max(0, min(excess, len(each.data)))
        excess -= cut
        if cut < len(each.data) or each.what != "log":
            kept.append(replace(each, offset=each.offset + cut, data=each.data[cut:]) if cut else each)
    return kept


def size_of(batch: Iterable[Came]) -> int:
    """Return the log's bytes in it."""
    return sum(len(each.data) for each in batch)


def _one(parts: list[Came]) -> deque[Came]:
    if len(parts) < 2:
        return deque(parts)
    return deque([replace(parts[0], at=parts[-1].at, data=b"".join(each.data for each in parts))])


def _is_there(path: Path, fd: int) -> bool:
    """Whether the lock that we hold is still the one that others see."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
