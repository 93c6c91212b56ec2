"""The drafter at work beside its target: the loss of a step, and the tokens it proposes.

Shapes: B batch, T context tokens, A anchor slots, S block tokens, Q = A*S, E = taps * D, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from trainer.attention import draft_mask
from trainer.blocks import Blocks, make_blocks, sample_anchors
from trainer.loss import decay_weights, weighted_loss
from trainer.model import DraftModel, draft_shape, initialise, initialise_from_target
from trainer.seeds import generator
from trainer.target import MASK_TOKEN

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.config import Config
    from trainer.target import TargetModel


def begin_draft(config: Config, target: TargetModel) -> DraftModel:
    """The drafter as it is before the first step."""
    draft = DraftModel(draft_shape(target.shape, config.draft))
    initialise(draft, generator(config.seed, "weights", 0))
    if config.draft.init == "target":
        initialise_from_target(draft, target)
    return draft


class Drafting:
    """A drafter and the frozen target whose embedding, head and hidden states it uses."""

    def __init__(self, config: Config, target: TargetModel, draft: DraftModel) -> None:
        self.config = config
        self.target = target
        self.draft = draft
        self.decay_S = decay_weights(config.draft.block_size, config.loss.gamma).to(config.compute.device)

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The target layers that are read."""
        return self.draft.shape.target_layer_ids

    def step_loss(self, tokens_BT: Tensor, step: int) -> Tensor:
        """The loss of one step on these windows, ready for backward."""
        loss_mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        anchors, keep = sample_anchors(
            loss_mask_BT, self.config.data.anchors, generator(self.config.seed, "anchors", step)
        )
        blocks = make_blocks(
            tokens_BT,
            loss_mask_BT,
            anchors,
            keep,
            block_size=self.config.draft.block_size,
            mask_token=MASK_TOKEN,
        )
        taps_BTE, labels = self._teach(tokens_BT, blocks)
        weights_BQ = blocks.weights * self.decay_S.repeat(anchors.shape[1])
        return weighted_loss(self._logits(blocks, taps_BTE), labels, weights_BQ)

    def propose(self, tokens_BT: Tensor, taps_BTE: Tensor, anchors_BA: Tensor) -> Tensor:
        """Drafted tokens [B, A, S-1] after each anchor, of which the taps before it are all the context."""
        keep = torch.ones_like(anchors_BA, dtype=torch.bool)
        loss_mask = torch.ones_like(tokens_BT, dtype=torch.bool)
        size = self.config.draft.block_size
        blocks = make_blocks(tokens_BT, loss_mask, anchors_BA, keep, block_size=size, mask_token=MASK_TOKEN)
        drafted_BQ = self._logits(blocks, taps_BTE).argmax(dim=-1)
        drafted_BAS: Tensor = drafted_BQ.unflatten(1, (-1, size))
        return drafted_BAS[..., 1:]

    @torch.no_grad()
    def _teach(self, tokens_BT: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """The taps, and the labels: the text's tokens, or the target's distribution given the text before."""
        if self.config.loss.labels == "data":
            return self.target.taps(tokens_BT, self.tap_layers), blocks.labels
        output = self.target(tokens_BT, tap_layers=self.tap_layers)
        before_BQ = (blocks.positions - 1).clamp(0, tokens_BT.shape[1] - 1)
        probabilities_BTV = F.softmax(output.logits, dim=-1)
        rows = torch.arange(len(tokens_BT), device=tokens_BT.device)[:, None]
        return output.taps, probabilities_BTV[rows, before_BQ]

    def _logits(self, blocks: Blocks, taps_BTE: Tensor) -> Tensor:
        mask = draft_mask(
            blocks.anchors,
            blocks.keep,
            num_context=taps_BTE.shape[1],
            block_size=self.config.draft.block_size,
        )
        noise_BQD = self.target.embed_tokens(blocks.tokens)
        hidden_BQD = self.draft(noise_BQD, taps_BTE, mask, blocks.positions)
        return self.target.head(hidden_BQD)
