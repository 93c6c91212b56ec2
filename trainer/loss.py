"""Position-decayed cross-entropy, and how many drafted tokens are accepted.

Shapes: B batch, A anchor slots, S block tokens, Q = A*S, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def decay_weights(block_size: int, gamma: float) -> Tensor:
    """[S] weights exp(-(k-1)/gamma) of offsets k = 1..S-1, and 0 for the anchor (DFlash, equation 4)."""
    offsets = torch.arange(block_size, dtype=torch.float32)
    return torch.where(offsets > 0, torch.exp(-(offsets - 1) / gamma), 0.0)


def weighted_loss(logits_BQV: Tensor, labels: Tensor, weights_BQ: Tensor) -> Tensor:
    """sum(CE * w) / sum(w), in nats.

    Labels are ids [B, Q], or probabilities [B, Q, V]; 0 if nothing counts.
    """
    targets = labels.flatten(0, 1)
    losses_Q = F.cross_entropy(logits_BQV.float().flatten(0, 1), targets, reduction="none")
    weights_Q = weights_BQ.flatten()
    return (losses_Q * weights_Q).sum() / weights_Q.sum().clamp(min=1e-9)


def accepted_lengths(drafted: Tensor, verified: Tensor) -> Tensor:
    """Length of the common prefix along the last dimension: what one greedy verification accepts."""
    return (drafted == verified).long().cumprod(dim=-1).sum(dim=-1)
