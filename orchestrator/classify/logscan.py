"""The incremental log reader: bytes by offset in, what they show out. Bounded memory, each byte once.

It says what reading every line would say, whatever pieces the log comes in. Lines are told apart by their
shape (`shapes`); only those that can matter are read.
"""

from __future__ import annotations

import copy

from orchestrator.classify import shapes
from orchestrator.classify.analysis import MAX_RANKS, Analysis
from orchestrator.classify.found import MAX_KEPT_LINES
from orchestrator.classify.shapes import MET, QUIET, Meaning, Shapes
from orchestrator.classify.text import MAX_TEXT, clean
from orchestrator.types.failure import Evidence, Role
from orchestrator.types.snapshot import LogReading

BLOCK_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024  # the head of a longer line is read, the rest is skipped
TAIL_BYTES = 16 * 1024
TAIL_LINES = 40

_SHAPES = Shapes()  # what a shape means is the same in every log


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
        self._steps: dict[tuple[Meaning, bytes], tuple[int, bytes]] = {}  # the newest, not yet read

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
        self._read_steps()
        analysis = self._analysis
        if self._pending and self._can_matter(self._pending):
            analysis = copy.deepcopy(analysis)
            analysis.feed(self._pending, self._pending_at)
        findings = analysis.findings()
        uncaught = [f for f in findings if f.is_traceback and not f.is_handled]
        root = next((f for f in uncaught if f.role is Role.ROOT and not f.weak), next(iter(uncaught), None))
        return LogReading(
            read_bytes=self._read,
            matches=tuple(found.match() for found in findings),
            exception=root.evidence() if root is not None else None,
            traceback=root.lines[-MAX_KEPT_LINES:] if root is not None else (),
            last_step=analysis.last_step,
            mark=analysis.last_line.mark if analysis.last_line is not None else None,
            is_last_step=analysis.last_line is not None and analysis.last_line.is_last,
            tail=self._tail_lines(),
            truncated=self._truncated,
        )

    def _can_matter(self, line: bytes) -> bool:
        shape = shapes.fold(line)
        return self._analysis.is_busy or _SHAPES.judge((shape,))[shape] is not QUIET

    def _lose(self, offset: int) -> None:
        if self._pending:
            self._lines(self._pending, self._pending_at)
        self._pending, self._is_skipping, self._tail = b"", False, b""
        self._read, self._truncated = offset, True

    def _take(self, data: bytes) -> None:
        at = self._read
        self._read += len(data)
        first, end = data.find(b"\n"), data.rfind(b"\n")
        if first < 0:
            self._hold(data, at)
            return
        self._hold(data[:first], at)
        if self._pending:
            self._lines(self._pending, self._pending_at)
        self._pending, self._is_skipping = b"", False
        start = first + 1
        while start < end:
            stop = data.find(b"\n", min(start + BLOCK_BYTES, end))
            self._lines(data[start:stop], at + start)
            start = stop + 1
        self._hold(data[end + 1 :], at + end + 1)

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the head of a line whose end has not come."""
        if self._is_skipping or not data:
            return
        if not self._pending:
            self._pending_at = at
        self._pending += data[: MAX_LINE_BYTES - len(self._pending)]
        if len(self._pending) >= MAX_LINE_BYTES:
            self._lines(self._pending, self._pending_at)
            self._pending, self._is_skipping = b"", True

    def _lines(self, block: bytes, at: int) -> None:
        """Read whole lines; `block` begins with one and ends without the last one's end."""
        analysis = self._analysis
        folded = shapes.fold(block).split(b"\n")
        meanings = _SHAPES.judge(set(folded))
        is_busy, is_open = analysis.is_busy, analysis.ledger.has_open
        met: set[bytes] = set()
        for line, shape in zip(block.split(b"\n"), folded, strict=True):
            meaning = meanings[shape]
            if meaning is MET:
                if shape in met:
                    meaning = meanings[shape] = _SHAPES.again(shape)
                met.add(shape)
            if is_busy or meaning.is_loud:
                self._read_steps()
                analysis.feed(line[:MAX_LINE_BYTES], at)
                is_busy, is_open = analysis.is_busy, analysis.ledger.has_open
            elif is_open and meaning.is_step:
                self._read_steps()
                analysis.feed_quiet(line[:MAX_LINE_BYTES], at)
                is_open = analysis.ledger.has_open
            elif meaning.is_step:
                self._keep_step(meaning, line[:MAX_LINE_BYTES], at)
            at += len(line) + 1

    def _keep_step(self, meaning: Meaning, line: bytes, at: int) -> None:
        """Put off a step: while nothing waits to be survived, a newer one of its kind makes it void."""
        self._steps[meaning, line[: meaning.rank_bytes]] = (at, line)
        if len(self._steps) > MAX_RANKS:
            self._read_steps()

    def _read_steps(self) -> None:
        if not self._steps:
            return
        for at, line in sorted(self._steps.values()):
            self._analysis.feed_quiet(line, at)
        self._steps.clear()

    def _tail_lines(self) -> tuple[str, ...]:
        lines = (raw.rsplit(b"\r", 1)[-1] for raw in self._tail.replace(b"\r\n", b"\n").split(b"\n"))
        texts = [clean(line[:MAX_LINE_BYTES])[:MAX_TEXT] for line in lines]
        return tuple(text for text in texts if text)[-TAIL_LINES:]
