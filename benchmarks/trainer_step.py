"""One drafter's training step on this GPU, with random weights and hidden states: time, memory, recompiles.

    python -m benchmarks.trainer_step                      the seed's shape and the peers' small one
    python -m benchmarks.trainer_step --shape seed --steps 20 --attention flash --json
    python -m benchmarks.trainer_step --shape small --ahead

The step is the trainer's own: anchors and mask drawn anew, forward, backward, one norm, the verdict, fused
AdamW. With `--ahead` the next one is queued while it is computed, as the trainer does, and a step lasts from
the end of the one before to its own; else each has its end awaited before the next is queued. Shapes are
those of the peers' `facts`: Qwen3-8B draft dimensions, 5 layers, one document a row unless `packed`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch

from tests.shapes import QWEN3_8B
from trainer.batch import Batch, Document, pack
from trainer.compiling.warmup import compiled, forbid_recompiles, num_graphs
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
from trainer.latch import Latch
from trainer.model import DraftLayer, DraftModel, draft_shape, use_layer_call
from trainer.optim import learning_rate, make_optimizer, scale_and_clip, set_learning_rate, step_unless
from trainer.plan import forecast, useful_flops
from trainer.target.api import Observation

if TYPE_CHECKING:
    from trainer.target.api import TargetShape, Vocabulary

GIB = 1 << 30


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


def main(argv: list[str] | None = None) -> int:
    """Measure each shape asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attention", choices=("flex", "flash"), default="flex")
    parser.add_argument("--ahead", action="store_true", help="the host is a step ahead of the GPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("trainer_step: no CUDA device here\n")
        return 1
    for name in options.shape or SHAPES:
        told = measure(name, SHAPES[name], options.steps, options.attention, ahead=options.ahead)
        sys.stdout.write((json.dumps(told) if options.json else _line(told)) + "\n")
        sys.stdout.flush()
    return 0


def measure(
    name: str, shape: Shape, steps: int, attention: str = "flex", *, ahead: bool = False
) -> dict[str, object]:
    """Train `steps` steps at this shape, after two of warm-up."""
    config = configuration(shape, attention)
    drafting = random_drafting(config)
    draft = cast("DraftModel", drafting.draft)
    optimizer = make_optimizer(draft, config.optim)
    latch = Latch(config.guard, torch.device("cuda"))
    batch, observation = random_batch(shape, drafting)
    torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    train_step(drafting, optimizer, batch, observation, 0, latch)
    torch.cuda.synchronize()
    first_s = time.monotonic() - begun
    train_step(drafting, optimizer, batch, observation, 1, latch)
    graphs = num_graphs()
    forbid_recompiles()
    losses = []
    begins, ends = [], [_now()]
    for step in range(2, 2 + steps):
        begins.append(_now())
        losses.append(train_step(drafting, optimizer, batch, observation, step, latch))
        ends.append(_now())
        ends[-2 if ahead else -1].synchronize()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in zip(ends if ahead else begins, ends[1:], strict=False)]
    torch.compiler.set_stance("default")
    median = statistics.median(times)
    flops = useful_flops(config, QWEN3_8B, document_tokens=shape.context_tokens / shape.documents).drafter
    predicted = forecast(config, QWEN3_8B, 1)
    told: dict[str, object] = {
        "shape": name,
        "attention": attention,
        "ahead": ahead,
        **dataclasses.asdict(shape),
        "steps": steps,
        "median_ms": round(median, 1),
        "context_tokens_per_s": round(shape.context_tokens / median * 1000),
        "tflops": round(flops / median / 1e9, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "forecast_gib": round(predicted.total / GIB, 2),
        "first_step_s": round(first_s, 1),
        "recompiles": num_graphs() - graphs,
        "loss_first": round(float(losses[0]), 4),
        "loss_last": round(float(losses[-1]), 4),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    del drafting, draft, optimizer, batch, observation
    torch.cuda.empty_cache()
    return told


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
    length = shape.context_tokens // shape.documents
    everything = torch.ones(length, dtype=torch.bool)
    words = min(150000, drafting.vocabulary.head.shape[0])
    generator = torch.Generator().manual_seed(1)
    documents = [
        Document(torch.randint(0, words, (length,), generator=generator), everything)
        for _ in range(shape.documents)
    ]
    device = drafting.vocabulary.head.device
    batch = pack([documents], shape.context_tokens).to(device)
    width = len(drafting.tap_layers) * drafting.shape.hidden_size
    taps = torch.empty((1, shape.context_tokens, width), dtype=drafting.dtype, device=device).normal_()
    return batch, Observation(taps, None)


def train_step(
    drafting: Drafting,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    observation: Observation,
    step: int,
    latch: Latch | None = None,
) -> torch.Tensor:
    """Loss of one step, taken: forward, backward, norm, AdamW."""
    set_learning_rate(optimizer, learning_rate(step, drafting.config.total_steps, drafting.config.optim))
    terms = drafting.loss(batch, observation, step)
    terms.total.backward()
    scale = 1 / terms.weight.clamp(min=1e-9)
    norm = scale_and_clip(drafting.draft.parameters(), scale, drafting.config.optim.clip)
    loss = (terms.total * scale).detach()
    if latch is None:
        optimizer.step()
    else:
        step_unless(optimizer, latch.judge(loss.double(), norm.double()))
    optimizer.zero_grad(set_to_none=True)
    return loss


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _line(told: dict[str, object]) -> str:
    return (
        f"{told['shape']}, {told['attention']}{', host ahead' * bool(told['ahead'])}: "
        f"{told['median_ms']} ms a step, {told['context_tokens_per_s']} context tokens/s, "
        f"{told['tflops']} TFLOP/s, peak {told['peak_gib']} GiB (forecast {told['forecast_gib']}), first "
        f"step {told['first_step_s']} s, {told['recompiles']} recompiles, loss {told['loss_first']} to "
        f"{told['loss_last']}, {told['device']}, torch {told['torch']}"
    )


if __name__ == "__main__":
    sys.exit(main())
