"""Greedy decoding over buffers of fixed size, alone and with the drafter, so that a step is one CUDA graph.

A target token at a time is what an inference server replays as a graph; so is a whole round of speculation:
verify the block, count what is accepted, append its taps to the drafter's context, draft the next block. A
round always runs all S tokens: what a rejected token wrote lies past the length, where the mask hides it and
the next round writes over it.

Shapes: S block tokens, T tokens run now, L keys in the buffers, N query heads, M key heads, G = N/M, H head
dim, D model dim, E = taps * D.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from trainer.decoding.draftsession import plain_draft
from trainer.decoding.greedy import Decoded
from trainer.layers import rope_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from trainer.drafting import Drafting
    from trainer.layers import AttentionProjections
    from trainer.model import DraftLayer
    from trainer.target.own import TargetLayer, TargetModel

    Rope = tuple[Tensor, Tensor]

ALIGN = 8
"""Keys a fused kernel wants a mask's rows to be a multiple of."""


class FixedCache:
    """Keys and values [1, M, L, H] of each layer."""

    def __init__(self, num_layers: int, key_heads: int, length: int, head_dim: int, like: Tensor) -> None:
        shape = (num_layers, 2, 1, key_heads, length, head_dim)
        self._kept = torch.zeros(shape, device=like.device, dtype=like.dtype)
        self._positions_L = torch.arange(length, device=like.device)

    def write(
        self, layer: int, attention: AttentionProjections, x_1TD: Tensor, rope: Rope, positions_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the tokens; those of all positions."""
        keys, values = self._kept[layer]
        for kept, new in zip((keys, values), attention.keys_values(x_1TD, *rope), strict=True):
            kept.index_copy_(2, positions_T, new)
        return keys, values

    def until(self, ends_T: Tensor, window: int | None = None) -> Tensor:
        """Bool [T, L]: the positions up to each end, it included; of those the last `window`."""
        mask_TL = self._positions_L <= ends_T[:, None]
        return mask_TL if window is None else mask_TL & (self._positions_L > ends_T[:, None] - window)

    def run(
        self,
        layers: Iterable[TargetLayer | DraftLayer],
        x_1TD: Tensor,
        rope: Rope,
        positions_T: Tensor,
        masks_TL: Sequence[Tensor],
    ) -> Iterable[Tensor]:
        """Hidden states [1, T, D] after each layer; one mask for each."""
        for index, (layer, mask_TL) in enumerate(zip(layers, masks_TL, strict=True)):
            attention, normed = layer.self_attn, layer.input_layernorm(x_1TD)
            keys, values = self.write(index, attention, normed, rope, positions_T)
            out = _attend(attention.queries(normed, *rope), keys, values, mask_TL)
            x_1TD = x_1TD + attention.output(out)
            x_1TD = x_1TD + layer.mlp(layer.post_attention_layernorm(x_1TD))
            yield x_1TD


def _attend(q_1NTH: Tensor, k_1MLH: Tensor, v_1MLH: Tensor, mask_TL: Tensor) -> Tensor:
    """SDPA with the queries of a group stacked along T, so that no key is copied for its group."""
    tokens, groups = q_1NTH.shape[2], q_1NTH.shape[1] // k_1MLH.shape[1]
    stacked = q_1NTH.unflatten(1, (-1, groups)).flatten(2, 3)
    mask = mask_TL.repeat(groups, 1)
    out = F.scaled_dot_product_attention(stacked, k_1MLH, v_1MLH, attn_mask=mask)
    out_1NTH: Tensor = out.unflatten(2, (groups, tokens)).flatten(1, 2)
    return out_1NTH


class Alone:
    """The target's own greedy decoding."""

    def __init__(self, target: TargetModel, limit: int) -> None:
        """`limit` is the number of tokens, prompt included, that a sequence may have."""
        shape = target.shape
        length = -(-limit // ALIGN) * ALIGN
        self._target = target
        self._cache = FixedCache(
            shape.num_hidden_layers, shape.num_key_value_heads, length, shape.head_dim, target.embedding
        )
        self._tokens_S = torch.zeros(1, dtype=torch.long, device=target.device)
        self._length = torch.zeros((), dtype=torch.long, device=target.device)
        self._found_L = torch.zeros(length, dtype=torch.long, device=target.device)
        self._step = as_graph(self._decode, target.device)

    @torch.no_grad()
    def decode(self, prompt: Sequence[int], new_tokens: int) -> Decoded:
        """Tokens after the prompt; the host waits for them once."""
        greedy, _ = self._prompt(prompt, ())
        self._tokens_S.copy_(greedy)
        self._found_L[len(prompt)] = greedy[0]
        for _ in range(new_tokens - 1):
            self._step()
        return Decoded(self._found_L[len(prompt) : len(prompt) + new_tokens].tolist(), [], float("inf"))

    def _prompt(self, prompt: Sequence[int], tap_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The first token [1] after a prompt whose keys are kept now, and its taps [T, E]."""
        tokens_T = torch.tensor(prompt, device=self._target.device)
        self._length.fill_(0)
        greedy_T, taps_TE = self._target_step(tokens_T, tap_layers)
        self._length.fill_(len(prompt))
        return greedy_T[-1:], taps_TE

    def _target_step(self, tokens_T: Tensor, tap_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The target's greedy token after each, and taps [T, E]; the tokens begin at the length."""
        target = self._target
        positions_T = self._length + torch.arange(len(tokens_T), device=target.device)
        x_1TD = target.embed_tokens(tokens_T[None])
        rope = rope_table(positions_T[None], target.shape.head_dim, target.shape.rope_theta, x_1TD.dtype)
        masks = [self._cache.until(positions_T)] * target.shape.num_hidden_layers
        taps = {}
        layers: list[TargetLayer] = list(target.layers)  # type: ignore[arg-type]
        for index, state in enumerate(self._cache.run(layers, x_1TD, rope, positions_T, masks)):
            x_1TD = taps[index] = state
        greedy_T = F.linear(target.norm(x_1TD)[0], target.head).argmax(dim=-1)
        return greedy_T, torch.cat([x_1TD[0, :, :0], *(taps[layer][0] for layer in tap_layers)], dim=-1)

    def _decode(self) -> None:
        greedy_S, _ = self._target_step(self._tokens_S, ())
        self._length.add_(1)
        self._tokens_S.copy_(greedy_S)
        self._found_L.index_copy_(0, self._length[None], greedy_S)


class Together(Alone):
    """The same with a drafter's blocks verified."""

    def __init__(self, drafting: Drafting, target: TargetModel, limit: int) -> None:
        """As of `Alone`; the drafter's weights are of the arithmetic's type."""
        shape, size = drafting.shape, drafting.shape.block_size
        device = target.device
        self._drafting, self._draft = drafting, plain_draft(drafting)
        super().__init__(target, limit + 2 * size)  # a last round may run so far past the end
        self._draft_cache = FixedCache(
            shape.num_layers, shape.num_key_value_heads, len(self._found_L), shape.head_dim,
            torch.empty(0, device=device, dtype=drafting.dtype),
        )  # fmt: skip
        self._tokens_S = torch.zeros(size, dtype=torch.long, device=device)
        self._masks_S = torch.full((size - 1,), drafting.mask_token, device=device)
        self._told = torch.zeros(size + 1, dtype=torch.long, device=device)
        self._step = as_graph(self._round, device)

    @torch.no_grad()
    def decode(self, prompt: Sequence[int], new_tokens: int) -> Decoded:
        """Tokens after the prompt; the host waits once a round, to know whether it was the last."""
        last, taps_TE = self._prompt(prompt, self._drafting.tap_layers)
        self._extend(taps_TE, torch.arange(len(prompt), device=last.device))
        self._tokens_S.copy_(self._propose(last))
        found, accepted = last.tolist(), []
        while len(found) < new_tokens:
            self._step()
            count, *verified = self._told.tolist()
            accepted.append(count)
            found += verified[: count + 1]
        return Decoded(found[:new_tokens], accepted, float("inf"))

    def _round(self) -> None:
        greedy_S, taps_SE = self._target_step(self._tokens_S, self._drafting.tap_layers)
        count = (self._tokens_S[1:] == greedy_S[:-1]).long().cumprod(0).sum()
        self._extend(taps_SE, self._length + torch.arange(len(greedy_S), device=greedy_S.device))
        self._length.add_(count + 1)
        self._tokens_S.copy_(self._propose(greedy_S.gather(0, count[None])))
        self._told.copy_(torch.cat((count[None], greedy_S)))

    def _extend(self, taps_TE: Tensor, positions_T: Tensor) -> None:
        """Append to the drafter's context."""
        context_1TD = self._draft.fuse(taps_TE[None].to(self._drafting.dtype))
        rope = self._draft_rope(positions_T)
        for index, layer in enumerate(self._layers()):
            self._draft_cache.write(index, layer.self_attn, context_1TD, rope, positions_T)

    def _propose(self, last_1: Tensor) -> Tensor:
        """`last` and what the drafter puts after it, S tokens; the block's own keys lie past the length."""
        block_S = torch.cat((last_1, self._masks_S))
        positions_S = self._length + torch.arange(len(block_S), device=block_S.device)
        x_1SD = F.embedding(block_S[None], self._drafting.vocabulary.embedding).to(self._drafting.dtype)
        shape = self._drafting.shape
        kinds = {
            "full_attention": self._draft_cache.until(positions_S[-1:].expand_as(positions_S)),
            "sliding_attention": self._draft_cache.until(positions_S, shape.sliding_window),
        }
        masks = [kinds[kind] for kind in shape.layer_types]
        rope = self._draft_rope(positions_S)
        for state in self._draft_cache.run(self._layers(), x_1SD, rope, positions_S, masks):
            x_1SD = state
        logits = F.linear(self._draft.norm(x_1SD)[0, 1:], self._drafting.vocabulary.head.to(x_1SD.dtype))
        return torch.cat((last_1, logits.argmax(dim=-1)))

    def _draft_rope(self, positions_T: Tensor) -> Rope:
        shape = self._drafting.shape
        return rope_table(positions_T[None], shape.head_dim, shape.rope_theta, self._drafting.dtype)

    def _layers(self) -> list[DraftLayer]:
        return list(self._draft.layers)  # type: ignore[arg-type]


def as_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A step that reads and writes fixed buffers, as a CUDA graph; without a GPU as it is.

    It runs three times here, as a capture needs what runs at first (workspaces, library handles) behind it.
    """
    if device.type != "cuda":
        return torch.no_grad()(step)
    beside = torch.cuda.Stream(device)
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside), torch.no_grad():
        for _ in range(3):
            step()
    torch.cuda.current_stream(device).wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        step()
    return graph.replay
