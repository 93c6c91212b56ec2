"""Tell who else watches a run and acts, once each: two that decide alike make one attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.watch.events import Level

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.observe import Onlooker
    from orchestrator.watch.telling import Teller

WHY = "whichever starts the next attempt first, the other is refused and goes on watching"


class Company:
    """The other watchers of one run."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._others: tuple[Onlooker, ...] = ()

    def take(self, present: tuple[Onlooker, ...], now: datetime, *, acting: bool) -> None:
        """Tell who came and who left since the last time."""
        others = tuple(each for each in present if not each.is_me)
        detail: dict[str, object] = {"watchers": [each.json for each in others]}
        for each in others:
            if each not in self._others:
                why = f"; {WHY}" if acting and each.acts else ""
                self._tell(f"also watched by {each.text}{why}", now, detail)
        for each in self._others:
            if each not in others:
                self._tell(f"no longer watched by {each.text}", now, detail)
        self._others = others

    def _tell(self, text: str, now: datetime, detail: dict[str, object]) -> None:
        self._teller.emit("watchers", now, text, level=Level.INFO, detail=detail)
