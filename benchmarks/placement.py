"""The trainer by placement: is the GPU kept busy, what does a split cost, do two drafters do twice as much?

    python -m benchmarks.placement --case colocated                one GPU, some 55 s
    python -m benchmarks.placement --case split --case drafters    two GPUs, some 70 s each
    python -m benchmarks.placement --case split --tiny             on a CPU, to see it run

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
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.placement_parts import GPU, TINY, Shape, write_inputs, write_store

WARM_LINES, LINES = 2, 6
"""Lines of metrics left out, and lines in all."""
LIMIT_S = 240.0
CPU = ["compute.device=cpu", "compute.threads=1"]
WANTED = {"colocated": 0.95, "split": 0.90, "drafters": 1.9}
WANTED_WAIT = 0.01


@dataclass(slots=True)
class Bench:
    """A folder with inputs and compile caches, which the runs share."""

    folder: Path
    shape: Shape
    tiny: bool
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def log_every(self) -> int:
        """Steps a line of metrics."""
        return 2 if self.tiny else 10

    @property
    def steps(self) -> int:
        """That are measured, with those before."""
        return LINES * self.log_every

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

    def finish(self, name: str, child: subprocess.Popen[bytes]) -> None:
        """Wait for it; if it fails, say what it said last."""
        try:
            code = child.wait(LIMIT_S)
        finally:
            child.kill()  # ranks end when their launcher is gone
        if code:
            words = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
            raise SystemExit(f"placement: {name} ended with {code}:\n{words}")

    def arguments(self, run: Path, depth: int, steps: int, *more: str) -> list[str]:
        """Of the trainer."""
        sets = [
            *self.shape.settings(self.folder, depth),
            f"total_steps={steps}",
            f"log_every={self.log_every}",
        ]
        sets += CPU if self.tiny else []
        words = [word for each in (*sets, *more) for word in ("--set", each)]
        return ["--config", "fast", "--run-dir", str(run), *words]


def metrics(run: Path) -> dict[str, float]:
    """Of the lines after the warm-up: the median step, and over all of them what waited for data."""
    lines = (run / "attempts/1/metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"][WARM_LINES:LINES]
    spent = sum(row["step_s"] for row in rows)
    return {
        "step_ms": round(1e3 * median(row["step_s"] for row in rows), 2),
        "tokens_per_s": round(median(row["tokens_per_s"] for row in rows)),
        "data_wait_share": round(sum(row["data_wait_s"] for row in rows) / spent, 5),
    }


def colocated(bench: Bench) -> dict[str, Any]:
    """One GPU with both."""
    first, profiled = bench.steps + bench.log_every // 2, 2 * bench.log_every
    run, figures = bench.run_dir("colocated"), bench.folder / "profile.json"
    words = bench.arguments(run, bench.shape.layers, first + profiled + 1, "parallel.processes=1")
    child = ["benchmarks.placement_parts", "profiled", str(figures), str(first), str(profiled), *words]
    bench.finish("colocated", bench.start("colocated", "0", *child))
    seen = json.loads(figures.read_text())
    busy = seen["busy_s"] / seen["window_s"]
    profiled_ms = 1e3 * seen["window_s"] / profiled
    return {
        **metrics(run), "gpu_busy_share": round(busy, 4), "wanted": WANTED["colocated"],
        "wanted_data_wait_share": WANTED_WAIT, "profiled_step_ms": round(profiled_ms, 2),
        "kernels_per_step": round(seen["kernels"] / profiled),
    }  # fmt: skip


def split(bench: Bench) -> dict[str, Any]:
    """Each role by itself, then both."""
    steps, depths = bench.steps, bench.shape.depths()
    alone, figures = bench.run_dir("drafter"), bench.folder / "target.json"
    words = bench.arguments(alone, depths[0], steps, "parallel.processes=1", "parallel.placement=cached")
    drafter = bench.start("drafter", "0", "benchmarks.placement_parts", "drafter", *words)
    if bench.tiny:  # no two devices: one after the other
        bench.finish("drafter", drafter)
    data, sets = bench.run_dir("target-alone") / "data", bench.shape.settings(bench.folder, depths[0])
    sets += CPU if bench.tiny else []
    child = ["benchmarks.placement_parts", "target", str(figures), str(data), *sets]
    bench.finish("target-alone", bench.start("target-alone", "1", *child))
    bench.finish("drafter", drafter)
    drafter_ms = metrics(alone)["step_ms"]
    target_ms = {int(depth): 1e3 * seconds for depth, seconds in json.loads(figures.read_text()).items()}
    depth = min(target_ms, key=lambda each: abs(target_ms[each] - drafter_ms))
    run = bench.run_dir("split")
    both = ("parallel.processes=2", "parallel.placement=split", "parallel.targets=1")
    words = bench.arguments(run, depth, steps, *both)
    bench.finish("split", bench.start("split", "0,1", "trainer", *words))
    told = metrics(run)
    return {
        **told, "target_alone_ms": round(target_ms[depth], 2), "drafter_alone_ms": drafter_ms,
        "target_layers": depth, "rate_share": round(max(target_ms[depth], drafter_ms) / told["step_ms"], 4),
        "wanted": WANTED["split"],
    }  # fmt: skip


def drafters(bench: Bench) -> dict[str, Any]:
    """One rank with both roles, then two of them."""
    told = {}
    for count, gpus in ((1, "0"), (2, "0,1")):
        name = f"drafters-{count}"
        run = bench.run_dir(name)
        more = (f"parallel.processes={count}", "parallel.shard=replicate")
        words = bench.arguments(run, bench.shape.depths()[0], bench.steps, *more)
        bench.finish(name, bench.start(name, gpus, "trainer", *words))
        told[count] = metrics(run)
    ratio = told[2]["tokens_per_s"] / told[1]["tokens_per_s"]
    return {
        **told[2], "one_step_ms": told[1]["step_ms"], "one_tokens_per_s": told[1]["tokens_per_s"],
        "times_one": round(ratio, 3), "wanted": WANTED["drafters"],
    }  # fmt: skip


CASES = {"colocated": colocated, "split": split, "drafters": drafters}


def main(argv: list[str] | None = None) -> int:
    """Measure each case asked for, in the order given; they share what is compiled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, required=True)
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to see it run")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="placement-") as folder:
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
