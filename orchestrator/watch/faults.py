"""Faults of one run, kept from the others."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.contained import contained
from orchestrator.errors import RecordError
from orchestrator.watch.events import Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.clock import Clock
    from orchestrator.watch.runwatch import RunWatch

logger = logging.getLogger(__name__)

AFTER_FAULT_S = 10.0


class Faults:
    """One watch's: which runs had a fault a moment ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[int, float] = {}

    def is_recent(self, run: RunWatch) -> bool:
        """Whether the run had a fault within AFTER_FAULT_S; it does not act so soon."""
        return self._clock.monotonic() < self._until.get(run.row.id, 0.0)

    @contextmanager
    def contained(self, run: RunWatch, what: str, *, is_deafening: bool = True) -> Iterator[None]:
        """One run's fault must not blind the others; that run does not act for a while, and it is told.

        Raises:
            RecordError, OSError: Of the record, or of our own output: there is no going on.
        """

        def tell(error: Exception) -> None:
            now, ticks = self._clock.now(), self._clock.monotonic()
            if is_deafening:
                run.deafen(f"{what}: {error!r}", now)
            if ticks < self._until.get(run.row.id, 0.0):
                return
            # What a container sends is its own doing; a turn that fails is ours, and wants its traceback.
            level = logging.INFO if is_deafening else logging.ERROR
            logger.log(level, "%s: %s", run.row.name, what, exc_info=error)
            run.teller.emit("fault", now, f"{what}: {error!r}", level=Level.BAD)
            self._until[run.row.id] = ticks + AFTER_FAULT_S

        with contained(tell, lets=(RecordError, OSError)):
            yield
