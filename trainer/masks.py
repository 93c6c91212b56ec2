"""Who sees whom in a step's blocks, once as a rule and once as the tiles that flex attention walks.

Keys are [context 0..T-1 | slot 0's block | slot 1's block | ...]; queries are the blocks alone:

                 context                       own block        other blocks
    query of     its document, strictly        all of it, or    nothing
    slot a       before the anchor             causally

With a window of W, a query sees nothing W or more positions before itself. An empty slot sees its own block
alone: nothing reads it, and a softmax over an empty row would be NaN.

Shapes: R rows, T context tokens, A anchor slots, S block tokens, Q = A*S, K = T+Q; tiles: I of queries, J of
keys, G slots that a tile of queries cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from trainer import tiling
from trainer.tiling import Tiles

if TYPE_CHECKING:
    from trainer.blocks import Anchors

TILE = 128
"""Queries and keys of a tile; flex attention's own."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of row, head, query and key: whether the query sees the key."""


@dataclass(frozen=True, slots=True)
class MaskRule:
    """What the mask depends on besides the anchors: these numbers are compiled in."""

    num_context: int
    block_size: int
    causal: bool = False
    """Whether a token sees its own block only up to itself."""
    window: int | None = None
    """Positions that a query sees at most, itself included."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: {self.window}, but a query sees at least itself; take 1 or more")


def mask_mod(anchors: Anchors, rule: MaskRule) -> MaskMod:
    """The rule on these anchors, for tensors of any shape.

    A closure over two tensors and a few numbers, which is the form that compiled flex attention takes as new
    inputs at each step: other anchors of the same shape compile nothing. Query indices past the last block
    are allowed, as tiles reach beyond it, and answered arbitrarily.
    """
    return _mask_mod(*_context_bounds(anchors), rule)


def _mask_mod(lowest_RA: Tensor, before_RA: Tensor, rule: MaskRule) -> MaskMod:
    last_slot = lowest_RA.shape[1] - 1
    num_context, block_size, causal, window = rule.num_context, rule.block_size, rule.causal, rule.window

    def draft_mask(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slot = (query // block_size).clamp(max=last_slot)
        offset = query - slot * block_size
        before = before_RA[row, slot]
        in_context = (key >= lowest_RA[row, slot]) & (key < before)
        other = key - (num_context + slot * block_size)
        in_block = (other >= 0) & (other < block_size)
        if causal:
            in_block = in_block & (other <= offset)
        if window is not None:
            in_context = in_context & (key > before + offset - window)
            in_block = in_block & (other > offset - window)
        return in_context | in_block

    return draft_mask


def dense_mask(anchors: Anchors, rule: MaskRule) -> Tensor:
    """The whole grid, bool [R, 1, Q, K]: for small shapes."""
    num_rows, num_slots = anchors.index.shape
    device = anchors.index.device
    num_queries = num_slots * rule.block_size
    row_R = torch.arange(num_rows, device=device)
    query_Q = torch.arange(num_queries, device=device, dtype=torch.int32)
    key_K = torch.arange(rule.num_context + num_queries, device=device, dtype=torch.int32)
    head = row_R.new_zeros(())
    return mask_mod(anchors, rule)(row_R[:, None, None, None], head, query_Q[:, None], key_K)


def block_mask(anchors: Anchors, rule: MaskRule) -> BlockMask:
    """The same mask as tiles that are seen wholly or partly, as `create_block_mask` makes it.

    In closed form: each slot that a tile of queries cuts sees two intervals of keys, so no grid of queries
    and keys exists, and nothing waits for the device. The queries of each tile of keys, which the backward
    pass walks, come from the same tiles. Where there is Triton it takes one launch for some 90.
    """
    tiles = tile_lists(anchors, rule)
    num_queries = anchors.index.shape[1] * rule.block_size
    return BlockMask(
        (num_queries, rule.num_context + num_queries),
        *tiles[:8],  # in its order
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=_mask_mod(tiles.lowest, tiles.before, rule),
    )


def tile_lists(anchors: Anchors, rule: MaskRule) -> Tiles:
    """The tiles of the mask."""
    return tiling.tile_lists(anchors, rule, TILE) if tiling.takes(anchors) else plain_tiles(anchors, rule)


def plain_tiles(anchors: Anchors, rule: MaskRule) -> Tiles:
    """The same by PyTorch's operators, on any device."""
    partial_RIJ, full_RIJ = _tiles(anchors, rule)
    both = torch.stack((partial_RIJ, full_RIJ)).to(torch.int8)[:, :, None]
    kv_side, q_side = _ordered(both), _ordered(both.transpose(-2, -1).contiguous())
    return Tiles._make([*kv_side, *q_side, *_context_bounds(anchors)])


def key_intervals(anchors: Anchors, rule: MaskRule) -> Tensor:
    """The same rule as numbers: int32 [R, 4, Q], and each query sees keys a <= k < b and c <= k < d.

    Filled up to whole tiles with the last query's.
    """
    if tiling.takes(anchors):
        return tiling.key_intervals(anchors, rule, TILE)
    return plain_intervals(anchors, rule)


def plain_intervals(anchors: Anchors, rule: MaskRule) -> Tensor:
    """The same by PyTorch's operators, on any device."""
    size, num_queries = rule.block_size, anchors.index.shape[1] * rule.block_size
    padded = -(-num_queries // TILE) * TILE
    query_Q = torch.arange(padded, device=anchors.index.device).clamp(max=num_queries - 1)
    slot_Q, offset_Q = query_Q // size, query_Q % size
    cuts = _Cuts(slot_Q, offset_Q, offset_Q, torch.ones_like(slot_Q, dtype=torch.bool))
    seen = _seen(anchors, rule, cuts, windowed=offset_Q, causal=offset_Q)
    return torch.stack([bound.int().expand_as(seen.context_low) for bound in seen], dim=1)


def _context_bounds(anchors: Anchors) -> tuple[Tensor, Tensor]:
    """[R, A] int32: the first context key that a slot sees, and the first after it that it does not."""
    return anchors.starts.int(), anchors.index.masked_fill(~anchors.keep, 0).int()


def _ordered(tiles: Tensor) -> list[Tensor]:
    """Of each kind in [2, R, 1, X, Y]: how many Y a row has, and all Y with those first, as int32.

    With a new tensor's strides: in a dimension of 1 PyTorch leaves any, which FlashAttention 4 refuses.
    """
    order = tiles.argsort(dim=-1, descending=True, stable=True)
    pairs = zip(tiles.sum(dim=-1), order, strict=True)
    return [part.to(torch.int32, memory_format=torch.contiguous_format) for pair in pairs for part in pair]


class _Cuts(NamedTuple):
    """The slots that each tile of queries cuts, all [I, G]."""

    slot: Tensor
    first: Tensor
    """Offset in the block of the first of its queries in the tile."""
    last: Tensor
    """Offset of the last one."""
    real: Tensor
    """False where the tile cuts fewer than G slots."""


def _cut(num_slots: int, block_size: int, device: torch.device) -> _Cuts:
    most = tiling.most_cut(num_slots, block_size, TILE)
    num_tiles = -(-num_slots * block_size // TILE)
    begin_I1 = torch.arange(num_tiles, device=device)[:, None] * TILE
    slot_IG = begin_I1 // block_size + torch.arange(most, device=device)
    first_IG = (begin_I1 - slot_IG * block_size).clamp(min=0)
    last_IG = (begin_I1 + (TILE - 1) - slot_IG * block_size).clamp(max=block_size - 1)
    real_IG = (slot_IG < num_slots) & (first_IG <= last_IG)
    return _Cuts(slot_IG.clamp(max=num_slots - 1), first_IG, last_IG, real_IG)


class _Seen(NamedTuple):
    """The keys, `low` up to but not including `high`, that queries of a cut see: [R, I, G] and [I, G]."""

    context_low: Tensor
    context_high: Tensor
    block_low: Tensor
    block_high: Tensor


def _seen(anchors: Anchors, rule: MaskRule, cuts: _Cuts, windowed: Tensor, causal: Tensor) -> _Seen:
    """Where the window of offset `windowed` and the future of offset `causal` end the keys."""
    lowest_RA, before_RA = _context_bounds(anchors)
    context_low, context_high = lowest_RA[:, cuts.slot], before_RA[:, cuts.slot]
    begin_IG = rule.num_context + cuts.slot * rule.block_size
    block_low, block_high = begin_IG, begin_IG + rule.block_size
    if rule.causal:
        block_high = begin_IG + causal + 1
    if rule.window is not None:
        context_low = torch.maximum(context_low, context_high + (windowed + 1 - rule.window))
        block_low = begin_IG + (windowed + 1 - rule.window).clamp(min=0)
    return _Seen(context_low, context_high, block_low, block_high)


def _tiles(anchors: Anchors, rule: MaskRule) -> tuple[Tensor, Tensor]:
    """[R, I, J]: tiles in which something but not everything is seen, and tiles in which everything is."""
    num_context, num_queries = rule.num_context, anchors.index.shape[1] * rule.block_size
    num_keys = num_context + num_queries
    device = anchors.index.device
    cuts = _cut(anchors.index.shape[1], rule.block_size, device)
    begin_J = torch.arange(0, num_keys, TILE, device=device)
    end_J = (begin_J + TILE).clamp(max=num_keys)

    # Some query of a cut sees what begins in the first one's window and ends in the last one's future; all
    # of them see what begins in the last one's window and ends in the first one's future.
    some = _seen(anchors, rule, cuts, windowed=cuts.first, causal=cuts.last)
    every = _seen(anchors, rule, cuts, windowed=cuts.last, causal=cuts.first)
    something_RIGJ = _meet(some.context_low, some.context_high, begin_J, end_J)
    something_RIGJ = something_RIGJ | _meet(some.block_low, some.block_high, begin_J, end_J)
    everything_RIGJ = _cover(every.context_low, every.context_high, begin_J, end_J.clamp(max=num_context))
    everything_RIGJ = everything_RIGJ & _cover(
        every.block_low, every.block_high, begin_J.clamp(min=num_context), end_J
    )

    real_IG1 = cuts.real[..., None]
    some_RIJ = (something_RIGJ & real_IG1).any(dim=-2)
    full_RIJ = (everything_RIGJ | ~real_IG1).all(dim=-2)
    # A tile that reaches beyond the last query or key is never full: `create_block_mask` pads with nothing.
    whole_I = torch.arange(1, some_RIJ.shape[1] + 1, device=device) * TILE <= num_queries
    full_RIJ = full_RIJ & whole_I[:, None] & (begin_J + TILE <= num_keys)
    return some_RIJ & ~full_RIJ, full_RIJ


def _meet(low: Tensor, high: Tensor, begin_J: Tensor, end_J: Tensor) -> Tensor:
    """Whether an interval of keys and a tile share a key, [..., J]."""
    nonempty = (low < high)[..., None]
    return nonempty & (low[..., None] < end_J) & (high[..., None] > begin_J)


def _cover(low: Tensor, high: Tensor, begin_J: Tensor, end_J: Tensor) -> Tensor:
    """Whether an interval of keys holds a part of a tile, which may be empty, [..., J]."""
    return (begin_J >= end_J) | ((low[..., None] <= begin_J) & (high[..., None] >= end_J))
