"""What is beside the list: curves, GPUs and the story of the chosen run, each as wide and high as it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.plot.text import legend_lines, panel_lines
from orchestrator.terminal import one_line
from orchestrator.tui.lines import Lines

if TYPE_CHECKING:
    from textual import events

    from orchestrator.plot import Curves

MIN_WIDTH = 30
LEGEND_FROM = 18  # rows; below it the deaths are told in one line


class CurvesView(Lines):
    """Loss and throughput across attempts, each death marked."""

    def __init__(self, *, id: str, utf8: bool, colours: bool) -> None:
        super().__init__(id=id, wraps=False)
        self._utf8, self._colours = utf8, colours
        self._curves: Curves | None = None

    def draw(self, curves: Curves | None) -> None:
        """Show these; None: no step was logged yet."""
        self._curves = curves
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw to the new size."""
        self._draw()
        super().on_resize(event)

    def _draw(self) -> None:
        width, height = self.size
        if self._curves is None:
            self.show([Text("no step on record yet", style="dim")])
        elif width >= MIN_WIDTH and height >= 4:
            self.show(picture(self._curves, width, height, utf8=self._utf8, colours=self._colours))
        else:
            self.show([Text("too little room for curves", style="dim")])


def picture(curves: Curves, width: int, height: int, *, utf8: bool, colours: bool) -> list[Text]:
    """Return the curves in `height` lines."""
    below = legend_lines(curves, width, coloured=colours)[: height // 4] if height >= LEGEND_FROM else []
    if curves.deaths and not below:
        told = ", ".join(f"{death.label} at {death.step:g}" for death in curves.deaths)
        below = [one_line(f"  x {told}", max(40, width))]
    room = height - len(below) - 1
    heights = [max(2, room - 1)]
    if len(curves.panels) > 1 and room >= 10:
        speed = max(3, room // 3 - 1)
        heights = [room - speed - 2, speed]
    lines = panel_lines(curves, width, heights, coloured=colours, braille=utf8)
    return [Text.from_ansi(line) if "\x1b" in line else Text(line) for line in [*lines, *below]]
