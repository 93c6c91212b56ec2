"""Ranges of logs from the copies that a watch keeps here: quick, and there when the container is not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.mirror import RunKey, RunMirror

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.mirror import AttemptLog
    from orchestrator.record import RunRow

MAX_KEPT = 32


@dataclass(frozen=True)
class Part:
    """What is here of a range, from its start to the first gap.

    `size` is the log's as far as it was seen. `is_whole`: the range is all here, and `size` is the log's own,
    since the attempt has ended, or a watch writes the copy now.
    """

    start: int
    data: bytes
    size: int
    is_whole: bool


@dataclass
class _Kept:
    log: AttemptLog
    lock: threading.Lock = field(default_factory=threading.Lock)


class Copies:
    """The copies of every run's logs. Any thread may call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def attempts(self, row: RunRow) -> list[int]:
        """The attempts of a run of which anything is here."""
        return self._mirror(row).attempts

    def read(self, row: RunRow, attempt: int, start: int, length: int) -> Part | None:
        """Return what is here of a range; a negative `start` counts from the end. None if nothing is."""
        mirror = self._mirror(row)
        if attempt not in mirror.attempts:
            self._forget(mirror, attempt)
            return None
        is_watched = mirror.is_watched
        kept = self._log(mirror, attempt)
        with kept.lock:
            log = kept.log
            log.refresh()
            size = log.size
            at = begin = max(0, size + start) if start < 0 else min(start, size)
            wanted = min(length, size - begin)
            data = bytearray()
            for piece in log.read(begin, wanted):
                if piece.offset != at:
                    break
                data += piece.data
                at += len(piece.data)
            is_true = is_watched or log.notes.ended_at is not None
        return Part(begin, bytes(data), size, is_whole=is_true and len(data) == wanted)

    def size(self, row: RunRow, attempt: int) -> int:
        """Return how much of a log was seen."""
        kept = self._log(self._mirror(row), attempt)
        with kept.lock:
            kept.log.refresh()
            return kept.log.size

    def _mirror(self, row: RunRow) -> RunMirror:
        return RunMirror(self._root, RunKey.of(row))

    def _log(self, mirror: RunMirror, attempt: int) -> _Kept:
        key = (mirror.folder.name, attempt)
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept(mirror.attempt(attempt))
            self._kept[key] = kept
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return kept

    def _forget(self, mirror: RunMirror, attempt: int) -> None:
        with self._lock:
            self._kept.pop((mirror.folder.name, attempt), None)
