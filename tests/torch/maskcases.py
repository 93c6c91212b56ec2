"""Anchors for the tests of masks and attention, and the mask's rule spelled out a cell at a time."""

from __future__ import annotations

import random

import torch

from trainer.batch import Batch, Document, pack
from trainer.blocks import Anchors
from trainer.masks import MaskRule

BLOCKS = (8, 10, 16, 32, 5, 1, 3, 128, 200, 256)
WINDOWS = (None, None, 1, 2, 7, 31, 128, 129, 400)


def make_anchors(index: list[list[int]], keep: list[list[bool]], starts: list[list[int]]) -> Anchors:
    """Anchors of these rows; the masks ask nothing of where documents end."""
    indices, kept, begun = torch.tensor(index), torch.tensor(keep), torch.tensor(starts)
    return Anchors(
        *(indices.masked_fill(~kept, 0), kept, begun.masked_fill(~kept, 0)),
        *((indices + 1).masked_fill(~kept, 0), (indices - begun).masked_fill(~kept, 0)),
    )


def random_row(rng: random.Random, slots: int, context: int) -> tuple[list[int], list[bool], list[int]]:
    """Sorted anchors in random documents; some at both ends of the row, some slots, or all, empty."""
    index = sorted(rng.randrange(context) for _ in range(slots))
    if rng.random() < 0.4:
        index[0] = 0
    if rng.random() < 0.4:
        index[-1] = context - 1
    cuts = sorted({0, *(rng.randrange(context) for _ in range(rng.choice((0, 0, 3, 20))))})
    starts = [max(cut for cut in cuts if cut <= anchor) for anchor in index]
    share = rng.choice((0.0, 0.3, 1.0, 1.0))
    return index, [rng.random() < share for _ in index], starts


def random_case(seed: int) -> tuple[Anchors, MaskRule]:
    """A mask of up to some 600 queries and 1,200 keys."""
    rng = random.Random(seed)
    block = BLOCKS[seed % len(BLOCKS)]
    context = rng.choice((1, 9, 40, 127, 128, 129, 256, 300, 511, 600))
    slots = rng.randint(1, max(1, min(40, 600 // block)))
    rows = [random_row(rng, slots, context) for _ in range(rng.choice((1, 1, 2, 3)))]
    index, keep, starts = (list(column) for column in zip(*rows, strict=True))
    return make_anchors(index, keep, starts), MaskRule(
        context, block, causal=rng.random() < 0.5, window=rng.choice(WINDOWS)
    )


def spelled_out(anchors: Anchors, rule: MaskRule) -> torch.Tensor:
    """The rule [R, 1, Q, K], a cell at a time."""
    rows, slots = anchors.index.shape
    queries = slots * rule.block_size
    # Lists: writing a tensor's cells one at a time takes thirty times as long.
    grid = [[[False] * (rule.num_context + queries) for _ in range(queries)] for _ in range(rows)]
    reach = rule.window or 1 << 30
    for row in range(rows):
        for query in range(queries):
            slot, offset = divmod(query, rule.block_size)
            anchor, start = int(anchors.index[row, slot]), int(anchors.starts[row, slot])
            for key in range(start, anchor if anchors.keep[row, slot] else 0):
                grid[row][query][key] = key >= anchor + offset - (reach - 1)
            for other in range(rule.block_size):
                seen = (other <= offset or not rule.causal) and other >= offset - (reach - 1)
                grid[row][query][rule.num_context + slot * rule.block_size + other] = seen
    return torch.tensor(grid, dtype=torch.bool)[:, None]


def packed_batch(lengths: list[list[int]], context: int, seed: int = 0) -> Batch:
    """A batch of documents of these lengths, random bytes, all supervised."""
    draw = torch.Generator().manual_seed(seed)
    rows = [
        [
            Document(torch.randint(0, 256, (length,), generator=draw), torch.ones(length, dtype=torch.bool))
            for length in row
        ]
        for row in lengths
    ]
    return pack(rows, context)
