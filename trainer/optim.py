"""AdamW, its schedule as a function of the step, and clipping.

Sources: Loshchilov and Hutter 2017 and 2019 (cosine, AdamW), Hu et al. 2024 (warm-up, stable, decay: `wsd`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer.config import OptimConfig

_TINY = 1e-6


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only; fused on CUDA. With DDP or FSDP2, wrap the model first."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(parameter.is_cuda for parameter in trained)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, config.beta2), fused=fused, foreach=not fused)


def learning_rate(step: int, total_steps: int, config: OptimConfig) -> float:
    """The rate of step 0, 1, ... total_steps - 1."""
    warmup = max(1, round(config.warmup_ratio * total_steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    floor = config.min_lr_ratio
    if config.schedule == "wsd":
        decay = max(1, round(config.decay_ratio * total_steps))
        left = min(1.0, (total_steps - step) / decay)
        return config.lr * (floor + (1 - floor) * left)
    progress = (step - warmup) / max(1, total_steps - warmup)
    return config.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def step_unless(optimizer: torch.optim.Optimizer, shut: Tensor) -> None:
    """Step where `shut` (float32 []) is 0; where it is 1, weights and state stay as they are, bit for bit.

    A fused optimizer reads it on the device, through what gradient scalers use; for another the host does.
    """
    if all(group.get("fused") for group in optimizer.param_groups):
        cast("Any", optimizer).found_inf = shut
        optimizer.step()
    elif not shut:
        optimizer.step()


@torch.no_grad()
def scale_and_clip(parameters: Iterable[nn.Parameter], scale: float | Tensor, clip: float) -> Tensor:
    """Multiply the gradients by `scale`, then bring their global norm down to `clip`, both in one pass.

    `scale` is the loss's normalisation, 1 / total weight over ranks and accumulation; it must be finite, or
    the gradients are not. Parameters without a gradient are left out. Nothing waits for the device.

    Returns:
        The scaled gradients' 2-norm before clipping, a scalar on the gradients' device, over all ranks where
        they are sharded. Not finite if a gradient is not: they are then unusable, and no step may be taken.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    norm = norm * scale
    factor = ((clip / (norm + _TINY)).clamp(max=1.0) * scale).to(gradients[0].dtype)
    torch._foreach_mul_([_local(gradient) for gradient in gradients], factor)
    return norm


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
