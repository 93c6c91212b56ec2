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
from orchestrator.mirror.news import Board
from orchestrator.mirror.quota import Limits
from orchestrator.mirror.runwriter import Came, RunWriter, joined, newest, size_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from orchestrator.clock import Clock
    from orchestrator.mirror.layout import RunKey
    from orchestrator.mirror.news import News

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 2.0
RETRY_EVERY_S = 5.0
SWEEP_EVERY_S = 10.0
CLOSE_S = 5.0
MAX_WAITING = 64 << 20  # bytes of all logs together
SOON = 8 << 20  # so many are not waited with
KEPT_WAITING = 256 << 10  # of a run that cannot be written now


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
        self._board = Board()
        self._swept_at: float | None = None
        self._written = 0  # bytes since the last sweep
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def again(self) -> Keeper:
        """Return one like this, for a watch that begins anew."""
        return Keeper(self.root, self._clock, self._limits)

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
        return self._board.take()

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Write what waits, and end; a disk that hangs is not waited for."""
        with self._gate:
            self._is_closing = True
            self._gate.notify()
        if self._thread.ident is None:
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._board.late(limit_s)

    def _put(self, run: int, came: Came) -> None:
        with self._gate:
            mine = self._runs.get(run)
            if mine is None:
                return
            self._num_waiting += len(came.data)
            mine.waiting.append(came)
            while self._num_waiting > MAX_WAITING:  # of its own the oldest goes: the newest matters most
                oldest = next(n for n, each in enumerate(mine.waiting) if each.data)
                size = len(mine.waiting[oldest].data)
                del mine.waiting[oldest]
                self._num_waiting, mine.left_out = self._num_waiting - size, mine.left_out + size
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
        with self._gate:
            left_out = sum(run.left_out for run in runs)
            for run in runs:
                run.left_out = 0
        problem = next((run.problem for run in runs if run.problem), None)
        self._board.state(problem, left_out, self.root, is_calm=self._num_waiting < SOON)
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
                self._board.of_run(run.writer.key, None, _ANOTHER)
            return
        before = run.writer.written

        def leave_out(error: Exception) -> None:
            self._failed(error, logging.INFO)
            with self._gate:
                run.left_out += len(batch[0].data)

        while batch:
            with contained(leave_out, lets=(OSError,)):  # a container may send what makes no sense
                if run.writer.apply(batch[0]):
                    self._board.of_run(run.writer.key, batch[0].attempt, _EMPTIED)
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
        except FileNotFoundError:  # `rm` was quicker
            return
        except OSError as error:
            self._failed(error)
            return
        for removal in removals:
            self._board.removal(removal)
            for run in runs:
                if run.writer.key == removal.key and removal.is_whole:
                    run.writer.forget(removal.attempt)

    def _failed(self, error: Exception, level: int = logging.ERROR) -> None:
        """A fault of ours is told once, and never ends the watch or what is written next."""
        logger.log(level, "the mirror of logs: %r", error, exc_info=error)
        self._board.fault(f"cannot be written: {error!r}; the watch goes on without", repr(error))

    def _leave(self, run: _Run) -> None:
        with self._gate:
            self._num_waiting -= size_of(run.waiting)
            run.waiting.clear()
        run.writer.forget()


_ANOTHER = "another watch keeps the copy of its log; this one leaves that alone"
_EMPTIED = "somebody emptied its log; what was in it before is kept apart"
