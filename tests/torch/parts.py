"""Small real parts for the trainer's tests."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import torch

from trainer.config import Config, DataConfig, DraftConfig
from trainer.drafting import Drafting, begin_draft
from trainer.target import TargetModel, TargetShape

if TYPE_CHECKING:
    from pathlib import Path

SMALL = TargetShape(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)
WINDOW, ANCHORS, BLOCK = 40, 5, 4


def small_config() -> Config:
    """Two windows of 40 tokens, five anchors, blocks of four."""
    return dataclasses.replace(
        Config(seed=1),
        data=DataConfig(batch_rows=2, context_tokens=WINDOW, anchors=ANCHORS),
        draft=DraftConfig(num_layers=2, block_size=BLOCK, num_target_layers=2),
    )


def small_target() -> TargetModel:
    """A frozen target with random weights, large enough that its greedy tokens vary."""
    torch.manual_seed(0)
    target = TargetModel(SMALL)
    for parameter in target.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return target.eval().requires_grad_(requires_grad=False)


def small_drafting(seed: int = 1) -> Drafting:
    """A drafter beside the small target."""
    config = dataclasses.replace(small_config(), seed=seed)
    target = small_target()
    return Drafting(config, target, begin_draft(config, target))


def random_tokens(batch: int = 2, length: int = WINDOW) -> torch.Tensor:
    """Bytes [batch, length]."""
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(3))


def trainer_command(run_dir: Path, *more: str) -> list[str]:
    """A short run that logs each step and decodes nothing."""
    settings = ["log_every=1", "checkpoint.every_steps=5", "eval.prompts=0", "data.context_tokens=64"]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "trainer", "--config", "fast", "--run-dir", str(run_dir)]
    return [*command, *sets, *more]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without a supervisor's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASHCTL_")}
    return {**kept, **more}


def run_trainer(run_dir: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        trainer_command(run_dir, *more),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
