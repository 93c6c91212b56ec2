"""The runs: one row each, sorted and filtered; only the rows in sight are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView

from orchestrator.terminal import one_line
from orchestrator.tui.lines import BASE, strip_of
from orchestrator.tui.words import age_text, rate_text, sign_of, squeezed, step_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from textual import events
    from textual.strip import Strip

    from orchestrator.fleet import RunCard
    from orchestrator.tui.words import Sign

MIN_NAME, WITH_TARGET = 10, 44
HINT = ("no run yet; start one in another terminal:", "  dflashctl launch --host HOST --ct CT")


class _Row(NamedTuple):
    card: RunCard
    sign: Sign
    age_s: float | None
    cells: tuple[str, str, str, str, str]  # state, phase, step, tok/s, age


ORDERS: dict[str, Callable[[_Row], tuple[object, ...]]] = {
    "state": lambda row: (row.sign.rank, row.card.id),
    "name": lambda row: (row.card.name, row.card.id),
    "step": lambda row: (-(row.card.step or 0), row.card.id),
    "speed": lambda row: (-(row.card.tokens_per_s or 0.0), row.card.id),
    "age": lambda row: (-(row.age_s or 0.0), row.card.id),
}


class RunList(ScrollView, can_focus=True):
    """The list of runs, with one of them chosen."""

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("o", "order_next", show=False),
        Binding("O", "order_back", show=False),
        Binding("S", "order('state')", show=False),
        Binding("N", "order('name')", show=False),
        Binding("P", "order('step')", show=False),
        Binding("T", "order('speed')", show=False),
        Binding("A", "order('age')", show=False),
    ]

    class Chosen(Message):
        """Another run is the chosen one."""

    def __init__(self, *, id: str, utf8: bool = True) -> None:
        super().__init__(id=id)
        self.chosen: int | None = None
        self.filter = ""
        self.order, self.is_reversed = "state", False
        self._utf8 = utf8
        self._cards: Sequence[RunCard] = ()
        self._now: datetime | None = None
        self._rows: list[_Row] = []
        self._fitted: tuple[int, list[int]] | None = None  # the widths of the columns, at a width of all
        self._place = 0  # where the chosen one was seen last

    @property
    def num_shown(self) -> int:
        """How many pass the filter."""
        return len(self._rows)

    def show(self, cards: Sequence[RunCard], now: datetime) -> None:
        """Show these runs as of now."""
        self._cards, self._now = cards, now
        word = self.filter.casefold()
        rows = [
            self._row(card, now)
            for card in cards
            if not word or word in card.name.casefold() or word in card.target.casefold()
            or word in sign_of(card, now).word
        ]  # fmt: skip
        rows.sort(key=ORDERS[self.order], reverse=self.is_reversed)
        self._rows, self._fitted = rows, None
        self._keep_chosen()
        if self.virtual_size.height != len(rows) + 1:
            self.virtual_size = Size(self.size.width, len(rows) + 1)
        self.refresh()

    def choose(self, run_id: int) -> None:
        """Choose a run."""
        if run_id != self.chosen:
            self.chosen = run_id
            self.post_message(self.Chosen())
        place = next((n for n, row in enumerate(self._rows) if row.card.id == run_id), 0)
        self._place = place
        top, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if not top <= place < top + room:
            self.scroll_to(y=place if place < top else place - room + 1, animate=False, immediate=True)
        self.refresh()

    # -- keys and the mouse

    def action_move(self, by: int) -> None:
        """Choose another one."""
        if self._rows:
            place = min(max(0, self._place + by), len(self._rows) - 1)
            self.choose(self._rows[place].card.id)

    def action_page(self, by: int) -> None:
        """Move by what is in sight."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_order(self, order: str) -> None:
        """Sort by this; the other way round if it is that already."""
        self.is_reversed = self.order == order and not self.is_reversed
        self.order = order
        self._show_again()

    def action_order_next(self) -> None:
        """Sort by the next column."""
        names = list(ORDERS)
        self.order, self.is_reversed = names[(names.index(self.order) + 1) % len(names)], False
        self._show_again()

    def action_order_back(self) -> None:
        """Sort the other way round."""
        self.is_reversed = not self.is_reversed
        self._show_again()

    def on_click(self, event: events.Click) -> None:
        """Choose what is clicked at."""
        number = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and number < len(self._rows):
            self.choose(self._rows[number].card.id)

    def set_filter(self, text: str) -> None:
        """Show only runs whose name, target or state has this in it."""
        self.filter = text
        self._show_again()

    def _show_again(self) -> None:
        if self._now is not None:
            self.show(self._cards, self._now)
            if self.chosen is not None:
                self.choose(self.chosen)

    def _keep_chosen(self) -> None:
        places = {row.card.id: n for n, row in enumerate(self._rows)}
        if self.chosen in places:
            self._place = places[self.chosen]
        elif self._rows:
            self._place = min(self._place, len(self._rows) - 1)
            self.choose(self._rows[self._place].card.id)
        elif self.chosen is not None:
            self.chosen = None
            self.post_message(self.Chosen())

    # -- drawing

    def _row(self, card: RunCard, now: datetime) -> _Row:
        sign, age_s = sign_of(card, now), card.age_s(now)
        state = f"{sign.glyph if self._utf8 else sign.ascii} {sign.word}"
        phase = "" if card.has_ended else one_line(card.phase or "-")
        speed = "" if card.has_ended else rate_text(card.tokens_per_s)
        return _Row(card, sign, age_s, (state, phase, step_text(card), speed, age_text(age_s)))

    @property
    def _widths(self) -> list[int]:
        if self._fitted is None or self._fitted[0] != self.size.width:
            self._fitted = (self.size.width, self._fit())
        return self._fitted[1]

    def _fit(self) -> list[int]:
        """Return the widths of name, target (0: not shown) and the other cells."""
        heads = ("state", "phase", "step", "tok/s", "look")
        wide = [max([cell_len(heads[n]), *(cell_len(row.cells[n]) for row in self._rows)]) for n in range(5)]
        room = self.size.width - sum(wide) - len(wide)
        target = 0
        if room >= WITH_TARGET:
            longest = max([len("target"), *(cell_len(row.card.target) for row in self._rows)])
            target = min(longest, room // 2 - 2)
        name = room - (target + 1 if target else 0)
        return [max(MIN_NAME, name), target, *wide]

    def render_line(self, y: int) -> Strip:
        """Draw the head, a run, or how to start one."""
        width = self.size.width
        if not self._cards:
            text = Text(HINT[y - 1] if 0 < y <= len(HINT) else "", style="bold" if y == 2 else "")
        elif y == 0:
            text = self._head()
        else:
            number = y - 1 + self.scroll_offset.y
            text = self._line(self._rows[number]) if number < len(self._rows) else Text()
            if number < len(self._rows) and self._rows[number].card.id == self.chosen:
                text.append(" " * max(0, width - text.cell_len))
                text.stylize(Style(reverse=True, bold=self.has_focus))
            if not self._rows and y == 1:
                text = Text(f"none of {len(self._cards)} runs has {squeezed(self.filter, 20).strip()!r}")
        strip = strip_of(text, self.app.console)
        return strip.crop_extend(0, width, BASE).apply_style(BASE)

    def _head(self) -> Text:
        names = {"step": "step", "tok/s": "speed", "look": "age", "state": "state", "run": "name"}
        arrow = ("\u25be", "\u25b4") if self._utf8 else ("v", "^")
        mark = arrow[self.is_reversed]

        def head(word: str) -> str:
            return word + (mark if names.get(word) == self.order else "")

        words = [head(word) for word in ("state", "run", "target", "phase", "step", "tok/s", "look")]
        return Text(self._joined(words), style="bold underline")

    def _line(self, row: _Row) -> Text:
        state, phase, step, speed, age = row.cells
        name, target, *_ = widths = self._widths
        words = [
            state,
            squeezed(row.card.name, name, utf8=self._utf8),
            squeezed(row.card.target, target, utf8=self._utf8) if target else "",
            phase,
            step,
            speed,
            age,
        ]
        text = Text(self._joined(words))
        text.stylize(row.sign.style, 0, widths[2])
        is_past = row.sign.word in ("blind", "stale", "CT stopped", "CT frozen")
        if is_past:
            text.stylize("dim", widths[2] + 1 + len(words[1]))
        return text

    def _joined(self, words: Sequence[str]) -> str:
        name, target, state, phase, step, speed, age = self._widths
        cells = [set_cell_size(words[0], state), set_cell_size(words[1], name)]
        if target:
            cells.append(set_cell_size(words[2], target))
        cells.append(set_cell_size(words[3], phase))
        cells += [_right(word, wide) for word, wide in zip(words[4:], (step, speed, age), strict=True)]
        return " ".join(cells)


def _right(word: str, width: int) -> str:
    return " " * (width - cell_len(word)) + word if cell_len(word) <= width else set_cell_size(word, width)
