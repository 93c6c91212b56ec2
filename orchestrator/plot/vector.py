"""The curves as SVG: no script, no style attribute, nothing from outside; light and dark by its classes."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.plot.curves import back_to
from orchestrator.plot.scale import number_text, ticks
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.plot.curves import Curves, Line, Panel
    from orchestrator.plot.scale import Point

WIDTH, LEFT, RIGHT = 800.0, 62.0, 16.0
LOSS_HEIGHT, PANEL_HEIGHT, GAP = 260.0, 96.0, 34.0
ROW, LABEL_ROWS, CHAR = 17.0, 4, 7.0  # of the names of deaths, above the loss
MAX_LEGEND = 8
NUM_COLOURS = 8

STYLE = """
.plot{--c0:#0067a0;--c1:#b84e00;--c2:#007a59;--c3:#a8487f;--c4:#2b7fae;--c5:#8f6000;--c6:#666;--c7:#4b3b8f;
--death:#b00020;--ink:#1c2328;--faint:#56616b;--grid:#dfe4e8;--paper:#fff}
@media (prefers-color-scheme:dark){.plot{--c0:#5ab4ec;--c1:#ff9152;--c2:#3fd0a5;--c3:#e89ac7;--c4:#8fd0f5;
--c5:#f2bc4b;--c6:#b0b6bb;--c7:#b5a6ff;--death:#ff7b87;--ink:#e6eaee;--faint:#a4afb9;--grid:#333c44;
--paper:#14191d}}
@media print{.plot{--c0:#0067a0;--c1:#b84e00;--c2:#007a59;--c3:#a8487f;--c4:#2b7fae;--c5:#8f6000;--c6:#666;
--c7:#4b3b8f;--death:#b00020;--ink:#000;--faint:#444;--grid:#ddd;--paper:#fff}}
.plot text{font:13px system-ui,sans-serif;fill:var(--ink)}
.plot .faint{fill:var(--faint)}
.plot .grid{stroke:var(--grid);stroke-width:1}
.plot .paper{fill:var(--paper)}
.plot polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}
.plot .back{stroke-dasharray:2 4}
.plot .resume{fill:var(--paper);stroke-width:2}
.plot .end{stroke:var(--death);stroke-width:1;stroke-opacity:.45}
.plot .death{stroke:var(--death);stroke-width:2.6;fill:none}
.plot .halo{stroke:var(--paper);stroke-width:6;stroke-opacity:.8;fill:none}
.plot .name{fill:var(--death);paint-order:stroke;stroke:var(--paper);stroke-width:4px}
""" + "".join(f".plot .c{n}{{stroke:var(--c{n})}}\n" for n in range(NUM_COLOURS))


def svg_file(curves: Curves) -> str:
    """Return the picture as a file of its own."""
    return svg(curves, style=STYLE, title=curves.title)


def svg(curves: Curves, style: str = "", title: str = "") -> str:
    """Return the picture as an element; a page that takes it in has STYLE among its own styles."""
    drawing = _Drawing(curves, titled=bool(title))
    legend, height = drawing.legend()
    size = f'viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}"'
    words = 'role="img" aria-labelledby="plot-title plot-words"'
    head = [
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" {size} {words}>',
        f'<title id="plot-title">{_said(curves.title)}</title>',
        f'<desc id="plot-words">{_said(_description(curves), 2000)}</desc>',
    ]
    if style:
        head += [f"<style>{style}</style>", '<rect class="paper" width="100%" height="100%"/>']
    if title:
        head.append(_text(LEFT, 20, _said(title, 100)))
    return "\n".join([*head, *drawing.parts(), *legend, "</svg>"])


class _Drawing:
    """One picture; `tops` and `heights` are of its panels, in order."""

    def __init__(self, curves: Curves, *, titled: bool) -> None:
        self._curves = curves
        self._first, self._last = curves.span
        self._rows = _rows([(self._x(death.step), death.label) for death in curves.deaths])
        self._names_at = 30.0 if titled else 4.0
        y = self._names_at + ROW * (max((row for row in self._rows if row is not None), default=-1) + 1)
        self._tops, self._heights = [], []
        for number in range(len(curves.panels)):
            height = PANEL_HEIGHT if number else LOSS_HEIGHT
            self._tops.append(y + 22)
            self._heights.append(height)
            y += 22 + height + (12 if number < len(curves.panels) - 1 else 0)
        self._bottom = y

    def parts(self) -> Iterator[str]:
        """Yield the elements, those in front last."""
        yield from self._steps()
        for number, panel in enumerate(self._curves.panels):
            yield from self._panel(number, panel)
        yield from self._deaths()

    def legend(self) -> tuple[list[str], float]:
        """Return the names of the attempts, and where the picture ends."""
        lines, x, y = self._curves.lines, LEFT, self._bottom + 62
        half = MAX_LEGEND // 2
        shown = lines if len(lines) <= MAX_LEGEND else [*lines[:half], None, *lines[-half:]]
        parts = []
        for line in shown:
            text = _legend_text(line) if line else f"... {len(lines) - 2 * half} more ..."
            width = CHAR * len(text) + (36 if line else 14)
            if x + width > WIDTH - RIGHT and x > LEFT:
                x, y = LEFT, y + 20
            if line:
                way = f"{x:g},{y - 4:g} {x + 16:g},{y - 4:g}"
                parts.append(f'<polyline class="{_colour(line)}" points="{way}"/>')
            parts.append(_text(x + (22 if line else 0), y, _said(text)))
            x += width
        marks = [mark for mark in self._marks() if mark]
        for told in ["; ".join(marks), *self._curves.notes]:
            if told:
                y += 21
                parts.append(_text(LEFT, y, _said(told, 105), 'class="faint"'))
        return parts, y + 12

    def _marks(self) -> list[str]:
        pairs = pairwise(self._curves.lines)
        unnamed = self._rows.count(None)
        return [
            "a cross is a death" if self._curves.deaths else "",
            "a ring the checkpoint resumed from" if any(back_to(a, b) for a, b in pairs) else "",
            f"{unnamed} deaths have no room for a name" if unnamed else "",
        ]

    def _x(self, step: float) -> float:
        share = (min(max(step, self._first), self._last) - self._first) / (self._last - self._first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def _y(self, number: int, value: float) -> float:
        panel = self._curves.panels[number]
        share = (value - panel.low) / (panel.high - panel.low)
        return round(self._tops[number] + (1 - share) * self._heights[number], 1)

    def _steps(self) -> Iterator[str]:
        top = self._tops[0]
        for step in ticks(self._first, self._last, 8):
            x = self._x(step)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top:g}" y2="{self._bottom:g}"/>'
            yield _text(x, self._bottom + 18, _number(step), 'class="faint" text-anchor="middle"')
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield _text(middle, self._bottom + 38, "optimizer step", 'text-anchor="middle"')

    def _panel(self, number: int, panel: Panel) -> Iterator[str]:
        top, height = self._tops[number], self._heights[number]
        yield _text(LEFT, top - 7, _said(panel.title))
        for value in ticks(panel.low, panel.high, 5 if number == 0 else 3):
            y = self._y(number, value)
            yield f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y}" y2="{y}"/>'
            yield _text(LEFT - 8, y + 4.5, _number(value), 'class="faint" text-anchor="end"')
        # An inner svg cuts off what lies outside of the panel's limits.
        box = f'viewBox="0 {top:g} {WIDTH:g} {height:g}"'
        yield f'<svg x="0" y="{top:g}" width="{WIDTH:g}" height="{height:g}" {box}>'
        before = None
        for line in self._curves.lines:
            if number == 0 and before is not None:
                yield from self._resume(before, line)
            yield from self._line(number, panel.of(line), line)
            before = line
        yield "</svg>"

    def _line(self, number: int, points: Sequence[Point], line: Line) -> Iterator[str]:
        if len(points) == 1:
            x, y = self._x(points[0][0]), self._y(number, points[0][1])
            yield f'<circle class="{_colour(line)} resume" cx="{x}" cy="{y}" r="1.5"/>'
        elif points:
            places = " ".join(f"{self._x(x)},{self._y(number, y)}" for x, y in points)
            yield f'<polyline class="{_colour(line)}" points="{places}"/>'

    def _resume(self, before: Line, line: Line) -> Iterator[str]:
        start = back_to(before, line)
        if start is None:
            return
        way = ((before.steps[-1], before.losses[-1]), start, (line.steps[0], line.losses[0]))
        places = " ".join(f"{self._x(x)},{self._y(0, y)}" for x, y in way)
        yield f'<polyline class="{_colour(line)} back" points="{places}"/>'
        x, y = self._x(start[0]), self._y(0, start[1])
        yield f'<circle class="{_colour(line)} resume" cx="{x}" cy="{y}" r="4"/>'

    def _deaths(self) -> Iterator[str]:
        loss = self._curves.panels[0]
        rows = zip(self._curves.deaths, self._rows, strict=True)
        places = [(death, self._x(death.step), row) for death, row in rows]
        tops = [self._names_at + ROW * (row or 0) for _, _, row in places]
        for (_, x, _), top in zip(places, tops, strict=True):
            yield f'<line class="end" x1="{x}" x2="{x}" y1="{top + 15:g}" y2="{self._bottom:g}"/>'
        for (death, x, row), top in zip(places, tops, strict=True):
            label, y = _said(death.label), self._y(0, min(max(death.loss, loss.low), loss.high))
            if row is not None:
                yield _text(_name_x(x, death.label), top + 12, label, 'class="name" text-anchor="middle"')
            cross = f"M{x - 5:g} {y - 5:g}l10 10m0 -10l-10 10"
            yield f'<path class="halo" d="{cross}"/>'
            yield f'<path class="death" d="{cross}"><title>{label} at step {death.step:g}</title></path>'


def _text(x: float, y: float, said: str, more: str = "") -> str:
    """Return a text; `said` is escaped."""
    return f'<text {more} x="{x:g}" y="{y:g}">{said}</text>'


def _rows(names: Sequence[tuple[float, str]]) -> list[int | None]:
    """Return the row of each name, the lowest number highest up, so that none overlap; None: no room."""
    ends: list[float] = [0.0] * LABEL_ROWS
    rows: list[int | None] = []
    for x, label in names:
        half = CHAR * len(label) / 2
        middle = _name_x(x, label)
        row = next((n for n, end in enumerate(ends) if middle - half > end + 6), None)
        if row is not None:
            ends[row] = middle + half
        rows.append(row)
    return rows


def _name_x(x: float, label: str) -> float:
    half = CHAR * len(label) / 2
    return min(max(x, half + 8), WIDTH - half - 8)


def _description(curves: Curves) -> str:
    """Say in words what is to be seen, for who cannot see it."""
    told = []
    for line in curves.lines[:3] + curves.lines[3:][-3:]:
        told.append(
            f"attempt {line.attempt.n}: step {line.steps[0]:g} to {line.steps[-1]:g}, "
            f"loss {line.losses[0]:.4g} to {line.losses[-1]:.4g}"
        )
    deaths = ", ".join(f"{death.label} at step {death.step:g}" for death in curves.deaths[:12])
    return "; ".join([*told, f"deaths: {deaths}" if deaths else "no death"])


def _legend_text(line: Line) -> str:
    resumed = f" from step {line.attempt.first_step}" if line.attempt.first_step else ""
    return f"attempt {line.attempt.n}{resumed}"


def _colour(line: Line) -> str:
    return f"c{line.colour % NUM_COLOURS}"


def _number(value: float) -> str:
    return escape(number_text(value))


def _said(text: str, limit: int = 200) -> str:
    return escape(one_line(text, limit))
