"""The trainer's own target: a Qwen3 model with tied embeddings, taps on its hidden states and a KV cache.

Tensor names are those of `Qwen3ForCausalLM`, so its directory loads there too.
Shapes: R rows, T tokens run now, K keys (past and present), N heads, M key heads, H head dim, D model dim,
E = taps * D, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.layers import AttentionProjections, RMSNorm, SwiGLU, repeat_heads, rope_table
from trainer.target.api import Observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.batch import Batch
    from trainer.target.api import TargetShape

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values [R, M, K, H] of each layer."""
Lengths = tuple[tuple[int, ...], ...]
"""Lengths of the documents of each row, in order, as `Batch.lengths`."""


class TargetOutput(NamedTuple):
    """Logits [R, T, V] for the next token, taps [R, T, E] side by side, and the cache of all keys."""

    logits: Tensor
    taps: Tensor
    cache: Cache


def _attend(q_RNTH: Tensor, k_RMKH: Tensor, v_RMKH: Tensor, mask: Tensor | None) -> Tensor:
    """PyTorch's SDPA: without a mask causal, or over all keys if some are past.

    On a GPU a fused kernel runs it, and no score matrix exists, if each query head has a key head of its own;
    one of the short types needs no such copies where there is no mask.
    """
    shared = mask is None and q_RNTH.dtype in (torch.bfloat16, torch.float16)
    if not shared:
        groups = q_RNTH.shape[1] // k_RMKH.shape[1]
        k_RMKH, v_RMKH = repeat_heads(k_RMKH, groups), repeat_heads(v_RMKH, groups)
    causal = mask is None and q_RNTH.shape[2] == k_RMKH.shape[2]
    return F.scaled_dot_product_attention(
        q_RNTH, k_RMKH, v_RMKH, attn_mask=mask, is_causal=causal, enable_gqa=shared
    )


def _attend_by_document(q_RNTH: Tensor, k_RMTH: Tensor, v_RMTH: Tensor, lengths: Lengths) -> Tensor:
    """Causal attention within each document alone.

    Where a row holds one document or none, plain causal attention is that already: padding comes last.
    """
    if max(len(row) for row in lengths) <= 1:
        return _attend(q_RNTH, k_RMTH, v_RMTH, None)
    out_RNTH = torch.zeros_like(q_RNTH)
    for index, row in enumerate(lengths):
        start = 0
        for length in row:
            part = (slice(index, index + 1), slice(None), slice(start, start + length))
            out_RNTH[part] = _attend(q_RNTH[part], k_RMTH[part], v_RMTH[part], None)
            start += length
    return out_RNTH


class TargetAttention(AttentionProjections):
    """Causal attention over past and present, or within each document of a row."""

    def forward(
        self,
        x_RTD: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor | Lengths | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attended [R, T, D], and the keys and values [R, M, K, H] of past and present."""
        q = self.queries(x_RTD, *rope)
        k, v = self.keys_values(x_RTD, *rope)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        out = _attend_by_document(q, k, v, mask) if isinstance(mask, tuple) else _attend(q, k, v, mask)
        return self.output(out), (k, v)


class TargetLayer(nn.Module):
    """Attention and MLP, each behind its norm; dropout only while the target itself is trained."""

    def __init__(self, shape: TargetShape, dropout: float) -> None:
        super().__init__()
        heads = (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
        self.self_attn = TargetAttention(shape.hidden_size, *heads, shape.rms_norm_eps)
        self.mlp = SwiGLU(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.dropout = dropout

    def forward(
        self,
        x_RTD: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor | Lengths | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[R, T, D] to [R, T, D], and the keys and values as attention returns them."""
        attended, kv = self.self_attn(self.input_layernorm(x_RTD), rope, mask, past)
        x_RTD = x_RTD + F.dropout(attended, self.dropout, self.training)
        mixed = self.mlp(self.post_attention_layernorm(x_RTD))
        return x_RTD + F.dropout(mixed, self.dropout, self.training), kv


class TargetModel(nn.Module):
    """Embedding, layers, norm; the embedding is the output head too. An `api.Target`."""

    def __init__(self, shape: TargetShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(shape, dropout) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self._exact: list[TargetModel] = []  # in a list, so that it is no submodule

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def embedding(self) -> Tensor:
        """[V, D]."""
        return self.embed_tokens.weight

    @property
    def head(self) -> Tensor:
        """[V, D], the embedding again."""
        return self.embed_tokens.weight

    def forward(
        self,
        tokens_RT: Tensor,
        *,
        positions_RT: Tensor | None = None,
        mask: Tensor | Lengths | None = None,
        past: Cache | None = None,
        tap_layers: Sequence[int] = (),
    ) -> TargetOutput:
        """Run tokens at their positions (0.. if not given) after the cached past; causally without a mask.

        `mask` is a boolean one [R or 1, 1, T, K], or the lengths of documents that do not see each other; a
        lone token after a past needs none. `tap_layers` are 0-based; a tap is the hidden state after that
        layer.
        """
        x_RTD, taps_RTE, cache = self.run_layers(
            tokens_RT, positions_RT, mask, past, tap_layers, self.shape.num_hidden_layers
        )
        return TargetOutput(F.linear(self.norm(x_RTD), self.head), taps_RTE, cache)

    def run_layers(
        self,
        tokens_RT: Tensor,
        positions_RT: Tensor | None,
        mask: Tensor | Lengths | None,
        past: Cache | None,
        tap_layers: Sequence[int],
        num_layers: int,
    ) -> tuple[Tensor, Tensor, Cache]:
        """Hidden states [R, T, D] after the first `num_layers`, taps [R, T, E], and the cache of those."""
        if positions_RT is None:
            positions_RT = torch.arange(tokens_RT.shape[1], device=tokens_RT.device)[None]
        x_RTD: Tensor = self.embed_tokens(tokens_RT)
        rope = rope_table(positions_RT, self.shape.head_dim, self.shape.rope_theta, x_RTD.dtype)
        cache: Cache = []
        taps: dict[int, Tensor] = {}
        for index in range(num_layers):
            x_RTD, kv = self.layers[index](x_RTD, rope, mask, None if past is None else past[index])
            cache.append(kv)
            if index in tap_layers:
                taps[index] = x_RTD
        taps_RTE = torch.cat([x_RTD[..., :0], *(taps[layer] for layer in tap_layers)], dim=-1)
        return x_RTD, taps_RTE, cache

    @torch.no_grad()
    def observe(self, batch: Batch, tap_layers: Sequence[int], *, last: bool) -> Observation:
        """Run documents, none of which sees another, no further up than is asked for."""
        return self.read(batch, tap_layers, last=last)[0]

    @torch.no_grad()
    def read(self, batch: Batch, tap_layers: Sequence[int], *, last: bool) -> tuple[Observation, Cache]:
        """The same with the keys and values of the layers that ran."""
        num_layers = self.shape.num_hidden_layers if last else 1 + max(tap_layers)
        x_RTD, taps_RTE, cache = self.run_layers(
            batch.tokens, batch.positions, batch.lengths, None, tap_layers, num_layers
        )
        padding_RT1 = (batch.starts == batch.tokens.shape[1])[..., None]
        hidden = self.norm(x_RTD).masked_fill(padding_RT1, 0) if last else None
        return Observation(taps_RTE.masked_fill(padding_RT1, 0), hidden), cache

    def session(self, tap_layers: Sequence[int], *, exact: bool = False) -> OwnSession:
        """Begin a sequence."""
        return OwnSession(self.in_float64() if exact else self, tap_layers)

    def in_float64(self) -> TargetModel:
        """A copy for decoding, made once."""
        if not self._exact:
            self._exact.append(copy.deepcopy(self).double())
        return self._exact[0]


class OwnSession:
    """One sequence on a `TargetModel`; an `api.Session`."""

    def __init__(self, model: TargetModel, tap_layers: Sequence[int]) -> None:
        self._model = model
        self._tap_layers = tuple(tap_layers)
        self._cache: Cache | None = None

    @property
    def length(self) -> int:
        """Tokens whose keys are in the cache."""
        return 0 if self._cache is None else self._cache[0][0].shape[2]

    @torch.no_grad()
    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [M, V] for the token after each, and taps [M, E]."""
        device = self._model.device
        keys = torch.arange(self.length + len(tokens), device=device)
        positions = keys[self.length :]
        # A first run is causal, and a lone token sees all keys: neither pays for a mask.
        plain = self.length == 0 or len(tokens) == 1
        mask = None if plain else (keys <= positions[:, None])[None, None]
        output = self._model(
            torch.tensor([list(tokens)], device=device),
            positions_RT=positions[None],
            mask=mask,
            past=self._cache,
            tap_layers=self._tap_layers,
        )
        self._cache = output.cache
        return output.logits[0], output.taps[0]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if self._cache is not None:
            self._cache = [(keys[:, :, :length], values[:, :, :length]) for keys, values in self._cache]


def frozen(model: TargetModel) -> TargetModel:
    """Without dropout and gradients."""
    return model.eval().requires_grad_(requires_grad=False)
