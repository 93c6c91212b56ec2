"""How long a save keeps training waiting: in a thread, and waited for.

    python -m benchmarks.checkpoint [--megabytes 200] [--device cuda] [--directory DIR]

Prints, for one state, what the first and the later saves take before training goes on and in all, the same
waited for, and the median and longest time of a training step alone and with a save in flight.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer.checkpoint import Checkpoints
from trainer.config import OptimConfig
from trainer.optim import make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3
STATE_BYTES = 12  # of a parameter: itself and AdamW's two moments, float32


def build(megabytes: int, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Square layers whose state is of that size, after one step."""
    width = 1024
    count = max(1, round(megabytes * 1e6 / (width * width * STATE_BYTES)))
    model = nn.Sequential(*(nn.Linear(width, width, device=device) for _ in range(count)))
    return model, make_optimizer(model, OptimConfig())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Train one step; its seconds."""
    started = time.perf_counter()
    model(torch.ones(8, 1024, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def timed(act: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(directory: Path, megabytes: int, device: str) -> None:
    """Print the figures."""
    model, optimizer = build(megabytes, device)
    for _ in range(3):
        step(model, optimizer, device)
    checkpoints = Checkpoints(directory, 1)
    first = timed(lambda: checkpoints.save(0, model, optimizer, {}, wait=False))
    print(f"first save, host memory allocated: {first * 1e3:8.1f} ms before training goes on")
    checkpoints.finish()
    waited = [timed(lambda: checkpoints.save(1, model, optimizer, {}, wait=True)) for _ in range(ROUNDS)]
    alone = [step(model, optimizer, device) for _ in range(20)]
    blocking, total, beside = [], [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        blocking.append(timed(lambda: checkpoints.save(2, model, optimizer, {}, wait=False)))
        while checkpoints.check() is None:
            beside.append(step(model, optimizer, device))
        total.append(time.perf_counter() - started)
    ratio = statistics.median(waited) / statistics.median(blocking)
    print(f"waited for:   {statistics.median(waited) * 1e3:8.1f} ms")
    print(
        f"in a thread:  {statistics.median(blocking) * 1e3:8.1f} ms before training goes on, "
        f"{statistics.median(total) * 1e3:8.1f} ms in all; {ratio:.1f} times less waiting"
    )
    for name, times in (("alone", alone), ("beside a save", beside)):
        print(
            f"a step {name:13} median {statistics.median(times) * 1e3:7.2f} ms, "
            f"longest {max(times) * 1e3:7.2f} ms, {len(times)} steps"
        )


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser(description="Time saves.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        measure(Path(folder), options.megabytes, options.device)


if __name__ == "__main__":
    main()
