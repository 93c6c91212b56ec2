"""Pieces that the target and the drafter share, named as Qwen3 names them.

Weights may be float32 while the arithmetic is bfloat16: each is cast to its input's type where it is used, so
that the parameters are the optimizer's masters and gradients come back in float32.

Shapes: R rows, X tokens of whatever kind, Q queries, K keys, N query heads, M key heads, H head dim, D model
dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """A product without bias, in its input's type."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, x / rms(x) in float32 whatever the input.

    Rounded before the weight too, as Qwen3 has it.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and type as `x`."""
        # On a GPU, uncompiled, each operation writes a float32 tensor of its own: PyTorch has one kernel.
        alone = x.is_cuda and not torch.compiler.is_dynamo_compiling()
        scaled = F.rms_norm(x, x.shape[-1:], None, self.eps) if alone else self._scaled(x)
        return scaled * self.weight.to(x.dtype)

    def _scaled(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, intermediate)
        self.up_proj = Linear(width, intermediate)
        self.down_proj = Linear(intermediate, width)

    def forward(self, x_RXD: Tensor) -> Tensor:
        """[R, X, D] to [R, X, D]."""
        out_RXD: Tensor = self.down_proj(F.silu(self.gate_proj(x_RXD)) * self.up_proj(x_RXD))
        return out_RXD


class AttentionProjections(nn.Module):
    """Grouped-query projections with QK-norm and rotary positions; what attends to what is the subclass's."""

    def __init__(self, width: int, heads: int, key_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = Linear(width, heads * head_dim)
        self.k_proj = Linear(width, key_heads * head_dim)
        self.v_proj = Linear(width, key_heads * head_dim)
        self.o_proj = Linear(heads * head_dim, width)
        self.q_norm = RMSNorm(head_dim, eps)
        self.k_norm = RMSNorm(head_dim, eps)

    def queries(self, x_RXD: Tensor, cos_R1XH: Tensor, sin_R1XH: Tensor) -> Tensor:
        """[R, N, X, H]."""
        normed = self.q_norm(split_heads(self.q_proj(x_RXD), self.head_dim))
        return rotate(normed.transpose(1, 2), cos_R1XH, sin_R1XH)

    def keys_values(self, x_RXD: Tensor, cos_R1XH: Tensor, sin_R1XH: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, M, X, H]."""
        normed = self.k_norm(split_heads(self.k_proj(x_RXD), self.head_dim))
        values = split_heads(self.v_proj(x_RXD), self.head_dim).transpose(1, 2)
        return rotate(normed.transpose(1, 2), cos_R1XH, sin_R1XH), values

    def output(self, out_RNXH: Tensor) -> Tensor:
        """[R, N, X, H] to [R, X, D]."""
        projected: Tensor = self.o_proj(out_RNXH.transpose(1, 2).flatten(2))
        return projected


def rope_table(
    positions_RX: Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [R, 1, X, H] of rotary positions; halves are rotated, as in Qwen3."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_RX.device) / head_dim
    angles = positions_RX.double()[:, None, :, None] * theta**-exponents
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def rotate(x_RNXH: Tensor, cos_R1XH: Tensor, sin_R1XH: Tensor) -> Tensor:
    """Apply rotary positions."""
    low, high = x_RNXH.chunk(2, dim=-1)
    return x_RNXH * cos_R1XH + torch.cat((-high, low), dim=-1) * sin_R1XH


def split_heads(x_RXD: Tensor, head_dim: int) -> Tensor:
    """[R, X, N*H] to [R, X, N, H]."""
    heads: Tensor = x_RXD.unflatten(-1, (-1, head_dim))
    return heads


def repeat_heads(x_RMXH: Tensor, groups: int) -> Tensor:
    """Give each of `groups` query heads of a group its copy of the key or value head."""
    return x_RMXH.repeat_interleave(groups, dim=1)
