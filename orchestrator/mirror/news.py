"""What a mirror has to tell: each removal, and once that it cannot be written, and once that it can again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from orchestrator.mirror.layout import RunKey
    from orchestrator.mirror.quota import Removal


@dataclass(frozen=True)
class News:
    """What is to be told; `key` None: it is about the mirror as a whole."""

    key: RunKey | None
    attempt: int | None
    text: str
    is_bad: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


class Board:
    """The news, from the mirror's thread to the watch's."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()
        self._problem: str | None = None  # that was told
        self._left_out = 0  # bytes

    def take(self) -> list[News]:
        """Return what is to be told, each once."""
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    def of_run(self, key: RunKey, attempt: int | None, text: str) -> None:
        """Something of a run that is no fault."""
        self._news.append(News(key, attempt, text))

    def removal(self, removal: Removal) -> None:
        """The quota took something."""
        detail = {"bytes": removal.size, "from": removal.start, "to": removal.stop, "by": removal.by}
        self._news.append(News(removal.key, removal.attempt, removal.text, is_bad=True, detail=detail))

    def state(self, problem: str | None, left_out: int, root: Path, *, is_calm: bool) -> None:
        """How the last writing went: why it did not, and the bytes that were left out since the last word."""
        self._left_out += left_out
        if problem is None and self._left_out and self._problem is None:
            problem = f"the disk is slower than what comes ({root})"
        if problem is not None:
            self.fault(f"cannot be written: {problem}; the watch goes on without", problem)
        elif self._problem is not None and is_calm:
            text = f"the copies of logs are written again; {size_text(self._left_out)} of them were left out"
            self._news.append(News(None, None, text, detail={"left_out_bytes": self._left_out}))
            self._problem, self._left_out = None, 0

    def fault(self, text: str, problem: str) -> None:
        """Tell it, unless something like it was told and is not over."""
        if self._problem is None:
            self._problem = problem
            self._news.append(News(None, None, f"the copies of logs {text}", is_bad=True))

    def late(self, limit_s: float) -> None:
        """The end was not waited for any longer."""
        text = f"the copies of logs: their disk took nothing for {limit_s:g} s before the watch ended"
        self._news.append(News(None, None, text, is_bad=True))
