"""What a watch tells a person: one value per thing told, drawn by whichever sink is in use. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class Level(str, Enum):
    """How loud a thing is told."""

    DETAIL = "detail"
    INFO = "info"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """One thing told.

    `kind`: host, log, metrics, attempt, state, diagnosis, prediction, decision, act, outcome, blind, gate,
    guard, stacks, pattern, disk, session, fault, notify, mirror.
    """

    kind: str
    at: datetime
    run: str
    target: str
    attempt: int | None
    text: str
    level: Level = Level.INFO
    detail: Mapping[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Where events go."""

    def emit(self, event: WatchEvent) -> None:
        """Show or store one event."""
        ...

    def refresh(self) -> None:
        """Redraw what shows the present; called a few times a second."""
        ...
