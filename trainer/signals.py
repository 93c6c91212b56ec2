"""SIGTERM, SIGINT and SIGUSR1 (Slurm's warning) ask for a checkpoint and an end; SIGUSR2 prints stacks.

A real-time signal writes them to the rank's own file, for a watcher; see DESIGN.md, `attempts/<n>/stacks`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SECOND_INTERRUPT_S = 2.0
# A program that does not know it would die of it, so no library sends it and the watcher only to who asked.
STACK_SIGNAL = signal.SIGRTMIN + 6


def print_stacks_on_request() -> None:
    """On SIGUSR2, write the stack of every thread to stderr and go on; on a crash as well."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)


def write_stacks_on_request(attempt: Path, rank: int) -> None:
    """On STACK_SIGNAL, append every thread's stack to `stacks/.rank-<rank>.<pid>.<signal>` of the attempt.

    The name and the open file say whom to ask and by which signal. Written by the C handler, so that a rank
    answers whose main thread waits in a lock or in a collective. A rank whose disk is full trains without.
    """
    with suppress(OSError):
        folder = attempt / "stacks"
        folder.mkdir(exist_ok=True)
        path = folder / f".rank-{rank}.{os.getpid()}.{int(STACK_SIGNAL)}"
        # Never closed: the handler needs it to the end, and faulthandler keeps it.
        file = path.open("a", encoding="utf-8")
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)


class StopSignals:
    """Remembers that a stop was asked for; the training loop looks after each step.

    A second SIGINT within two seconds raises KeyboardInterrupt at once, as whoever presses the keys expects.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._interrupted_at = float("-inf")
        self._name: str | None = None

    def install(self) -> StopSignals:
        """Handle the signals from now on; in the main thread alone."""
        for number in STOPPING:
            signal.signal(number, self._handle)
        return self

    # Plain attributes and no threading.Event: its lock may be held by the code that a handler interrupts.
    @property
    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._name is not None

    @property
    def name(self) -> str:
        """The first signal that asked, as `SIGTERM`; empty if none did."""
        return self._name or ""

    def is_set(self) -> bool:
        """`requested`, by the name of an event's method."""
        return self.requested

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._name is None:
            self._name = signal.Signals(number).name
        if number != signal.SIGINT:
            return
        before, self._interrupted_at = self._interrupted_at, self._now()
        if self._interrupted_at - before <= SECOND_INTERRUPT_S:
            raise KeyboardInterrupt
