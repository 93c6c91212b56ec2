"""The trainer's own loop in this process, on a tiny drafter, and micro-batches of which some are poisoned.

`Lab.run` says what a run came to, times and what is of this process left out: two runs that
trained the same say the same.
"""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from tests.torch import tiny
from trainer.batch import single
from trainer.checkpoint import Checkpoints, complete_steps
from trainer.compiling.warmup import WarmUp
from trainer.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DraftConfig,
    EvalConfig,
    GuardConfig,
    LossConfig,
)
from trainer.drafting import Drafting, begin_draft
from trainer.errors import TrainerError
from trainer.guard import Guard
from trainer.heartbeat import Heartbeat
from trainer.job import Job
from trainer.latch import Latch
from trainer.loop import Loop
from trainer.model import draft_shape
from trainer.optim import make_optimizer
from trainer.parallel.group import Group
from trainer.parallel.schedule import make_schedule
from trainer.parallel.topology import read_topology
from trainer.rundir import open_run_dir
from trainer.signals import StopSignals
from trainer.skips import Skips
from trainer.stepping import Stepper
from trainer.target.api import Observation, TargetShape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainer.batch import Batch
    from trainer.model import DraftModel

TARGET = TargetShape(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=256,
)
CONFIG = Config(
    total_steps=12,
    log_every=3,
    data=DataConfig(batch_rows=1, context_tokens=32, anchors=4),
    draft=DraftConfig(num_layers=1, block_size=4, num_target_layers=1),
    loss=LossConfig(gamma=4.0),
    checkpoint=CheckpointConfig(every_steps=4, wait=True),
    eval=EvalConfig(every_steps=6),
)
HIDDEN = ("at", "step_s", "tokens_per_s", "pid", "peak_memory_bytes", "recompiles")


class Given:
    """A source of micro-batches that are there; those of `poison` hold a tap that is not a number."""

    def __init__(self, config: Config, width: int, device: torch.device, poison: Sequence[int]) -> None:
        self._config, self._width, self._device = config, width, device
        self.poison = poison
        self.fetched: list[int] = []
        self.on_fetch: Callable[[int], None] = lambda _: None
        self._made: dict[int, tuple[Batch, Observation]] = {}

    def make(self, index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        shape = (self._config.data.batch_rows, self._config.data.context_tokens)
        taps = torch.randn(*shape, self._width, generator=generator)
        if index in self.poison:
            taps[0, 3] = torch.nan
        batch = single(torch.randint(0, TARGET.vocab_size, shape, generator=generator))
        self._made[index] = batch.to(self._device), Observation(taps.to(self._device), None)

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        del upcoming
        self.fetched.append(index)
        self.on_fetch(index)
        if index not in self._made:
            self.make(index)
        return self._made[index]

    def discard(self) -> None:
        """Nothing is ever ahead."""

    def close(self) -> None:
        """Nothing is read."""

    @property
    def waited_s(self) -> float:
        return 0.0


def tiny_drafting(config: Config, device: torch.device, dtype: torch.dtype = torch.float32) -> Drafting:
    """A drafter beside a random vocabulary."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(TARGET.vocab_size, TARGET.hidden_size, generator=generator).to(device, dtype)
    shape = draft_shape(TARGET, config.draft, config.target)
    draft = begin_draft(config, shape, None, device)
    vocabulary = cast("Any", SimpleNamespace(embedding=table, head=table / 8))
    return Drafting(config, shape, draft, vocabulary, TARGET.vocab_size - 1, dtype)


@dataclass
class Lab:
    """A run in `folder`; each `run` is an attempt that goes on where the last one ended."""

    folder: Path
    config: Config = CONFIG
    poison: Sequence[int] = ()
    is_fused: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    prepare: Callable[[Drafting], None] = lambda _: None
    evaluated: list[int] = field(default_factory=list)

    def make(self, *, runs_ahead: bool) -> Loop:
        config, device = self.config, self.device
        topology = read_topology({}, config.parallel)
        group = Group(topology=topology, device=device)
        drafting = tiny_drafting(config, device, self.dtype)
        self.prepare(drafting)
        draft = cast("DraftModel", drafting.draft)
        optimizer = make_optimizer(draft, config.optim)
        if self.is_fused:
            kept = ("params", "weight_decay", "betas")
            groups = [{key: group[key] for key in kept} for group in optimizer.param_groups]
            optimizer = torch.optim.AdamW(groups, lr=config.optim.lr, fused=True, foreach=False)
        source = Given(config, len(drafting.tap_layers) * TARGET.hidden_size, device, self.poison)
        schedule = make_schedule(topology, config.optim)
        run_dir = open_run_dir({}, self.folder)
        job = Job(config, [], run_dir, Heartbeat(run_dir.attempt / "heartbeat.json"), topology, StopSignals())
        loop = Loop(
            job=job,
            group=group,
            draft=draft,
            optimizer=optimizer,
            schedule=schedule,
            stepper=Stepper(config, drafting, source, optimizer, group, schedule),
            source=source,
            guard=Guard(config.guard),
            skips=Skips(run_dir.run / "skips.jsonl", "data", leader=True),
            checkpoints=Checkpoints(run_dir.checkpoints, 9),
            warmed=WarmUp(graphs=0, seconds=0, waited_s=0, cache_hits=0, cache_misses=0, total_graphs=0),
            origin={"data": "data"},
            evaluator=cast("Any", self._evaluate),
            runs_ahead=runs_ahead,
        )
        state = loop.resume()
        if state is not None:
            loop.guard.restore(state["guard"])
        return loop

    def run(self, *, runs_ahead: bool, stop_in: int | None = None) -> dict[str, Any]:
        """What it came to; `stop_in` is a micro-batch in which a signal comes."""
        loop = self.make(runs_ahead=runs_ahead)
        given(loop).on_fetch = lambda index: (
            loop.job.stop._handle(signal.SIGTERM, None) if index == stop_in else None
        )
        ended = ""
        try:
            loop.run()
        except TrainerError as error:
            ended = f"{type(error).__name__}: {error}"
        return {**self.told(loop), "ended": ended}

    def told(self, loop: Loop) -> dict[str, Any]:
        run = loop.job.run_dir
        loop.job.heartbeat.enter(loop.job.heartbeat.phase)
        checkpoints = run.checkpoints
        return {
            "step": loop.step,
            "loss": loop.loss,
            "guard": loop.guard.state(),
            "bits": tiny.bits(loop.draft, loop.optimizer),
            "skips": _lines(run.run / "skips.jsonl"),
            "metrics": _lines(run.attempt / "metrics.jsonl"),
            "heartbeat": _timeless(json.loads((run.attempt / "heartbeat.json").read_text())),
            "evaluated": list(self.evaluated),
            "checkpoints": {
                step: json.loads((checkpoints / f"step-{step}/state.json").read_text())
                for step in complete_steps(checkpoints)
            },
        }

    def _evaluate(self, step: int) -> dict[str, Any]:
        self.evaluated.append(step)
        return {"acceptance_length": float(step)}


def given(loop: Loop) -> Given:
    """The source of a lab's loop."""
    return cast("Given", loop.source)


def with_guard(config: Config, **guard: Any) -> Config:
    return replace(config, guard=replace(config.guard, **guard))


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Whether two runs trained the same, bit for bit."""
    plain = [{key: value for key, value in each.items() if key != "bits"} for each in (found, wanted)]
    assert plain[0] == plain[1]
    assert found["bits"].keys() == wanted["bits"].keys()
    for name, value in wanted["bits"].items():
        assert torch.equal(found["bits"][name], value), name


def compare_verdicts(device: torch.device, window: int, factor: float) -> int:
    """Judge 200 steps on the device and on the host, which must agree; how many were bad, at most half."""
    config = GuardConfig(max_skips=1 << 10, spike_factor=factor, spike_window=window)
    random = torch.Generator().manual_seed(window)
    guard, latch, bad = Guard(config), Latch(config, device), 0
    for step in range(200):
        loss, norm = 2.0, 0.8 + 0.4 * float(torch.rand((), generator=random, dtype=torch.float64))
        if step % 11 == 3:
            norm *= 1.4
        if step % 17 == 5:
            norm = [math.nan, math.inf][step % 2]
        if step % 23 == 7:
            loss = math.nan
        shut = latch.judge(*torch.tensor([loss, norm], dtype=torch.float64, device=device))
        finite = math.isfinite(loss) and math.isfinite(norm)
        judged = guard.judge(step, loss, norm, finite=finite, can_roll_back=True)
        assert bool(shut) == (judged.reason is not None), (step, norm, judged)
        if shut:
            bad += 1
            latch.judge(*torch.tensor([2.0, 0.5], dtype=torch.float64, device=device))  # changes nothing
            latch.open(guard.norms)
    assert bad <= 100
    return bad


def _lines(path: Path) -> list[dict[str, Any]]:
    return [_timeless(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key not in HIDDEN}
