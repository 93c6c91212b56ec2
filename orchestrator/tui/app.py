"""The view itself: what is drawn when, and what a key does."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.actions import SkipAction
from textual.app import App
from textual.binding import Binding

from orchestrator.errors import Exit, OrchestratorError
from orchestrator.terminal import one_line
from orchestrator.tui.acts import Acts
from orchestrator.tui.body import Body, Line
from orchestrator.tui.chosen import Chosen
from orchestrator.tui.desk import Ending
from orchestrator.tui.errands import Errands
from orchestrator.tui.heading import PANELS, head, status
from orchestrator.tui.keys import foot
from orchestrator.tui.lines import Lines
from orchestrator.tui.prompt import Prompt

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from orchestrator.fleet import RunCard
    from orchestrator.tui.desk import Desk

TICK_S = 0.25
DRAW_S = 0.5


class WatchApp(App[Ending]):
    """Draws a fleet until its end, or until a person leaves."""

    CSS_PATH = "view.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "interrupt", priority=True, show=False),
        Binding("ctrl+q", "leave", priority=True, show=False),
        Binding("q", "leave", show=False),
        Binding("tab", "next_panel(1)", priority=True, show=False),
        Binding("shift+tab", "next_panel(-1)", priority=True, show=False),
        *(Binding(str(n), f"open({name!r})", show=False) for n, name in enumerate(PANELS, 1)),
        # Before the key is handed on: what is typed ahead of the prompt is its answer, and no key.
        Binding("slash", "search", priority=True, show=False),
        Binding("n", "go_on(1)", show=False),
        Binding("N", "go_on(-1)", show=False),
        Binding("escape", "leave_panel", show=False),
        *(
            Binding(key, f"act({name!r})", show=False)
            for key, name in (
                ("question_mark,f1", "help"), ("l", "log"), ("e", "explain"), ("enter", "details"),
                ("a", "attach"), ("s", "stop"), ("r", "relaunch"),
            )
        ),
    ]  # fmt: skip

    def __init__(self, desk: Desk) -> None:
        super().__init__(ansi_color=True)
        self.desk = desk
        self.errands = Errands()
        self.acts = Acts(self)
        self.body = Body(desk)
        self.chosen = Chosen(self)
        self._prompt = Prompt(self.body.runs)
        self._head, self._status, self._foot = Line(id="head"), Line(id="status"), Line(id="foot")
        self._drawn_at = -1e9
        self._version = 0
        self._said = ""
        self._is_laid_out = False  # the first size is told before there is anything to arrange

    # -- laying it out

    def compose(self) -> ComposeResult:
        """Lay it out."""
        yield from (self._head, self.body, self._prompt, self._status, self._foot)

    def on_mount(self) -> None:
        """Begin."""
        self._is_laid_out = True
        self.theme = "ansi-dark"
        self.body.runs.focus()
        self._arrange()
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.action_interrupt)
        self.set_interval(TICK_S, self.tick)
        self.tick()

    def on_resize(self, _event: events.Resize) -> None:
        """Arrange anew."""
        if self._is_laid_out:
            self.call_later(self._arrange)  # this comes before `size` is the new one

    def _arrange(self) -> None:
        self.body.fit(self.size)
        self._foot.put(Text(foot(self.size.width, verb=self.desk.verb), no_wrap=True))
        self.draw()

    # -- drawing

    def tick(self) -> None:
        """Take in what is new; draw it if it is time."""
        if not self.is_running or self._exit:
            return
        self.errands.take_in()
        watch, ticks = self.desk.watch, self.desk.clock.monotonic()
        if watch.fault is not None:
            self.exit(Ending(None))
            return
        if self.desk.ends and (code := watch.outcome) is not None:
            self.exit(Ending(code))
            return
        is_new = self.desk.board.fleet.version != self._version
        if ticks - self._drawn_at >= (DRAW_S if is_new else 2 * DRAW_S):
            self.draw()
        self.chosen.tick()

    def draw(self) -> None:
        """Draw what is known now."""
        board, now, runs = self.desk.board, self.desk.clock.now(), self.body.runs
        fleet = board.fleet
        self._version, self._drawn_at = fleet.version, self.desk.clock.monotonic()
        num_shown = runs.num_shown
        runs.show(fleet.cards, now)
        if num_shown != runs.num_shown:
            self.call_later(self._arrange)
        self.chosen.draw()
        self._head.put(
            head(
                fleet.cards, now, self.size.width, verb=self.desk.verb, acts=self.desk.acts, only=runs.filter,
                shown=runs.num_shown,
            )
        )  # fmt: skip
        self._put_status()

    def _put_status(self) -> None:
        newest = self.desk.board.told()[-1:]
        self._status.put(status(self._said, self.desk.watch.turned_s_ago, newest[0] if newest else None))

    @property
    def card(self) -> RunCard | None:
        """The chosen run as it is now."""
        return self.chosen.card

    def on_run_list_chosen(self) -> None:
        """Show another run."""
        self.chosen.change()

    def say(self, text: str) -> None:
        """Say something in the line above the keys, until the next key."""
        self._said = one_line(text, 300)
        self._put_status()

    def say_error(self, error: Exception) -> None:
        """Say what went wrong."""
        self.say(str(error))

    def on_key(self) -> None:
        """What was said was read."""
        if self._said:
            self.say("")

    # -- keys

    @property
    def _is_covered(self) -> bool:
        return len(self.screen_stack) > 1

    def action_interrupt(self) -> None:
        """Leave as Ctrl-C does."""
        self.exit(Ending(Exit.INTERRUPTED))

    def action_leave(self) -> None:
        """Leave; a watch that is left before its end has no result to tell."""
        self.exit(Ending(Exit.INTERRUPTED if self.desk.ends else Exit.OK))

    def action_next_panel(self, by: int) -> None:
        """Go to the next panel."""
        if self._is_covered or self._prompt.is_asking:
            return
        names = ["runs", *self.body.order]
        here = str(self.focused.id).removesuffix("-left") if self.focused is not None else "runs"
        name = names[(names.index(here) + by) % len(names)] if here in names else "runs"
        if name == "runs":
            self.body.runs.focus()
        else:
            self.action_open(name)

    def action_open(self, name: str) -> None:
        """Go to a panel."""
        if not self._is_covered and name in self.body.panels:
            self.body.open(name)
            self.screen.set_focus(self.body.panel(name))

    def action_act(self, name: str) -> None:
        """Do what is asked about the chosen run."""
        if not self._is_covered:
            try:
                self.acts.begin(name)
            except OrchestratorError as error:
                self.say_error(error)

    def action_search(self) -> None:
        """Ask what to search in the panel, or which runs to show."""
        if self._is_covered or self._prompt.is_asking:
            raise SkipAction
        self._prompt.ask(self.focused)

    def on_input_submitted(self) -> None:
        """Search, or keep the filter."""
        if (missing := self._prompt.answer()) is not None:
            self.say(f"not found: {missing}")

    def action_go_on(self, by: int) -> None:
        """Go to the next place that was searched for."""
        panel = self.focused if isinstance(self.focused, Lines) else self.body.panel(self.body.opened)
        if not self._is_covered and panel.pattern and not panel.go_on(by):
            self.say(f"not found: {panel.pattern}")

    def action_leave_panel(self) -> None:
        """Leave the prompt; else what was searched for; else the panel; else show all runs again."""
        if self._prompt.is_asking:
            self._prompt.give_up()
        elif isinstance(self.focused, Lines) and self.focused.pattern:
            self.focused.search("")
        elif isinstance(self.focused, Lines):
            self.body.runs.focus()
        elif self.body.runs.filter:
            self.body.runs.set_filter("")
