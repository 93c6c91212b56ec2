"""One optimizer step over all drafter ranks: gradients of its micro-batches, one norm, one verdict.

The loss of a step is sum(CE * w) / sum(w) over every micro-batch of every rank, so it does not depend on how
they are shared out. The divisor is known only at the end: gradients are summed first and scaled once.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.loss import decay_weights
from trainer.optim import learning_rate, scale_and_clip, set_learning_rate
from trainer.parallel.wrap import accumulate
from trainer.sources import AHEAD

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.drafting import Drafting
    from trainer.parallel.group import Group
    from trainer.parallel.schedule import Schedule
    from trainer.sources import Source


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step would do, before it is done."""

    loss: float
    """Nats, weighted as the objective says, over all ranks."""
    grad_norm: float
    """Before clipping, over all ranks."""
    accuracy: float
    """Share of counted positions whose label the drafter's best token is."""
    lr: float
    rank_s: tuple[float, ...] | None = None
    """Seconds of its own work that each drafter had in the step before; None for one alone, and at first."""

    @property
    def finite(self) -> bool:
        """Whether a step may be taken."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class WorkClock:
    """How long this rank works for a step before it waits for the others: by it a slow rank is known.

    On a GPU by events, which are read a step later, when they are long past: measuring waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._times = [0.0, 0.0]
        self._is_whole = False

    def begin(self) -> None:
        """All ranks have met; what follows is this rank's own."""
        self._mark(0)
        self._is_whole = False

    def end(self) -> None:
        """From here on others are waited for."""
        self._mark(1)
        self._is_whole = True

    def read(self) -> float:
        """Seconds of the last step that began and ended; 0 if there was none."""
        if not self._is_whole:
            return 0.0
        if self._events:
            begun, ended = self._events
            return float(begun.elapsed_time(ended)) / 1e3
        return self._times[1] - self._times[0]

    def _mark(self, place: int) -> None:
        if self._events:
            self._events[place].record()
        else:
            self._times[place] = time.monotonic()


class Stepper:
    """Makes steps; holds no position of its own."""

    def __init__(
        self,
        config: Config,
        drafting: Drafting,
        source: Source,
        optimizer: torch.optim.Optimizer,
        group: Group,
        schedule: Schedule,
    ) -> None:
        self._config, self._drafting, self._source = config, drafting, source
        self._optimizer, self._group, self._schedule = optimizer, group, schedule
        # A constant near the sum of weights, so that gradients are of ordinary size while they are summed.
        data, block = config.data, config.draft.block_size
        decay = float(decay_weights(block, config.loss.gamma).sum())
        self._nominal = max(1.0, data.batch_rows * data.anchors * decay)
        self._work = WorkClock(group.device)
        self._worked_s = 0.0

    def begin(self) -> None:
        """A step begins, right after all drafters have met."""
        self._worked_s = self._work.read()
        self._work.begin()

    def gradients(self, step: int) -> StepResult:
        """Compute step `step` (0 is the first) up to clipped gradients; the weights are as they were."""
        group, config = self._group, self._config
        lr = learning_rate(step, config.total_steps, config.optim)
        mine = self._schedule.of_drafter(step, group.topology.drafter_index)
        drafters = group.topology.num_drafters
        # Behind the sums, a place for each drafter's own time: it costs no collective of its own.
        told = [0.0] * 4 + [0.0] * drafters
        told[4 + group.topology.drafter_index] = self._worked_s
        sums = torch.tensor(told, dtype=torch.float64, device=group.device)
        for index in mine:
            upcoming = self._schedule.ahead(index, AHEAD, config.total_steps)
            batch, observation = self._source.fetch(index, upcoming)
            with accumulate(self._drafting.draft, last=index == mine[-1]):
                terms = self._drafting.loss(batch, observation, index)
                if index == mine[-1]:
                    self._work.end()  # the last backward pass sums gradients with the others
                (terms.total / self._nominal).backward()
            found = (terms.total.detach(), terms.weight, terms.correct, terms.counted)
            sums[:4] += torch.stack([value.double() for value in found])
        total, weight, correct, counted, *worked = group.sum_over_drafters(sums).unbind()
        # Wrappers average over drafters; a step without a single label has no gradient and no weight.
        scale = drafters * self._nominal / weight.clamp(min=1e-9)
        norm = scale_and_clip(self._drafting.draft.parameters(), scale, config.optim.clip)
        shares = (total / weight.clamp(min=1e-9), norm.double(), correct / counted.clamp(min=1))
        loss, grad_norm, accuracy, *rank_s = torch.stack((*shares, *worked)).tolist()
        is_told = drafters > 1 and min(rank_s) > 0
        return StepResult(loss, grad_norm, accuracy, lr, tuple(rank_s) if is_told else None)

    def apply(self, result: StepResult) -> None:
        """Take the step that was computed."""
        set_learning_rate(self._optimizer, result.lr)
        self._optimizer.step()
        self.drop()

    def drop(self) -> None:
        """Leave the gradients behind."""
        self._optimizer.zero_grad(set_to_none=True)
