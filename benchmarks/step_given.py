"""What every trainer is given for its step: the same weights, tokens, hidden states and first anchors.

Documents lie in one row (`packed`) or each in a row of its own (`rows`), with the same tokens and hidden
states in both. Weights are those with which our own trainer begins; the embedding, the head and the hidden
states are random.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.step_inputs import SHAPES, Shape, configuration
from tests.shapes import QWEN3_8B
from trainer.batch import Batch, Document, pack
from trainer.blocks import Anchors, spread_anchors
from trainer.config import Config, DataConfig
from trainer.drafting import begin_draft
from trainer.model import DraftModel, DraftShape, draft_shape
from trainer.target.api import TargetShape

if TYPE_CHECKING:
    from collections.abc import Sequence

TINY = TargetShape(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=36,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=512,
)
TINY_MASK_TOKEN = 250
TINY_SHAPES = {
    "seed": Shape(192, 12, 8, 1),
    "packed": Shape(200, 12, 8, 3),
    "small": Shape(96, 6, 8, 1),
}


@dataclass(frozen=True, slots=True)
class Given:
    """A step's inputs."""

    config: Config
    dims: TargetShape
    shape: DraftShape
    embedding: Tensor
    head: Tensor
    batch: Batch
    taps: Tensor
    anchors: Anchors
    """Of the first step alone, so that losses can be compared: each block lies inside its document."""

    @property
    def device(self) -> torch.device:
        """Where all of it is."""
        return self.taps.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the arithmetic."""
        return self.taps.dtype

    @property
    def mask_token(self) -> int:
        """What stands for the tokens to be drafted."""
        return self.config.target.mask_token

    @property
    def packed(self) -> bool:
        """Whether a row has several documents."""
        return max(map(len, self.batch.lengths)) > 1

    def draft(self) -> DraftModel:
        """Our drafter as it begins, in float32."""
        return begin_draft(self.config, self.shape, None, self.device)


def make_given(
    shape_name: str, layout: str, attention: str, device: torch.device, *, tiny: bool = False
) -> Given:
    """Inputs of this shape, `packed` or `rows`; bfloat16 on a GPU."""
    shape = (TINY_SHAPES if tiny else SHAPES)[shape_name]
    dims = TINY if tiny else QWEN3_8B
    config = _configuration(shape, layout, attention, tiny=tiny)
    length = shape.context_tokens // shape.documents
    draft = draft_shape(dims, config.draft, config.target)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batch = _lay_out(_documents(shape.documents, length, config.target.mask_token), config).to(device)
    random = torch.Generator(device).manual_seed(2)

    def draw(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=random)

    taps = draw(shape.documents * length, len(draft.target_layer_ids) * dims.hidden_size)
    rows = taps.unflatten(0, (config.data.batch_rows, -1))
    return Given(
        config=config,
        dims=dims,
        shape=draft,
        embedding=draw(dims.vocab_size, dims.hidden_size).mul_(0.02),
        head=draw(dims.vocab_size, dims.hidden_size).mul_(0.02 if not tiny else 0.2),
        batch=batch,
        taps=nn.functional.pad(rows, (0, 0, 0, config.data.context_tokens - rows.shape[1])),
        anchors=spread_anchors(batch, config.data.anchors, config.draft.block_size),
    )


def _configuration(shape: Shape, layout: str, attention: str, *, tiny: bool) -> Config:
    config = configuration(shape, attention)
    if layout == "rows":
        documents = shape.documents
        data = DataConfig(
            batch_rows=documents,
            context_tokens=shape.context_tokens // documents,
            anchors=shape.anchors // documents,
        )
        config = dataclasses.replace(config, data=data)
    if tiny:
        target = dataclasses.replace(config.target, mask_token=TINY_MASK_TOKEN)
        draft = dataclasses.replace(config.draft, num_layers=2)
        config = dataclasses.replace(config, target=target, draft=draft)
    return config


def _documents(count: int, length: int, mask_token: int) -> list[Document]:
    """Random tokens, all of them supervised, in documents of equal length."""
    random = torch.Generator().manual_seed(1)
    everything = torch.ones(length, dtype=torch.bool)
    limit = min(mask_token, 150_000)
    return [Document(torch.randint(0, limit, (length,), generator=random), everything) for _ in range(count)]


def _lay_out(documents: Sequence[Document], config: Config) -> Batch:
    rows = config.data.batch_rows
    share = len(documents) // rows
    return pack(
        [documents[row * share : (row + 1) * share] for row in range(rows)], config.data.context_tokens
    )
