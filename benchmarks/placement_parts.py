"""What `benchmarks.placement` runs and trains on: packed tokens on disk, a target's shape, and its children.

python -m benchmarks.placement_parts target FIGURES SETTINGS...     the target alone, by its depth
python -m benchmarks.placement_parts drafter TRAINER-ARGUMENTS...   the trainer, hidden states given
python -m benchmarks.placement_parts profiled FIGURES FIRST STEPS TRAINER-ARGUMENTS...
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer import settings, sources
from trainer.ahead import Ahead
from trainer.data.dataset import open_data
from trainer.data.prepare import fingerprint_of
from trainer.data.store import PARTS, PartWriter, write_manifest
from trainer.data.tokenizers import Encoded
from trainer.loading import choose_machine
from trainer.target.api import Observation, TargetShape
from trainer.target.load import load_target, read_shape
from trainer.target.own_files import config_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer.job import Job
    from trainer.loading import Loaded
    from trainer.parallel.group import Group

TARGET_WARM, TARGET_TIMED = 3, 12
COUNTS = ("read", "bad", "unsupervised", "cut", "cut_tokens", "also_held_out")
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Of target, drafter and data."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    rows: int
    context: int
    anchors: int
    block: int
    draft_layers: int
    micro_batches: int
    """An epoch, about."""
    median_tokens: int
    """Of a document."""

    def depths(self) -> list[int]:
        """Layers of the target that may be run: a drafter's deepest tap decides."""
        return list(range(6, self.layers + 1, 2))

    def settings(self, folder: Path, depth: int) -> list[str]:
        """For a target cut off at this depth, `key=value`."""
        taps = [round((place + 1) * depth / 5) - 1 for place in range(5)]
        return [
            f"target.path={folder / 'target'}", "target.weights=random", f"target.layer_ids={taps}",
            "data.source=text", f"data.path={folder / 'documents.txt'}", f"data.batch_rows={self.rows}",
            f"data.context_tokens={self.context}", f"data.anchors={self.anchors}", "draft.init=random",
            f"draft.num_layers={self.draft_layers}", f"draft.block_size={self.block}", "loss.labels=data",
            "eval.prompts=0", "eval.windows=1", "eval.every_steps=0", "checkpoint.every_steps=1000000",
            "checkpoint.keep=1",
        ]  # fmt: skip


GPU = Shape(
    hidden=1536, layers=16, heads=24, vocab=32768, rows=1, context=16384, anchors=416, block=32,
    draft_layers=5, micro_batches=60, median_tokens=1500,
)  # fmt: skip
TINY = Shape(
    hidden=64, layers=8, heads=4, vocab=512, rows=2, context=128, anchors=8, block=8, draft_layers=1,
    micro_batches=20, median_tokens=40,
)  # fmt: skip


def write_inputs(folder: Path, shape: Shape) -> None:
    """A target's folder, and what the settings call documents: their tokens are random, see `write_store`."""
    target = folder / "target"
    target.mkdir(parents=True)
    head_dim = shape.hidden // shape.heads
    made = TargetShape(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2, head_dim=head_dim, rms_norm_eps=1e-6, rope_theta=1e6,
        max_position_embeddings=shape.context,
    )  # fmt: skip
    (target / "config.json").write_text(json.dumps(config_json(made)))
    (target / "tokenizer.json").write_text("{}\n")  # never opened: the tokens are there already
    (folder / "documents.txt").write_text("the tokens were drawn\n")


def write_store(folder: Path, shape: Shape, run: Path) -> None:
    """Documents of random tokens, where the trainer looks for those that it tokenised itself."""
    config = settings.load("fast", shape.settings(folder, shape.depths()[0]))
    fingerprint = fingerprint_of(config, shape.vocab, lambda: None)
    directory = run / "data" / f"tokens-{fingerprint[:16]}"
    draw = np.random.default_rng(0)
    wanted = shape.micro_batches * shape.rows * shape.context
    with ExitStack() as stack:
        parts = {name: PartWriter(directory / name, stack) for name in PARTS}
        for name, tokens in zip(PARTS, (wanted, 4 * shape.rows * shape.context), strict=True):
            while parts[name].num_tokens < tokens:
                length = int(draw.lognormal(np.log(shape.median_tokens), 0.8))
                length = min(max(length, 16), shape.context)
                ids = draw.integers(300, shape.vocab, length, dtype=np.uint32)
                parts[name].add(Encoded(ids, np.ones(length, np.bool_)))
            parts[name].finish()
        write_manifest(directory, fingerprint, dict.fromkeys(COUNTS, 0), parts)


def target_alone(sets: list[str], data: Path) -> dict[str, float]:
    """Seconds a micro-batch of the target by itself, for each depth that it may have."""
    config = settings.load("fast", sets)
    machine, found = choose_machine(config), read_shape(config.target)
    train = open_data(config, found.vocab_size, data, lead=True, beat=lambda: None, tell=_ignore).train
    target = load_target(config.target, machine.device, machine.dtype)
    ahead, told = Ahead(train.micro_batch), {}
    shape = next(each for each in (GPU, TINY) if each.vocab == found.vocab_size)
    for depth in shape.depths():
        taps = settings.load("fast", shape.settings(Path(), depth)).target.layer_ids
        begun = 0.0
        for index in range(TARGET_WARM + TARGET_TIMED):
            if index == TARGET_WARM:
                _synchronize()
                begun = time.monotonic()
            target.observe(ahead.take(index, (index + 1,)).to(machine.device), taps, last=False)
        _synchronize()
        told[str(depth)] = (time.monotonic() - begun) / TARGET_TIMED
    ahead.close()
    return told


class Given(Observation):
    """Hidden states that are on the device already."""

    def pinned(self) -> Observation:
        """As they are."""
        return self


class GivenCache:
    """In place of `HiddenCache`: the same random hidden states for each micro-batch."""

    def __init__(self, loaded: Loaded) -> None:
        bucket, shape = loaded.data.train.bucket(0), loaded.shape
        size = (bucket.rows, bucket.context_tokens, len(shape.target_layer_ids) * shape.hidden_size)
        device, dtype = loaded.machine.device, loaded.machine.dtype
        self._observation = Given(torch.randn(size, dtype=dtype, device=device), None)

    def read(self, index: int) -> Observation:
        """Whatever the index."""
        del index
        return self._observation


def _drafter(arguments: list[str]) -> int:
    """The trainer with placement = cached, without a disk behind it: what the drafter does by itself."""
    from trainer import cli, train

    def given(job: Job, group: Group, loaded: Loaded, count: int, *, last: bool) -> GivenCache:
        del job, group, count, last
        return GivenCache(loaded)

    vars(train)["open_cache"] = given
    return cli.main(arguments)


def _profiled(figures: Path, first: int, steps: int, arguments: list[str]) -> int:
    """The trainer, its GPU watched from micro-batch `first` on."""
    from trainer import cli

    plain, seen = sources.LocalSource.fetch, 0
    profiler = torch.profiler.profile(activities=[_activity()])
    begun = 0.0

    def fetch(self: sources.LocalSource, index: int, upcoming: Any) -> Any:  # noqa: ANN401
        nonlocal seen, begun
        seen += 1
        if seen == first:
            _synchronize()
            profiler.start()
            begun = time.monotonic()
        elif seen == first + steps:
            _synchronize()
            window_s = time.monotonic() - begun
            profiler.stop()
            told = json.dumps(_busy(profiler, window_s, figures.with_suffix(".trace")))
            figures.with_suffix(".part").write_text(told)
            figures.with_suffix(".part").rename(figures)
        return plain(self, index, upcoming)

    vars(sources)["LocalSource"].fetch = fetch
    return cli.main(arguments)


def _busy(profiler: torch.profiler.profile, window_s: float, trace: Path) -> dict[str, float]:
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_bytes())["traceEvents"]
    trace.unlink()
    found = [each for each in events if each.get("ph") == "X" and each.get("cat") in ON_GPU]
    spans = [(float(each["ts"]), float(each["ts"]) + float(each["dur"])) for each in found]
    kernels = sum(each["cat"] == "kernel" for each in found)
    return {"window_s": window_s, "busy_s": union(spans) / 1e6, "kernels": kernels}


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of what these intervals cover together."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _activity() -> torch.profiler.ProfilerActivity:
    kinds = torch.profiler.ProfilerActivity
    return kinds.CUDA if torch.cuda.is_available() else kinds.CPU


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _ignore(line: str) -> None:
    del line


def main(kind: str, *words: str) -> int:
    """One of the children."""
    if kind == "drafter":
        return _drafter(list(words))
    if kind == "profiled":
        return _profiled(Path(words[0]), int(words[1]), int(words[2]), list(words[3:]))
    figures = Path(words[0])
    figures.write_text(json.dumps(target_alone(list(words[2:]), Path(words[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
