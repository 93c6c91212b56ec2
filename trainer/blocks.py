"""Anchors and the blocks they open, in constant shapes.

Shapes: B batch, T context tokens, A anchor slots, S block tokens, Q = A*S.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the drafter is asked in one step. Slots are sorted by anchor; `keep` tells the real ones."""

    anchors: Tensor
    """[B, A] position of each slot's anchor; 0 in a slot without one."""
    keep: Tensor
    """[B, A] whether the slot has an anchor."""
    tokens: Tensor
    """[B, Q] the anchor's token, then mask tokens."""
    positions: Tensor
    """[B, Q] anchor + offset."""
    labels: Tensor
    """[B, Q] the text's token at that very position; 0 past the window's end."""
    weights: Tensor
    """[B, Q] 1 where the label counts: a kept slot, not the anchor itself, inside the window."""


def sample_anchors(loss_mask_BT: Tensor, num_slots: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw up to `num_slots` distinct anchors a row: sorted positions [B, A] and keep mask [B, A].

    A position may be an anchor if it and the next one carry loss (SpecForge's rule); blocks may run
    over the end.
    A row with too few leaves its last slots empty, so the shape never changes.
    """
    candidates = loss_mask_BT[:, :-1] & loss_mask_BT[:, 1:]
    order = (
        torch.rand(candidates.shape, generator=generator).to(candidates.device).masked_fill(~candidates, -1.0)
    )
    chosen = order.topk(num_slots, dim=1)
    past_end = loss_mask_BT.shape[1]
    anchors, _ = chosen.indices.masked_fill(chosen.values < 0, past_end).sort(dim=1)
    keep = anchors < past_end
    return anchors.masked_fill(~keep, 0), keep


def spread_anchors(batch: int, num_tokens: int, num_slots: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Evenly spread anchors whose whole block lies inside the window, for evaluation."""
    last = num_tokens - block_size
    first = min(num_tokens // 8, last)
    anchors = torch.linspace(first, last, num_slots).long().expand(batch, -1)
    return anchors.contiguous(), torch.ones(batch, num_slots, dtype=torch.bool)


def make_blocks(
    tokens_BT: Tensor,
    loss_mask_BT: Tensor,
    anchors_BA: Tensor,
    keep_BA: Tensor,
    *,
    block_size: int,
    mask_token: int,
) -> Blocks:
    """Open a block at each anchor. Labels are same-position: offset k predicts the token at anchor + k."""
    num_tokens = tokens_BT.shape[1]
    offsets_S = torch.arange(block_size, device=tokens_BT.device)
    positions_BAS = anchors_BA[..., None] + offsets_S
    inside_BAS = positions_BAS < num_tokens
    gather_BQ = positions_BAS.clamp(max=num_tokens - 1).flatten(1)
    labels_BQ = tokens_BT.gather(1, gather_BQ)
    counts_BAS = inside_BAS & (offsets_S > 0) & keep_BA[..., None]
    weights_BQ = (counts_BAS.flatten(1) & loss_mask_BT.gather(1, gather_BQ)).float()
    is_anchor_Q = (offsets_S == 0).repeat(anchors_BA.shape[1])
    return Blocks(
        anchors=anchors_BA,
        keep=keep_BA,
        tokens=torch.where(is_anchor_Q, labels_BQ, mask_token),
        positions=positions_BAS.flatten(1),
        labels=torch.where(inside_BAS.flatten(1), labels_BQ, 0),
        weights=weights_BQ,
    )
