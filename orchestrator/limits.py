"""How long each phase may go without a sign of progress. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.types.seen import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

PHASE_TIMES = 3.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Stall limits, one a phase, in seconds.

    In `train` the limit is `train_s` or `train_steps` times the median step, whichever is longer: a slow
    model is not a hung one. Any other phase may take PHASE_TIMES times as long as it took in the median of
    this run. `median_step_s` and `median_phase_s` are measured by the caller; without the first the
    heartbeat's `step_s` is used. What was measured only ever lengthens a limit.
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
