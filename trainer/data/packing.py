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
MIN_FILLED = 0.95
"""Share of a row that is used when there are other buckets, or its documents are tried elsewhere."""


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
    """Pack all documents, the longest rows first.

    A document that fits a shorter bucket opens no longer row, but fills the gaps of those that are open. What
    fills no row well, or no last micro-batch, is packed into the longest rows in the end; only of those are
    any documents dropped, and others each epoch.

    Raises:
        ValueError: a document is longer than the longest bucket.
    """
    longest = buckets[-1].context_tokens
    if len(lengths) and int(lengths.max()) > longest:
        raise ValueError(f"a document of {int(lengths.max())} tokens; the longest row has {longest}")
    plan = _Plan(lengths, (seed, epoch))
    remaining = permutation(len(lengths), seed, "documents", epoch)
    left: list[Indices] = []
    last = len(buckets) - 1
    for index in range(last, -1 if last else last, -1):
        opens = buckets[index - 1].context_tokens + 1 if index else 0
        unused, remaining = plan.add(index, buckets[index], remaining, opens, MIN_FILLED)
        left.append(unused)
    dropped, _ = plan.add(last, buckets[-1], np.concatenate((*left, remaining)), 0, 0.0)
    return plan.finish(len(dropped))


class _Plan:
    """Collects rows, bucket after bucket."""

    def __init__(self, lengths: NDArray[np.int32], key: tuple[int, int]) -> None:
        self._lengths, self._key = lengths, key
        self._documents: list[Indices] = []
        self._ends: list[Indices] = [np.zeros(1, np.int64)]
        self._groups: list[tuple[int, Indices]] = []
        self._num_documents = self._num_rows = self._num_used = self._num_slots = 0

    def add(
        self, index: int, bucket: Bucket, chosen: Indices, opens: int, min_filled: float
    ) -> tuple[Indices, Indices]:
        """Pack these documents, of which those of `opens` tokens and more open rows.

        Returns the documents of rows that are in no micro-batch, and those that are in no row.
        """
        order, bounds = pack_rows(self._lengths[chosen], bucket.context_tokens, opens)
        documents, remaining = np.split(chosen[order], bounds[-1:])
        filled = np.diff(np.concatenate(([0], np.cumsum(self._lengths[documents], dtype=np.int64)))[bounds])
        rows = permutation(len(filled), *self._key, "rows", self._num_rows)
        rows = rows[filled[rows] >= min_filled * bucket.context_tokens]
        used = rows[: len(rows) // bucket.rows * bucket.rows]
        self._groups += [(index, group + self._num_rows) for group in used.reshape(-1, bucket.rows)]
        self._num_used += int(filled[used].sum())
        self._num_slots += len(used) * bucket.context_tokens
        self._documents.append(documents)
        self._ends.append(bounds[1:] + self._num_documents)
        self._num_documents += len(documents)
        self._num_rows += len(filled)
        is_unused = np.ones(len(filled), np.bool_)
        is_unused[used] = False
        return documents[np.repeat(is_unused, np.diff(bounds))], remaining

    def finish(self, num_dropped: int) -> Epoch:
        """Shuffle the micro-batches of all buckets together."""
        order = permutation(len(self._groups), *self._key, "micro-batches")
        return Epoch(
            np.concatenate(self._documents),
            np.concatenate(self._ends),
            tuple(self._groups[place] for place in order),
            num_dropped,
            self._num_used,
            self._num_slots,
        )


def pack_rows(lengths: NDArray[np.int32], capacity: int, opens: int = 0) -> tuple[Indices, Indices]:
    """Rows of at most `capacity` tokens: places in `lengths`, row after row, and where each row begins.

    Documents of fewer than `opens` tokens only fill gaps; those that do not come last, after all rows.
    """
    row_of = np.empty(len(lengths), np.int64)
    num_rows = 0
    for begin in range(0, len(lengths), WINDOW_DOCUMENTS):
        window = lengths[begin : begin + WINDOW_DOCUMENTS]
        order = np.argsort(-window, kind="stable")
        rows, used = _best_fit(window[order].tolist(), capacity, opens)
        placed = np.array(rows, np.int64)
        row_of[begin + order] = np.where(placed < 0, len(lengths), placed + num_rows)
        num_rows += used
    sizes = np.bincount(row_of, minlength=num_rows)[:num_rows]
    return np.argsort(row_of, kind="stable"), np.concatenate(([0], np.cumsum(sizes)))


def _best_fit(lengths: list[int], capacity: int, opens: int) -> tuple[list[int], int]:
    """The row of each document, the longest first, or -1, and how many rows there are."""
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
        elif length >= opens:
            row, left = num_rows, capacity - length
            num_rows += 1
        else:
            rows.append(-1)
            continue
        rows.append(row)
        if left >= least:
            insort(room, left << shift | row)
    return rows, num_rows
