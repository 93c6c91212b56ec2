"""Seconds from nothing to the first step, cold and from the saved compile artifacts, on every rank.

    python -m benchmarks.first_step --attention flash
    python -m benchmarks.first_step --attention flex --ranks 4 --shape small --json

Fresh processes start together, one a GPU, without any cache: `cold`. Then the run directory's artifacts alone
are taken to another run directory, as to a new machine image, and as many start from those: `warm`. Each rank
goes the trainer's own way: its imports, its caches, the node's turn, warm-up of every shape, a step; with
random weights and hidden states, as in `benchmarks.trainer_step`. Ranks do not meet, so there are no
collectives. `--shape tiny` runs on the CPU, to try the way itself; inductor needs a C++ compiler there.
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
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.compiling.caches import cache_dirs, point_caches
from trainer.parallel.gpus import hide_other_gpus, visible_gpus

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.target.api import TargetShape

ROOT = Path(__file__).resolve().parents[1]
PHASES = ("imports", "build", "wait", "warm_up", "again", "first_step")
ELSEWHERE = ("CUDA_CACHE_PATH", "XDG_CACHE_HOME", "TVM_FFI_CACHE_DIR", "QUACK_CACHE_DIR", "TMPDIR")
"""Other places where something compiled may be kept: of each image its own."""
CACHES = ("TORCHINDUCTOR_", "TRITON_", "FLASH_ATTENTION_")
DEADLINE_S = 300
TINY_WIDTH = 64


def main(argv: list[str] | None = None) -> int:
    """Start the ranks twice, and print what each took; or be one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", choices=("flex", "flash"), default="flex")
    parser.add_argument("--ranks", type=int, default=1, help="processes, one a GPU")
    parser.add_argument("--shape", choices=("seed", "packed", "small", "tiny"), default="seed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rank is not None:
        sys.stdout.write(json.dumps(_rank(options)) + "\n")
        return 0
    gpus = len(visible_gpus(os.environ))
    if options.shape != "tiny" and options.ranks > gpus:
        sys.stderr.write(f"first_step: {options.ranks} ranks, {gpus} GPUs\n")
        return 1
    with tempfile.TemporaryDirectory() as name:
        images = {state: Path(name) / state for state in ("cold", "warm")}
        found = {"cold": _start(images["cold"], options)}
        artifacts = cache_dirs(images["cold"]).artifacts
        if not artifacts.is_dir():
            sys.stderr.write("first_step: nothing was saved: is the backend inductor?\n")
            return 1
        shutil.copytree(artifacts, cache_dirs(images["warm"]).artifacts)
        found["warm"] = _start(images["warm"], options)
        told = {
            "attention": options.attention,
            "shape": options.shape,
            **found,
            "artifact_bytes": sum(path.stat().st_size for path in artifacts.iterdir()),
            "kernels_compiled_anew": sorted(_kernels(images["warm"]) - _kernels(images["cold"])),
        }
    sys.stdout.write(json.dumps(told) + "\n" if options.json else _table(told))
    return 0


def _start(image: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ranks that start together in a run directory that may hold artifacts; what each found."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(CACHES)}
    for name in ELSEWHERE:
        environ[name] = str(image / "image" / name.lower())
        Path(environ[name]).mkdir(parents=True)
    given = ["--attention", options.attention, "--shape", options.shape, "--run", str(image)]
    processes = []
    for rank in range(options.ranks):
        words = [*given, "--rank", str(rank), "--begun", str(time.monotonic())]
        command = [sys.executable, "-m", "benchmarks.first_step", *words]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True))
    found = []
    try:
        for process in processes:
            out, _ = process.communicate(timeout=DEADLINE_S)
            if process.returncode:
                raise SystemExit(f"first_step: a rank ended with exit code {process.returncode}")
            *lines, last = out.splitlines()
            sys.stderr.writelines(f"  {line}\n" for line in lines)
            found.append(json.loads(last))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    """One rank's way to the end of its first step: seconds of each phase, from when it was started."""
    marks = [options.begun]

    def mark() -> None:
        marks.append(time.monotonic())

    if visible_gpus(os.environ):
        hide_other_gpus(os.environ, options.rank)
    dirs = point_caches(options.run, os.environ)
    from trainer.importing import keep_for_good, uncollected

    with uncollected():
        import trainer.train  # noqa: F401 - all that a rank of a run imports
    keep_for_good()
    import torch

    from benchmarks.step_inputs import SHAPES, Shape, random_batch, random_drafting
    from benchmarks.trainer_step import train_step
    from trainer.console import quieten
    from trainer.optim import make_optimizer
    from trainer.warming import compile_and_warm_up

    mark()
    if options.rank:
        quieten(options.rank)
    shape = Shape(64, 6, 8, 1) if options.shape == "tiny" else SHAPES[options.shape]
    job, device, target = _job(options, shape)
    config = job.config
    if device == "cpu":  # two thirds of a minute each, for nothing that is looked at here
        from torch._inductor import config as inductor

        inductor.cpp_cache_precompile_headers = False
        inductor.cpp.vec_isa_ok = True
        inductor.compile_threads = 1
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    drafting = random_drafting(config, device, target=target, dtype=dtype)
    _synchronise(device)
    mark()
    warmed = compile_and_warm_up(job, drafting, drafting.draft, "inductor", dirs, trains=True)  # type: ignore[arg-type]
    mark()
    optimizer = make_optimizer(drafting.draft, config.optim)
    batch, observation = random_batch(shape, drafting)
    loss = float(train_step(drafting, optimizer, batch, observation, 0))
    _synchronise(device)
    mark()
    imports, build, warming, first_step = (after - before for before, after in pairwise(marks))
    again = warming - warmed.waited_s - warmed.seconds
    seconds = (imports, build, warmed.waited_s, warmed.seconds, again, first_step)
    return {
        "rank": options.rank,
        **{phase: round(value, 2) for phase, value in zip(PHASES, seconds, strict=True)},
        "total": round(marks[-1] - marks[0], 2),
        "hits": warmed.cache_hits,
        "misses": warmed.cache_misses,
        "recompiles": warmed.recompiles(),
        "loss": round(loss, 4),
    }


def _job(options: argparse.Namespace, shape: Any) -> tuple[Any, str, TargetShape]:  # noqa: ANN401 - not imported yet
    """A rank's job, its device and the target's shape."""
    import dataclasses

    from benchmarks.step_inputs import configuration
    from tests.shapes import QWEN3_8B
    from trainer.config import ComputeConfig, DraftConfig
    from trainer.heartbeat import Heartbeat
    from trainer.job import Job
    from trainer.parallel.topology import Topology
    from trainer.rundir import RunDir
    from trainer.signals import StopSignals

    config: Config = configuration(shape, options.attention)
    target, device = QWEN3_8B, "cuda"
    if options.shape == "tiny":
        device = "cpu"
        target = dataclasses.replace(
            QWEN3_8B, vocab_size=99, hidden_size=TINY_WIDTH, intermediate_size=96,
            num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        )  # fmt: skip
        config = dataclasses.replace(
            config,
            target=dataclasses.replace(config.target, mask_token=98),
            draft=DraftConfig(num_layers=2, block_size=shape.block_size, num_target_layers=2),
            compute=ComputeConfig(device="cpu"),
        )
    attempt = options.run / "attempts" / "1"
    attempt.mkdir(parents=True, exist_ok=True)
    run_dir = RunDir(run=options.run, attempt=attempt, checkpoints=options.run, attempt_number=None)
    topology = Topology(
        rank=options.rank,
        local_rank=options.rank,
        world_size=options.ranks,
        local_world_size=options.ranks,
        placement="cached",
        num_drafters=options.ranks,
    )
    heartbeat = Heartbeat(None if options.rank else attempt / "heartbeat.json")
    return Job(config, [], run_dir, heartbeat, topology, StopSignals()), device, target


def _synchronise(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _kernels(image: Path) -> set[str]:
    """The kernels in a node's caches, by name: FlashAttention's, and folders of Triton's."""
    dirs = cache_dirs(image)
    flash = {path.relative_to(dirs.flash).as_posix() for path in dirs.flash.glob("*/*/*.o")}
    return flash | {path.name for path in dirs.triton.glob("*") if path.is_dir()}


def _table(told: dict[str, Any]) -> str:
    lines = [
        f"{told['attention']}, {told['shape']}; seconds; artifacts {told['artifact_bytes']:,} bytes",
        f"| start | rank | {' | '.join(PHASES)} | total | hits, misses | recompiles | loss |",
        "|---|" + "---|" * (len(PHASES) + 5),
    ]
    for state in ("cold", "warm"):
        for one in told[state]:
            phases = " | ".join(f"{one[phase]:.1f}" for phase in PHASES)
            lines.append(
                f"| {state} | {one['rank']} | {phases} | {one['total']:.1f} | {one['hits']}, {one['misses']} "
                f"| {one['recompiles']} | {one['loss']} |"
            )
    for cold, warm in zip(told["cold"], told["warm"], strict=True):
        start, compiling = (_ratio(warm, cold, begin) for begin in (0, 2))
        lines.append(
            f"rank {cold['rank']}: warm is {start:.2f} of cold from the process's start, "
            f"{compiling:.2f} from the end of build"
        )
    anew = told["kernels_compiled_anew"]
    lines.append(
        f"kernels compiled anew in the warm start: {len(anew)}{''.join(f', {name}' for name in anew)}"
    )
    return "\n".join(lines) + "\n"


def _ratio(warm: dict[str, Any], cold: dict[str, Any], begin: int) -> float:
    """Of the phases from `begin` on."""
    taken, before = (sum(one[phase] for phase in PHASES[begin:]) for one in (warm, cold))
    return float(taken / before)


if __name__ == "__main__":
    sys.exit(main())
