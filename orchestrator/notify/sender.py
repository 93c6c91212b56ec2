"""The threads that send: one a target, each with a bounded queue, so that none waits for another's answer."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestrator.contained import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

MAX_WAITING = 64
RETRY_AFTER_S = (2.0, 10.0)
CLOSE_S = 20.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Report(Generic[T]):
    """How a sending went: `problem` is None for one that went."""

    name: str
    item: T
    problem: str | None


class Worker(threading.Thread, Generic[T]):
    """Sends what is posted, in order; what fails is tried again a few times, then reported as lost."""

    def __init__(
        self,
        name: str,
        send: Callable[[T], str | None],
        reports: queue.SimpleQueue[Report[T]],
        *,
        max_waiting: int = MAX_WAITING,
        retry_after_s: Sequence[float] = RETRY_AFTER_S,
    ) -> None:
        super().__init__(name=f"notify {name}", daemon=True)  # a target that never answers holds up no end
        self.target = name
        self._call = send
        self._reports = reports
        self._retry_after_s = retry_after_s
        self._waiting: queue.Queue[T] = queue.Queue(max_waiting)
        self._closing = threading.Event()

    def post(self, item: T) -> bool:
        """Take it to be sent; never waits. False if the queue is full, which is reported."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._reports.put(Report(self.target, item, "it is too slow, and its queue is full"))
            return False
        return True

    @property
    def num_waiting(self) -> int:
        """How many are not sent yet."""
        return self._waiting.unfinished_tasks

    def run(self) -> None:
        """Send until closed and nothing is left."""
        while True:
            try:
                item = self._waiting.get(timeout=_POLL_S)
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            self._reports.put(Report(self.target, item, self._send(item)))
            self._waiting.task_done()

    def _send(self, item: T) -> str | None:
        problem = self._try(item)
        for pause_s in self._retry_after_s:
            if problem is None or self._closing.wait(pause_s):
                break
            problem = self._try(item)
        return problem

    def _try(self, item: T) -> str | None:
        problem: list[str | None] = []
        # A plugin's fault is its target's, and may quote its URL.
        with contained(lambda error: problem.append(f"a fault: {type(error).__name__}")):
            problem.append(self._call(item))
        return problem[0]

    def close(self) -> None:
        """Send what waits, each once, and end; returns at once."""
        self._closing.set()


def join(workers: Sequence[Worker[T]], limit_s: float = CLOSE_S) -> list[tuple[str, int]]:
    """Close them and wait, not longer than the limit; return who has how many that did not go."""
    for worker in workers:
        worker.close()
    deadline = time.monotonic() + limit_s
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    return [(worker.target, worker.num_waiting) for worker in workers if worker.is_alive()]
