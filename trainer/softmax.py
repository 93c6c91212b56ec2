"""Cross-entropy of float32 logits in two passes over them: what the loss needs, then its gradient.

PyTorch's own operators read or write the logits some ten times.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.triton_here import has_triton

if TYPE_CHECKING:
    from types import ModuleType

COLUMNS = 8192
"""Logits of a row that a program reads at a time."""
WARPS = 8


def takes(hidden: Tensor) -> bool:
    """Whether the kernels here take the logits of such hidden states."""
    return hidden.is_cuda and hidden.dtype != torch.float64 and has_triton()


def row_terms(logits_BV: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's logsumexp and label's logit in float32, and its largest logit's id (the first of equals)."""
    rows, width = logits_BV.shape
    logsumexp_B, chosen_B = logits_BV.new_empty(2, rows).unbind()
    best_B = torch.empty_like(label_B)
    tensors = (logits_BV, label_B, logsumexp_B, chosen_B, best_B)
    _kernels().row_terms[(rows,)](*tensors, width, COLUMNS, num_warps=WARPS)
    return logsumexp_B, chosen_B, best_B


def logit_gradient_(
    logits_BV: Tensor, label_B: Tensor, logsumexp_B: Tensor, weight_B: Tensor, dtype: torch.dtype
) -> Tensor:
    """Gradient weight * (softmax - one-hot), [B, V] of that type; 0 in rows of weight 0, whatever is in them.

    Written over the logits, contiguous float32, of which it takes the first bytes of each row.
    """
    rows, width = logits_BV.shape
    gradient_BV = logits_BV.view(dtype)[:, :width]
    tensors = (logits_BV, gradient_BV, label_B, logsumexp_B, weight_B)
    _kernels().logit_gradient[(rows,)](*tensors, width, gradient_BV.stride(0), COLUMNS, num_warps=WARPS)
    return gradient_BV


@functools.cache
def _kernels() -> ModuleType:
    from trainer import softmax_kernels

    return softmax_kernels
