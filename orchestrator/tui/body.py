"""The widgets of the view, and where each is at which size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Container, Vertical
from textual.widgets import Static

from orchestrator.tui.heading import PANELS, PAUSED, TITLES, tabs
from orchestrator.tui.lines import Lines
from orchestrator.tui.logview import LogView
from orchestrator.tui.panels import CurvesView
from orchestrator.tui.runlist import RunList

if TYPE_CHECKING:
    from rich.text import Text
    from textual.app import ComposeResult
    from textual.geometry import Size

    from orchestrator.tui.desk import Desk

WIDE, TALL = 104, 34  # from there on all panels have room at once


class Line(Static):
    """One line; it is drawn only when it changes."""

    _shown: Text | None = None

    def put(self, text: Text) -> None:
        """Show this."""
        if self._shown is None or (text.plain, text.spans) != (self._shown.plain, self._shown.spans):
            self._shown = text
            self.update(text, layout=False)


class Body(Container):
    """The runs, and what there is of the chosen one: beside them, or below on a narrow screen."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(id="main", classes="" if desk.shows_log else "nolog")
        self.runs = RunList(id="runs", utf8=desk.utf8)
        self.facts = Lines(id="facts")
        self.facts.can_focus, self.facts.beside = False, 0
        self.curves = CurvesView(id="curves", utf8=desk.utf8, colours=desk.colours)
        self.gpus = Lines(id="gpus", wraps=False)
        # One widget cannot be in two places: the story lies below the runs where there is room.
        self.stories = (
            Lines(id="story", follows=True, hang=9),
            Lines(id="story-left", follows=True, hang=9),
        )
        self.log_view = LogView(id="log", colours=desk.colours)
        self.tabs = Line(id="tabs")
        self.panels = tuple(name for name in PANELS if name != "log" or desk.shows_log)
        self.opened = self.panels[-1]

    def compose(self) -> ComposeResult:
        """Lay it out."""
        for panel in (self.curves, self.gpus, *self.stories, self.log_view):
            panel.add_class("panel")
            panel.border_title = TITLES[str(panel.id).removesuffix("-left")]
        with Vertical(id="left"):
            yield self.runs
            yield self.stories[1]
        with Vertical(id="side"):
            yield from (self.facts, self.tabs, self.curves, self.gpus, self.stories[0], self.log_view)

    @property
    def is_single(self) -> bool:
        """Whether there is room for one panel at a time only."""
        return self.has_class("single")

    @property
    def order(self) -> tuple[str, ...]:
        """The panels as they lie on the screen."""
        return (
            self.panels if self.is_single else ("story", *(name for name in self.panels if name != "story"))
        )

    def panel(self, name: str) -> Lines:
        """Return a panel as it is in sight."""
        shown = "story-left" if name == "story" and not self.is_single else name
        return self.query_one(f"#{shown}", Lines)

    def open(self, name: str) -> None:
        """Bring a panel in sight where there is room for one only."""
        self.opened = name
        for each in PANELS:
            self.query_one(f"#{each}").set_class(each == name, "open")
        self.put_tabs()

    def fit(self, size: Size) -> None:
        """Fit it to the size of the screen and to the number of runs."""
        is_narrow = size.width < WIDE
        is_single = is_narrow or size.height < TALL
        self.set_class(is_narrow, "narrow")
        self.set_class(is_single, "single")
        self.facts.wraps = not is_narrow
        room = (size.height - 4) // (3 if is_narrow else 2)
        height = min(max(3, self.runs.num_shown + 1), max(4, room))
        self.runs.styles.height = height if is_narrow or not is_single else None
        self.gpus.styles.max_height = None if is_single else max(4, size.height // 4)
        self.open(self.opened)

    def put_tabs(self) -> None:
        """Say which panel is open, and whether the log stands still."""
        is_paused = not self.log_view.is_at_end
        self.log_view.border_title = TITLES["log"] + (PAUSED if is_paused else "")
        self.tabs.put(tabs(self.opened, self.panels, is_paused=is_paused))
