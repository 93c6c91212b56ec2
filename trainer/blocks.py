"""Anchors, drawn within documents, and the blocks they open, in shapes that never change.

No function here waits for a device: no value of a tensor decides a shape or a branch.

Shapes: R rows, T context tokens, A anchor slots, S block tokens, Q = A*S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from trainer.batch import Batch

LEAST_CONTEXT = 8
"""Evaluation leaves out the first of this many parts of a document, where there is next to no context."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """Where blocks begin, all [R, A]. Slots are sorted by `index`; empty ones come last and hold zeros."""

    index: Tensor
    """int64 index in the row of the anchor token."""
    keep: Tensor
    """bool, whether the slot has an anchor."""
    starts: Tensor
    """int64 index in the row at which the anchor's document begins."""
    ends: Tensor
    """int64 index in the row just past the anchor's document."""
    positions: Tensor
    """int64 position of the anchor in its document."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the drafter is asked in one step, all [R, Q] but `anchors`."""

    anchors: Anchors
    tokens: Tensor
    """int64 the anchor's token, then mask tokens."""
    positions: Tensor
    """int64 position in the document; runs on past its end."""
    labels: Tensor
    """int64 the document's token at that very position; 0 past its end."""
    label_index: Tensor
    """int64 index in the row of that token; the document's last past its end, 0 in an empty slot."""
    weights: Tensor
    """float32 1 where the label counts: a kept slot, not the anchor itself, a supervised token inside the
    document; else 0."""


def sample_anchors(batch: Batch, num_slots: int, generator: torch.Generator) -> Anchors:
    """Draw up to `num_slots` distinct anchors a row, each candidate of a row as likely as any other.

    A token may be an anchor if it and the next one are supervised and of one document; its block may run over
    the document's end. Pure in the generator's state, whatever the batch's device: numbers are float64, since
    two equal ones would be told apart differently by a CPU and a GPU.
    """
    device, drawn_on = batch.tokens.device, generator.device
    pinned = device.type == "cuda" and drawn_on.type == "cpu"
    draws_RT = torch.rand(
        batch.tokens.shape, dtype=torch.float64, generator=generator, device=drawn_on, pin_memory=pinned
    )
    order_RT = draws_RT.to(device, non_blocking=True).masked_fill(~_candidates(batch), -1.0)
    num_context = order_RT.shape[1]
    chosen = order_RT.topk(min(num_slots, num_context), dim=1, sorted=False)
    index_RA = chosen.indices.masked_fill(chosen.values < 0, num_context).sort(dim=1).values
    if num_slots > num_context:
        index_RA = F.pad(index_RA, (0, num_slots - num_context), value=num_context)
    return _anchors(batch, index_RA, index_RA < num_context)


def spread_anchors(batch: Batch, num_slots: int, block_size: int) -> Anchors:
    """Evenly spread anchors for evaluation: candidates whose whole block lies inside their document.

    A document's first eighth is left out, unless only there is room. A row with fewer such tokens than slots
    takes all of them and leaves its last slots empty.
    """
    lengths_RT = batch.ends - batch.starts
    last_RT = lengths_RT - block_size
    first_RT = torch.minimum(lengths_RT // LEAST_CONTEXT, last_RT)
    inside_RT = (batch.positions >= first_RT) & (batch.positions <= last_RT)
    count_RT = (_candidates(batch) & inside_RT).cumsum(dim=1)
    total_R1 = count_RT[:, -1:]
    slots_A = torch.arange(num_slots, device=count_RT.device)
    spread_RA = slots_A * (total_R1 - 1).clamp(min=0) // max(num_slots - 1, 1)
    rank_RA = torch.where(total_R1 < num_slots, slots_A, spread_RA)
    index_RA = torch.searchsorted(count_RT, rank_RA + 1)
    return _anchors(batch, index_RA, slots_A < total_R1)


def make_blocks(batch: Batch, anchors: Anchors, *, block_size: int, mask_token: int) -> Blocks:
    """Open a block at each anchor. Labels are same-position: offset k predicts the token at anchor + k."""
    offsets_S = torch.arange(block_size, device=anchors.index.device)
    index_RAS = anchors.index[..., None] + offsets_S
    inside_RAS = index_RAS < anchors.ends[..., None]
    last_RA1 = (anchors.ends[..., None] - 1).clamp(min=0)
    label_index_RQ = torch.minimum(index_RAS, last_RA1).flatten(1)
    token_RQ = batch.tokens.gather(1, label_index_RQ)
    later_S = offsets_S > 0
    counts_RQ = (inside_RAS & later_S & anchors.keep[..., None]).flatten(1)
    return Blocks(
        anchors=anchors,
        tokens=torch.where(later_S, mask_token, token_RQ.view_as(index_RAS)).flatten(1),
        positions=(anchors.positions[..., None] + offsets_S).flatten(1),
        labels=torch.where(inside_RAS.flatten(1), token_RQ, 0),
        label_index=label_index_RQ,
        weights=(counts_RQ & batch.loss_mask.gather(1, label_index_RQ)).float(),
    )


def _candidates(batch: Batch) -> Tensor:
    """[R, T], whether a token and the next one are supervised and of one document."""
    supervised, starts = batch.loss_mask, batch.starts
    both_RT = supervised[:, :-1] & supervised[:, 1:] & (starts[:, :-1] == starts[:, 1:])
    return F.pad(both_RT, (0, 1))


def _anchors(batch: Batch, index_RA: Tensor, keep_RA: Tensor) -> Anchors:
    """Look up the documents of these anchors; what an empty slot's index is does not matter."""
    empty_RA = ~keep_RA
    index_RA = index_RA.masked_fill(empty_RA, 0)

    def look_up(table_RT: Tensor) -> Tensor:
        return table_RT.gather(1, index_RA).masked_fill(empty_RA, 0)

    return Anchors(index_RA, keep_RA, look_up(batch.starts), look_up(batch.ends), look_up(batch.positions))
