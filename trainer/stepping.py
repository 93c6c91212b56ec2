"""One optimizer step over all drafter ranks: gradients of its micro-batches, one norm, one verdict.

The loss of a step is sum(CE * w) / sum(w) over every micro-batch of every rank, so it does not depend on how
they are shared out. The divisor is known only at the end: gradients are summed first and scaled once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.latch import Latch
from trainer.loss import decay_weights
from trainer.optim import learning_rate, scale_and_clip, set_learning_rate, step_unless
from trainer.parallel.wrap import accumulate
from trainer.sources import AHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.drafting import Drafting
    from trainer.parallel.group import Group
    from trainer.parallel.schedule import Schedule
    from trainer.sources import Source


SOON_S = 5.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step."""

    loss: float
    """Nats, weighted as the objective says, over all ranks."""
    grad_norm: float
    """Before clipping, over all ranks."""
    accuracy: float
    """Share of counted positions whose label the drafter's best token is."""
    lr: float
    is_applied: bool
    """Whether the device made the update."""
    rank_s: tuple[float, ...] | None = None
    """Seconds of its own work that each drafter had in the step before, or where the host is a step ahead in
    the one before that; None for one alone, and at first."""

    @property
    def finite(self) -> bool:
        """Whether a step may be taken."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step that the device computes, or has computed; nobody has waited for it."""

    step: int
    """0 is the first."""
    lr: float
    told: Tensor
    """Float64 on the host: loss, norm, accuracy, whether the latch is shut, then each drafter's seconds."""
    arrives: torch.cuda.Event | None
    """When it is there; None if it is."""


class WorkClock:
    """How long this rank works for a step before it waits for the others: by it a slow rank is known.

    On a GPU by events, which are read when they are past: measuring waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._begun: torch.cuda.Event | float | None = None
        # Of a step that is still computed, and of the one before, which is not.
        self._spans: deque[tuple[torch.cuda.Event | float, torch.cuda.Event | float]] = deque(maxlen=2)

    def begin(self) -> None:
        """All ranks have met; what follows is this rank's own."""
        self._begun = self._now()

    def end(self) -> None:
        """From here on others are waited for."""
        assert self._begun is not None
        self._spans.append((self._begun, self._now()))
        self._begun = None

    def read(self) -> float:
        """Seconds of the last step whose work is done; 0 if there is none, or the last one had no end."""
        if self._begun is not None:
            return 0.0
        for begun, ended in reversed(self._spans):
            if isinstance(begun, float) or isinstance(ended, float):
                assert isinstance(begun, float)
                assert isinstance(ended, float)
                return ended - begun
            if ended.query():
                return float(begun.elapsed_time(ended)) / 1e3
        return 0.0

    def _now(self) -> torch.cuda.Event | float:
        if not self._is_cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


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
        self._latch = Latch(config.guard, group.device)

    def begin(self) -> None:
        """A step begins, right after all drafters have met."""
        self._worked_s = self._work.read()
        self._work.begin()

    def queue(self, step: int) -> QueuedStep:
        """Have the device compute step `step`, 0 being the first, and apply it if none was bad."""
        lr = learning_rate(step, self._config.total_steps, self._config.optim)
        loss, norm, accuracy, *worked = self._gradients(step)
        shut = self._latch.judge(loss, norm)
        told, arrives = _towards_host(torch.stack((loss, norm, accuracy, shut.double(), *worked)))
        set_learning_rate(self._optimizer, lr)
        step_unless(self._optimizer, shut)
        self._optimizer.zero_grad(set_to_none=True)
        return QueuedStep(step, lr, told, arrives)

    def read(self, queued: QueuedStep) -> StepResult:
        """Wait for what came of a step, unless it is there already."""
        if queued.arrives is not None:
            queued.arrives.synchronize()
        loss, grad_norm, accuracy, shut, *rank_s = queued.told.tolist()
        is_told = len(rank_s) > 1 and min(rank_s) > 0
        return StepResult(loss, grad_norm, accuracy, queued.lr, not shut, tuple(rank_s) if is_told else None)

    def read_soon(self, queued: QueuedStep) -> StepResult | None:
        """The same after an error: None if the device does not finish it soon, or is what failed."""
        deadline = time.monotonic() + SOON_S
        with suppress(RuntimeError):
            while queued.arrives is not None and not queued.arrives.query():
                if time.monotonic() > deadline:
                    return None
                threading.Event().wait(POLL_S)
            return self.read(queued)
        return None

    def open(self, norms: Sequence[float]) -> None:
        """Apply steps again after a bad one, and at first; a spike is measured by these norms."""
        self._latch.open(norms)

    def _gradients(self, step: int) -> list[Tensor]:
        """Clipped gradients of a step; float64 scalars on the device: loss, norm, accuracy, seconds each."""
        group, config = self._group, self._config
        mine = self._schedule.of_drafter(step, group.topology.drafter_index)
        drafters = group.topology.num_drafters
        # Behind the sums, a place for each drafter's own time: it costs no collective of its own.
        sums = torch.zeros(4 + drafters, dtype=torch.float64, device=group.device)
        sums[4 + group.topology.drafter_index].fill_(self._worked_s)
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
        return [total / weight.clamp(min=1e-9), norm.double(), correct / counted.clamp(min=1), *worked]


def _towards_host(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy on the host, and when it is there; nobody waits. None if it is."""
    if not tensor.is_cuda:
        return tensor, None
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    arrives = torch.cuda.Event()
    arrives.record()
    return copy, arrives
