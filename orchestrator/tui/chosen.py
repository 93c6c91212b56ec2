"""The chosen run: its log as it comes, and its past as the record has it, read beside the drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.fleet.board import LogLine
from orchestrator.tui.facts import facts_lines, gpu_lines
from orchestrator.tui.history import moment_lines, read_history, with_told
from orchestrator.tui.screens import LogScreen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.fleet import RunCard
    from orchestrator.tui.app import WatchApp
    from orchestrator.tui.history import History

REREAD_S, READ_SHARE = 2.0, 20  # the record is read anew so often, and for a twentieth of the time at most
LINGER_S = 0.7  # a run is chosen for so long before its container is asked for its log


class Chosen:
    """What is shown of one run."""

    def __init__(self, app: WatchApp) -> None:
        self._app = app
        self._begin()

    def _begin(self) -> None:
        self._history: History | None = None
        self._history_key: tuple[object, ...] = ()
        self._read_at = -1e9
        self._log_seq = 0
        self._before: tuple[str, ...] = ()  # lines of its log that came before this view
        self._chosen_at, self._wants_tail = self._app.desk.clock.monotonic(), True

    @property
    def card(self) -> RunCard | None:
        """The run as it is now."""
        chosen = self._app.body.runs.chosen
        return self._app.desk.board.fleet.card(chosen) if chosen is not None else None

    def change(self) -> None:
        """Begin with another run."""
        self._begin()
        self._app.body.log_view.clear()
        self._draw_history()
        self.draw()
        self.tick()

    def draw(self) -> None:
        """Draw how it is."""
        desk, body, card = self._app.desk, self._app.body, self.card
        if card is None:
            body.facts.show([])
            body.gpus.show([])
            return
        now, utf8 = desk.clock.now(), desk.utf8
        body.facts.show(facts_lines(card, now, body.facts.size.width, acts=desk.acts, utf8=utf8))
        body.gpus.show(gpu_lines(card, body.gpus.size.width, utf8=utf8))
        self._app.acts.refresh(card)

    def tick(self) -> None:
        """Take in its new lines; read its past anew if there is more of it."""
        if (card := self.card) is not None:
            self._feed_log(card)
            self._read_history(card)

    # -- the log

    def _feed_log(self, card: RunCard) -> None:
        ticks = self._app.desk.clock.monotonic()
        lines = self._app.desk.board.lines(card.target, card.name, after=self._log_seq)
        if lines:
            self._log_seq = lines[-1].seq
            if lines[0].seq == 1 and self._before:
                self.take_tail(card.id, self._before)
            else:
                self._add_lines(lines)
        self._app.body.put_tabs()
        # Who walks through the list asks no container at each step.
        if self._wants_tail and ticks - self._chosen_at >= LINGER_S:
            self._wants_tail = not self._app.acts.read_tail(card)

    def take_tail(self, run_id: int, before: Sequence[str]) -> None:
        """Put lines that came before this view above those that it has seen come; none stands there twice."""
        card = self.card
        if card is None or card.id != run_id:
            return
        self._before = tuple(before)
        lines = self._app.desk.board.lines(card.target, card.name)
        seen = [line.text for line in lines]
        overlap = next((n for n in range(len(before)) if seen[: len(before) - n] == list(before[n:])), None)
        older = [LogLine(0, None, text) for text in before[: overlap if seen else None]]
        self._app.body.log_view.clear()
        self._add_lines([*older, *lines])

    def _add_lines(self, lines: Sequence[LogLine]) -> None:
        self._app.body.log_view.add(lines)
        if isinstance(self._app.screen, LogScreen):
            self._app.screen.feed(lines)

    # -- the past

    def _read_history(self, card: RunCard) -> None:
        desk = self._app.desk
        row, ticks = desk.watch.row(card.id), desk.clock.monotonic()
        told = desk.board.told(target=card.target, run=card.name)
        num_metrics = desk.board.num_metrics(card.target, card.name)
        key = (card.id, num_metrics, told[-1].seq if told else 0, card.attempt)
        took_s = self._history.took_s if self._history is not None else 0.0
        if row is None or key == self._history_key:
            return
        if ticks - self._read_at < max(REREAD_S, READ_SHARE * took_s):
            return

        def work() -> Iterator[History]:
            yield read_history(desk.record, row, desk.clock)

        if self._app.errands.begin("history", work, self._take_history, self._app.say_error):
            self._read_at, self._history_key = ticks, key

    def _take_history(self, history: History) -> None:
        if (card := self.card) is not None and card.id == history.run_id:
            self._history = history
            self._draw_history()

    def _draw_history(self) -> None:
        body, card, history = self._app.body, self.card, self._history
        body.curves.draw(history.curves if history is not None else None)
        told = self._app.desk.board.told(target=card.target, run=card.name) if card is not None else ()
        lines = moment_lines(with_told(history.moments if history is not None else (), told))
        for story in body.stories:
            story.show(lines)
