"""Which bytes of a file are known: sorted spans that neither touch nor overlap. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Span = tuple[int, int]  # from the first byte to the one after the last


class Spans:
    """A set of byte offsets."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in spans:
            self.add(start, stop)

    def __iter__(self) -> zip[Span]:
        return zip(self._starts, self._stops, strict=True)

    @property
    def stop(self) -> int:
        """The byte after the last known one."""
        return self._stops[-1] if self._stops else 0

    def add(self, start: int, stop: int) -> None:
        """Know [start, stop) too."""
        if start >= stop:
            return
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last], self._stops[first:last] = [start], [stop]

    def missing(self, start: int, stop: int) -> list[Span]:
        """Return what of [start, stop) is not known."""
        found = []
        for at in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[at] >= stop:
                break
            if self._starts[at] > start:
                found.append((start, self._starts[at]))
            start = self._stops[at]
        return [*found, (start, stop)] if start < stop else found

    def known(self, start: int, stop: int) -> list[Span]:
        """Return what of [start, stop) is known."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        pairs = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return [(max(start, a), min(stop, b)) for a, b in pairs]
