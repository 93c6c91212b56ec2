"""The trainer by placement: is the GPU kept busy, what does a split cost, do two drafters do twice as much?

    python -m benchmarks.placement --case colocated     one GPU, some 50 s
    python -m benchmarks.placement --case colocated --case split --case drafters    two GPUs, some 130 s
    python -m benchmarks.placement --case split --tiny  on a CPU, to see it run

All train for real, through the trainer's own command, on packed documents on disk, 16,384 tokens with as many
blocks of 32 a token as the seed's shape. `colocated` trains beside a target of 0.5 G random parameters, and
says for what share of 20 steps the GPU ran kernels or copies (the profiler's spans, overlaps counted once).
`split` measures target and drafter by themselves, each on its GPU, chooses the target's depth so that both
take about as long, and then trains with both: its rate as a share of the slower one's. `drafters` trains with
one rank, then two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.placement_parts import GPU, TINY, Shape, write_inputs, write_store

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_LINES, LINES = 2, 6
"""Lines of metrics left out, and lines in all."""
LIMIT_S, LOOK_S, LAUNCHER_S = 240.0, 0.1, 2.0
CPU = ["compute.device=cpu", "compute.threads=1"]
WANTED = {"colocated": 0.95, "split": 0.90, "drafters": 1.9}
WANTED_WAIT = 0.01


def never() -> bool:
    """Until it ends by itself."""
    return False


@dataclass(slots=True)
class Bench:
    """A folder with inputs and compile caches, which the runs share."""

    folder: Path
    shape: Shape
    tiny: bool
    environ: dict[str, str] = field(default_factory=dict)
    alone: dict[str, float] | None = None
    """What one rank with both roles did."""

    @property
    def log_every(self) -> int:
        """Steps a line of metrics."""
        return 2 if self.tiny else 10

    def prepare(self) -> None:
        """Write what all runs read."""
        write_inputs(self.folder, self.shape)
        write_store(self.folder, self.shape, self.folder / "first")
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
        }
        self.environ = {**os.environ, **caches, "PYTHONUNBUFFERED": "1"}

    def run_dir(self, name: str) -> Path:
        """One that has the tokens."""
        run = self.folder / name
        shutil.copytree(self.folder / "first" / "data", run / "data")
        return run

    def start(self, name: str, gpus: str, *words: str) -> subprocess.Popen[bytes]:
        """Begin a child, its output in a file."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                env={**self.environ, **({} if self.tiny else {"CUDA_VISIBLE_DEVICES": gpus})},
                stdout=log,
                stderr=log,
            )

    def finish(self, name: str, child: subprocess.Popen[bytes], enough: Callable[[], bool] = never) -> None:
        """Wait for its end, or end it when that is enough; if it fails, say what it said last."""
        deadline = time.monotonic() + LIMIT_S
        try:
            while not enough():
                with suppress(subprocess.TimeoutExpired):
                    if not child.wait(LOOK_S):
                        return
                    words = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                    raise SystemExit(f"placement: {name} ended with {child.returncode}:\n{words}")
                if time.monotonic() > deadline:
                    raise SystemExit(f"placement: {name} was not done after {LIMIT_S:.0f} s")
        finally:
            _end(child)

    def train(self, name: str, gpus: str, depth: int, *more: str) -> dict[str, float]:
        """Run the trainer for as many steps as are measured."""
        run = self.run_dir(name)
        child = self.start(name, gpus, "trainer", *self.arguments(run, depth, *more))
        self.finish(name, child, lambda: len(rows(run)) >= LINES)
        return metrics(run)

    def arguments(self, run: Path, depth: int, *more: str) -> list[str]:
        """Of the trainer, which is ended once enough is measured."""
        sets = [
            *self.shape.settings(self.folder, depth),
            "total_steps=100000",
            f"log_every={self.log_every}",
        ]
        sets += CPU if self.tiny else []
        words = [word for each in (*sets, *more) for word in ("--set", each)]
        return ["--config", "fast", "--run-dir", str(run), *words]


def rows(run: Path) -> list[dict[str, Any]]:
    """Whole lines of metrics, one each `log_every` steps."""
    path = run / "attempts/1/metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def metrics(run: Path) -> dict[str, float]:
    """Of the lines after the warm-up: the median step, and over all of them what waited for data."""
    told = rows(run)[WARM_LINES:LINES]
    spent = sum(row["step_s"] for row in told)
    return {
        "step_ms": round(1e3 * median(row["step_s"] for row in told), 2),
        "tokens_per_s": round(median(row["tokens_per_s"] for row in told)),
        "data_wait_share": round(sum(row["data_wait_s"] for row in told) / spent, 5),
    }


def colocated(bench: Bench) -> dict[str, Any]:
    """One GPU with both."""
    first, profiled = LINES * bench.log_every + bench.log_every // 2, 2 * bench.log_every
    run, figures = bench.run_dir("colocated"), bench.folder / "profile.json"
    words = bench.arguments(run, bench.shape.layers, "parallel.processes=1")
    child = ["benchmarks.placement_parts", "profiled", str(figures), str(first), str(profiled), *words]
    bench.finish("colocated", bench.start("colocated", "0", *child), figures.exists)
    seen = json.loads(figures.read_text())
    bench.alone = metrics(run)
    return {
        **bench.alone,
        "gpu_busy_share": round(seen["busy_s"] / seen["window_s"], 4),
        "wanted": WANTED["colocated"],
        "wanted_data_wait_share": WANTED_WAIT,
        "profiled_step_ms": round(1e3 * seen["window_s"] / profiled, 2),
        "kernels_per_step": round(seen["kernels"] / profiled),
    }


def split(bench: Bench) -> dict[str, Any]:
    """Each role by itself, then both."""
    depths, alone, figures = bench.shape.depths(), bench.run_dir("drafter"), bench.folder / "target.json"
    words = bench.arguments(alone, depths[-1], "parallel.processes=1", "parallel.placement=cached")
    drafter = bench.start("drafter", "0", "benchmarks.placement_parts", "drafter", *words)
    if bench.tiny:  # no two devices: one after the other
        bench.finish("drafter", drafter, lambda: len(rows(alone)) >= LINES)
    data, sets = bench.run_dir("target-alone") / "data", bench.shape.settings(bench.folder, depths[-1])
    sets += CPU if bench.tiny else []
    child = ["benchmarks.placement_parts", "target", str(figures), str(data), *sets]
    bench.finish("target-alone", bench.start("target-alone", "1", *child))
    bench.finish("drafter", drafter, lambda: len(rows(alone)) >= LINES)
    drafter_ms = metrics(alone)["step_ms"]
    target_ms = {int(depth): 1e3 * seconds for depth, seconds in json.loads(figures.read_text()).items()}
    depth = min(target_ms, key=lambda each: abs(target_ms[each] - drafter_ms))
    both = ("parallel.processes=2", "parallel.placement=split", "parallel.targets=1")
    told = bench.train("split", "0,1", depth, *both)
    return {
        **told,
        "target_alone_ms": round(target_ms[depth], 2),
        "drafter_alone_ms": drafter_ms,
        "target_layers": depth,
        "rate_share": round(max(target_ms[depth], drafter_ms) / told["step_ms"], 4),
        "wanted": WANTED["split"],
    }


def drafters(bench: Bench) -> dict[str, Any]:
    """One rank with both roles, unless that was measured just now, then two of them."""
    depth = bench.shape.layers
    one = bench.alone or bench.train("one", "0", depth, "parallel.processes=1")
    two = bench.train("two", "0,1", depth, "parallel.processes=2", "parallel.shard=replicate")
    return {
        **two,
        "one_step_ms": one["step_ms"],
        "one_tokens_per_s": one["tokens_per_s"],
        "times_one": round(two["tokens_per_s"] / one["tokens_per_s"], 3),
        "wanted": WANTED["drafters"],
    }


def _end(child: subprocess.Popen[bytes]) -> None:
    """A launcher's ranks first, which it waits for."""
    try:
        ranks = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    except OSError:  # it has ended, or the kernel has no such file: ranks end when their launcher is gone
        ranks = []
    for rank in ranks if child.poll() is None else ():
        with suppress(ProcessLookupError):
            os.kill(int(rank), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        if ranks:
            child.wait(LAUNCHER_S)
    child.kill()
    child.wait()


CASES = {"colocated": colocated, "split": split, "drafters": drafters}


def main(argv: list[str] | None = None) -> int:
    """Measure each case asked for, in the order given; they share what is compiled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, required=True)
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to see it run")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="placement-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), TINY if options.tiny else GPU, options.tiny)
        bench.prepare()
        for name in options.case:
            begun = time.monotonic()
            told = CASES[name](bench)
            told["seconds"] = round(time.monotonic() - begun, 1)
            sys.stdout.write(json.dumps({"case": name, **told}) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
