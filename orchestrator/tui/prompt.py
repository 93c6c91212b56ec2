"""The line that asks: for what to search in a panel, or which runs to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Input

from orchestrator.tui.lines import Lines

if TYPE_CHECKING:
    from textual.widget import Widget

    from orchestrator.tui.runlist import RunList


class Prompt(Input):
    """Out of sight until it is asked; filters as it is typed, searches when that is done."""

    def __init__(self, runs: RunList) -> None:
        super().__init__(id="prompt", compact=True)
        self.display = False
        self._runs = runs
        self._asker: Widget = runs

    @property
    def is_asking(self) -> bool:
        """Whether it is in sight."""
        return self.display

    def ask(self, asker: Widget | None) -> None:
        """Ask for the widget that has the keys."""
        self._asker = asker if isinstance(asker, Lines) else self._runs
        is_panel = self._asker is not self._runs
        self.placeholder = "search" if is_panel else "only runs with (name, place or state)"
        self.value = "" if is_panel else self._runs.filter
        self.display = True
        self.screen.set_focus(self)

    def watch_value(self, value: str) -> None:
        """Filter as it is typed."""
        if self.is_asking and self._asker is self._runs:
            self._runs.set_filter(value)

    def answer(self) -> str | None:
        """Search, or keep the filter; returns what was not found."""
        asker, value = self._asker, self.value
        self.end()
        return value if isinstance(asker, Lines) and not asker.search(value) else None

    def give_up(self) -> None:
        """Ask no more; all runs are shown again."""
        if self._asker is self._runs:
            self._runs.set_filter("")
        self.end()

    def end(self) -> None:
        """Go out of sight."""
        self.display = False
        self.screen.set_focus(self._asker)
