"""Windows of the corpus, each a document of its own that fills a row; a pure function of the index asked for.

Shapes: R rows, T context tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.batch import Batch, Document, single
from trainer.errors import DataInvalid
from trainer.seeds import generator

if TYPE_CHECKING:
    from trainer.corpus import Corpus, Source
    from trainer.data.buckets import Bucket


class Windows:
    """Non-overlapping windows of a list of files, none crossing from one file to the next."""

    def __init__(self, sources: tuple[Source, ...], context_tokens: int, seed: int) -> None:
        self._stream = torch.frombuffer(
            bytearray(b"".join(source.text for source in sources)), dtype=torch.uint8
        )
        self._window = context_tokens
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None
        starts: list[int] = []
        offset = 0
        for source in sources:
            starts.extend(range(offset, offset + len(source.text) - context_tokens + 1, context_tokens))
            offset += len(source.text)
        self._starts = torch.tensor(starts)

    def __len__(self) -> int:
        """Windows in an epoch."""
        return len(self._starts)

    def batch(self, step: int, size: int) -> Tensor:
        """Token ids [R, T] of step 0, 1, 2, ...: an epoch is a permutation, and the next one another."""
        rows = [self._row(step * size + index) for index in range(size)]
        return torch.stack([self._cut(row) for row in rows])

    def spread(self, count: int) -> Tensor:
        """`count` windows [count, T] spread evenly over the files."""
        picks = torch.linspace(0, len(self) - 1, count).long()
        return torch.stack([self._cut(int(row)) for row in picks])

    def _row(self, index: int) -> int:
        epoch, position = divmod(index, len(self))
        if self._order is None or self._order[0] != epoch:
            permuted = torch.randperm(len(self), generator=generator(self._seed, "windows", epoch))
            self._order = epoch, permuted
        return int(self._order[1][position])

    def _cut(self, row: int) -> Tensor:
        start = int(self._starts[row])
        return self._stream[start : start + self._window].long()


class WindowLayout:
    """Micro-batches of windows; the epochs follow one another without a seam, and nothing is dropped."""

    def __init__(self, windows: Windows, bucket: Bucket) -> None:
        self._windows, self._bucket = windows, bucket
        self._everything = torch.ones(bucket.context_tokens, dtype=torch.bool)

    def bucket(self, index: int) -> Bucket:
        """Always the longest."""
        del index
        return self._bucket

    def rows(self, index: int) -> list[list[Document]]:
        """One document a row."""
        return [[Document(row, self._everything)] for row in self._windows.batch(index, self._bucket.rows)]

    def per_epoch(self, epoch: int) -> int:
        """Whole micro-batches in an epoch."""
        del epoch
        return len(self._windows) // self._bucket.rows


class WindowsHeldOut:
    """Windows of files that nobody trained on."""

    def __init__(self, windows: Windows, batch_rows: int) -> None:
        self._windows, self._batch_rows = windows, batch_rows

    def batches(self, rows: int) -> list[Batch]:
        """`rows` windows, or all if fewer, rounded to whole batches, spread evenly over the files."""
        batches = min(-(-rows // self._batch_rows), len(self._windows) // self._batch_rows)
        rounded = batches * self._batch_rows
        return [single(tokens_RT) for tokens_RT in self._windows.spread(rounded).split(self._batch_rows)]

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """The beginnings of `count` windows, or of all if fewer, spread evenly over the files."""
        wanted = min(count, len(self._windows))
        prompts: list[list[int]] = self._windows.spread(wanted)[:, :tokens].tolist() if wanted else []
        return prompts


def open_windows(corpus: Corpus, context_tokens: int, seed: int, *, at_least: int) -> tuple[Windows, Windows]:
    """Training and held-out windows.

    Raises:
        DataInvalid: fewer windows than one batch needs.
    """
    train = Windows(corpus.train, context_tokens, seed)
    held_out = Windows(corpus.held_out, context_tokens, seed)
    for name, windows in (("training", train), ("held-out", held_out)):
        if len(windows) < at_least:
            raise DataInvalid(
                f"corpus: {len(windows)} {name} windows of {context_tokens} tokens; a batch needs {at_least}"
                "; lower data.context_tokens, or name a larger folder with data.stdlib"
            )
    return train, held_out
