"""Lines of text that scroll; only those in sight are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from textual import events

MAX_WRAPPED = 40  # rows of one line
FOUND = Style(reverse=True, bold=True)
BASE = Style(color="default", bgcolor="default")  # the terminal's own; asking textual costs as much as a line


def strip_of(text: Text, console: Console) -> Strip:
    """Return a text as it is drawn; rich leaves the style of a text without spans to who prints it."""
    strip = Strip(text.render(console))
    return strip.apply_style(console.get_style(text.style)) if text.style else strip


class Lines(ScrollView, can_focus=True):
    """Shows texts one below the other; `wraps` folds what is too wide, `follows` keeps the end in sight."""

    BINDINGS: ClassVar = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
        Binding("space", "page_down", show=False),
        Binding("b", "page_up", show=False),
    ]

    def __init__(  # `id` is textual's word
        self,
        *,
        id: str,
        wraps: bool = True,
        follows: bool = False,
        hang: int = 0,
    ) -> None:
        super().__init__(id=id)
        self.beside = 1  # columns kept free, for the scroll bar
        self._hang = hang  # by so much the later rows of a text are set in
        self.wraps = wraps
        self.follows = follows
        self.texts: list[Text] = []
        self._rows: list[Text] = []
        self._first_rows: list[int] = []  # of each text
        self._wrapped_at = 0
        self.pattern = ""  # what is searched for
        self._mark = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the last line is in sight."""
        return self.scroll_offset.y >= self.max_scroll_y

    def show(self, texts: Sequence[Text]) -> None:
        """Show these; what is in sight stays there, or goes on to the end if that was in sight."""
        if self.texts == texts:
            return
        was_at_end = self.is_at_end
        self.texts = list(texts)
        self._fold()
        if self.follows and was_at_end:
            self.go_to_end()
        self.refresh()

    def go_to_end(self) -> None:
        """Bring the last line in sight."""
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True, immediate=True)

    def row_of(self, number: int) -> int:
        """Return the first row of a text."""
        return self._first_rows[number] if number < len(self._first_rows) else 0

    def search(self, pattern: str) -> bool:
        """Go to the newest line that has it in it, any case; whether there is one. Empty: mark nothing."""
        self.pattern = pattern
        self.refresh()
        return not pattern or self.go_on(-1, from_end=True)

    def go_on(self, by: int, *, from_end: bool = False) -> bool:
        """Go to the next line that has it (`by` 1), or the one before (-1); whether there is one."""
        if not self.pattern:
            return False
        word = self.pattern.casefold()
        places = [n for n, text in enumerate(self.texts) if word in text.plain.casefold()]
        if not places:
            return False
        here = len(self.texts) if from_end else self._mark
        ahead = [n for n in places if (n > here if by > 0 else n < here)]
        self._mark = (ahead[0] if by > 0 else ahead[-1]) if ahead else (places[0] if by > 0 else places[-1])
        room = max(1, self.size.height)
        self.scroll_to(y=max(0, self.row_of(self._mark) - room // 2), animate=False, immediate=True)
        self.refresh()
        return True

    def _marked(self, text: Text) -> Text:
        if not self.pattern or self.pattern.casefold() not in text.plain.casefold():
            return text
        marked, word, low = text.copy(), self.pattern.casefold(), text.plain.casefold()
        at = low.find(word)
        while at >= 0:
            marked.stylize(FOUND, at, at + len(word))
            at = low.find(word, at + len(word))
        return marked

    def on_resize(self, _event: events.Resize) -> None:
        """Fold anew."""
        if self.size.width != self._wrapped_at:
            was_at_end = self.follows and self.is_at_end
            self._fold()
            if was_at_end:
                self.call_after_refresh(self.go_to_end)

    def _fold(self) -> None:
        self._wrapped_at = self.size.width
        width = self._wrapped_at - self.beside
        self._rows, self._first_rows = [], []
        for text in self.texts:
            self._first_rows.append(len(self._rows))
            self._rows += self._folded(text, width)
        wide = self._wrapped_at if self.wraps else max((text.cell_len for text in self.texts), default=0)
        self.virtual_size = Size(wide, len(self._rows))

    def _folded(self, text: Text, width: int) -> list[Text]:
        if not self.wraps or width < 8 or text.cell_len <= width:
            return [text]
        hang = self._hang if width > 4 * self._hang else 0
        first, *more = text.wrap(self.app.console, width)[:MAX_WRAPPED]
        if not hang or not more:
            return [first, *more]
        rest = text[len(first.plain) :]
        start = len(rest.plain) - len(rest.plain.lstrip())
        again = rest[start:].wrap(self.app.console, width - hang)[:MAX_WRAPPED]
        return [first, *(Text(" " * hang).append_text(row) for row in again)]

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        left, top = self.scroll_offset
        width, row = self.size.width, top + y
        if not 0 <= row < len(self._rows):
            return Strip.blank(width, BASE)
        strip = strip_of(self._marked(self._rows[row]), self.app.console)
        return strip.crop_extend(left, left + width, BASE).apply_style(BASE)

    def toggle_wrap(self) -> None:
        """Fold long lines, or show them cut."""
        was_at_end = self.is_at_end
        self.wraps = not self.wraps
        self._fold()
        if was_at_end:
            self.go_to_end()
        self.refresh()
