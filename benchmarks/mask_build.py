"""What a step's mask takes on this GPU, by PyTorch's operators and by the kernels, turn about in one run.

    python -m benchmarks.mask_build            both shapes, for flex and for FlashAttention 4; some 20 s
    python -m benchmarks.mask_build --shape seed --repeats 500 --json

Wall is from the call to the end of its last kernel on an idle GPU, host until the call returns, GPU the sum
of its kernels. The other parts of a step's begin are told too, as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.step_inputs import SHAPES, Shape
from tests.shapes import QWEN3_8B
from trainer import tiling
from trainer.batch import Document, pack
from trainer.blocks import make_blocks, sample_anchors
from trainer.flash import flash_mask
from trainer.layers import rope_table
from trainer.masks import MaskRule, block_mask
from trainer.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.batch import Batch

MIB = 1 << 20
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset")
PROFILED = 10


def main(argv: list[str] | None = None) -> int:
    """Measure each shape asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: seed and small")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("mask_build: no CUDA device here\n")
        return 1
    for name in options.shape or ("seed", "small"):
        for told in measure(SHAPES[name], options.repeats):
            told = {"shape": name, **told}
            sys.stdout.write((json.dumps(told) if options.json else _line(told)) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    return 0


def measure(shape: Shape, repeats: int) -> list[dict[str, object]]:
    """A row for each part and form."""
    calls = parts(shape)
    walls, hosts = defaultdict(list), defaultdict(list)
    for _ in range(2):  # libraries, compiled kernels and the allocator's blocks
        for call in calls.values():
            call()
    for _ in range(repeats):
        for part, call in calls.items():
            wall, host = _timed(call)
            walls[part].append(wall)
            hosts[part].append(host)
    return [
        {
            "part": part,
            "wall_ms": round(statistics.median(walls[part]), 3),
            "wall_p90_ms": round(sorted(walls[part])[int(0.9 * repeats)], 3),
            "host_ms": round(statistics.median(hosts[part]), 3),
            **_kernels(call),
            "peak_mib": round(_peak(call) / MIB, 2),
        }
        for part, call in calls.items()
    ]


def parts(shape: Shape) -> dict[str, Callable[[], object]]:
    """The mask in both forms, for both kinds of attention, and what else begins a step."""
    batch = _batch(shape)
    rule = MaskRule(shape.context_tokens, shape.block_size)
    sliding = MaskRule(shape.context_tokens, shape.block_size, causal=True, window=2048)
    anchors = sample_anchors(batch, shape.anchors, generator(0, "anchors", 0))
    blocks = make_blocks(batch, anchors, block_size=shape.block_size, mask_token=151669)
    positions = torch.cat((batch.positions, blocks.positions), dim=1)

    masks: dict[str, Callable[[], object]] = {
        "flex": lambda: block_mask(anchors, rule),
        "flex, window": lambda: block_mask(anchors, sliding),
        "flash": lambda: flash_mask(anchors, rule),
    }
    calls: dict[str, Callable[[], object]] = {}
    for name, call in masks.items():
        calls[f"mask, {name}, operators"] = _by_operators(call)
        calls[f"mask, {name}, kernel"] = call
    return calls | {
        "anchors": lambda: sample_anchors(batch, shape.anchors, generator(0, "anchors", 0)),
        "blocks": lambda: make_blocks(batch, anchors, block_size=shape.block_size, mask_token=151669),
        "rotary table": lambda: rope_table(positions, QWEN3_8B.head_dim, 1e6, torch.bfloat16),
    }


def _by_operators(call: Callable[[], object]) -> Callable[[], object]:
    takes = tiling.takes

    def run() -> object:
        vars(tiling)["takes"] = lambda _: False
        try:
            return call()
        finally:
            vars(tiling)["takes"] = takes

    return run


def _batch(shape: Shape) -> Batch:
    length = shape.context_tokens // shape.documents
    document = Document(torch.zeros(length, dtype=torch.long), torch.ones(length, dtype=torch.bool))
    return pack([[document] * shape.documents], shape.context_tokens).to("cuda")


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds until the GPU is done, and until the host is."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    kept = call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    del kept
    return 1e3 * (done - begun), 1e3 * (returned - begun)


def _kernels(call: Callable[[], object]) -> dict[str, object]:
    """Milliseconds of the GPU and launches, copies and fills among them, of one call."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            call()
        torch.cuda.synchronize()
    events = profiled.events() or []
    busy_us = sum(
        event.time_range.elapsed_us()
        for event in events
        if event.device_type.name == "CUDA" and "Sync" not in event.name
    )
    launches = sum(event.name.startswith(LAUNCHES) for event in events if event.device_type.name == "CPU")
    return {"gpu_ms": round(busy_us / PROFILED / 1e3, 4), "launches": launches / PROFILED}


def _peak(call: Callable[[], object]) -> int:
    """Bytes above what was there while it is made, itself among them."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def _line(told: dict[str, object]) -> str:
    return (
        f"{told['shape']}: {told['part']:<29} wall {told['wall_ms']:>6} ms (p90 {told['wall_p90_ms']}), "
        f"host {told['host_ms']}, GPU {told['gpu_ms']}, {told['launches']} launches, {told['peak_mib']} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
