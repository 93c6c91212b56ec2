"""The forecast against what a step takes on this GPU."""

from types import SimpleNamespace

import pytest
import torch

from trainer.batch import Document, pack
from trainer.compiling.warmup import compiled
from trainer.config import Config, DataConfig, DraftConfig, LossConfig, ParallelConfig, TargetConfig
from trainer.drafting import Drafting, begin_draft
from trainer.model import DraftLayer, draft_shape, use_layer_call
from trainer.optim import make_optimizer, scale_and_clip
from trainer.plan import forecast
from trainer.plan.memory import CONTEXT_BYTES
from trainer.target.api import Observation, TargetShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch 2.11 warns of its own code while it compiles
]

DEVICE, DTYPE, BACKEND = "cuda", torch.bfloat16, "inductor"
SHAPE = TargetShape(
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=40_960,
)


def configuration(labels: str, chunk_tokens: int) -> Config:
    return Config(
        target=TargetConfig(mask_token=31_999),
        data=DataConfig(batch_rows=2, context_tokens=8192, anchors=512),
        draft=DraftConfig(num_layers=3, block_size=16, num_target_layers=4),
        loss=LossConfig(labels=labels, chunk_tokens=chunk_tokens),
        parallel=ParallelConfig(placement="cached"),
    )


def measured_peak(config: Config) -> int:
    """Bytes of the second step: the first one compiles, and makes the optimizer's moments."""
    torch.manual_seed(0)
    data = config.data
    shape = draft_shape(SHAPE, config.draft, config.target)
    draft = begin_draft(config, shape, None, torch.device(DEVICE))
    use_layer_call(draft, compiled(DraftLayer.plain, BACKEND))

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=DTYPE, device=DEVICE)

    width = SHAPE.hidden_size
    vocabulary = SimpleNamespace(embedding=draw(SHAPE.vocab_size, width), head=draw(SHAPE.vocab_size, width))
    drafting = Drafting(config, shape, draft, vocabulary, config.target.mask_token, DTYPE)
    everything = torch.ones(data.context_tokens, dtype=torch.bool)
    rows = [
        [Document(torch.randint(0, 31_999, everything.shape), everything)] for _ in range(data.batch_rows)
    ]
    batch = pack(rows, data.context_tokens).to(DEVICE)
    size = (data.batch_rows, data.context_tokens)
    last = draw(*size, width) if config.loss.labels == "target" else None
    observation = Observation(draw(*size, len(shape.target_layer_ids) * width), last)
    optimizer = make_optimizer(draft, config.optim)
    for step in range(2):
        torch.cuda.reset_peak_memory_stats()
        terms = drafting.loss(batch, observation, step)
        terms.total.backward()
        scale_and_clip(draft.parameters(), 1 / terms.weight, config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("labels", ["data", "target"])
@pytest.mark.parametrize("chunk_tokens", [1024, 16384])
def test_the_forecast_is_over_what_a_step_takes_by_less_than_a_twentieth(labels, chunk_tokens):
    config = configuration(labels, chunk_tokens)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    peak = measured_peak(config) - before
    predicted = forecast(config, SHAPE).ranks[0].total - CONTEXT_BYTES
    print(
        f"{labels}, chunk {chunk_tokens}: measured {peak / 2**30:.3f} GiB, forecast {predicted / 2**30:.3f}"
    )
    assert 0.95 * predicted < peak < predicted
