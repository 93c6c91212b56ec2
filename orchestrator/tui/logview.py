"""The end of a run's log: it follows, is searched, and stays where it is read while more comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.terminal import clean, plain
from orchestrator.tui.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.fleet import LogLine

MAX_LINES = 4_000


class LogView(Lines):
    """Log lines by the trainer's own colours."""

    def __init__(self, *, id: str, wraps: bool = False, colours: bool = True) -> None:
        super().__init__(id=id, wraps=wraps, follows=True)
        self._colours = colours
        self._attempt: int | None = None
        self._seq = 0  # of the last line

    def clear(self) -> None:
        """Begin with another run."""
        self._attempt, self._seq = None, 0
        self.show([])

    def take_over(self, other: LogView) -> None:
        """Show what the other one shows."""
        self._attempt, self._seq = other._attempt, other._seq
        self.show(other.texts)
        self.go_to_end()

    def add(self, lines: Sequence[LogLine]) -> None:
        """Show more at the end; what is there already is left out."""
        lines = [line for line in lines if not line.seq or line.seq > self._seq]
        if not lines:
            return
        self._seq = max(self._seq, lines[-1].seq)
        added = [text for line in lines for text in self._texts_of(line)]
        was_at_end, top = self.is_at_end, self.scroll_offset.y
        rows = len(self._rows)
        surplus = len(self.texts) + len(added) - MAX_LINES
        self.texts = [*self.texts[max(0, surplus) :], *added] if surplus > 0 else [*self.texts, *added]
        if surplus > 0 or self._wrapped_at != self.size.width:
            gone = self._first_rows[surplus] if 0 < surplus < len(self._first_rows) else rows
            self._fold()
            if surplus > 0 and not was_at_end:
                self.scroll_to(y=max(0, top - gone), animate=False, immediate=True)
        else:
            self._append(added)
        if was_at_end:
            self.go_to_end()
        self.refresh()

    def _append(self, added: Sequence[Text]) -> None:
        wide = self.virtual_size.width
        for text in added:
            self._first_rows.append(len(self._rows))
            self._rows += self._folded(text, self._wrapped_at - self.beside)
            wide = wide if self.wraps else max(wide, text.cell_len)
        self.virtual_size = self.virtual_size.with_width(wide).with_height(len(self._rows))

    def _texts_of(self, line: LogLine) -> list[Text]:
        texts = []
        if line.attempt not in (None, self._attempt):
            if self._attempt is not None or line.attempt != 1:
                texts.append(Text(f"--- attempt {line.attempt} ---", style="bold"))
            self._attempt = line.attempt
        said = clean(line.text) if self._colours else plain(line.text)
        for part in said.expandtabs(8).split("\n"):
            texts.append(Text.from_ansi(part) if "\x1b" in part else Text(part))
        return texts
