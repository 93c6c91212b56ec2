"""What takes time, done beside the drawing: the record, a container. The view itself takes in its end."""

from __future__ import annotations

import threading
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from orchestrator.contained import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Errands:
    """One at a time of each kind. Daemon threads: leaving waits for none that a blind host holds."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._ended: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and all ends were taken in."""
        return not self._busy and self._ended.empty()

    def is_busy(self, kind: str) -> bool:
        """Whether one of this kind is under way."""
        return kind in self._busy

    def begin(
        self,
        kind: str,
        work: Callable[[], Iterator[T]],
        then: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> bool:
        """Begin it; `then` gets each thing that it yields. False if one of its kind is under way."""
        if kind in self._busy:
            return False
        self._busy.add(kind)

        def run() -> None:
            with contained(lambda error: self._ended.put(lambda: failed(error))):
                for each in work():
                    self._ended.put(partial(then, each))
            self._ended.put(lambda: self._busy.discard(kind))

        threading.Thread(target=run, name=f"view {kind}", daemon=True).start()
        return True

    def take_in(self) -> None:
        """Call what waits; for the view's own thread."""
        while True:
            try:
                call = self._ended.get_nowait()
            except Empty:
                return
            call()
