"""What covers the view for a while: a question, a text to read, the whole log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.actions import SkipAction
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from orchestrator.tui.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from orchestrator.fleet import LogLine
    from orchestrator.tui.logview import LogView


class Confirm(ModalScreen[bool]):
    """A question that only `y` answers with yes."""

    BINDINGS: ClassVar = [
        Binding("y,Y", "answer(True)", show=False),
        Binding("n,N,q,escape", "answer(False)", show=False),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question, self._consequence = question, consequence

    def compose(self) -> ComposeResult:
        """Lay it out."""
        with Vertical(id="question"):
            yield Static(Text(self._question, style="bold"))
            yield Static(Text(self._consequence))
            yield Static(Text("\ny  yes     n  no", style="bold"))

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - a key's word
        """Answer it."""
        self.dismiss(answer)


class Reader(Screen[None]):
    """A text as large as the screen, with search."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "leave", show=False),
        Binding("slash", "search", priority=True, show=False),
        Binding("n", "go_on(1)", show=False),
        Binding("N", "go_on(-1)", show=False),
    ]
    KEYS = "esc back  / search  n N next, previous  g G begin, end"

    def __init__(self, title: str, texts: Sequence[Text] = (), lines: Lines | None = None) -> None:
        super().__init__()
        self._title = title
        self._texts = texts
        self.lines = lines or Lines(id="text", hang=4)

    def compose(self) -> ComposeResult:
        """Lay it out."""
        yield Static(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), id="head")
        yield self.lines
        prompt = Input(id="prompt", compact=True, placeholder="search")
        prompt.display = False
        yield prompt
        yield Static(Text(self.KEYS, no_wrap=True, overflow="ellipsis"), id="foot")

    def on_mount(self) -> None:
        """Begin to read."""
        self.lines.focus()
        self.call_after_refresh(self.show, ())

    def show(self, texts: Sequence[Text]) -> None:
        """Show this; now, or as soon as there is a screen to show it on."""
        self._texts = texts or self._texts
        if self.lines.is_attached and self._texts:
            self.lines.show(self._texts)

    def tell(self, title: str) -> None:
        """Change the title."""
        if title != self._title:
            self._title = title
            self.query_one("#head", Static).update(Text(title, style="bold", no_wrap=True), layout=False)

    def action_leave(self) -> None:
        """Go back; of a search only that ends."""
        if self.query_one("#prompt").display:
            self._end_search()
        else:
            self.dismiss()

    def action_search(self) -> None:
        """Ask for what to search."""
        prompt = self.query_one("#prompt", Input)
        if prompt.display:
            raise SkipAction
        prompt.display, prompt.value = True, ""
        self.set_focus(prompt)

    def action_go_on(self, by: int) -> None:
        """Go to the next place."""
        if self.lines.pattern and not self.lines.go_on(by):
            self.app.bell()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search."""
        self._end_search()
        if not self.lines.search(event.value):
            self.tell(f"{self._title.partition(' - not found')[0]} - not found: {event.value!r}")

    def _end_search(self) -> None:
        self.query_one("#prompt").display = False
        self.set_focus(self.lines)


class LogScreen(Reader):
    """The log's end, as large as the screen."""

    BINDINGS: ClassVar = [Binding("w", "wrap", show=False), Binding("l", "leave", show=False)]
    KEYS = "esc back  / search  n N next, previous  G follow  w wrap"

    def __init__(self, title: str, log: LogView) -> None:
        super().__init__(title, lines=log)
        self.log_view = log
        self.run_title = title

    def feed(self, lines: Sequence[LogLine]) -> None:
        """Show more."""
        self.log_view.add(lines)
        self.tell(f"{self.run_title} - {'follows' if self.log_view.is_at_end else 'paused, G follows again'}")

    def action_wrap(self) -> None:
        """Fold long lines, or cut them."""
        self.log_view.toggle_wrap()
