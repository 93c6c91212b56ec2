"""Windows of the corpus, each a pure function of the step that asks for it.

Shapes: B batch, T context tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.errors import DataInvalid
from trainer.seeds import generator

if TYPE_CHECKING:
    from trainer.corpus import Corpus, Source


class Windows:
    """Non-overlapping windows of a list of files, none crossing from one file to the next."""

    def __init__(self, sources: tuple[Source, ...], context_tokens: int, seed: int) -> None:
        self._stream = torch.frombuffer(
            bytearray(b"".join(source.text for source in sources)), dtype=torch.uint8
        )
        self._window = context_tokens
        self._seed = seed
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
        """Token ids [B, T] of step 0, 1, 2, ...: an epoch is a permutation, and the next one another."""
        rows = [self._row(step * size + index) for index in range(size)]
        return torch.stack([self._cut(row) for row in rows])

    def spread(self, count: int) -> Tensor:
        """`count` windows [count, T] spread evenly over the files."""
        picks = torch.linspace(0, len(self) - 1, count).long()
        return torch.stack([self._cut(int(row)) for row in picks])

    def _row(self, index: int) -> int:
        epoch, position = divmod(index, len(self))
        order = torch.randperm(len(self), generator=generator(self._seed, "windows", epoch))
        return int(order[position])

    def _cut(self, row: int) -> Tensor:
        start = int(self._starts[row])
        return self._stream[start : start + self._window].long()


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
                f"corpus: {len(windows)} {name} windows of {context_tokens} tokens; a batch needs {at_least}; "
                "lower data.context_tokens, or name a larger folder with data.stdlib"
            )
    return train, held_out
