"""Bytes of an attempt's log by offset, from the copy here or from the container.

A range costs only what it holds, however long the log is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import BlindError, CommandTimeout, GuestRefused, NotFound
from orchestrator.wire import unpack_bytes

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.record import RunRow
    from orchestrator.serve.copies import Copies
    from orchestrator.site import Site

MAX_BYTES = 1 << 20
DEFAULT_BYTES = 64 << 10
LIMIT_S = 20.0
MAX_SITES = 16
IDLE_S = 120.0


@dataclass(frozen=True)
class Piece:
    """A range of a log. `size`: of the whole log when it was read; `source`: `container` or `mirror`."""

    attempt: int
    start: int
    data: bytes
    size: int
    source: str


class OpenSite(Protocol):
    """Makes a way to a run's container that is its caller's own to close."""

    def __call__(self, row: RunRow) -> Site:
        """Return it; connects to nothing yet."""
        ...


@dataclass
class _Way:
    site: Site
    used_at: float
    lock: threading.Lock


class LogReader:
    """Reads logs over ways of its own, so that a reader never holds up the watch. Any thread may call."""

    def __init__(self, open_site: OpenSite, clock: Clock, copies: Copies | None = None) -> None:
        self._open_site = open_site
        self._copies = copies
        self._clock = clock
        self._ways: OrderedDict[str, _Way] = OrderedDict()  # by target
        self._lock = threading.Lock()

    def read(self, row: RunRow, attempt: int | None, start: int, length: int, newest: int | None) -> Piece:
        """Return up to `length` bytes from `start`; a negative `start` counts from the end.

        `attempt` None means the newest, which is `newest` as far as is known here. The copy is taken where it
        has the whole range, and where the container cannot be reached as far as it goes.

        Raises:
            NotFound: There is no such attempt.
            BlindError: The container cannot be reached, or did not answer in time, and no copy is here.
        """
        length, number = min(length, MAX_BYTES), attempt or newest
        part = self._copies.read(row, number, start, length) if self._copies and number else None
        if part is not None and number is not None and part.is_whole:
            return Piece(number, part.start, part.data, part.size, "mirror")
        try:
            return self._far(row, attempt, start, length)
        except BlindError:
            if part is None or number is None or (length and not part.data and part.start < part.size):
                raise
            return Piece(number, part.start, part.data, part.size, "mirror")

    def _far(self, row: RunRow, attempt: int | None, start: int, length: int) -> Piece:
        way = self._way(row)
        if not way.lock.acquire(timeout=LIMIT_S):
            raise CommandTimeout(f"{row.target_key}: others wait for a log there already")
        try:
            return _read(way.site, self._clock, row.name, attempt, start, length)
        except BlindError:
            way.site.drop()  # the next one connects anew
            raise
        except GuestRefused as refusal:
            if refusal.reason != "not_found":
                raise
            raise NotFound(refusal.message) from refusal
        finally:
            way.lock.release()

    def size_here(self, row: RunRow, attempt: int) -> int:
        """Return how much of a log was seen by whoever keeps the copy."""
        is_here = self._copies is not None and attempt in self._copies.attempts(row)
        return self._copies.size(row, attempt) if self._copies is not None and is_here else 0

    def sweep(self) -> None:
        """Close what was not used for a while."""
        ticks = self._clock.monotonic()
        with self._lock:
            old = [key for key, way in self._ways.items() if ticks - way.used_at > IDLE_S]
            ways = [self._ways.pop(key) for key in old]
        for way in ways:
            way.site.close()

    def close(self) -> None:
        """Close every way; whoever reads gets a BlindError."""
        with self._lock:
            ways, self._ways = list(self._ways.values()), OrderedDict()
        for way in ways:
            way.site.close()

    def _way(self, row: RunRow) -> _Way:
        dropped = None
        with self._lock:
            way = self._ways.pop(row.target_key, None)
            if way is None:
                way = _Way(self._open_site(row), 0.0, threading.Lock())
            way.used_at = self._clock.monotonic()
            self._ways[row.target_key] = way
            if len(self._ways) > MAX_SITES:
                dropped = self._ways.popitem(last=False)[1]
        if dropped is not None:
            dropped.site.close()
        return way


def _read(site: Site, clock: Clock, run: str, attempt: int | None, start: int, length: int) -> Piece:
    request: dict[str, object] = {
        "state_dir": site.state_dir,
        "run": run,
        "attempt": attempt,
        "limit": length,
    }
    request |= {"offset": start} if start >= 0 else {"last_bytes": -start}
    stream = site.client().watch(request, verb="tail")
    deadline = clock.monotonic() + LIMIT_S
    data, begin = bytearray(), None
    try:
        while (left_s := deadline - clock.monotonic()) > 0:
            message = stream.read(left_s)
            if message is None:
                break
            if message["type"] == "end":
                size = int(message["size"])
                place = begin if begin is not None else min(start, size) if start >= 0 else size
                return Piece(int(message["attempt"]), place, bytes(data), size, "container")
            begin = int(message["offset"]) if begin is None else begin
            data += unpack_bytes(message["data"])
    finally:
        stream.close()
    raise CommandTimeout(f"{site.target_key}: the log did not come within {LIMIT_S:.0f} s")
