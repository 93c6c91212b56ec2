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
from orchestrator.mirror import frames, journal, layout, segments
from orchestrator.mirror.frames import FRAME_BYTES, Mark
from orchestrator.mirror.layout import Emptied, Segment
from orchestrator.mirror.reading import AttemptLog
from orchestrator.mirror.spans import Spans

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.mirror.journal import Journal

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
            for start in range(0, len(held.data), FRAME_BYTES):
                data = held.data[start : start + FRAME_BYTES]
                self._add_frame(held.offset + start, data, held.marks)
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
            layout.note(self._folder, self.attempt, lambda notes: replace(notes, ended_at=told))
            self._has_ended = True

    def begin_anew(self, at: float) -> bool:
        """Somebody emptied the log: what comes is another. What was in it is kept apart, if anything was.

        Raises:
            OSError: It cannot be written.
        """
        self.seal()
        if self._spans.stop == 0:
            return False
        length, number = self._spans.stop, len(layout.notes(self._folder, self.attempt).emptied) + 1
        emptied = Emptied(number=number, length=length, at=timestamp(_instant(at)))
        for each in layout.segments(self._folder, self.attempt):
            if each.emptied == 0:
                each.path.rename(layout.segment_path(self._folder, self.attempt, each.number, number))
        # What was removed, was of the log before: the new one's offsets begin at 0 again.
        layout.note(
            self._folder,
            self.attempt,
            lambda notes: replace(notes, emptied=(*notes.emptied, emptied), removed=(), ended_at=None),
        )
        self._spans, self._segment, self._has_ended = Spans(), (1, 0), False
        return True

    # -- what is there already

    def _load(self) -> None:
        notes = layout.notes(self._folder, self.attempt)
        mine = [each for each in layout.segments(self._folder, self.attempt) if each.emptied == 0]
        for each in mine:
            found, end = segments.scan(each.path)
            for placed in found:
                self._spans.add(placed.frame.offset, placed.frame.stop)
            self._segment = (each.number, end)
            if each is mine[-1]:
                self._mend(each, end)
        for gone in notes.removed:  # it is not fetched again to be removed again
            self._spans.add(gone.start, gone.stop)
        self._has_ended = notes.ended_at is not None
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
        while data:
            if self._tail is None and len(data) >= FRAME_BYTES:  # much at once needs no journal
                part = data[:FRAME_BYTES]
                self._add_frame(start, part, (Mark(start, at),))
            else:
                part = data[: FRAME_BYTES - (self._tail[1] - self._tail[0] if self._tail else 0)]
                self._journal_on(start, part, at)
            self._spans.add(start, start + len(part))
            start, data = start + len(part), data[len(part) :]
            if self._tail is not None and self._tail[1] - self._tail[0] >= FRAME_BYTES:
                self.seal()

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

    def _add_frame(self, offset: int, data: bytes, marks: tuple[Mark, ...]) -> None:
        mine = [Mark(max(mark.offset, offset), mark.at) for mark in marks if mark.offset < offset + len(data)]
        begun = [mark for mark in mine if mark.offset == offset][-1:]
        member = frames.encode(offset, data, [*begun, *(mark for mark in mine if mark.offset > offset)])
        number, end = self._segment
        if end >= self._segment_bytes:
            number, end = number + 1, 0
        path = layout.segment_path(self._folder, self.attempt, number)
        self._segment = (number, segments.append(path, member, end))
        self.written += len(member)


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
