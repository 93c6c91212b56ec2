"""The runs: one row each, sorted and filtered; only the rows in sight are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView

from orchestrator.tui.columns import ORDERS, Columns, row_of
from orchestrator.tui.lines import BASE, strip_of
from orchestrator.tui.words import sign_of, squeezed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from textual import events
    from textual.strip import Strip

    from orchestrator.fleet import RunCard
    from orchestrator.tui.columns import Row

HINT = ("no run yet; start one in another terminal:", "  dflashctl launch --host HOST --ct CT")


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
        self._rows: list[Row] = []
        self._fitted: tuple[int, Columns] | None = None  # at a width of all
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
            row_of(card, now, utf8=self._utf8)
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

    @property
    def _columns(self) -> Columns:
        room = self.size.width - (len(self._rows) >= self.size.height)  # beside the scroll bar
        if self._fitted is None or self._fitted[0] != room:
            self._fitted = (room, Columns.fit(self._rows, room))
        return self._fitted[1]

    def render_line(self, y: int) -> Strip:
        """Draw the head, a run, or how to start one."""
        number = y - 1 + self.scroll_offset.y
        if not self._cards:
            text = Text(HINT[y - 1] if 0 < y <= len(HINT) else "", style="bold" if y == 2 else "")
        elif y == 0:
            marks = ("\u25be", "\u25b4") if self._utf8 else ("v", "^")
            text = Text(self._columns.head(self.order, marks[self.is_reversed]), style="bold underline")
        elif number < len(self._rows):
            text = self._line(self._rows[number])
        else:
            is_first = not self._rows and y == 1
            word = squeezed(self.filter, 20).strip()
            text = Text(f"none of {len(self._cards)} runs has {word!r}" if is_first else "")
        return strip_of(text, self.app.console).crop_extend(0, self.size.width, BASE).apply_style(BASE)

    def _line(self, row: Row) -> Text:
        columns = self._columns
        text = Text(columns.line(row, utf8=self._utf8))
        text.stylize(row.sign.style, 0, columns.state)
        if row.is_past:
            text.stylize("dim", len(text.plain) - sum(columns[3:]) - len(columns[3:]))
        if row.card.id == self.chosen:
            text.append(" " * max(0, self.size.width - text.cell_len))
            text.stylize(Style(reverse=True, bold=self.has_focus))
        return text
