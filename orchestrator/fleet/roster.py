"""Which runs of a record a fleet watches, each by which playbook, and what is shown of the others.

For the watch's own thread; only `row` and `cards` are read from elsewhere too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, PlaybookError
from orchestrator.fleet.card import card_of
from orchestrator.fleet.past import card_of_row, needs_past, read_known, read_past, remembered
from orchestrator.types.failure import RunState
from orchestrator.watch.events import Level, WatchEvent
from orchestrator.watch.loop import Watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestrator.clock import Clock
    from orchestrator.fleet.board import Board
    from orchestrator.fleet.card import RunCard
    from orchestrator.fleet.ways import Ways
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.watch.loop import Watcher
    from orchestrator.watch.runwatch import RunWatch

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


class Roster:
    """One fleet's; `begin` gives it the watcher that its runs are watched by."""

    def __init__(self, record: Record, board: Board, clock: Clock, ways: Ways, watcher: Watcher) -> None:
        self._record = record
        self._board = board
        self._clock = clock
        self._ways = ways
        self._watcher = watcher
        self._known: dict[int, _Known] = {}
        self._rows: Mapping[int, RunRow] = {}
        self._acts: Mapping[int, int] = {}  # the newest of each run
        self._seen_acts: dict[int, int] = {}
        self._past: dict[int, RunCard] = {}  # of runs that are over, as the record tells them

    def row(self, run_id: int) -> RunRow | None:
        """Return a run's row as the record had it a moment ago."""
        return self._rows.get(run_id)

    def begin(self, watcher: Watcher) -> None:
        """Go on with another watcher, which watches nothing yet.

        Raises:
            RecordError: The record cannot be read.
        """
        self._watcher, self._known = watcher, {}
        self.take_in()

    def forget(self) -> None:
        """Know nothing of before: another record counts its runs and acts from 1 again."""
        self._acts, self._seen_acts, self._past = {}, {}, {}

    def take_in(self) -> None:
        """Watch what is new in the record, and let go of what was removed.

        Raises:
            RecordError: The record cannot be read.
        """
        wanted = [row for row in self._record.runs() if self._ways.wants(row)]
        self._rows = {row.id: row for row in wanted}
        self._acts = self._record.newest_actions()
        for row in wanted:
            if row.id in self._known:
                continue
            if self._ways.takes_ended or self._is_wanted(row):
                self._add(row)
            elif row.id not in self._past:
                self._past[row.id] = read_past(self._record, row)
        self._past = {run_id: card for run_id, card in self._past.items() if run_id in self._rows}
        for run_id, known in tuple(self._known.items()):
            if run_id not in self._rows and not known.watch.busy:
                self._remove(run_id)
                self._board.forget(known.watch.row.target_key, known.watch.row.name)

    def _is_wanted(self, row: RunRow) -> bool:
        """Whether it is to be watched: one that had ended was launched again if its newest act is another."""
        newest = self._acts.get(row.id, 0)
        if row.id not in self._seen_acts:
            self._seen_acts[row.id] = -1 if is_cut(self._record, row) else newest
        return row.state not in OVER or newest > self._seen_acts[row.id]

    def _add(self, row: RunRow) -> None:
        try:
            site = self._ways.site(row)
        except ConfigError as error:  # of one run; the others are watched on
            blind = f"it cannot be watched: {error.message}"
            self._past[row.id] = replace(card_of_row(row), blind=blind)
            return
        self._past.pop(row.id, None)
        playbook, remark = self._ways.usable(row)
        watched = Watched(row, site, playbook, host=site, remark=remark)
        self._known[row.id] = _Known(self._watcher.add(watched), playbook, remark, is_stopgap=bool(remark))

    def _remove(self, run_id: int) -> None:
        self._watcher.remove(self._known.pop(run_id).watch)

    def reload(self) -> bool:
        """Watch those anew whose playbook says something else now, as a new watch would.

        Where it cannot be used any more the one before goes on: a slip of a pen must not leave a run alone.
        Returns False while runs that are acted on are still to be reread.
        """
        is_done = True
        for run_id, known in tuple(self._known.items()):
            row = self._rows.get(run_id)
            if row is None or known.watch.busy:
                is_done = is_done and not known.watch.busy
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
        return is_done

    def _tell(self, row: RunRow, text: str) -> None:
        now = self._clock.now()
        event = WatchEvent(
            kind="reload", at=now, run=row.name, target=row.target_key, attempt=None, text=text,
            level=Level.WARNING,
        )  # fmt: skip
        self._board.emit(event)

    def cards(self) -> Iterable[RunCard]:
        """Yield what is drawn of each run."""
        for run_id, row in self._rows.items():
            known = self._known.get(run_id)
            if known is not None:
                card = card_of(known.watch, remark=known.remark)
                yield self._remembered(card, known) if needs_past(card) else card
            else:
                yield self._past.get(run_id) or card_of_row(row)

    def _remembered(self, card: RunCard, known: _Known) -> RunCard:
        known.past = known.past or read_known(self._record, known.watch.row)
        return remembered(card, known.past)


def is_cut(record: Record, row: RunRow) -> bool:
    """Whether a relaunch of it was cut after its stop, so that it is still to be finished.

    Raises:
        RecordError: The record cannot be read.
    """
    return row.state is RunState.STOPPED and record.awaits_relaunch(row.id)
