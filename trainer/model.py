"""The drafter: a few Qwen3-style layers whose keys and values also come from the target's hidden states.

Names are those of the published checkpoints (`DFlashDraftModel`), so exporting is saving. The drafter has no
embedding and no head; both are the target's.

Shapes: R rows, T context tokens, Q block tokens, K = T+Q keys, N heads, M key heads, H head dim, D model
dim, E = taps * D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.attention import AttentionMask, attend
from trainer.errors import ConfigInvalid
from trainer.layers import AttentionProjections, Linear, RMSNorm, SwiGLU, rope_table

if TYPE_CHECKING:
    from trainer.config import DraftConfig, TargetConfig
    from trainer.target.api import TargetShape
    from trainer.target.own import TargetModel


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
    sliding_layers: int = 0
    """The first layers, which see a window."""
    sliding_window: int | None = None

    @property
    def layer_types(self) -> tuple[str, ...]:
        """As config.json names them."""
        full = self.num_layers - self.sliding_layers
        return ("sliding_attention",) * self.sliding_layers + ("full_attention",) * full


@dataclass(frozen=True, slots=True)
class LayerMasks:
    """Who sees whom, by kind of layer."""

    full: AttentionMask
    sliding: AttentionMask | None = None


def target_layer_ids(num_target_layers: int, count: int) -> tuple[int, ...]:
    """The published rule: round(1 + i*(L-4)/(n-1)), i = 0..n-1; L // 2 if n is 1.

    0-based, "after layer i".
    """
    if count == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count))


def draft_shape(target: TargetShape, draft: DraftConfig, source: TargetConfig) -> DraftShape:
    """Width, heads and rotary base from the target, the rest from the configuration.

    Raises:
        ConfigInvalid: a layer id that the target does not have, more sliding layers than layers, or heads
            that cannot be grouped.
    """
    depth = target.num_hidden_layers
    layer_ids = source.layer_ids or target_layer_ids(depth, draft.num_target_layers)
    if not all(0 <= layer < depth for layer in layer_ids) or len(set(layer_ids)) < len(layer_ids):
        raise ConfigInvalid(
            f"target.layer_ids: {list(layer_ids)} does not fit a target of {depth} layers; allowed: "
            f"different ids from 0 to {depth - 1}, or fewer than {draft.num_target_layers} "
            "draft.num_target_layers"
        )
    if draft.sliding_layers > draft.num_layers:
        raise ConfigInvalid(
            f"draft.sliding_layers: {draft.sliding_layers} is over draft.num_layers, {draft.num_layers}; "
            "allowed: 0 to that"
        )
    heads = draft.num_attention_heads or target.num_attention_heads
    key_heads = draft.num_key_value_heads or target.num_key_value_heads
    head_dim = draft.head_dim or target.head_dim
    if heads % key_heads or head_dim % 2:
        raise ConfigInvalid(
            f"draft: {heads} num_attention_heads, {key_heads} num_key_value_heads, head_dim {head_dim}; "
            "allowed: a multiple of the key heads, and an even head_dim (0 takes the target's)"
        )
    return DraftShape(
        hidden_size=target.hidden_size,
        intermediate_size=draft.intermediate_size or target.intermediate_size,
        num_layers=draft.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        block_size=draft.block_size,
        target_layer_ids=layer_ids,
        num_target_layers=depth,
        sliding_layers=draft.sliding_layers,
        sliding_window=draft.sliding_window if draft.sliding_layers else None,
    )


class DraftAttention(AttentionProjections):
    """Queries from the block; keys and values from the context and the block, by the same projections."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__(
            shape.hidden_size,
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
            shape.rms_norm_eps,
        )

    def forward(
        self, x_RQD: Tensor, context_RTD: Tensor, mask: AttentionMask, cos_R1KH: Tensor, sin_R1KH: Tensor
    ) -> Tensor:
        """Attend; the rotary table covers all keys, and the queries are its last Q rows."""
        num_context = context_RTD.shape[1]
        block_cos, block_sin = cos_R1KH[:, :, num_context:], sin_R1KH[:, :, num_context:]
        q = self.queries(x_RQD, block_cos, block_sin)
        k_context, v_context = self.keys_values(
            context_RTD, cos_R1KH[:, :, :num_context], sin_R1KH[:, :, :num_context]
        )
        k_block, v_block = self.keys_values(x_RQD, block_cos, block_sin)
        k, v = torch.cat((k_context, k_block), dim=2), torch.cat((v_context, v_block), dim=2)
        return self.output(attend(q, k, v, mask))


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
        self.compute: LayerCall = DraftLayer.plain

    def forward(
        self, x_RQD: Tensor, context_RTD: Tensor, mask: AttentionMask, cos_R1KH: Tensor, sin_R1KH: Tensor
    ) -> Tensor:
        """[R, Q, D] to [R, Q, D].

        A wrapper's hooks (FSDP gathers the weights in one) run outside of what `compute` compiles.
        """
        return self.compute(self, x_RQD, context_RTD, mask, cos_R1KH, sin_R1KH)

    def plain(
        self, x_RQD: Tensor, context_RTD: Tensor, mask: AttentionMask, cos_R1KH: Tensor, sin_R1KH: Tensor
    ) -> Tensor:
        """The layer as it is written, to be compiled whole."""
        attended = self.self_attn(self.input_layernorm(x_RQD), context_RTD, mask, cos_R1KH, sin_R1KH)
        x_RQD = x_RQD + attended
        mixed: Tensor = self.mlp(self.post_attention_layernorm(x_RQD))
        return x_RQD + mixed


LayerCall = Callable[[DraftLayer, Tensor, Tensor, AttentionMask, Tensor, Tensor], Tensor]


class DraftModel(nn.Module):
    """Fusion of the taps, the layers, the norm."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.fc = Linear(len(shape.target_layer_ids) * width, width)
        self.hidden_norm = RMSNorm(width, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(width, shape.rms_norm_eps)

    def fuse(self, taps_RTE: Tensor) -> Tensor:
        """The context [R, T, D] that every layer reads."""
        context_RTD: Tensor = self.hidden_norm(self.fc(taps_RTE))
        return context_RTD

    def forward(
        self,
        noise_RQD: Tensor,
        taps_RTE: Tensor,
        masks: LayerMasks,
        positions_RQ: Tensor,
        context_positions_RT: Tensor,
    ) -> Tensor:
        """Hidden states [R, Q, D] for the target's head, given embedded blocks and the context's taps."""
        context_RTD = self.fuse(taps_RTE)
        positions_RK = torch.cat((context_positions_RT, positions_RQ), dim=1)
        cos, sin = rope_table(positions_RK, self.shape.head_dim, self.shape.rope_theta, noise_RQD.dtype)
        x_RQD = noise_RQD
        for layer, kind in zip(self.layers, self.shape.layer_types, strict=True):
            mask = masks.sliding if kind == "sliding_attention" else masks.full
            x_RQD = layer(x_RQD, context_RTD, mask, cos, sin)
        hidden_RQD: Tensor = self.norm(x_RQD)
        return hidden_RQD


def use_layer_call(draft: DraftModel, call: LayerCall) -> None:
    """Have every layer compute by `call`, the compiled function."""
    for layer in draft.layers:
        assert isinstance(layer, DraftLayer)
        layer.compute = call


@torch.no_grad()
def initialise(model: DraftModel, generator: torch.Generator) -> None:
    """Normal weights of deviation 1/sqrt(inputs), halved where a layer writes into the residual stream.

    The usual 0.02 suits wide models; at the embedded target's width it costs a fifth of the acceptance length
    after 380 steps.
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
    model.fc.weight[:, :width] += torch.eye(width, device=model.fc.weight.device)
