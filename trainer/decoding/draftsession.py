"""The drafter in one sequence: the keys and values of its context are computed once a token, and kept.

No mask is needed in a full layer, since a block sees all of the context and all of itself; so this runs
uncompiled on any device, and no step of it makes scores larger than a block times the context.

Shapes: M new context tokens, C cached ones, S block tokens, D model dim, E = taps * D, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from trainer.decoding.greedy import Proposal
from trainer.layers import rope_table
from trainer.model import DraftLayer, DraftModel

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.decoding.greedy import Propose
    from trainer.drafting import Drafting

Rope = tuple["Tensor", "Tensor"]


def in_compute_type(drafting: Drafting) -> Drafting:
    """The same with weights of the arithmetic's type, so that a decode step does not cast them each time."""
    return dataclasses.replace(drafting, draft=copy.deepcopy(plain_draft(drafting)).to(drafting.dtype))


def plain_draft(drafting: Drafting) -> DraftModel:
    """The drafter without its DDP wrapper. One that FSDP shards cannot run by parts."""
    draft = getattr(drafting.draft, "module", drafting.draft)
    assert isinstance(draft, DraftModel)
    return draft


class DraftSession:
    """One sequence under decoding."""

    def __init__(self, drafting: Drafting) -> None:
        self._draft = plain_draft(drafting)
        self._vocabulary = drafting.vocabulary
        self._dtype = drafting.dtype
        self._size = drafting.config.draft.block_size
        self._mask_token = drafting.mask_token
        self._cache: list[tuple[Tensor, Tensor]] = []

    @property
    def length(self) -> int:
        """Tokens of context."""
        return self._cache[0][0].shape[2] if self._cache else 0

    @torch.no_grad()
    def extend(self, taps_ME: Tensor) -> None:
        """Append tokens to the context."""
        context_1MD = self._draft.fuse(taps_ME[None].to(self._dtype))
        rope = self._rope(self.length, len(taps_ME), taps_ME.device)
        new = [layer.self_attn.keys_values(context_1MD, *rope) for layer in self._layers()]
        if self._cache:
            pairs = zip(self._cache, new, strict=True)
            new = [(torch.cat((k, k_new), 2), torch.cat((v, v_new), 2)) for (k, v), (k_new, v_new) in pairs]
        self._cache = new

    @torch.no_grad()
    def logits(self, token: int) -> Tensor:
        """Logits [S-1, V] of what may follow `token`, which itself follows the context."""
        device = self._vocabulary.embedding.device
        block_S = torch.tensor([token] + [self._mask_token] * (self._size - 1), device=device)
        x_1SD = F.embedding(block_S[None], self._vocabulary.embedding).to(self._dtype)
        rope = self._rope(self.length, self._size, device)
        masks = {"full_attention": None, "sliding_attention": self._sliding_mask(device)}
        kinds = self._draft.shape.layer_types
        for layer, kind, kept in zip(self._layers(), kinds, self._cache, strict=True):
            x_1SD = _run_layer(layer, x_1SD, kept, rope, masks[kind])
        head = self._vocabulary.head
        return F.linear(self._draft.norm(x_1SD)[0, 1:], head.to(x_1SD.dtype))

    def _layers(self) -> list[DraftLayer]:
        return [layer for layer in self._draft.layers if isinstance(layer, DraftLayer)]

    def _rope(self, start: int, count: int, device: torch.device) -> Rope:
        positions = torch.arange(start, start + count, device=device)[None]
        return rope_table(positions, self._draft.shape.head_dim, self._draft.shape.rope_theta, self._dtype)

    def _sliding_mask(self, device: torch.device) -> Tensor | None:
        """Bool [S, C+S]: the last `sliding_window` positions, and the block only up to the query itself."""
        window = self._draft.shape.sliding_window
        if window is None:
            return None
        keys = torch.arange(self.length + self._size, device=device)
        queries = keys[self.length :, None]
        return (keys <= queries) & (keys > queries - window)


def _run_layer(
    layer: DraftLayer, x_1SD: Tensor, kept: tuple[Tensor, Tensor], rope: Rope, mask: Tensor | None
) -> Tensor:
    """`DraftLayer.plain` with the context's keys and values at hand."""
    attention = layer.self_attn
    normed = layer.input_layernorm(x_1SD)
    k_block, v_block = attention.keys_values(normed, *rope)
    k, v = torch.cat((kept[0], k_block), dim=2), torch.cat((kept[1], v_block), dim=2)
    out = F.scaled_dot_product_attention(
        attention.queries(normed, *rope), k, v, attn_mask=mask, enable_gqa=True
    )
    x_1SD = x_1SD + attention.output(out)
    mixed: Tensor = layer.mlp(layer.post_attention_layernorm(x_1SD))
    return x_1SD + mixed


def propose_by_drafter(drafting: Drafting) -> Propose:
    """Propose the drafter's most likely tokens, for one sequence."""
    session = DraftSession(drafting)

    def propose(tokens: list[int], new_taps_ME: Tensor) -> Proposal:
        session.extend(new_taps_ME)
        return Proposal(session.logits(tokens[-1]).argmax(dim=-1).tolist())

    return propose


def sample_by_drafter(drafting: Drafting, temperature: float, generator: torch.Generator) -> Propose:
    """Propose tokens drawn from the drafter's distributions, each position's by itself."""
    session = DraftSession(drafting)

    def propose(tokens: list[int], new_taps_ME: Tensor) -> Proposal:
        session.extend(new_taps_ME)
        logits = session.logits(tokens[-1]).double().cpu()
        probabilities = (logits / temperature).softmax(dim=-1)
        drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        return Proposal(drawn.tolist(), probabilities)

    return propose
