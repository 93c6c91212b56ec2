"""What a key does about the chosen run: read, ask, attach."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

from rich.text import Text

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.terminal import one_line, plain
from orchestrator.tui.facts import detail_lines
from orchestrator.tui.keys import help_text
from orchestrator.tui.logview import LogView
from orchestrator.tui.questions import relaunch_text, stop_text
from orchestrator.tui.screens import Confirm, LogScreen, Reader
from orchestrator.tui.words import SIGNS, STALE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.fleet import RunCard
    from orchestrator.record import RunRow
    from orchestrator.tui.app import WatchApp


class Ask(Protocol):
    """How something is asked of a run."""

    def __call__(self, row: RunRow, *, asked_by: str) -> None: ...  # noqa: D102


class Acts:
    """The keys that are about one run."""

    def __init__(self, app: WatchApp) -> None:
        self._app = app
        self._details: Reader | None = None

    def begin(self, name: str) -> None:
        """Do it."""
        if name == "help":
            self._help()
            return
        card = self._app.card
        row = self._app.desk.watch.row(card.id) if card is not None else None
        if card is None or row is None:
            self._app.say("no run is chosen")
        elif name == "log":
            self._read_log(card)
        elif name == "details":
            self._details = Reader(f"{one_line(card.name)}: details", self._detail_lines(card))
            self._app.push_screen(self._details)
        elif name == "explain":
            self._explain(row)
        elif name == "attach":
            self._attach(row)
        elif name == "stop":
            self._ask("Stop", card, row, stop_text(card, row), self._app.desk.asking.stop)
        else:
            self._ask("Relaunch", card, row, relaunch_text(card, row), self._app.desk.asking.relaunch)

    def refresh(self, card: RunCard) -> None:
        """Draw the details anew, if they are open."""
        if self._details is not None and self._app.screen is self._details:
            self._details.show(self._detail_lines(card))

    def _detail_lines(self, card: RunCard) -> Sequence[Text]:
        desk = self._app.desk
        row, now = desk.watch.row(card.id), desk.clock.now()
        return detail_lines(card, row, now, acts=desk.acts, utf8=desk.utf8)

    def _help(self) -> None:
        desk = self._app.desk
        signs = "  ".join(
            f"{sign.glyph if desk.utf8 else sign.ascii} {sign.word}" for sign in (*SIGNS.values(), STALE)
        )
        text = help_text(verb=desk.verb, acts=desk.acts, signs=signs)
        lines = [Text(line, style="" if line.startswith(" ") else "bold") for line in text.splitlines()]
        self._app.push_screen(Reader("keys", lines))

    def _explain(self, row: RunRow) -> None:
        reader = Reader(f"{one_line(row.name)}: explain", [Text("reading ...", style="dim")])
        self._app.push_screen(reader)

        def take(lines: Sequence[str]) -> None:
            reader.show([Text(plain(line)) for line in lines])

        def failed(error: Exception) -> None:
            take([str(error)])

        kind = f"explain {row.id}"
        if not self._app.errands.begin(kind, lambda: self._app.desk.explain(row), take, failed):
            take(["it is being read already; try again in a moment"])

    def _read_log(self, card: RunCard) -> None:
        desk = self._app.desk
        view = LogView(id="text", wraps=True, colours=desk.colours)
        screen = LogScreen(f"{one_line(card.name)}: log", view)
        self._app.push_screen(screen)

        def fill() -> None:
            panel = self._app.body.log_view
            view.take_over(panel)
            if panel.pattern:
                view.search(panel.pattern)

        self._app.call_after_refresh(fill)

    def read_tail(self, card: RunCard) -> bool:
        """Ask the container for the end of a log whose lines came before this view; False: not yet."""
        row = self._app.desk.watch.row(card.id)

        def work() -> Iterator[Sequence[str]]:
            if row is not None:
                yield self._app.desk.tail(row)

        def take(lines: Sequence[str]) -> None:
            self._app.chosen.take_tail(card.id, lines)

        def failed(error: Exception) -> None:
            take([f"(what its log had before cannot be read now: {error})"])

        return self._app.errands.begin("tail", work, take, failed)

    def _ask(self, what: str, card: RunCard, row: RunRow, consequence: str, act: Ask) -> None:
        question, verb = f"{what} {one_line(card.name)} at {one_line(card.target)}?", self._app.desk.verb

        def answered(answer: bool | None) -> None:  # noqa: FBT001 - textual's callback
            if not answer:
                self._app.say("nothing is done")
                return
            try:
                act(row, asked_by=f"in dflashctl {verb}")
            except ConfigError as error:
                self._app.say_error(error)
            else:
                self._app.say(f"{row.name}: asked; what comes of it is told here")

        self._app.push_screen(Confirm(question, consequence), answered)

    def _attach(self, row: RunRow) -> None:
        app = self._app
        argv: tuple[str, ...] = ()
        problem = ""
        with app.suspend():
            before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the other program's
            try:
                argv = tuple(app.desk.attach(row))
                done = subprocess.run(argv, check=False)
                if done.returncode != 0:
                    problem = f"{argv[0]} {_ended(done.returncode)}"
            except OrchestratorError as error:
                problem = str(error)
            except OSError as error:
                problem = f"{argv[0]} cannot be run: {error.strerror}"
            finally:
                signal.signal(signal.SIGINT, before)
            if problem:
                sys.stdout.write(f"\n{problem}; press Enter to go back to the view ")
                sys.stdout.flush()
                sys.stdin.readline()
        app.refresh(layout=True)
        app.say(problem)


def _ended(code: int) -> str:
    """Return how a program ended, by what `subprocess` tells of it."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGINT:
        return "was interrupted"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
