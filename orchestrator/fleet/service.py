"""All runs of a record under one watch, in a thread: new ones are taken in, removed ones let go.

A view reads `board`, and asks by `asking`. Unlike a watch of given runs this one has no end of its own.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.contained import contained
from orchestrator.errors import Exit, OrchestratorError
from orchestrator.fleet.roster import Roster
from orchestrator.watch.loop import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.clock import Clock
    from orchestrator.fleet.board import Board
    from orchestrator.fleet.ways import Ways
    from orchestrator.mirror import Keeper
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.watch.events import Sink
    from orchestrator.watch.runwatch import RunWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_FOR_RUNS_S = 1.0
STOP_S = 10.0
AGAIN_S = 5.0  # a record that is locked or a disk that is full: soon again
LAST_ACT_S = 600.0


class FleetWatch:
    """Watches all runs of a record that `ways` wants, until stopped.

    `begins_anew`: what ends it, such as a locked record, is told in `fault`, and it begins again by itself.
    """

    def __init__(
        self,
        record: Record,
        board: Board,
        clock: Clock,
        ways: Ways,
        *,
        acting: bool,
        sink: Sink | None = None,
        mirror: Keeper | None = None,
        begins_anew: bool = False,
    ) -> None:
        self.board = board
        self.fault: Exception | None = None  # what ended the watch, if not `stop`; None once it turns again
        self.turned_at: float | None = None  # monotonic, of the last turn
        self.outcome: Exit | None = None  # the gravest exit code while all its runs have ended, as a watch's
        self._record = record
        self._clock = clock
        self._ways = ways
        self._acting = acting
        self._sink: Sink = sink or board
        self._mirror = mirror
        self._begins_anew = begins_anew
        self._watcher = Watcher([], record, self._sink, clock, acting=acting, mirror=mirror)
        self._roster = Roster(record, board, clock, ways, self._watcher)
        self._looked_at: float | None = None
        self._ending = threading.Event()
        self._reloading = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self.each_turn: list[Callable[[], None]] = []  # called in the watch's thread
        self._asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        board.draw(self._roster.cards)

    @property
    def runs(self) -> list[RunWatch]:
        """The watched runs, for the watch's own thread."""
        return self._watcher.runs

    def row(self, run_id: int) -> RunRow | None:
        """Return a run's row as the record had it a moment ago."""
        return self._roster.row(run_id)

    def start(self) -> None:
        """Begin to watch.

        Raises:
            RecordError: The record cannot be read.
        """
        self._roster.take_in()
        self.board.publish()
        self._thread.start()

    def stop(self) -> None:
        """End the watch; what its streams brought is on record then."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Have something quick worked out in the watch's thread, where its runs may be looked at."""
        future: Future[T] = Future()
        self._asked.put((work, future))
        return future

    def playbook(self, row: RunRow) -> Playbook:
        """Return a run's own playbook.

        Raises:
            PlaybookError: It cannot be used.
        """
        return self._ways.playbook(row)

    def reload(self) -> None:
        """Read the playbooks anew at the next turn; a run that is being acted on is reread afterwards."""
        self._reloading.set()

    @property
    def turned_s_ago(self) -> float | None:
        """How long ago the last turn was; None before the first."""
        return self._clock.monotonic() - self.turned_at if self.turned_at is not None else None

    @property
    def is_acting(self) -> bool:
        """Whether it acts by the playbooks, or only looks."""
        return self._acting

    @property
    def is_running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self._watch()
        while self._begins_anew and not self._ending.wait(AGAIN_S):
            with contained(self._failed):
                self._begin_anew()
                self._watch()

    def _begin_anew(self) -> None:
        """Watch as a new process would; while the record cannot be read the old cards stand, and grow old."""
        if self._record.reopen():
            self._roster.forget()
        self._record.runs()
        self._watcher.acts.join(LAST_ACT_S)  # what it did last must not meet what this one does
        self._mirror = self._mirror.again() if self._mirror is not None else None
        self._watcher = Watcher(
            [], self._record, self._sink, self._clock, acting=self._acting, mirror=self._mirror
        )
        self._roster.begin(self._watcher)

    def _watch(self) -> None:
        with contained(self._failed), self._watcher.started():
            while not self._ending.is_set():
                self._watcher.turn()
                self._look_for_runs()
                for call in self.each_turn:
                    call()
                self._answer()
                self._sink.refresh()
                self.turned_at, self.fault = self._clock.monotonic(), None
                self.outcome = self._outcome()
        self.board.publish()

    def _outcome(self) -> Exit | None:
        if not all(run.is_over for run in self.runs):
            return None
        return max((run.ended for run in self.runs if run.ended is not None), default=Exit.OK)

    def _answer(self) -> None:
        """Work out what was asked; what fails there is its asker's, not the watch's."""
        while not self._asked.empty():
            work, future = self._asked.get_nowait()
            if future.set_running_or_notify_cancel():
                with contained(future.set_exception):
                    future.set_result(work())

    def _failed(self, error: Exception) -> None:
        is_ours = not isinstance(error, (OrchestratorError, OSError))
        logger.error("the watch ended: %s", error, exc_info=error if is_ours else None)
        self.fault = error

    def _look_for_runs(self) -> None:
        ticks = self._clock.monotonic()
        if self._looked_at is not None and ticks - self._looked_at < LOOK_FOR_RUNS_S:
            return
        self._looked_at = ticks
        self._roster.take_in()
        if self._reloading.is_set() and self._roster.reload():
            self._reloading.clear()
