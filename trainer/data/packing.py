"""Which documents share a row, and which rows a micro-batch: a pure function of lengths, seed and epoch.

Documents are shuffled, and window by window packed best-fit-decreasing: the longest first, each into the row
where it leaves the least room. Rows are shuffled, and those of one bucket grouped into micro-batches.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainer.data.buckets import Bucket

    Indices = NDArray[np.int64]

WINDOW_DOCUMENTS = 8192


@dataclass(frozen=True, slots=True)
class Epoch:
    """Every micro-batch of an epoch."""

    documents: Indices
    """Document indices, row after row."""
    row_bounds: Indices
    """[rows + 1] where in `documents` each row begins."""
    micro_batches: tuple[tuple[int, Indices], ...]
    """Of each micro-batch, its bucket's index and its rows."""
    num_dropped: int
    """Documents of the rows that did not fill a last micro-batch."""
    num_used: int
    """Tokens in the micro-batches."""
    num_slots: int
    """Tokens that they have room for."""

    @property
    def efficiency(self) -> float:
        """Share of the room that is used."""
        return self.num_used / max(1, self.num_slots)

    def rows(self, micro_batch: int) -> tuple[int, list[Indices]]:
        """Bucket index, and the documents of each row, of one micro-batch."""
        bucket, rows = self.micro_batches[micro_batch]
        return bucket, [self.documents[self.row_bounds[row] : self.row_bounds[row + 1]] for row in rows]


def permutation(count: int, *key: object) -> Indices:
    """An order of `count` things, which depends on nothing but the arguments, not on numpy's version.

    By splitmix64 (Steele, Lea, Flood 2014) of each place.
    """
    seed = hashlib.sha256("/".join(map(str, key)).encode()).digest()[:8]
    state = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(seed, "<u8")
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")


def plan_epoch(lengths: NDArray[np.int32], buckets: Sequence[Bucket], seed: int, epoch: int) -> Epoch:
    """Pack all documents; each goes to the shortest bucket that it fits, the shortest buckets first.

    Rows that do not fill a micro-batch are taken apart, and their documents tried in the next longer bucket;
    only of the longest are any dropped, and others each epoch.

    Raises:
        ValueError: a document is longer than the longest bucket.
    """
    order = permutation(len(lengths), seed, "documents", epoch)
    capacities = np.array([bucket.context_tokens for bucket in buckets])
    fits = np.searchsorted(capacities, lengths[order])
    if len(order) and int(fits.max()) == len(buckets):
        raise ValueError(f"a document of {int(lengths.max())} tokens; the longest row has {capacities[-1]}")
    plan = _Plan()
    left = order[:0]
    for index, bucket in enumerate(buckets):
        chosen = np.concatenate((order[fits == index], left))
        documents, bounds = pack_rows(lengths[chosen], bucket.context_tokens)
        rows = permutation(len(bounds) - 1, seed, "rows", index, epoch)
        left = plan.add(index, bucket.rows, chosen[documents], bounds, rows)
    return plan.finish(lengths, capacities, len(left), (seed, "micro-batches", epoch))


class _Plan:
    """Collects rows, bucket after bucket."""

    def __init__(self) -> None:
        self._documents: list[Indices] = []
        self._ends: list[Indices] = [np.zeros(1, np.int64)]
        self._groups: list[tuple[int, Indices]] = []
        self._num_documents = self._num_rows = 0

    def add(self, bucket: int, group: int, documents: Indices, bounds: Indices, rows: Indices) -> Indices:
        """Group the rows in this order; returns the documents of those that are left over."""
        full = len(rows) // group * group
        self._groups += [(bucket, chosen + self._num_rows) for chosen in rows[:full].reshape(-1, group)]
        self._documents.append(documents)
        self._ends.append(bounds[1:] + self._num_documents)
        self._num_documents += len(documents)
        self._num_rows += len(rows)
        if full == len(rows):
            return documents[:0]
        return np.concatenate([documents[bounds[row] : bounds[row + 1]] for row in np.sort(rows[full:])])

    def finish(
        self, lengths: NDArray[np.int32], capacities: Indices, dropped: int, key: tuple[object, ...]
    ) -> Epoch:
        """Shuffle the micro-batches of all buckets together."""
        documents, bounds = np.concatenate(self._documents), np.concatenate(self._ends)
        filled = np.diff(np.concatenate(([0], np.cumsum(lengths[documents], dtype=np.int64)))[bounds])
        used = sum(int(filled[rows].sum()) for _, rows in self._groups)
        slots = sum(int(capacities[bucket]) * len(rows) for bucket, rows in self._groups)
        order = permutation(len(self._groups), *key)
        return Epoch(documents, bounds, tuple(self._groups[place] for place in order), dropped, used, slots)


def pack_rows(lengths: NDArray[np.int32], capacity: int) -> tuple[Indices, Indices]:
    """Rows of at most `capacity` tokens: places in `lengths`, row after row, and where each row begins."""
    row_of = np.empty(len(lengths), np.int64)
    num_rows = 0
    for begin in range(0, len(lengths), WINDOW_DOCUMENTS):
        window = lengths[begin : begin + WINDOW_DOCUMENTS]
        order = np.argsort(-window, kind="stable")
        rows, used = _best_fit(window[order].tolist(), capacity)
        row_of[begin + order] = np.array(rows, np.int64) + num_rows
        num_rows += used
    sizes = np.bincount(row_of, minlength=num_rows)
    return np.argsort(row_of, kind="stable"), np.concatenate(([0], np.cumsum(sizes)))


def _best_fit(lengths: list[int], capacity: int) -> tuple[list[int], int]:
    """The row of each document, the longest first, and how many rows there are."""
    shift = len(lengths).bit_length()  # a row with room is one number: its room, then its index
    mask = (1 << shift) - 1
    least = lengths[-1] if lengths else 0
    room: list[int] = []
    rows: list[int] = []
    num_rows = 0
    for length in lengths:
        place = bisect_left(room, length << shift)
        if place < len(room):
            found = room.pop(place)
            row, left = found & mask, (found >> shift) - length
        else:
            row, left = num_rows, capacity - length
            num_rows += 1
        rows.append(row)
        if left >= least:
            insort(room, left << shift | row)
    return rows, num_rows
