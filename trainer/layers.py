"""Pieces that the target and the drafter share, named as Qwen3 names them.

Shapes: B batch, Q queries, K keys, N heads, H head dim, D model dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in float32 whatever the input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and type as `x`."""
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weight


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, intermediate, bias=False)
        self.up_proj = nn.Linear(width, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, width, bias=False)

    def forward(self, x_BQD: Tensor) -> Tensor:
        """[B, Q, D] to [B, Q, D]."""
        out_BQD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BQD)) * self.up_proj(x_BQD))
        return out_BQD


def rope_table(
    positions_BK: Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, K, H] of rotary positions; halves are rotated, as in Qwen3."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_BK.device) / head_dim
    angles = positions_BK.double()[:, None, :, None] * theta**-exponents
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x_BNKH: Tensor, cos_B1KH: Tensor, sin_B1KH: Tensor) -> Tensor:
    """Apply rotary positions."""
    low, high = x_BNKH.chunk(2, dim=-1)
    return x_BNKH * cos_B1KH + torch.cat((-high, low), dim=-1) * sin_B1KH


def split_heads(x_BKD: Tensor, head_dim: int) -> Tensor:
    """[B, K, N*H] to [B, K, N, H]."""
    heads: Tensor = x_BKD.unflatten(-1, (-1, head_dim))
    return heads


def repeat_heads(x_BMKH: Tensor, groups: int) -> Tensor:
    """Give each of `groups` query heads of a group its copy of the key or value head."""
    return x_BMKH.repeat_interleave(groups, dim=1)
