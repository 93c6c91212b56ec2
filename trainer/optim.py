"""AdamW and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from trainer.config import OptimConfig

WSD_DECAY_RATIO = 0.2


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, config.beta2))


def learning_rate(step: int, total_steps: int, config: OptimConfig) -> float:
    """The rate of step 0, 1, ... total_steps - 1."""
    warmup = max(1, round(config.warmup_ratio * total_steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    floor = config.min_lr_ratio
    if config.schedule == "wsd":
        decay = max(1, round(WSD_DECAY_RATIO * total_steps))
        left = min(1.0, (total_steps - step) / decay)
        return config.lr * (floor + (1 - floor) * left)
    progress = (step - warmup) / max(1, total_steps - warmup)
    return config.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
