"""A run as cells of a table, and the table as wide as there is room. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from orchestrator.terminal import one_line
from orchestrator.tui.words import age_text, rate_text, sign_of, squeezed, step_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from orchestrator.fleet import RunCard
    from orchestrator.tui.words import Sign

MIN_NAME, WITH_TARGET = 10, 44
HEADS = ("state", "run", "target", "phase", "step", "tok/s", "look")
_ORDER_OF = {"state": "state", "run": "name", "step": "step", "tok/s": "speed", "look": "age"}


class Row(NamedTuple):
    """A run as it is listed; `cells`: state, phase, step, tokens a second, age."""

    card: RunCard
    sign: Sign
    age_s: float | None
    cells: tuple[str, str, str, str, str]

    @property
    def is_past(self) -> bool:
        """Whether its numbers are not of the present."""
        return self.sign.word in ("blind", "stale", "CT stopped", "CT frozen")


ORDERS: dict[str, Callable[[Row], tuple[object, ...]]] = {
    "state": lambda row: (row.sign.rank, row.card.id),
    "name": lambda row: (row.card.name, row.card.id),
    "step": lambda row: (-(row.card.step or 0), row.card.id),
    "speed": lambda row: (-(row.card.tokens_per_s or 0.0), row.card.id),
    "age": lambda row: (-(row.age_s or 0.0), row.card.id),
}


def row_of(card: RunCard, now: datetime, *, utf8: bool) -> Row:
    """Return a run's row."""
    sign, age_s = sign_of(card, now), card.age_s(now)
    state = f"{sign.glyph if utf8 else sign.ascii} {sign.word}"
    phase = "" if card.has_ended else one_line(card.phase or "-")
    speed = "" if card.has_ended else rate_text(card.tokens_per_s)
    return Row(card, sign, age_s, (state, phase, step_text(card), speed, age_text(age_s)))


class Columns(NamedTuple):
    """How wide each column is, in cells; `target` 0: there is no room for it."""

    state: int
    name: int
    target: int
    phase: int
    step: int
    speed: int
    age: int

    @classmethod
    def fit(cls, rows: Sequence[Row], width: int) -> Columns:
        """Return columns that hold all rows; the name gets what is left."""
        heads = (HEADS[0], *HEADS[3:])
        wide = [
            max([cell_len(head), *(cell_len(row.cells[n]) for row in rows)]) for n, head in enumerate(heads)
        ]
        room = width - sum(wide) - len(wide)
        target = 0
        if room >= WITH_TARGET:
            longest = max([cell_len(HEADS[2]), *(cell_len(row.card.target) for row in rows)])
            target = min(longest, room // 2 - 2)
        name = max(MIN_NAME, room - (target + 1 if target else 0))
        return cls(wide[0], name, target, *wide[1:])

    def head(self, order: str, mark: str) -> str:
        """Return the words above; `mark` stands at the column that the runs are sorted by."""
        return self._joined([word + (mark if _ORDER_OF.get(word) == order else "") for word in HEADS])

    def line(self, row: Row, *, utf8: bool) -> str:
        """Return a run's line."""
        state, *rest = row.cells
        name = squeezed(row.card.name, self.name, utf8=utf8)
        target = squeezed(row.card.target, self.target, utf8=utf8) if self.target else ""
        return self._joined([state, name, target, *rest])

    def _joined(self, words: Sequence[str]) -> str:
        cells = [set_cell_size(word, wide) for word, wide in zip(words[:4], self[:4], strict=True)]
        cells += [_right(word, wide) for word, wide in zip(words[4:], self[4:], strict=True)]
        return " ".join(cell for cell in cells if cell)


def _right(word: str, width: int) -> str:
    return " " * (width - cell_len(word)) + word if cell_len(word) <= width else set_cell_size(word, width)
