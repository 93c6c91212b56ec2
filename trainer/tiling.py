"""A mask's tiles and intervals by one kernel each, for `trainer.masks`, whose own form is some 90 launches.

Shapes: R rows, A anchor slots, S block tokens, Q = A*S queries, I tiles of queries, J of keys.
"""

from __future__ import annotations

import functools
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trainer.triton_here import has_triton

if TYPE_CHECKING:
    from types import ModuleType

    from trainer.blocks import Anchors
    from trainer.masks import MaskRule

CHUNK = 512
"""Tiles that a program looks at at a time."""
WARPS = 4


class Tiles(NamedTuple):
    """Tiles seen in part and wholly, from both sides, and each slot's context; all int32.

    How many a tile sees or is seen by, [R, 1, I] or [R, 1, J], and all of the other side, those first.
    """

    kv_num: Tensor
    kv_order: Tensor
    full_kv_num: Tensor
    full_kv_order: Tensor
    q_num: Tensor
    q_order: Tensor
    full_q_num: Tensor
    full_q_order: Tensor
    lowest: Tensor
    """[R, A] the first context key that a slot sees."""
    before: Tensor
    """[R, A] the first after it that the slot does not see."""


def takes(anchors: Anchors) -> bool:
    """Whether the kernels here take such anchors."""
    return anchors.index.is_cuda and has_triton()


def most_cut(num_slots: int, block_size: int, tile: int) -> int:
    """Slots that a tile of queries cuts at most."""
    return min(num_slots, (tile - 1 - gcd(tile, block_size)) // block_size + 2)


def tile_lists(anchors: Anchors, rule: MaskRule, tile: int) -> Tiles:
    """The lists of these anchors' mask, of tiles of `tile` queries and keys, a power of 2."""
    num_rows, num_slots = anchors.index.shape
    num_queries = num_slots * rule.block_size
    across, down = -(-num_queries // tile), -(-(rule.num_context + num_queries) // tile)

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=anchors.index.device)

    def side(lines: int, length: int) -> list[Tensor]:
        number, order = (num_rows, 1, lines), (num_rows, 1, lines, length)
        return [new(*number), new(*order), new(*number), new(*order)]

    bounds = [new(num_rows, num_slots), new(num_rows, num_slots)]
    tiles = Tiles._make([*side(across, down), *side(down, across), *bounds])
    numbers = (*_numbers(anchors, rule), most_cut(num_slots, rule.block_size, tile))
    kernel = _kernels().tile_lists[(across + down, num_rows)]
    kernel(*_tensors(anchors), *tiles, *numbers, *_kinds(rule), tile, CHUNK, num_warps=WARPS)
    return tiles


def key_intervals(anchors: Anchors, rule: MaskRule, tile: int) -> Tensor:
    """What `masks.key_intervals` tells, int32 [R, 4, Q], filled up to whole tiles."""
    num_rows, num_slots = anchors.index.shape
    across = -(-num_slots * rule.block_size // tile)
    shape = (num_rows, 4, across * tile)
    intervals = torch.empty(shape, dtype=torch.int32, device=anchors.index.device)
    kernel = _kernels().key_intervals[(across, num_rows)]
    kernel(*_tensors(anchors), intervals, *_numbers(anchors, rule), *_kinds(rule), tile, num_warps=WARPS)
    return intervals


def _tensors(anchors: Anchors) -> tuple[Tensor, Tensor, Tensor]:
    return anchors.index.contiguous(), anchors.keep.contiguous(), anchors.starts.contiguous()


def _numbers(anchors: Anchors, rule: MaskRule) -> tuple[int, int, int, int]:
    return anchors.index.shape[1], rule.block_size, rule.num_context, rule.window or 0


def _kinds(rule: MaskRule) -> tuple[bool, bool]:
    return rule.causal, rule.window is not None


@functools.cache
def _kernels() -> ModuleType:
    from trainer import tiling_kernels

    return tiling_kernels
