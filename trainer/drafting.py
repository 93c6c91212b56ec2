"""The drafter at work beside its target: the loss of a micro-batch, and the tokens it proposes.

Shapes: R rows, T context tokens, A anchor slots, S block tokens, Q = A*S, D model dim, E = taps * D, V
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from trainer.attention import make_mask
from trainer.blocks import Anchors, Blocks, make_blocks, sample_anchors
from trainer.data.buckets import bucket_of
from trainer.loss import LossTerms, chunked_loss
from trainer.masks import MaskRule
from trainer.model import DraftModel, DraftShape, LayerMasks, initialise, initialise_from_target
from trainer.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.batch import Batch
    from trainer.config import Config
    from trainer.target.api import Observation, Target, Vocabulary


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter, wrapped or not, and what it shares with its target."""

    config: Config
    shape: DraftShape
    draft: nn.Module
    vocabulary: Vocabulary
    mask_token: int
    dtype: torch.dtype
    """Of the arithmetic."""

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The target layers that are read."""
        return self.shape.target_layer_ids

    @property
    def wants_last(self) -> bool:
        """Whether the loss needs the target's own distribution."""
        return self.config.loss.labels == "target"

    def loss(self, batch: Batch, observation: Observation, index: int) -> LossTerms:
        """The loss of micro-batch `index`, ready for backward; all tensors on the drafter's device."""
        data, draft = self.config.data, self.config.draft
        slots = bucket_of(data, batch.tokens.shape[1]).anchors
        anchors = sample_anchors(batch, slots, generator(self.config.seed, "anchors", index))
        blocks = make_blocks(batch, anchors, block_size=draft.block_size, mask_token=self.mask_token)
        teacher_RQD: Tensor | None = None
        if observation.last is not None:
            before_RQ = (blocks.label_index - 1).clamp(min=0)
            teacher_RQD = observation.last.gather(
                1, before_RQ[..., None].expand(-1, -1, observation.last.shape[-1])
            )
        return chunked_loss(
            self._hidden(blocks, batch, observation.taps),
            self.vocabulary.head,
            blocks.labels if teacher_RQD is None else None,
            teacher_RQD,
            blocks.weights,
            self.config.loss,
            draft.block_size,
        )

    @torch.no_grad()
    def propose(self, batch: Batch, taps_RTE: Tensor, anchors: Anchors) -> Tensor:
        """Drafted tokens [R, A, S-1] after each anchor, of which the taps before it are all the context."""
        size = self.config.draft.block_size
        blocks = make_blocks(batch, anchors, block_size=size, mask_token=self.mask_token)
        hidden_RASD: Tensor = self._hidden(blocks, batch, taps_RTE).unflatten(1, (-1, size))
        head = self.vocabulary.head
        slots = max(1, self.config.loss.chunk_tokens // (len(hidden_RASD) * size))
        chunks = hidden_RASD[:, :, 1:].split(slots, dim=1)
        return torch.cat([F.linear(chunk, head.to(chunk.dtype)).argmax(-1) for chunk in chunks], dim=1)

    def masks(self, anchors: Anchors, num_context: int) -> LayerMasks:
        """Masks of both kinds of layer."""
        size = self.config.draft.block_size
        device = anchors.index.device
        flash = self.config.compute.attention == "flash"
        full = make_mask(anchors, MaskRule(num_context, size), device, flash=flash)
        if not self.shape.sliding_layers:
            return LayerMasks(full)
        rule = MaskRule(num_context, size, causal=True, window=self.shape.sliding_window)
        return LayerMasks(full, make_mask(anchors, rule, device, flash=flash))

    def _hidden(self, blocks: Blocks, batch: Batch, taps_RTE: Tensor) -> Tensor:
        noise_RQD = F.embedding(blocks.tokens, self.vocabulary.embedding).to(self.dtype)
        hidden_RQD: Tensor = self.draft(
            noise_RQD,
            taps_RTE.to(self.dtype),
            self.masks(blocks.anchors, batch.tokens.shape[1]),
            blocks.positions,
            batch.positions,
        )
        return hidden_RQD


def begin_draft(config: Config, shape: DraftShape, target: Target | None, device: torch.device) -> DraftModel:
    """The drafter as it is before the first step, in float32; the target is needed for init = target."""
    with torch.device(device):
        draft = DraftModel(shape)
    initialise(draft, generator(config.seed, "weights", 0, device))
    if config.draft.init == "target":
        from trainer.target.own import TargetModel  # not above: only the small target can be copied

        assert isinstance(target, TargetModel)
        initialise_from_target(draft, target)
    return draft
