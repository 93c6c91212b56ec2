"""What a measured step is given: shapes, the peers' recipe, random weights, documents and hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch

from tests.shapes import QWEN3_8B
from trainer.batch import Batch, Document, pack
from trainer.compiling.warmup import compiled
from trainer.config import (
    ComputeConfig,
    Config,
    DataConfig,
    DraftConfig,
    LossConfig,
    ParallelConfig,
    TargetConfig,
)
from trainer.drafting import Drafting, begin_draft
from trainer.model import DraftLayer, draft_shape, use_layer_call
from trainer.target.api import Observation

if TYPE_CHECKING:
    from trainer.target.api import TargetShape, Vocabulary


@dataclass(frozen=True, slots=True)
class Shape:
    """A step's shape."""

    context_tokens: int
    anchors: int
    block_size: int
    documents: int


SHAPES = {
    "seed": Shape(40064, 1024, 32, 1),
    "packed": Shape(40064, 1024, 32, 10),
    "small": Shape(4096, 512, 16, 1),
}


def configuration(shape: Shape, attention: str = "flex") -> Config:
    """The peers' recipe at this shape."""
    return Config(
        total_steps=1000,
        target=TargetConfig(path="qwen3-8b", mask_token=151669),
        data=DataConfig(batch_rows=1, context_tokens=shape.context_tokens, anchors=shape.anchors),
        draft=DraftConfig(num_layers=5, block_size=shape.block_size, num_target_layers=5),
        loss=LossConfig(gamma=7.0),
        compute=ComputeConfig(attention=attention),
        parallel=ParallelConfig(placement="cached"),  # no target beside it, hidden states given
    )


def random_drafting(
    config: Config,
    device: str = "cuda",
    *,
    target: TargetShape = QWEN3_8B,
    dtype: torch.dtype = torch.bfloat16,
) -> Drafting:
    """A drafter of Qwen3-8B's dimensions, or another target's, beside a random embedding and head."""
    torch.manual_seed(0)

    def table() -> torch.Tensor:
        shape = (target.vocab_size, target.hidden_size)
        return torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02)

    vocabulary = cast("Vocabulary", SimpleNamespace(embedding=table(), head=table()))
    shape = draft_shape(target, config.draft, config.target)
    draft = begin_draft(config, shape, None, torch.device(device))
    use_layer_call(draft, compiled(DraftLayer.plain, "inductor"))
    return Drafting(config, shape, draft, vocabulary, config.target.mask_token, dtype)


def random_batch(shape: Shape, drafting: Drafting) -> tuple[Batch, Observation]:
    """Random tokens, in documents of equal length, and random hidden states."""
    device = drafting.vocabulary.head.device
    lengths = [shape.context_tokens // shape.documents] * shape.documents
    batch = _batch(lengths, shape, drafting, torch.Generator().manual_seed(1)).to(device)
    width = len(drafting.tap_layers) * drafting.shape.hidden_size
    taps = torch.empty((1, shape.context_tokens, width), dtype=drafting.dtype, device=device).normal_()
    return batch, Observation(taps, None)


def varied_batch(shape: Shape, drafting: Drafting, step: int) -> Batch:
    """One to twenty documents of any lengths, which fill the context; copied without a wait."""
    generator = torch.Generator().manual_seed(step)
    count = int(torch.randint(0, 20, (), generator=generator))
    cuts = (torch.randperm(shape.context_tokens - 1, generator=generator)[:count] + 1).sort().values.tolist()
    lengths = [end - begin for begin, end in pairwise((0, *cuts, shape.context_tokens))]
    return _batch(lengths, shape, drafting, generator).pinned().to(drafting.vocabulary.head.device)


def _batch(lengths: list[int], shape: Shape, drafting: Drafting, generator: torch.Generator) -> Batch:
    words = min(150000, drafting.vocabulary.head.shape[0])
    texts = [torch.randint(0, words, (length,), generator=generator) for length in lengths]
    documents = [Document(text, torch.ones(len(text), dtype=torch.bool)) for text in texts]
    return pack([documents], shape.context_tokens)
