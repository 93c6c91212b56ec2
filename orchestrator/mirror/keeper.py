"""The thread that writes a watch's mirror. Whatever becomes of it, the watch goes on: it never waits for it.

What comes is gathered for a moment and written together. While it cannot be written (a full disk, another
watch with the lock) the newest bytes wait, as far as there is room; what is left out is a hole, and told.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.contained import contained
from orchestrator.mirror import layout, quota
from orchestrator.mirror.quota import Limits
from orchestrator.mirror.runwriter import Came, RunWriter, joined, newest, size_of
from orchestrator.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path
    from typing import Any

    from orchestrator.clock import Clock
    from orchestrator.mirror.layout import RunKey
    from orchestrator.mirror.quota import Removal

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 2.0
RETRY_EVERY_S = 5.0
SWEEP_EVERY_S = 10.0
CLOSE_S = 5.0
MAX_WAITING = 64 << 20  # bytes of all logs together
SOON = 8 << 20  # so many are not waited with
KEPT_WAITING = 256 << 10  # of a run that cannot be written now


@dataclass(frozen=True)
class News:
    """What is to be told; `key` None: it is about the mirror as a whole."""

    key: RunKey | None
    attempt: int | None
    text: str
    is_bad: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Run:
    writer: RunWriter
    waiting: deque[Came] = field(default_factory=deque)
    retry_at: float = 0.0
    left_out: int = 0  # bytes
    problem: str | None = None
    is_told_of_other: bool = False


class Keeper:
    """One watch's mirror. `take`, `begin_anew`, `end` and `news` are called by the watch's own thread."""

    def __init__(self, root: Path, clock: Clock, limits: Limits | None = None) -> None:
        self.root = root
        self._clock = clock
        self._limits = limits or Limits()
        self._runs: dict[int, _Run] = {}  # by the record's number
        self._leaving: list[_Run] = []
        self._gate = threading.Condition()
        self._num_waiting = 0
        self._is_closing = False
        self._news: deque[News] = deque()
        self._problem: str | None = None  # that was told
        self._left_out = 0
        self._swept_at: float | None = None
        self._written = 0  # bytes since the last sweep
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    # -- the watch's side

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, key: RunKey) -> None:
        """Keep this run's logs too."""
        with self._gate:
            self._runs[key.id] = _Run(RunWriter(self.root, key, self._limits.segment_bytes))

    def remove(self, run: int) -> None:
        """Its logs are not kept any more; what waits is still written, then another watch may."""
        with self._gate:
            if run in self._runs:
                self._leaving.append(self._runs.pop(run))

    def take(self, run: int, attempt: int, data: bytes, offset: int, now: datetime) -> None:
        """Bytes of a log came; the run is the record's number of it."""
        self._put(run, Came(attempt, now.timestamp(), offset=offset, data=data))

    def begin_anew(self, run: int, attempt: int, now: datetime) -> None:
        """An attempt's log was emptied: what comes is another."""
        self._put(run, Came(attempt, now.timestamp(), "anew"))

    def end(self, run: int, attempt: int, now: datetime) -> None:
        """An attempt has ended, and all of its log has come."""
        self._put(run, Came(attempt, now.timestamp(), "ended"))

    def news(self) -> list[News]:
        """Return what is to be told, each once."""
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Write what waits, and end; a disk that hangs is not waited for."""
        with self._gate:
            self._is_closing = True
            self._gate.notify()
        if self._thread.ident is None:
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            text = f"the mirror of logs: its disk took nothing for {limit_s:g} s before the watch ended"
            self._tell(None, None, text, is_bad=True)

    def _put(self, run: int, came: Came) -> None:
        with self._gate:
            mine = self._runs.get(run)
            if mine is None:
                return
            if self._num_waiting + len(came.data) > MAX_WAITING:
                mine.left_out += len(came.data)
                return
            mine.waiting.append(came)
            self._num_waiting += len(came.data)
            if self._num_waiting >= SOON:
                self._gate.notify()

    # -- the thread's side

    def _run(self) -> None:
        while True:
            with self._gate:
                if not self._is_closing and self._num_waiting < SOON:
                    self._gate.wait(WRITE_EVERY_S)
                is_last = self._is_closing
            with contained(self._failed):
                self.turn()
            if is_last:
                break
        for run in list(self._runs.values()):
            self._leave(run)

    def turn(self) -> None:
        """Write what came, and keep to the quota."""
        ticks = self._clock.monotonic()
        with self._gate:
            leaving, self._leaving = self._leaving, []
            runs = [*leaving, *self._runs.values()]
        for run in runs:
            if run.waiting and (ticks >= run.retry_at or self._is_closing or run in leaving):
                self._write(run, ticks)
        for run in leaving:
            self._leave(run)
        self._tell_problems(runs)
        self._sweep(ticks, runs)

    def _write(self, run: _Run, ticks: float) -> None:
        with self._gate:
            came, run.waiting = run.waiting, deque()
        batch = joined(came)
        try:
            try:
                self._apply(run, batch)
            except FileNotFoundError:  # somebody removed it, as `rm` and `prune` do: look again
                run.writer.forget()
                self._apply(run, batch)
            run.problem = None
        except OSError as error:
            run.problem = f"{error.strerror or error}: {run.writer.folder}"
            run.writer.forget()
        # What could not be written waits, as far as there is room.
        kept = newest(batch, KEPT_WAITING)
        if batch:
            run.retry_at = ticks + RETRY_EVERY_S
        with self._gate:
            run.waiting.extendleft(reversed(kept))
            self._num_waiting += size_of(kept) - size_of(came)
            if run.problem is not None:  # else another watch keeps what is left out here
                run.left_out += size_of(batch) - size_of(kept)

    def _apply(self, run: _Run, batch: deque[Came]) -> None:
        """Write what is ours to write, and take it from the batch."""
        if not run.writer.take_lock():
            if not run.is_told_of_other:
                run.is_told_of_other = True
                self._tell(run.writer.key, None, _ANOTHER)
            return
        before = run.writer.written
        while batch:
            if run.writer.apply(batch[0]):
                self._tell(run.writer.key, batch[0].attempt, _EMPTIED)
            batch.popleft()
        self._written += run.writer.written - before

    def _sweep(self, ticks: float, runs: list[_Run]) -> None:
        is_much = self._written >= min(1 << 20, self._limits.segment_bytes)
        is_flood = self._written >= max(self._limits.run // 10, self._limits.segment_bytes)
        is_time = self._swept_at is None or (is_much and ticks - self._swept_at >= SWEEP_EVERY_S)
        if not (is_time or is_flood or (self._is_closing and is_much)) or not self.root.is_dir():
            return
        self._swept_at, self._written = ticks, 0
        owned = {run.writer.folder for run in runs if run.writer.is_owner}
        try:
            with layout.locked(self.root) as is_ours:
                now = self._clock.now()
                removals = quota.sweep(self.root, self._limits, now, owned=owned) if is_ours else []
        except OSError as error:
            self._failed(error)
            return
        for removal in removals:
            self._tell_removal(removal, runs)

    def _tell_removal(self, removal: Removal, runs: list[_Run]) -> None:
        for run in runs:
            if run.writer.key.folder == removal.key.folder and removal.what == "the mirror":
                run.writer.forget(removal.attempt)
        detail = {"bytes": removal.size, "from": removal.start, "to": removal.stop, "by": removal.by}
        self._tell(removal.key, removal.attempt, removal.text, is_bad=True, detail=detail)

    def _tell_problems(self, runs: list[_Run]) -> None:
        """Tell once that it cannot be written, and once that it can again."""
        with self._gate:
            self._left_out += sum(run.left_out for run in runs)
            for run in runs:
                run.left_out = 0
        problem = next((run.problem for run in runs if run.problem), None)
        if problem is None and self._left_out and self._problem is None:
            problem = f"it is slower than what comes ({self.root})"
        elif problem is None and self._problem is not None and self._num_waiting < SOON:
            text = f"the mirror of logs is written again; {size_text(self._left_out)} of them were left out"
            self._tell(None, None, text, detail={"left_out_bytes": self._left_out})
            self._problem, self._left_out = None, 0
            return
        if problem is not None and self._problem is None:
            self._problem = problem
            text = f"the mirror of logs cannot be written: {problem}; the watch goes on without"
            self._tell(None, None, text, is_bad=True)

    def _failed(self, error: Exception) -> None:
        """A fault of ours is told once, and never ends the watch or what it writes next."""
        logger.error("the mirror of logs: %r", error, exc_info=error)
        if self._problem is None:
            self._problem = repr(error)
            text = f"the mirror of logs has a fault: {error!r}; the watch goes on"
            self._tell(None, None, text, is_bad=True)

    def _tell(
        self,
        key: RunKey | None,
        attempt: int | None,
        text: str,
        *,
        is_bad: bool = False,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        self._news.append(News(key, attempt, text, is_bad, detail or {}))

    def _leave(self, run: _Run) -> None:
        with self._gate:
            self._num_waiting -= size_of(run.waiting)
            run.waiting.clear()
        run.writer.forget()


_ANOTHER = "another watch keeps its log already; this one leaves that alone"
_EMPTIED = "somebody emptied its log; what was in it before is kept apart"
