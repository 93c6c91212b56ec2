"""One optimizer step over all drafter ranks: gradients of its micro-batches, one norm, one verdict.

The loss of a step is sum(CE * w) / sum(w) over every micro-batch of every rank, so it does not depend on how
they are shared out. The divisor is known only at the end: gradients are summed first and scaled once.
"""

from __future__ import annotations

import math
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

    @property
    def finite(self) -> bool:
        """Whether a step may be taken."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


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

    def gradients(self, step: int) -> StepResult:
        """Compute step `step` (0 is the first) up to clipped gradients; the weights are as they were."""
        group, config = self._group, self._config
        lr = learning_rate(step, config.total_steps, config.optim)
        mine = self._schedule.of_drafter(step, group.topology.drafter_index)
        sums = torch.zeros(4, dtype=torch.float64, device=group.device)
        for index in mine:
            upcoming = self._schedule.ahead(index, AHEAD, config.total_steps)
            batch, observation = self._source.fetch(index, upcoming)
            with accumulate(self._drafting.draft, last=index == mine[-1]):
                terms = self._drafting.loss(batch, observation, index)
                (terms.total / self._nominal).backward()
            found = (terms.total.detach(), terms.weight, terms.correct, terms.counted)
            sums += torch.stack([value.double() for value in found])
        total, weight, correct, counted = group.sum_over_drafters(sums).unbind()
        # Wrappers average over drafters; a step without a single label has no gradient and no weight.
        scale = group.topology.num_drafters * self._nominal / weight.clamp(min=1e-9)
        norm = scale_and_clip(self._drafting.draft.parameters(), scale, config.optim.clip)
        told = torch.stack((total / weight.clamp(min=1e-9), norm.double(), correct / counted.clamp(min=1)))
        loss, grad_norm, accuracy = told.tolist()
        return StepResult(loss, grad_norm, accuracy, lr)

    def apply(self, result: StepResult) -> None:
        """Take the step that was computed."""
        set_learning_rate(self._optimizer, result.lr)
        self._optimizer.step()
        self.drop()

    def drop(self) -> None:
        """Leave the gradients behind."""
        self._optimizer.zero_grad(set_to_none=True)
