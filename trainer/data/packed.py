"""Micro-batches of a token store: each epoch packed anew, the held-out documents always in the same way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch

from trainer.batch import Batch, Document, pack
from trainer.data.packing import Epoch, pack_rows, plan_epoch
from trainer.errors import DataInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer.data.buckets import Bucket
    from trainer.data.packing import Indices
    from trainer.data.store import Part


def document(part: Part, index: int) -> Document:
    """One document of a store."""
    tokens, supervised = part.read(index)
    return Document(torch.from_numpy(tokens), torch.from_numpy(supervised))


class PackedLayout:
    """Micro-batches of packed rows, epoch after epoch."""

    def __init__(self, part: Part, buckets: Sequence[Bucket], seed: int, tell: Callable[[str], None]) -> None:
        """`tell` is given a line about each epoch that is packed.

        Raises:
            DataInvalid: the documents do not fill one micro-batch.
        """
        self._part, self._buckets, self._seed, self._tell = part, tuple(buckets), seed, tell
        self._lengths = part.lengths
        self._sizes: list[int] = []
        self._plans: dict[int, Epoch] = {}
        # A micro-batch may be made in one thread while another asks for the shape of the next.
        self._lock = threading.RLock()
        if not self.per_epoch(0):
            tokens = int(self._lengths.sum(dtype=np.int64))
            longest = self._buckets[-1]
            raise DataInvalid(
                f"data.path: {len(part)} documents with {tokens:,} tokens do not fill one micro-batch of "
                f"{longest.rows} x {longest.context_tokens}; lower data.batch_rows or data.context_tokens, "
                "or give more of them"
            )

    def bucket(self, index: int) -> Bucket:
        """That of micro-batch `index`."""
        epoch, place = self._locate(index)
        return self._buckets[self._plan(epoch).micro_batches[place][0]]

    def rows(self, index: int) -> list[list[Document]]:
        """The documents of each row of micro-batch `index`."""
        epoch, place = self._locate(index)
        _, rows = self._plan(epoch).rows(place)
        return _documents(self._part, rows)

    def per_epoch(self, epoch: int) -> int:
        """Micro-batches in an epoch; they can differ by a few, as other rows are left over."""
        with self._lock:
            while len(self._sizes) <= epoch:
                plan = self._plan(len(self._sizes))
                self._sizes.append(len(plan.micro_batches))
                self._tell(
                    f"epoch {len(self._sizes) - 1}: {len(plan.micro_batches):,} micro-batches, "
                    f"{plan.efficiency:.1%} of them tokens; {plan.num_dropped:,} of {len(self._lengths):,} "
                    "documents did not fill the last one"
                )
            return self._sizes[epoch]

    def _locate(self, index: int) -> tuple[int, int]:
        epoch, place = 0, index
        while place >= (size := self.per_epoch(epoch)):
            if not size:
                raise DataInvalid(f"data.path: epoch {epoch} fills no micro-batch; lower data.batch_rows")
            place -= size
            epoch += 1
        return epoch, place

    def _plan(self, epoch: int) -> Epoch:
        with self._lock:
            if epoch not in self._plans:
                # Two are kept: at the end of one the first micro-batches of the next are asked for ahead.
                for old in sorted(self._plans)[: len(self._plans) - 1]:
                    del self._plans[old]
                self._plans[epoch] = plan_epoch(self._lengths, self._buckets, self._seed, epoch)
            return self._plans[epoch]


class PackedHeldOut:
    """Held-out documents in rows of the longest bucket."""

    def __init__(self, part: Part, bucket: Bucket) -> None:
        self._part, self._bucket = part, bucket

    def batches(self, rows: int) -> list[Batch]:
        """`rows` rows, or all there are if fewer, spread evenly; empty ones fill up the last batch."""
        order, bounds = pack_rows(self._part.lengths, self._bucket.context_tokens)
        picks = _spread(len(bounds) - 1, rows)
        chosen = _documents(self._part, [order[bounds[row] : bounds[row + 1]] for row in picks])
        size = self._bucket.rows
        groups = [chosen[begin : begin + size] for begin in range(0, len(chosen), size)]
        return [
            pack(group + [[] for _ in range(size - len(group))], self._bucket.context_tokens)
            for group in groups
        ]

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Beginnings of `count` documents, or of all if fewer, at most `tokens` long.

        One ends where the first supervised token would follow, that is where the target would answer; a
        document that is supervised from the start, as a text is, goes on to `tokens`.
        """
        prompts = []
        for index in _spread(len(self._part), count):
            ids, supervised = self._part.read(index)
            first = int(np.argmax(supervised))
            prompts.append(ids[: min(first or tokens, tokens)].tolist())
        return prompts


def _documents(part: Part, rows: list[Indices]) -> list[list[Document]]:
    return [[document(part, int(index)) for index in row] for row in rows]


def _spread(available: int, count: int) -> list[int]:
    """`count` of the places 0 to available - 1, evenly; all of them if there are not so many."""
    wanted = min(available, count)
    places: list[int] = np.linspace(0, available - 1, wanted).round().astype(np.int64).tolist()
    return places
