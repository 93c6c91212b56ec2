"""The drafter: a few Qwen3-style layers whose keys and values also come from the target's hidden states.

Names are those of the published checkpoints (`DFlashDraftModel`), so exporting is saving. The drafter has no
embedding and no head; both are the target's.

Shapes: B batch, T context tokens, Q block tokens, K = T+Q keys, N heads, M key heads, H head dim, D model
dim, E = taps * D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.attention import dense_attention
from trainer.layers import RMSNorm, SwiGLU, rope_table, rotate, split_heads

if TYPE_CHECKING:
    from trainer.config import DraftConfig
    from trainer.target import TargetModel, TargetShape


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftShape:
    """All that the drafter's tensors depend on."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int


def target_layer_ids(num_target_layers: int, count: int) -> tuple[int, ...]:
    """The published rule: round(1 + i*(L-4)/(n-1)), i = 0..n-1; L // 2 if n is 1.

    0-based, "after layer i".
    """
    if count == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count))


def draft_shape(target: TargetShape, draft: DraftConfig) -> DraftShape:
    """Width, heads and rotary base from the target, the rest from the configuration."""
    return DraftShape(
        hidden_size=target.hidden_size,
        intermediate_size=draft.intermediate_size or target.intermediate_size,
        num_layers=draft.num_layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        block_size=draft.block_size,
        target_layer_ids=target_layer_ids(target.num_hidden_layers, draft.num_target_layers),
        num_target_layers=target.num_hidden_layers,
    )


class DraftAttention(nn.Module):
    """Queries from the block; keys and values from the context and the block, by the same projections."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width, head_dim = shape.hidden_size, shape.head_dim
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, shape.num_attention_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head_dim, width, bias=False)
        self.q_norm = RMSNorm(head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, shape.rms_norm_eps)

    def forward(
        self, x_BQD: Tensor, context_BTD: Tensor, mask_B1QK: Tensor, cos_B1KH: Tensor, sin_B1KH: Tensor
    ) -> Tensor:
        """Attend; the rotary table covers all keys, and the queries are its last Q rows."""
        both_BKD = torch.cat((context_BTD, x_BQD), dim=1)
        q = self.q_norm(split_heads(self.q_proj(x_BQD), self.head_dim)).transpose(1, 2)
        k = self.k_norm(split_heads(self.k_proj(both_BKD), self.head_dim)).transpose(1, 2)
        v = split_heads(self.v_proj(both_BKD), self.head_dim).transpose(1, 2)
        num_queries = x_BQD.shape[1]
        q = rotate(q, cos_B1KH[:, :, -num_queries:], sin_B1KH[:, :, -num_queries:])
        k = rotate(k, cos_B1KH, sin_B1KH)
        out = dense_attention(q, k, v, mask_B1QK)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


class DraftLayer(nn.Module):
    """One layer.

    The context is the fused hidden states as they are: it does not pass the layer's input norm.
    """

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.self_attn = DraftAttention(shape)
        self.mlp = SwiGLU(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, x_BQD: Tensor, context_BTD: Tensor, mask_B1QK: Tensor, cos_B1KH: Tensor, sin_B1KH: Tensor
    ) -> Tensor:
        """[B, Q, D] to [B, Q, D]."""
        attended: Tensor = self.self_attn(
            self.input_layernorm(x_BQD), context_BTD, mask_B1QK, cos_B1KH, sin_B1KH
        )
        x_BQD = x_BQD + attended
        mixed: Tensor = self.mlp(self.post_attention_layernorm(x_BQD))
        return x_BQD + mixed


LayerCall = Callable[[DraftLayer, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class DraftModel(nn.Module):
    """Fusion of the taps, the layers, the norm."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.fc = nn.Linear(len(shape.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(width, shape.rms_norm_eps)
        self.call_layer: LayerCall = DraftLayer.forward

    def forward(self, noise_BQD: Tensor, taps_BTE: Tensor, mask_B1QK: Tensor, positions_BQ: Tensor) -> Tensor:
        """Hidden states [B, Q, D] for the target's head, given embedded blocks and the context's taps."""
        context_BTD = self.hidden_norm(self.fc(taps_BTE))
        context_positions = torch.arange(taps_BTE.shape[1], device=taps_BTE.device)
        positions_BK = torch.cat((context_positions.expand(len(noise_BQD), -1), positions_BQ), dim=1)
        cos, sin = rope_table(positions_BK, self.shape.head_dim, self.shape.rope_theta, noise_BQD.dtype)
        x_BQD = noise_BQD
        for layer in self.layers:
            assert isinstance(layer, DraftLayer)
            x_BQD = self.call_layer(layer, x_BQD, context_BTD, mask_B1QK, cos, sin)
        hidden_BQD: Tensor = self.norm(x_BQD)
        return hidden_BQD


def initialise(model: DraftModel, generator: torch.Generator) -> None:
    """Normal weights of deviation 1/sqrt(inputs), halved where a layer writes into the residual stream.

    The usual 0.02 suits wide models; at this width it costs a fifth of the acceptance length after 380 steps.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            std = parameter.shape[1] ** -0.5
            halved = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=std / 2 if halved else std, generator=generator)


@torch.no_grad()
def initialise_from_target(model: DraftModel, target: TargetModel) -> None:
    """Begin with copies of the target's first layers and final norm; the fusion passes the first tap through.

    Needs a drafter whose layers have the target's shapes, and no more of them than the target has.
    """
    model.norm.load_state_dict(target.norm.state_dict())
    for draft_layer, target_layer in zip(model.layers, target.layers, strict=False):
        draft_layer.load_state_dict(target_layer.state_dict())
    width = model.shape.hidden_size
    model.fc.weight[:, :width] += torch.eye(width)
