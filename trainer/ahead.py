"""Things made by their index in a thread of their own, some ahead of whoever takes them one by one."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

CLOSE_S = 5.0
"""How long an end waits for what is being read: a disk that hangs must not keep the process."""


class Ahead(Generic[T]):
    """What `make` gives for an index, a pure function that compiles nothing; it runs in the thread alone.

    The thread is a daemon, and is ended by `close`: one that is busy while the interpreter goes would take
    the process down with it. Take and discard from one thread.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._asked: queue.SimpleQueue[tuple[int, Future[T]] | None] = queue.SimpleQueue()
        self._pending: dict[int, Future[T]] = {}
        self._thread: threading.Thread | None = None
        self.waited_s = 0.0
        """How long `take` has waited, in all."""

    def take(self, index: int, upcoming: Iterable[int] = ()) -> T:
        """That of `index`; those of `upcoming` are made next, and others that were asked for are forgotten.

        Raises what `make` raised for it.
        """
        before, self._pending = self._pending, {}
        future = before.pop(index) if index in before else self._ask(index)
        following = list(upcoming)
        self._pending = {each: before.pop(each) for each in following if each in before}
        for stale in before.values():
            stale.cancel()
        begun = time.monotonic()
        try:
            made = future.result()
        finally:
            self.waited_s += time.monotonic() - begun
        for each in following:  # only now, since a thread that wakes up takes this one's place
            if each not in self._pending:
                self._pending[each] = self._ask(each)
        return made

    def discard(self) -> None:
        """Forget what was asked for."""
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        """End the thread, after what it is at; nothing can be taken afterwards."""
        self.discard()
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(CLOSE_S)

    def _ask(self, index: int) -> Future[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="read-ahead", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._asked.put((index, future))
        return future

    def _work(self) -> None:
        while self._answer(self._asked.get()):
            pass

    def _answer(self, asked: tuple[int, Future[T]] | None) -> bool:
        """Make one; nothing of it is kept here afterwards, since it can be gigabytes."""
        if asked is None:
            return False
        index, future = asked
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._make(index))
            except BaseException as error:  # noqa: BLE001  # whoever takes it judges it
                future.set_exception(error)
        return True
