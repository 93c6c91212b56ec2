"""What a person asks of a run from a view: stop it, or start its next attempt. One at a time for each run.

Each is done in a thread of its own, the same way as the verbs of the command line do it; the loop's thread
tells what came of it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from orchestrator.contained import contained
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.operate import Operator
from orchestrator.watch.events import Level, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.clock import Clock
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site
    from orchestrator.watch.events import Sink

logger = logging.getLogger(__name__)


class OpenSite(Protocol):
    """Makes a way to a run's container that is its caller's own to close."""

    def __call__(self, row: RunRow) -> Site:
        """Return it; connects to nothing yet."""
        ...


@dataclass(frozen=True)
class _Heard:
    row: RunRow
    kind: str
    text: str
    level: Level


class Asking:
    """The asked acts of one fleet."""

    def __init__(self, record: Record, clock: Clock, open_site: OpenSite) -> None:
        self._record = record
        self._clock = clock
        self._open_site = open_site
        self._busy: dict[
            int, tuple[str, threading.Thread]
        ] = {}  # by the run's id: its name, and who is at it
        self._lock = threading.Lock()
        self._heard: SimpleQueue[_Heard] = SimpleQueue()

    def stop(self, row: RunRow, *, asked_by: str) -> None:
        """Begin to stop it for good.

        Raises:
            ConfigError: It is being stopped or relaunched already.
        """

        def work(operator: Operator) -> str:
            stopped = operator.stop(row, reason=asked_by)
            return "was not running" if stopped.get("already") else "stopped by its user"

        self._begin(row, "stopping, as asked", work)

    def relaunch(self, row: RunRow, *, asked_by: str) -> None:
        """Begin to stop what lives of it and to start its next attempt from the last checkpoint, unchanged.

        Raises:
            ConfigError: It is being stopped or relaunched already.
        """

        def work(operator: Operator) -> str:
            launched = operator.relaunch(row, lambda spec: spec, reason=f"relaunched by its user, {asked_by}")
            resumes = launched.resumes_at
            at = f", resumes at step {resumes}" if resumes is not None else ""
            return f"attempt {launched.attempt} started{at}"

        self._begin(row, "relaunching, as asked", work)

    def is_busy(self, run_id: int) -> bool:
        """Whether something asked is under way."""
        return run_id in self._busy

    @property
    def under_way(self) -> list[str]:
        """The runs of which something asked is under way."""
        return sorted(name for name, _ in tuple(self._busy.values()))

    def join(self, limit_s: float) -> list[str]:
        """Wait for it: a relaunch cut in two is left to the next watch. Return whose is not over."""
        deadline = time.monotonic() + limit_s
        for _, thread in tuple(self._busy.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        return self.under_way

    def tell(self, sink: Sink) -> None:
        """Tell what came of what was asked; called in the loop's thread."""
        while True:
            try:
                heard = self._heard.get_nowait()
            except Empty:
                return
            sink.emit(
                WatchEvent(
                    kind=heard.kind, at=self._clock.now(), run=heard.row.name, target=heard.row.target_key,
                    attempt=None, text=heard.text, level=heard.level,
                )
            )  # fmt: skip

    def _begin(self, row: RunRow, words: str, work: Callable[[Operator], str]) -> None:
        with self._lock:
            if row.id in self._busy:
                raise ConfigError(
                    f"{row.name}: something asked before is still under way", hint="wait for its outcome"
                )
            # A daemon: whoever leaves waits a while, but not for ever; the intent is on disk.
            name = f"asked {row.name}"
            thread = threading.Thread(target=self._work, args=(row, work), name=name, daemon=True)
            self._busy[row.id] = (row.name, thread)
            self._heard.put(_Heard(row, "act", words, Level.INFO))
            thread.start()

    def _work(self, row: RunRow, work: Callable[[Operator], str]) -> None:
        def failed(error: Exception) -> None:
            if not isinstance(error, OrchestratorError):
                logger.error("an asked act failed", exc_info=error, extra={"run": row.name})
            hint = getattr(error, "hint", None)
            text = f"not done: {error}" + (f"; {hint}" if hint else "")
            self._heard.put(_Heard(row, "outcome", text, Level.BAD))

        try:
            with contained(failed):
                site = self._open_site(row)
                try:
                    text = work(Operator(site, self._record, self._clock))
                finally:
                    site.close()
                self._heard.put(_Heard(row, "outcome", text, Level.GOOD))
        finally:
            with self._lock:
                self._busy.pop(row.id, None)
