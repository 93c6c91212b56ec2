"""The curves in a terminal: dots of braille, or asterisks where the terminal has no such letters. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.plot.curves import NO_DEATH, back_to
from orchestrator.plot.scale import number_text
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.plot.curves import Curves, Panel
    from orchestrator.plot.scale import Point

MARGIN = 9
LOSS_ROWS, PANEL_ROWS = 14, 5
MAX_TOLD = 8
DEATH, RESUME = "x", "o"
BRAILLE = 0x2800
# Unicode's braille block numbers its eight dots by columns, the fourth row last.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_COLOURS = ("34", "33", "32", "35", "36", "93", "37", "94")  # SGR, by attempt
_RED, _RESET = "\x1b[31;1m", "\x1b[0m"


class Canvas:
    """Dots in a field of letters, two by four of them in each; each letter has the colour of its last dot."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._dots: dict[tuple[int, int], int] = {}
        self._colours: dict[tuple[int, int], str] = {}
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, begin: Point, end: Point, colour: str) -> None:
        """Draw between two points; (0, 0) is the lower left and (1, 1) the upper right corner."""
        wide, high = self._columns * 2 - 1, self._rows * 4 - 1
        (x0, y0), (x1, y1) = ((p[0] * wide, (1 - p[1]) * high) for p in (begin, end))
        count = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for n in range(count + 1):
            x, y = round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count)
            if 0 <= x <= wide and 0 <= y <= high:
                cell = (x // 2, y // 4)
                self._dots[cell] = self._dots.get(cell, 0) | _BITS[y % 4][x % 2]
                self._colours[cell] = colour

    def mark(self, at: Point, letter: str, colour: str) -> None:
        """Put a letter where the point is."""
        column = round(at[0] * (self._columns * 2 - 1)) // 2
        row = round((1 - min(max(at[1], 0.0), 1.0)) * (self._rows * 4 - 1)) // 4
        self._marks[(column, row)], self._colours[(column, row)] = letter, colour

    def rows(self, *, coloured: bool, braille: bool) -> list[str]:
        """Return the lines of text."""
        made = (self._row(row, coloured=coloured, braille=braille) for row in range(self._rows))
        return ["".join(cells).rstrip() for cells in made]

    def _row(self, row: int, *, coloured: bool, braille: bool) -> list[str]:
        cells = []
        for column in range(self._columns):
            place = (column, row)
            dots = self._dots.get(place)
            letter = self._marks.get(place) or ((chr(BRAILLE + dots) if braille else "*") if dots else " ")
            colour = self._colours.get(place)
            cells.append(f"{colour}{letter}{_RESET}" if coloured and colour and letter != " " else letter)
        return cells


def chart(curves: Curves, width: int = 80, *, coloured: bool = False, braille: bool = True) -> list[str]:
    """Return the lines of the picture, none longer than `width` letters (colours not counted)."""
    width = max(40, width)
    heights = [PANEL_ROWS if number else LOSS_ROWS for number in range(len(curves.panels))]
    lines = [one_line(curves.title, width)]
    lines += panel_lines(curves, width, heights, coloured=coloured, braille=braille)
    return [*lines, *legend_lines(curves, width, coloured=coloured)]


def panel_lines(
    curves: Curves, width: int, heights: Sequence[int], *, coloured: bool, braille: bool
) -> list[str]:
    """Return the first panels, each of its height (two rows at least), above their common axis of steps."""
    first, last = curves.span
    lines: list[str] = []
    for number, (panel, rows) in enumerate(zip(curves.panels, heights, strict=False)):
        canvas = Canvas(width - MARGIN - 2, rows)
        _draw(canvas, curves, panel, is_loss=number == 0)
        labels = {0: number_text(panel.high), rows - 1: number_text(panel.low)}
        if not number and rows > 4:
            labels[rows // 2] = number_text(panel.high + (panel.low - panel.high) * (rows // 2) / (rows - 1))
        lines.append(f"{'':>{MARGIN}} {one_line(panel.title, width - MARGIN - 1)}")
        bar = "\u2502" if braille else "|"
        drawn = canvas.rows(coloured=coloured, braille=braille)
        lines += [f"{labels.get(n, ''):>{MARGIN}}{bar}{row}" for n, row in enumerate(drawn)]
    begin, end = number_text(first), number_text(last)
    room = width - MARGIN - 2 - len(begin) - len(end)
    lines.append(f"{'':>{MARGIN}} {begin}{'optimizer step':^{room}}{end}")
    return lines


def _draw(canvas: Canvas, curves: Curves, panel: Panel, *, is_loss: bool) -> None:
    first, last = curves.span

    def place(point: Point) -> Point:
        high = (point[1] - panel.low) / (panel.high - panel.low)
        return (min(max(point[0], first), last) - first) / (last - first), high

    for line in curves.lines:
        points = [place(point) for point in panel.of(line)]
        colour = _sgr(line.colour)
        for begin, end in pairwise(points if len(points) != 1 else points * 2):
            canvas.line(begin, end, colour)
    for death in curves.deaths:
        canvas.mark(place((death.step, death.loss if is_loss else panel.low)), DEATH, _RED)
    if is_loss:
        _mark_resumes(canvas, curves, place)


def _mark_resumes(canvas: Canvas, curves: Curves, place: Callable[[Point], Point]) -> None:
    for before, line in pairwise(curves.lines):
        if (start := back_to(before, line)) is not None:
            canvas.mark(place(start), RESUME, _sgr(line.colour))


def legend_lines(curves: Curves, width: int, *, coloured: bool) -> list[str]:
    """Say of each attempt where it began and how it ended; of many, of the first and the newest."""
    shown = curves.lines
    half = MAX_TOLD // 2
    told: list[str] = []
    if any(line.attempt.first_step for line in shown) or curves.deaths:
        told.append(
            "  " + one_line(f"{DEATH} a death, {RESUME} the checkpoint's step resumed from", width - 2)
        )
    for n, line in enumerate(shown):
        if len(shown) > MAX_TOLD and half <= n < len(shown) - half:
            told += [f"  ... {len(shown) - 2 * half} more ..."] if n == half else []
            continue
        attempt = line.attempt
        end = ""
        if attempt.has_ended and attempt.failure is not None:
            is_death = attempt.failure.value not in NO_DEATH
            end = f"{DEATH} {attempt.failure.value}, " if is_death else f"{attempt.failure.value}, "
        text = f"attempt {attempt.n}: {end}steps {line.steps[0]:g} to {line.steps[-1]:g}"
        text += f" ({RESUME} {attempt.first_step})" if attempt.first_step else ""
        text += f", loss {line.losses[-1]:.4g}"
        text = one_line(text, width - 2)
        told.append(f"  {_sgr(line.colour)}{text}{_RESET}" if coloured else f"  {text}")
    return told


def _sgr(colour: int) -> str:
    return f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m"
