"""Reading the mirror: any range of an attempt's log, what is not known of it, and from when its bytes are.

Reads while a watch writes. The journal is read before the frames: what left it meanwhile is in them.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.mirror import journal, layout, notes, segments
from orchestrator.mirror.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from orchestrator.mirror.frames import Mark
    from orchestrator.mirror.journal import Journal
    from orchestrator.mirror.layout import RunKey
    from orchestrator.mirror.notes import Notes, Removed
    from orchestrator.mirror.segments import Placed


@dataclass(frozen=True)
class Piece:
    """Bytes of a log, from `offset` on."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Hole:
    """Bytes [start, stop) that are not here: no watch saw them, or they were `removed`."""

    start: int
    stop: int
    removed: Removed | None = None

    @property
    def length(self) -> int:
        """How many bytes of the log are missing."""
        return self.stop - self.start


@dataclass
class _Scanned:
    found: list[Placed]
    end: int


class AttemptLog:
    """One attempt's log, as far as it is here; `refresh` sees what was written since."""

    def __init__(self, folder: Path, attempt: int, *, emptied: int = 0) -> None:
        self.attempt = attempt
        self.notes: Notes = notes.Notes()
        self._folder = folder
        self._emptied = emptied
        self._scans: dict[Path, _Scanned] = {}
        self._placed: list[Placed] = []
        self._tail: Journal | None = None
        self._spans = Spans()
        self._kept: tuple[Placed, bytes | None] | None = None  # the frame that was read last
        self.refresh()

    def refresh(self) -> None:
        """Look at what is there now."""
        self.notes = notes.read(self._folder, self.attempt)
        self._tail = self._read_tail() if not self._emptied else None
        scans: dict[Path, _Scanned] = {}
        with suppress(OSError):  # it was removed at this moment, or may not be read
            for segment in layout.segments(self._folder, self.attempt):
                if segment.emptied == self._emptied:
                    before = self._scans.get(segment.path) or _Scanned([], 0)
                    fresh, end = segments.scan(segment.path, before.end)
                    scans[segment.path] = _Scanned(before.found + fresh, end)
        self._scans = scans
        placed = (each for scan in scans.values() for each in scan.found)
        self._placed = sorted(placed, key=lambda each: each.frame.offset)
        self._spans = Spans((each.frame.offset, each.frame.stop) for each in self._placed)
        if self._tail is not None:
            self._spans.add(self._tail.offset, self._tail.stop)

    @property
    def size(self) -> int:
        """The log's bytes as far as anything of it was seen, holes included."""
        removed = max((each.stop for each in self._removed), default=0)
        return max(self._spans.stop, removed)

    @property
    def known_bytes(self) -> int:
        """The log's bytes that are here."""
        return sum(stop - start for start, stop in self._spans)

    @property
    def holes(self) -> list[Hole]:
        """What is missing before `size`, and what was removed of it."""
        found = []
        for start, stop in self._spans.missing(0, self.size):
            gone = Spans((each.start, each.stop) for each in self._removed)
            found += [Hole(a, b) for a, b in gone.missing(start, stop)]
            found += [
                Hole(max(start, each.start), min(stop, each.stop), each)
                for each in self._removed
                if max(start, each.start) < min(stop, each.stop)
            ]
        return sorted(found, key=lambda hole: hole.start)

    def read(self, start: int, length: int) -> Iterator[Piece]:
        """Give what is known of [start, start + length), in order; a hole shows as a jump of the offset.

        A frame that is damaged is a hole too. Costs one frame's unpacking for each MiB asked for.
        """
        stop = start + length
        tail, at = self._tail, start
        first = bisect_right(self._placed, start, key=lambda each: each.frame.offset)
        for placed in self._placed[max(0, first - 1) :]:
            if placed.frame.offset >= stop:
                break
            if tail is not None and tail.offset < placed.frame.offset:
                at = yield from _part(tail.offset, tail.data, at, stop)
                tail = None
            if placed.frame.stop > at and (data := self._load(placed)) is not None:
                at = yield from _part(placed.frame.offset, data, at, stop)
        if tail is not None:
            yield from _part(tail.offset, tail.data, at, stop)

    def since(self, at: float) -> int | None:
        """Return from which byte on some may be from `at` (epoch seconds) or later; None if none is.

        What had come here before that time was written before it, so that it alone is left out.
        """
        return next((mark.offset for mark in self._marks() if mark.at >= at), None)

    @property
    def last_at(self) -> float | None:
        """When the newest bytes came, epoch seconds; None if none are here."""
        return max((mark.at for mark in self._marks()), default=None)

    @property
    def _removed(self) -> tuple[Removed, ...]:
        return self.notes.removed if not self._emptied else ()

    def _marks(self) -> Iterator[Mark]:
        tail = self._tail
        for placed in self._placed:
            if tail is not None and tail.offset < placed.frame.offset:
                yield from tail.marks
                tail = None
            yield from placed.frame.marks
        if tail is not None:
            yield from tail.marks

    def _load(self, placed: Placed) -> bytes | None:
        if self._kept is None or self._kept[0] != placed:
            self._kept = (placed, segments.load(placed))
        return self._kept[1]

    def _read_tail(self) -> Journal | None:
        try:
            return journal.parse(layout.tail_path(self._folder, self.attempt).read_bytes())
        except OSError:
            return None


def _part(offset: int, data: bytes, at: int, stop: int) -> Generator[Piece, None, int]:
    """Give what lies in [at, stop); return up to where the log is read then."""
    begin, end = max(at, offset), min(stop, offset + len(data))
    if begin < end:
        yield Piece(begin, data[begin - offset : end - offset])
    return max(at, end)


class RunMirror:
    """What is kept of one run's logs; there may be nothing."""

    def __init__(self, root: Path, key: RunKey) -> None:
        self.folder = root / key.folder

    @property
    def attempts(self) -> list[int]:
        """The attempts of which anything is here, if only that it was removed."""
        return layout.attempts(self.folder)

    @property
    def is_watched(self) -> bool:
        """Whether a watch writes it now."""
        return layout.is_watched(self.folder)

    def attempt(self, number: int, *, emptied: int = 0) -> AttemptLog:
        """Return an attempt's log; with `emptied` what was in it before it was emptied so many times."""
        return AttemptLog(self.folder, number, emptied=emptied)

    def size(self, attempt: int) -> int:
        """Return the log's bytes as far as anything of it was seen, holes included."""
        return self.attempt(attempt).size

    def holes(self, attempt: int) -> list[Hole]:
        """Return what is missing of the attempt's log."""
        return self.attempt(attempt).holes

    def read(self, attempt: int, start: int, length: int) -> list[Piece]:
        """Return what is known of a range of the attempt's log."""
        return list(self.attempt(attempt).read(start, length))
