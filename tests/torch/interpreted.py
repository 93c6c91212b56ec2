"""The mask's kernels by Triton's interpreter against the closed form: `python -m tests.torch.interpreted`.

A process of its own, with TRITON_INTERPRET=1, since Triton asks for that when it is first imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from tests.torch.maskcases import make_anchors, random_case
from trainer import tiling
from trainer.masks import TILE, MaskRule, plain_intervals, plain_tiles

if TYPE_CHECKING:
    from trainer.blocks import Anchors

SEEDS = (3, 47, 48, 107)
"""Small ones, which between them tell of each bound or condition that is off by one, or left out."""


def compare(anchors: Anchors, rule: MaskRule) -> None:
    """Raises AssertionError where a tensor is not the same to the bit, in type, shape and strides."""
    ours, theirs = tiling.tile_lists(anchors, rule, TILE), plain_tiles(anchors, rule)
    for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (other.dtype, other.shape, other.stride()), name
        assert torch.equal(mine, other), name
    intervals = plain_intervals(anchors, rule)
    mine = tiling.key_intervals(anchors, rule, TILE)
    assert (mine.dtype, mine.stride()) == (intervals.dtype, intervals.stride())
    assert torch.equal(mine, intervals)


def main() -> int:
    for seed in SEEDS:
        compare(*random_case(seed))
    # Lists that are longer than what a program looks at at a time.
    tiling.CHUNK = TILE
    anchors, rule = (
        make_anchors([[9000, 17000]], [[True, True]], [[0, 700]]),
        MaskRule(17001, 128, window=16500),
    )
    compare(anchors, rule)
    lists = plain_tiles(anchors, rule)
    assert lists.kv_order.shape[-1] > TILE
    assert int(lists.full_kv_num.max()) > 100
    sys.stdout.write(f"{len(SEEDS) + 1} masks\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
