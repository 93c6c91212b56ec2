"""How long each phase may go without a sign of progress. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from orchestrator.durations import format_duration
from orchestrator.types.seen import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.types.snapshot import LogPace

PHASE_TIMES = 3.0
PAUSE_TIMES = 2.0
MIN_STEPS = 5  # so many intervals between a log's steps make a measure


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Stall limits, one a phase, in seconds.

    In `train` the limit is `train_s` or `train_steps` times the median step, whichever is longer: a slow
    model is not a hung one. Any other phase may take PHASE_TIMES times as long as it took in the median of
    this run. `median_step_s` and `median_phase_s` are measured by the caller; without the first the
    heartbeat's `step_s` is used. What was measured only ever lengthens a limit.

    `silence_s` is for a program that writes no heartbeat: how long its log may be silent. None: what its log
    taught, if that tells steps; else for ever.
    """

    init_s: float = 300.0
    load_s: float = 900.0
    compile_s: float = 1800.0  # a first compile of many shapes says nothing for a long time
    warmup_s: float = 1800.0
    train_s: float = 600.0
    eval_s: float = 900.0
    checkpoint_s: float = 900.0
    export_s: float = 900.0
    train_steps: float = 5.0
    silence_s: float | None = None
    median_step_s: float | None = None
    median_phase_s: Mapping[Phase, float] = field(default_factory=dict)

    def limit_s(self, phase: Phase, step_s: float | None = None) -> float:
        """Return the limit of `phase`; `step_s` stands in for an unknown median."""
        fixed = {
            Phase.INIT: self.init_s,
            Phase.LOAD: self.load_s,
            Phase.COMPILE: self.compile_s,
            Phase.WARMUP: self.warmup_s,
            Phase.TRAIN: self.train_s,
            Phase.EVAL: self.eval_s,
            Phase.CHECKPOINT: self.checkpoint_s,
            Phase.EXPORT: self.export_s,
            Phase.DONE: self.export_s,
        }[phase]
        step = self.median_step_s if self.median_step_s is not None else step_s
        if phase is Phase.TRAIN:
            return fixed if step is None else max(fixed, self.train_steps * step)
        return max(fixed, PHASE_TIMES * self.median_phase_s.get(phase, 0.0))

    def silence_limit_s(self, pace: LogPace) -> float | None:
        """Return how long the log of a program without a heartbeat may be silent; None: no limit is known.

        Such a program does not say that it evaluates or saves, so the longest of those phases counts.
        """
        if self.silence_s is not None:
            return self.silence_s
        if pace.step_s is None or pace.num_steps < MIN_STEPS:
            return None
        phases = (self.train_s, self.eval_s, self.checkpoint_s, self.export_s)
        return max(*phases, self.train_steps * pace.step_s, PAUSE_TIMES * pace.pause_s)


def limit_data(limits: Limits) -> dict[str, float | None]:
    """Return what a playbook says of limits, as plain data."""
    measured = ("median_step_s", "median_phase_s")
    return {each.name: getattr(limits, each.name) for each in fields(Limits) if each.name not in measured}


def limit_words(data: Mapping[str, float | None]) -> list[str]:
    """Return limits for people, each as a playbook writes it."""
    words = []
    for name, value in data.items():
        if value is None:
            words.append(f"{name.removesuffix('_s')} as learned from its steps")
        elif name.endswith("_s"):
            words.append(f"{name.removesuffix('_s')} {format_duration(value)}")
        else:
            words.append(f"{name} {value:g}")
    return words
