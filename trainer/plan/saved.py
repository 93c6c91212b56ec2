"""What the drafter's forward leaves for its backward, item by item."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainer.plan.dims import FLOAT32, Dims, draft_matrices
from trainer.plan.result import Item

if TYPE_CHECKING:
    from trainer.config import Config

# What one layer saves for its backward: name, shape. All in the arithmetic's type.
SAVED = (
    ("x", "R Q D"),
    ("x, normed", "R Q D"),
    ("q, projected", "R Q N H"),
    ("q, normed and rotated", "R Q N H"),
    ("k, projected", "R K M H"),
    ("k, normed and rotated", "R K M H"),
    ("v", "R K M H"),
    ("attention's output", "R Q N H"),
    ("x, attended", "R Q D"),
    ("x, attended and normed", "R Q D"),
    ("gate", "R Q F"),
    ("up", "R Q F"),
    ("silu(gate) * up", "R Q F"),
)


def tensors(dims: Dims, name: str, letters: str, size: int, count: int = 1) -> Item:
    """`count` tensors whose dimensions are letters of Dims, `size` bytes a number."""
    values = [getattr(dims, letter) for letter in letters.split()]
    numbers = " x ".join(f"{value:,}" for value in values)
    times = f"{count} x " if count > 1 else ""
    formula = f"{times}{'*'.join(letters.split())} = {times}{numbers}, {size} bytes each"
    return Item(name, count * size * math.prod(values), formula)


def saved_in_layers(dims: Dims, count: int | None = None) -> list[Item]:
    """What layers, all of them or so many, leave for their backward."""
    count = dims.L if count is None else count
    items = [tensors(dims, f"{name} (each layer)", letters, dims.c, count) for name, letters in SAVED]
    items.append(tensors(dims, "logsumexp (each layer)", "R Q N", FLOAT32, count))
    if not dims.on_gpu:
        items.append(tensors(dims, "dense scores (each layer)", "R N Q K", FLOAT32, count))
        items.append(
            tensors(dims, "keys and values for each head (each layer)", "R N K H", dims.c, 2 * count)
        )
    return items


def saved_after(dims: Dims) -> list[Item]:
    """What the last norm leaves, which is not compiled."""
    return [
        tensors(dims, "x at the end, for its norm", "R Q D", norm_bytes(dims)),
        tensors(dims, "x at the end, scaled, and hidden states", "R Q D", dims.c, 2),
    ]


def norm_bytes(dims: Dims) -> int:
    """Bytes a number in an uncompiled norm: one kernel on a GPU, which makes no float32 of it."""
    return dims.c if dims.on_gpu else FLOAT32


def saved_before(config: Config, dims: Dims, shared: int) -> list[Item]:
    """What all layers read, and is left for the end of the backward. The context's norm is not compiled."""
    items = [
        tensors(dims, "context, for its norm", "R T D", norm_bytes(dims)),
        tensors(dims, "context, scaled and normed", "R T D", dims.c, 2),
        tensors(dims, "rotary table", "R K H", dims.c, 2),
    ]
    if shared > 1:
        items.append(tensors(dims, "gathered fusion", "E D", dims.c))
    elif dims.c != FLOAT32:
        matrices = draft_matrices(dims)
        items.append(Item("cast weights", dims.c * matrices, f"{matrices:,} numbers, {dims.c} bytes each"))
    if config.loss.labels == "target":
        items.append(tensors(dims, "teacher's head inputs", "R Q D", dims.c))
    if not dims.on_gpu:
        items.append(tensors(dims, "dense mask", "R Q K", 1))
    return items
