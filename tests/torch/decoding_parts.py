"""A small target and a drafter beside it, as the tests of decoding, evaluation and export need them."""

from __future__ import annotations

import dataclasses

import torch

from trainer.batch import Batch, Document, pack
from trainer.config import Config, DataConfig, DraftConfig, EvalConfig
from trainer.drafting import Drafting, begin_draft
from trainer.model import draft_shape
from trainer.target.api import TargetShape
from trainer.target.own import TargetModel, frozen

SHAPE = TargetShape(
    vocab_size=260,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=1024,
)
WINDOW, ANCHORS, BLOCK, MASK = 40, 5, 4, 256


def make_target(shape: TargetShape = SHAPE, std: float = 0.3) -> TargetModel:
    """Random weights, large enough that greedy tokens vary."""
    torch.manual_seed(0)
    target = TargetModel(shape)
    for parameter in target.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=std)
    return frozen(target)


def make_drafting(target: TargetModel, *, seed: int = 1, **draft: int | str) -> Drafting:
    """A drafter of two layers and blocks of four."""
    dims: dict[str, object] = {"num_layers": 2, "block_size": BLOCK, "num_target_layers": 2, **draft}
    config = dataclasses.replace(
        Config(seed=seed),
        data=DataConfig(batch_rows=2, context_tokens=WINDOW, anchors=ANCHORS),
        draft=DraftConfig(**dims),  # type: ignore[arg-type]
        eval=EvalConfig(windows=2, prompts=2, prompt_tokens=9, new_tokens=10),
    )
    shape = draft_shape(target.shape, config.draft, config.target)
    model = begin_draft(config, shape, target, torch.device("cpu"))
    return Drafting(config, shape, model, target, MASK, torch.float32)


def document(length: int, seed: int, *, supervised: bool = True) -> Document:
    """Random bytes."""
    tokens = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed))
    return Document(tokens, torch.full((length,), supervised))


def packed() -> Batch:
    """Two rows of several documents, the second with padding."""
    return pack([[document(23, 1), document(17, 2)], [document(30, 3)]], WINDOW)
