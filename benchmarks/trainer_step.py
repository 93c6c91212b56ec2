"""One drafter's training step on this GPU, with random weights and hidden states: time, memory, recompiles.

    python -m benchmarks.trainer_step                      the seed's shape and the peers' small one
    python -m benchmarks.trainer_step --shape seed --steps 20 --attention flash --json
    python -m benchmarks.trainer_step --shape small --ahead
    python -m benchmarks.trainer_step --shape small --ahead --varied --steps 500

The step is the trainer's own: anchors and mask drawn anew, forward, backward, one norm, the verdict, fused
AdamW. With `--ahead` the next one is queued while it is computed, as the trainer does, and a step lasts from
the end of the one before to its own; else each has its end awaited before the next is queued. With `--varied`
each step has other documents, of other lengths, packed. A host sync is a call that PyTorch itself tells of:
`.item()`, a copy that blocks; the wait for a step's end is none. Shapes are those of the peers' `facts`:
Qwen3-8B draft dimensions, 5 layers, one document a row unless `packed`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, cast

import torch

from benchmarks.step_inputs import (
    SHAPES,
    Shape,
    configuration,
    random_batch,
    random_drafting,
    varied_batch,
)
from tests.shapes import QWEN3_8B
from trainer.compiling.warmup import forbid_recompiles, num_graphs
from trainer.latch import Latch
from trainer.optim import learning_rate, make_optimizer, scale_and_clip, set_learning_rate, step_unless
from trainer.plan import forecast, useful_flops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.batch import Batch
    from trainer.drafting import Drafting
    from trainer.model import DraftModel
    from trainer.target.api import Observation

GIB = 1 << 30


def main(argv: list[str] | None = None) -> int:
    """Measure each shape asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attention", choices=("flex", "flash"), default="flex")
    parser.add_argument("--ahead", action="store_true", help="the host is a step ahead of the GPU")
    parser.add_argument("--varied", action="store_true", help="other documents in each step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("trainer_step: no CUDA device here\n")
        return 1
    for name in options.shape or SHAPES:
        told = measure(
            name, SHAPES[name], options.steps, options.attention, ahead=options.ahead, varied=options.varied
        )
        sys.stdout.write((json.dumps(told) if options.json else _line(told)) + "\n")
        sys.stdout.flush()
    return 0


def measure(
    name: str,
    shape: Shape,
    steps: int,
    attention: str = "flex",
    *,
    ahead: bool = False,
    varied: bool = False,
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
    with _host_syncs() as syncs:
        for step in range(2, 2 + steps):
            if varied:
                batch = varied_batch(shape, drafting, step)
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
        "varied": varied,
        **dataclasses.asdict(shape),
        "steps": steps,
        "median_ms": round(median, 1),
        "context_tokens_per_s": round(shape.context_tokens / median * 1000),
        "tflops": round(flops / median / 1e9, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "forecast_gib": round(predicted.total / GIB, 2),
        "first_step_s": round(first_s, 1),
        "recompiles": num_graphs() - graphs,
        "host_syncs_per_step": sum("synchronizing" in str(each.message) for each in syncs) / steps,
        "loss_first": round(float(losses[0]), 4),
        "loss_last": round(float(losses[-1]), 4),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    del drafting, draft, optimizer, batch, observation
    torch.cuda.empty_cache()
    return told


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


@contextlib.contextmanager
def _host_syncs() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield told
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _line(told: dict[str, object]) -> str:
    return (
        f"{told['shape']}, {told['attention']}{', host ahead' * bool(told['ahead'])}"
        f"{', documents varied' * bool(told['varied'])}: "
        f"{told['median_ms']} ms a step, {told['context_tokens_per_s']} context tokens/s, "
        f"{told['tflops']} TFLOP/s, peak {told['peak_gib']} GiB (forecast {told['forecast_gib']}), first "
        f"step {told['first_step_s']} s, {told['recompiles']} recompiles, {told['host_syncs_per_step']} host "
        f"syncs a step, loss {told['loss_first']} to {told['loss_last']}, {told['device']}, "
        f"torch {told['torch']}"
    )


if __name__ == "__main__":
    sys.exit(main())
