"""The incremental log reader: bytes by offset in, what they show out. Bounded memory, each byte once.

Almost every block of a training log is quiet. A block is searched for the catalogue's words first; a quiet
one costs a few searches and the step lines at its end.
"""

from __future__ import annotations

import copy
from collections import deque

from orchestrator.classify.analysis import Analysis
from orchestrator.classify.catalog import TRIGGERS
from orchestrator.classify.text import MAX_TEXT, clean
from orchestrator.types import Evidence, LogReading, Role

BLOCK_BYTES = 32 * 1024
PART_BYTES = 2 * 1024
MAX_LINE_BYTES = 32 * 1024  # the head of a longer line is read, the rest is skipped
TAIL_BYTES = 16 * 1024
TAIL_LINES = 40
QUIET_LINES = 16  # of a quiet block, looked at for steps; enough for one step of as many ranks
PART_LINES = 3


class LogScanner:
    """Reads one attempt's log as it grows.

    `truncated` says that only a pane's last lines can be seen, not the whole log.
    """

    def __init__(self, *, truncated: bool = False) -> None:
        self._analysis = Analysis()
        self._truncated = truncated
        self._read = 0  # offset of the next byte that is due
        self._pending = b""  # the head of a line that has no end yet
        self._pending_at = 0
        self._is_skipping = False
        self._tail = b""

    def feed(self, data: bytes, offset: int) -> tuple[Evidence, ...]:
        """Take the bytes at `offset` and return the predictions that they show for the first time.

        Bytes that were read before are passed over. A gap is noted: the reading is then `truncated`.
        """
        if offset > self._read:
            self._lose(offset)
        fresh = data[self._read - offset :]
        if fresh:
            self._tail = (self._tail + fresh[-TAIL_BYTES:])[-TAIL_BYTES:]
            # A bar is redrawn after a carriage return: to us that is a line, and the offsets stay.
            self._take(fresh.replace(b"\r", b"\n"))
        news = tuple(self._analysis.news)
        self._analysis.news.clear()
        return news

    def reading(self) -> LogReading:
        """Return what the log shows so far, a last line without an end included."""
        analysis = self._analysis
        if self._pending:
            analysis = copy.deepcopy(analysis)
            analysis.feed(self._pending, self._pending_at)
        findings = analysis.findings()
        uncaught = [f for f in findings if f.is_traceback and not f.is_handled]
        root = next((f for f in uncaught if f.role is Role.ROOT and not f.weak), next(iter(uncaught), None))
        return LogReading(
            read_bytes=self._read,
            matches=tuple(found.match() for found in findings),
            exception=root.evidence() if root is not None else None,
            traceback=root.lines[-80:] if root is not None else (),
            last_step=analysis.last_step,
            tail=self._tail_lines(),
            truncated=self._truncated,
        )

    def _lose(self, offset: int) -> None:
        if self._pending:
            self._analysis.feed(self._pending, self._pending_at)
        self._pending, self._is_skipping, self._tail = b"", False, b""
        self._read, self._truncated = offset, True

    def _take(self, data: bytes) -> None:
        at = self._read
        self._read += len(data)
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._hold(data, at)
            return
        first = data.find(b"\n") + 1
        self._hold(data[: first - 1], at)
        if not self._is_skipping:
            self._analysis.feed(self._pending, self._pending_at)
        self._pending, self._is_skipping = b"", False
        self._blocks(data, first, end, at)
        self._hold(data[end:], at + end)

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the head of a line whose end has not come."""
        if self._is_skipping or not data:
            return
        if not self._pending:
            self._pending_at = at
        self._pending += data[: MAX_LINE_BYTES - len(self._pending)]
        if len(self._pending) >= MAX_LINE_BYTES:
            self._analysis.feed(self._pending, self._pending_at)
            self._pending, self._is_skipping = b"", True

    def _blocks(self, data: bytes, start: int, end: int, at: int) -> None:
        while start < end:
            stop = min(start + BLOCK_BYTES, end)
            stop = data.find(b"\n", stop - 1, end) + 1
            block = data[start:stop]
            lowered = block.lower()
            words = [word for word in TRIGGERS if word in lowered]
            if words or self._analysis.is_busy or self._analysis.ledger.has_open:
                self._parts(block, lowered, words, at + start)
            else:
                self._quiet(block, at + start, QUIET_LINES)
            start = stop

    def _parts(self, block: bytes, lowered: bytes, words: list[bytes], at: int) -> None:
        start = 0
        while start < len(block):
            stop = block.find(b"\n", min(start + PART_BYTES, len(block)) - 1) + 1
            part, low = block[start:stop], lowered[start:stop]
            if self._analysis.is_busy or any(word in low for word in words):
                self._lines(part, low, words, at + start)
            else:
                self._quiet(part, at + start, PART_LINES)
            start = stop

    def _lines(self, part: bytes, lowered: bytes, words: list[bytes], at: int) -> None:
        """Read all lines of a part while something is open, else those with a word and the steps around."""
        quiet: deque[tuple[bytes, int]] = deque(maxlen=PART_LINES)
        for line, low in zip(part.split(b"\n"), lowered.split(b"\n"), strict=True):
            if self._analysis.is_busy or any(word in low for word in words):
                for earlier in quiet:
                    self._analysis.feed_quiet(*earlier)
                quiet.clear()
                self._analysis.feed(line[:MAX_LINE_BYTES], at)
            elif line:
                quiet.append((line[:MAX_LINE_BYTES], at))
            at += len(line) + 1
        for earlier in quiet:
            self._analysis.feed_quiet(*earlier)

    def _quiet(self, block: bytes, at: int, num_lines: int) -> None:
        """Look at the last lines of a block that holds no word of the catalogue."""
        lines = block.rsplit(b"\n", num_lines + 1)
        if len(lines) > num_lines + 1:
            del lines[0]
        at += len(block) - sum(map(len, lines)) - len(lines) + 1
        for line in lines:
            if line:
                self._analysis.feed_quiet(line[:MAX_LINE_BYTES], at)
            at += len(line) + 1

    def _tail_lines(self) -> tuple[str, ...]:
        lines = (raw.rsplit(b"\r", 1)[-1] for raw in self._tail.replace(b"\r\n", b"\n").split(b"\n"))
        texts = [clean(line[:MAX_LINE_BYTES])[:MAX_TEXT] for line in lines]
        return tuple(text for text in texts if text)[-TAIL_LINES:]
