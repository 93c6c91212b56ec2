"""Writing one attempt's log: bytes at their offsets, in any order, each once.

New bytes go to a journal; a MiB of it becomes a frame. A watch that is killed loses what it had not written,
and leaves no file that could be taken for more than it is: a torn end is cut off by who comes next.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from orchestrator.clock import timestamp
from orchestrator.mirror import frames, journal, layout, notes, segments
from orchestrator.mirror.frames import FRAME_BYTES, Mark
from orchestrator.mirror.notes import Emptied
from orchestrator.mirror.reading import AttemptLog
from orchestrator.mirror.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.mirror.journal import Journal
    from orchestrator.mirror.layout import Segment

_STAR = ord("*")


class AttemptWriter:
    """One attempt's. Only who holds the run's lock may write.

    A call that raises OSError may be made again: what was written is known, and is not written twice.
    """

    def __init__(self, folder: Path, attempt: int, *, segment_bytes: int = layout.SEGMENT_BYTES) -> None:
        self.attempt = attempt
        self.written = 0  # bytes of files, by this writer
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._spans = Spans()
        self._segment: tuple[int, int] = (1, 0)  # the newest file of frames: its number, and its bytes
        self._tail: tuple[int, int, int] | None = None  # the journal: log offset, log end, bytes of the file
        self._has_ended = False
        self._load()

    def add(self, offset: int, data: bytes, at: float) -> bool:
        """Keep bytes of the log that came `at`; returns whether they are of a log that was emptied unseen.

        What is known stays as it is: it is the same, but for stars where a secret became known.

        Raises:
            OSError: They cannot be written.
        """
        was_emptied = self._differs(offset, data)
        if was_emptied:
            self.begin_anew(at)
        for start, stop in self._spans.missing(offset, offset + len(data)):
            self._append(start, data[start - offset : stop - offset], at)
        return was_emptied

    def seal(self) -> None:
        """Compress what the journal holds.

        Raises:
            OSError: It cannot be written.
        """
        if self._tail is None:
            return
        held = self._journal()
        if held is not None and held.data:
            self._add_frames(held.offset, held.data, held.marks)
        layout.tail_path(self._folder, self.attempt).unlink(missing_ok=True)
        self._tail = None

    def end(self, at: float) -> None:
        """The attempt has ended, and all of its log is here.

        Raises:
            OSError: It cannot be written.
        """
        self.seal()
        if not self._has_ended:
            told = timestamp(_instant(at))
            notes.change(self._folder, self.attempt, lambda before: replace(before, ended_at=told))
            self._has_ended = True

    def begin_anew(self, at: float) -> bool:
        """Somebody emptied the log: what comes is another. What was in it is kept apart, if anything was.

        Raises:
            OSError: It cannot be written.
        """
        self.seal()
        if self._spans.stop == 0:
            return False
        length, number = self._spans.stop, len(notes.read(self._folder, self.attempt).emptied) + 1
        emptied = Emptied(number=number, length=length, at=timestamp(_instant(at)))
        for each in layout.segments(self._folder, self.attempt):
            if each.emptied == 0:
                each.path.rename(layout.segment_path(self._folder, self.attempt, each.number, number))
        # What was removed, was of the log before: the new one's offsets begin at 0 again.
        notes.change(
            self._folder,
            self.attempt,
            lambda before: replace(before, emptied=(*before.emptied, emptied), removed=(), ended_at=None),
        )
        self._spans, self._segment, self._has_ended = Spans(), (1, 0), False
        return True

    # -- what is there already

    def _load(self) -> None:
        told = notes.read(self._folder, self.attempt)
        mine = [each for each in layout.segments(self._folder, self.attempt) if each.emptied == 0]
        for each in mine:
            found, end = segments.scan(each.path)
            for placed in found:
                self._spans.add(placed.frame.offset, placed.frame.stop)
            self._segment = (each.number, end)
            if each is mine[-1]:
                self._mend(each, end)
        for gone in told.removed:  # it is not fetched again to be removed again
            self._spans.add(gone.start, gone.stop)
        self._has_ended = told.ended_at is not None
        self._resume()

    def _mend(self, last: Segment, end: int) -> None:
        """Of the file that was written last the end may be torn: what is written next takes its place."""
        rest = last.path.stat().st_size - end
        if rest > frames.MAX_MEMBER:  # no torn frame is so long: it stays, and another file begins
            self._segment = (last.number + 1, 0)

    def _resume(self) -> None:
        """Go on with the journal, unless its frame was written and only its removal was cut off."""
        path = layout.tail_path(self._folder, self.attempt)
        held = self._journal()
        if held is None or not held.data or self._spans.known(held.offset, held.stop):
            with suppress(FileNotFoundError):
                path.unlink()
            if held is not None and held.data:
                self._recover(held)
            return
        self._tail = (held.offset, held.stop, held.good)
        self._spans.add(held.offset, held.stop)

    def _recover(self, held: Journal) -> None:
        for start, stop in self._spans.missing(held.offset, held.stop):
            at = max((mark.at for mark in held.marks), default=0.0)
            self._append(start, held.data[start - held.offset : stop - held.offset], at)

    def _journal(self) -> Journal | None:
        try:
            return journal.parse(layout.tail_path(self._folder, self.attempt).read_bytes())
        except FileNotFoundError:
            return None

    def _differs(self, offset: int, data: bytes) -> bool:
        """Whether these are other bytes than those that are known; a star may stand for any."""
        if not self._spans.known(offset, offset + len(data)):
            return False
        log = AttemptLog(self._folder, self.attempt)
        for piece in log.read(offset, len(data)):
            theirs = data[piece.offset - offset : piece.offset - offset + len(piece.data)]
            if theirs != piece.data and any(
                a != b and _STAR not in (a, b) for a, b in zip(theirs, piece.data, strict=True)
            ):
                return True
        return False

    # -- putting down

    def _append(self, start: int, data: bytes, at: float) -> None:
        if self._tail is not None and start != self._tail[1]:
            self.seal()
        done = 0
        while done < len(data):
            if self._tail is None and len(data) - done >= FRAME_BYTES:  # much at once needs no journal
                size = (len(data) - done) // FRAME_BYTES * FRAME_BYTES
                self._add_frames(start + done, data[done : done + size], (Mark(start + done, at),))
            else:
                size = min(len(data) - done, FRAME_BYTES - self._tail_length)
                self._journal_on(start + done, data[done : done + size], at)
            self._spans.add(start + done, start + done + size)
            done += size
            if self._tail_length >= FRAME_BYTES:
                self.seal()

    @property
    def _tail_length(self) -> int:
        return self._tail[1] - self._tail[0] if self._tail is not None else 0

    def _journal_on(self, start: int, data: bytes, at: float) -> None:
        path, told = layout.tail_path(self._folder, self.attempt), journal.record(data, at)
        if self._tail is None:
            # Under another name first: who reads the old journal reads it to its end.
            temp = path.with_name(f".{path.name}.new")
            size = segments.append(temp, journal.head(start) + told, 0)
            temp.replace(path)
            self._tail = (start, start + len(data), size)
        else:
            begin, _, good = self._tail
            if not path.exists():
                raise FileNotFoundError(str(path))
            self._tail = (begin, start + len(data), segments.append(path, told, good))
        self.written += len(told)

    def _add_frames(self, offset: int, data: bytes, marks: Sequence[Mark]) -> None:
        """Write frames, together as far as a segment has room for them."""
        waiting: list[bytes] = []
        for start in range(0, len(data), FRAME_BYTES):
            part = data[start : start + FRAME_BYTES]
            waiting.append(frames.encode(offset + start, part, _of(marks, offset + start, len(part))))
            if self._segment[1] + sum(map(len, waiting)) >= self._segment_bytes:
                self._write(b"".join(waiting))
                waiting.clear()
        self._write(b"".join(waiting))

    def _write(self, members: bytes) -> None:
        if not members:
            return
        number, end = self._segment
        if end >= self._segment_bytes:
            number, end = number + 1, 0
        path = layout.segment_path(self._folder, self.attempt, number)
        self._segment = (number, segments.append(path, members, end))
        self.written += len(members)


def _of(marks: Sequence[Mark], offset: int, length: int) -> list[Mark]:
    """Return the marks of a part; the first of them is where it begins."""
    begun = [mark for mark in marks if mark.offset <= offset][-1:]
    inside = [mark for mark in marks if offset < mark.offset < offset + length]
    return [*(Mark(offset, mark.at) for mark in begun), *inside]


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
