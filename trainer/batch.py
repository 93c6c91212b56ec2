"""Documents packed into rows of constant length.

Shapes: R rows, T context tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens [n] and, of the same length, whether each is supervised."""

    tokens: Tensor
    loss_mask: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch. Padding comes last in a row, and belongs to no document."""

    tokens: Tensor
    """[R, T] int64 ids; 0 in padding."""
    positions: Tensor
    """[R, T] int64 position in the token's own document; 0 in padding."""
    starts: Tensor
    """[R, T] int64 index in the row at which the token's document begins; T in padding."""
    ends: Tensor
    """[R, T] int64 index in the row just past the token's document; T in padding."""
    loss_mask: Tensor
    """[R, T] bool, whether the token is supervised; false in padding."""
    lengths: tuple[tuple[int, ...], ...]
    """Lengths of each row's documents, in order: known on the host, so that nobody waits for a device."""

    @property
    def num_tokens(self) -> int:
        """Tokens that belong to a document."""
        return sum(sum(row) for row in self.lengths)

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device, copied without waiting where the memory is pinned."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same in memory that a GPU can copy from at once."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            change(self.tokens),
            change(self.positions),
            change(self.starts),
            change(self.ends),
            change(self.loss_mask),
            self.lengths,
        )


def pack(rows: Sequence[Sequence[Document]], context_tokens: int) -> Batch:
    """Lay each row's documents one after another and pad it to `context_tokens`.

    Raises:
        ValueError: a row's documents are longer than that together, or one is empty.
    """
    shape = (len(rows), context_tokens)
    # By numpy, which starts no threads of its own: a micro-batch is made beside the training.
    tokens = np.zeros(shape, np.int64)
    positions = np.zeros(shape, np.int64)
    starts = np.full(shape, context_tokens, np.int64)
    ends = np.full(shape, context_tokens, np.int64)
    loss_mask = np.zeros(shape, np.bool_)
    lengths = tuple(tuple(len(document.tokens) for document in row) for row in rows)
    for index, row in enumerate(rows):
        bounds = np.cumsum((0, *lengths[index]))
        _require_fit(index, bounds, context_tokens)
        if not row:
            continue
        used, sizes = slice(bounds[-1]), np.diff(bounds)
        np.concatenate([document.tokens.numpy() for document in row], out=tokens[index, used])
        np.concatenate([document.loss_mask.numpy() for document in row], out=loss_mask[index, used])
        starts[index, used] = np.repeat(bounds[:-1], sizes)
        ends[index, used] = np.repeat(bounds[1:], sizes)
        np.subtract(np.arange(bounds[-1]), starts[index, used], out=positions[index, used])
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(starts),
        torch.from_numpy(ends),
        torch.from_numpy(loss_mask),
        lengths,
    )


def _require_fit(row: int, bounds: NDArray[np.int64], context_tokens: int) -> None:
    for begin, end in pairwise(bounds.tolist()):
        if not begin < end <= context_tokens:
            raise ValueError(f"row {row}: tokens {begin} to {end} do not fit in {context_tokens}")


def single(tokens_RT: Tensor) -> Batch:
    """Each row one document that fills it, all of it supervised."""
    everything = torch.ones(tokens_RT.shape[1], dtype=torch.bool)
    return pack([[Document(row, everything)] for row in tokens_RT.cpu()], tokens_RT.shape[1])
