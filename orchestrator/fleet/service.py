"""All runs of a record under one watch, in a thread: new ones are taken in, removed ones let go.

A view reads `board`, and asks by `asking`. Unlike a watch of given runs this one has no end of its own.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.contained import contained
from orchestrator.errors import ConfigError, Exit, OrchestratorError, PlaybookError
from orchestrator.fleet.card import card_of
from orchestrator.fleet.past import card_of_row, needs_past, read_known, read_past, remembered
from orchestrator.types.failure import RunState
from orchestrator.watch.events import Level, WatchEvent
from orchestrator.watch.loop import Watched, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from orchestrator.clock import Clock
    from orchestrator.fleet.board import Board
    from orchestrator.fleet.card import RunCard
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
OVER = frozenset({RunState.FINISHED, RunState.STOPPED})


@dataclass
class _Known:
    """A run that is watched. `remark`: what is wrong with its playbook; `is_stopgap`: it has another.

    `past`: of one that is not seen, by the record.
    """

    watch: RunWatch
    playbook: Playbook
    remark: str = ""
    is_stopgap: bool = False
    past: RunCard | None = None


@dataclass
class _Rows:
    """The record's rows, and the newest act of each: a run that had ended was launched again if it grew."""

    rows: Mapping[int, RunRow] = field(default_factory=dict)
    acts: Mapping[int, int] = field(default_factory=dict)
    seen_acts: dict[int, int] = field(default_factory=dict)
    past: dict[int, RunCard] = field(default_factory=dict)  # of runs that are over, as the record tells them

    def is_wanted(self, row: RunRow, awaits_relaunch: Callable[[int], bool]) -> bool:
        newest = self.acts.get(row.id, 0)
        if row.id not in self.seen_acts:  # a relaunch that was cut after its stop is still to be finished
            is_cut = row.state is RunState.STOPPED and awaits_relaunch(row.id)
            self.seen_acts[row.id] = -1 if is_cut else newest
        return row.state not in OVER or newest > self.seen_acts[row.id]


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
        self._known: dict[int, _Known] = {}
        self._rows = _Rows()
        self._looked_at: float | None = None
        self._ending = threading.Event()
        self._reloading = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self.each_turn: list[Callable[[], None]] = []  # called in the watch's thread
        self._asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        board.draw(self._cards)

    @property
    def runs(self) -> list[RunWatch]:
        """The watched runs, for the watch's own thread."""
        return self._watcher.runs

    def row(self, run_id: int) -> RunRow | None:
        """Return a run's row as the record had it a moment ago."""
        return self._rows.rows.get(run_id)

    def start(self) -> None:
        """Begin to watch.

        Raises:
            RecordError: The record cannot be read.
        """
        self._take_in_rows()
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
        self._record.reopen()
        self._record.runs()
        self._watcher.acts.join(LAST_ACT_S)  # what it did last must not meet what this one does
        self._mirror = self._mirror.again() if self._mirror is not None else None
        self._watcher = Watcher(
            [], self._record, self._sink, self._clock, acting=self._acting, mirror=self._mirror
        )
        self._known = {}
        self._take_in_rows()

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

    # -- which runs

    def _look_for_runs(self) -> None:
        ticks = self._clock.monotonic()
        if self._looked_at is not None and ticks - self._looked_at < LOOK_FOR_RUNS_S:
            return
        self._looked_at = ticks
        self._take_in_rows()
        if self._reloading.is_set():
            self._reload()

    def _take_in_rows(self) -> None:
        wanted = [row for row in self._record.runs() if self._ways.wants(row)]
        self._rows.rows = {row.id: row for row in wanted}
        self._rows.acts = self._record.newest_actions()
        for row in wanted:
            if row.id in self._known:
                continue
            if self._ways.takes_ended or self._rows.is_wanted(row, self._record.awaits_relaunch):
                self._add(row)
            elif row.id not in self._rows.past:
                self._rows.past[row.id] = read_past(self._record, row)
        self._rows.past = {
            run_id: card for run_id, card in self._rows.past.items() if run_id in self._rows.rows
        }
        for run_id, known in tuple(self._known.items()):
            if run_id not in self._rows.rows and not known.watch.busy:
                self._remove(run_id)
                self.board.forget(known.watch.row.target_key, known.watch.row.name)

    def _add(self, row: RunRow) -> None:
        try:
            site = self._ways.site(row)
        except ConfigError as error:  # of one run; the others are watched on
            self._rows.past[row.id] = replace(
                card_of_row(row), blind=f"it cannot be watched: {error.message}"
            )
            return
        self._rows.past.pop(row.id, None)
        remark = ""
        try:
            playbook = self._ways.playbook(row)
        except PlaybookError as error:
            playbook = self._ways.shipped()
            remark = f"only looked at: {error.message}"
        watched = Watched(row, site, playbook, host=site, acting=not remark)
        self._known[row.id] = _Known(self._watcher.add(watched), playbook, remark, is_stopgap=bool(remark))

    def _remove(self, run_id: int) -> None:
        self._watcher.remove(self._known.pop(run_id).watch)

    def _reload(self) -> None:
        """Watch those anew whose playbook says something else now, as a new watch would.

        Where it cannot be used any more the one before goes on: a slip of a pen must not leave a run alone.
        """
        waiting = False
        for run_id, known in tuple(self._known.items()):
            row = self._rows.rows.get(run_id)
            if row is None or known.watch.busy:
                waiting = waiting or known.watch.busy
                continue
            try:
                is_same = self._ways.playbook(row) == known.playbook and not known.is_stopgap
            except PlaybookError as error:
                if not known.is_stopgap:
                    known.remark = f"its playbook as it was before is used: {error.message}"
                    self._tell(row, known.remark)
                    continue
                is_same = False
            if is_same:
                known.remark = ""
            else:
                self._remove(run_id)
                self._add(row)
        if not waiting:
            self._reloading.clear()

    def _tell(self, row: RunRow, text: str) -> None:
        now = self._clock.now()
        event = WatchEvent(
            kind="reload", at=now, run=row.name, target=row.target_key, attempt=None, text=text,
            level=Level.WARNING,
        )  # fmt: skip
        self.board.emit(event)

    # -- what is drawn

    def _cards(self) -> Iterable[RunCard]:
        for run_id, row in self._rows.rows.items():
            known = self._known.get(run_id)
            if known is not None:
                card = card_of(known.watch, remark=known.remark)
                yield self._remembered(card, known) if needs_past(card) else card
            else:
                yield self._rows.past.get(run_id) or card_of_row(row)

    def _remembered(self, card: RunCard, known: _Known) -> RunCard:
        known.past = known.past or read_known(self._record, known.watch.row)
        return remembered(card, known.past)
