"""A thread that feeds a watch's queue with what it sees at one place, until it is stopped."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from queue import Full
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from queue import Queue

    from orchestrator.clock import Clock

PUT_S = 0.5
T = TypeVar("T")


class Feeder(threading.Thread, Generic[T]):
    """Its `run` says what it sees; `backoff_s` are the seconds between tries, the last for all after it."""

    def __init__(self, name: str, out: Queue[T], clock: Clock, backoff_s: Sequence[float]) -> None:
        super().__init__(name=name, daemon=True)
        self._out = out
        self._clock = clock
        self._backoff_s = backoff_s
        self._ending = threading.Event()
        self._failures = 0

    def stop(self) -> None:
        """Ask the thread to end; it does within a second."""
        self._ending.set()

    def _put(self, observation: T) -> None:
        """Hand it over; a full queue holds us back, and through us the far side, but never past `stop`."""
        while not self._ending.is_set():
            with suppress(Full):
                self._out.put(observation, timeout=PUT_S)
                return

    def _next_wait_s(self) -> float:
        """Count a failure; return how long to wait before the next try."""
        wait_s = self._backoff_s[min(self._failures, len(self._backoff_s) - 1)] * random.uniform(0.8, 1.2)
        self._failures += 1
        return wait_s
