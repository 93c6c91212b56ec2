"""The frozen target: a byte-level Qwen3 model with taps on its hidden states and a KV cache.

Tensor names are those of `Qwen3ForCausalLM`, so the asset loads there too.
Shapes: B batch, T tokens run now, K keys (past and present), N heads, M key heads, H head dim, D model dim,
E = taps * D, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.attention import dense_attention
from trainer.errors import DataInvalid
from trainer.layers import RMSNorm, SwiGLU, rope_table, rotate, split_heads

EMBEDDED = Path(__file__).parent / "assets" / "target"
MASK_TOKEN = 256
"""The first id after the 256 bytes; ids 257 to 259 are unused."""
VOCAB_SIZE = 260


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetShape:
    """Qwen3's config.json keys, as far as this model uses them."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 1024


Cache = list[tuple[Tensor, Tensor]]
"""Keys and values [B, M, K, H] of each layer."""


class TargetOutput(NamedTuple):
    """Logits [B, T, V] for the next token, taps [B, T, E] side by side, and the cache of all keys."""

    logits: Tensor
    taps: Tensor
    cache: Cache


class TargetAttention(nn.Module):
    """Grouped-query attention with QK-norm and rotary positions."""

    def __init__(self, shape: TargetShape) -> None:
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
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor],
        mask_B1TK: Tensor | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attended [B, T, D], and the keys and values [B, M, K, H] of past and present."""
        q = rotate(self.q_norm(split_heads(self.q_proj(x_BTD), self.head_dim)).transpose(1, 2), *rope)
        k = rotate(self.k_norm(split_heads(self.k_proj(x_BTD), self.head_dim)).transpose(1, 2), *rope)
        v = split_heads(self.v_proj(x_BTD), self.head_dim).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        out = dense_attention(q, k, v, mask_B1TK)
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)


class TargetLayer(nn.Module):
    """Attention and MLP, each behind its norm; dropout only while the target itself is trained."""

    def __init__(self, shape: TargetShape, dropout: float) -> None:
        super().__init__()
        self.self_attn = TargetAttention(shape)
        self.mlp = SwiGLU(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.dropout = dropout

    def forward(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor],
        mask_B1TK: Tensor | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, T, D] to [B, T, D], and the keys and values as attention returns them."""
        attended, kv = self.self_attn(self.input_layernorm(x_BTD), rope, mask_B1TK, past)
        x_BTD = x_BTD + F.dropout(attended, self.dropout, self.training)
        mixed = self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD + F.dropout(mixed, self.dropout, self.training), kv


class TargetModel(nn.Module):
    """Embedding, layers, norm; the embedding is the output head too."""

    def __init__(self, shape: TargetShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(shape, dropout) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TK: Tensor | None = None,
        past: Cache | None = None,
        tap_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run tokens at their positions (0.. if not given) after the cached past; causally without a mask.

        `tap_layers` are 0-based; a tap is the hidden state after that layer.
        """
        x_BTD, taps, cache = self._run(
            tokens_BT, positions_BT, mask_B1TK, past, tap_layers, self.shape.num_hidden_layers
        )
        return TargetOutput(self.head(self.norm(x_BTD)), torch.cat([x_BTD[..., :0], *taps], dim=-1), cache)

    def taps(self, tokens_BT: Tensor, tap_layers: tuple[int, ...]) -> Tensor:
        """The tapped hidden states [B, T, E] alone, without running the layers above the last tap."""
        _, taps, _ = self._run(tokens_BT, None, None, None, tap_layers, 1 + max(tap_layers))
        return torch.cat(taps, dim=-1)

    def _run(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None,
        mask_B1TK: Tensor | None,
        past: Cache | None,
        tap_layers: tuple[int, ...],
        num_layers: int,
    ) -> tuple[Tensor, list[Tensor], Cache]:
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        x_BTD = self.embed_tokens(tokens_BT)
        rope = rope_table(positions_BT, self.shape.head_dim, self.shape.rope_theta, x_BTD.dtype)
        cache: Cache = []
        taps: list[Tensor] = []
        for index in range(num_layers):
            x_BTD, kv = self.layers[index](x_BTD, rope, mask_B1TK, None if past is None else past[index])
            cache.append(kv)
            if index in tap_layers:
                taps.append(x_BTD)
        return x_BTD, taps, cache

    def head(self, hidden_BTD: Tensor) -> Tensor:
        """Logits [B, T, V] of hidden states that went through a final norm."""
        return F.linear(hidden_BTD, self.embed_tokens.weight)


def config_json(shape: TargetShape) -> dict[str, object]:
    """The target's config.json, as transformers reads it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(shape),
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "mask_token_id": MASK_TOKEN,
        "dtype": "bfloat16",
    }


def target_directory(configured: str) -> Path:
    """The folder meant by `target.path`."""
    return EMBEDDED if configured == "embedded" else Path(configured)


def target_sha256(configured: str) -> str:
    """sha256 of the target's weights."""
    return hashlib.sha256((target_directory(configured) / "model.safetensors").read_bytes()).hexdigest()


def load_target(configured: str) -> TargetModel:
    """Read a frozen target, in float32 and without gradients, from its directory or the embedded asset.

    Raises:
        DataInvalid: a file is missing or is not this model's.
    """
    directory = target_directory(configured)
    try:
        table = json.loads((directory / "config.json").read_text())
        shape = TargetShape(**{name: table[name] for name in TargetShape.__dataclass_fields__})
        tensors = load_file(directory / "model.safetensors")
        model = TargetModel(shape)
        prefix = "model."
        model.load_state_dict({name.removeprefix(prefix): value.float() for name, value in tensors.items()})
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise DataInvalid(
            f"target {directory}: {reason}; give a target that trainer.train_target made"
        ) from error
    return model.eval().requires_grad_(requires_grad=False)
