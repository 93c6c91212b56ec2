"""The guard's verdict, made where the numbers are: the host may queue the next step before it has read it.

A bad step shuts the latch, and no later one is applied until the host has judged the bad one and opens it
again. The rule is that of `trainer.guard`, in the same arithmetic, so both say the same.

Shapes: W norms of the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.config import GuardConfig


class Latch:
    """Open as long as every step since `open` was good."""

    def __init__(self, config: GuardConfig, device: torch.device) -> None:
        self._factor, self._window, self._device = config.spike_factor, config.spike_window, device
        self.open([])

    def open(self, norms: Sequence[float]) -> None:
        """Go on from the gradient norms of the last good steps, at most a window of them, oldest first.

        Waits for the device.
        """
        known = [float("nan")] * (self._window - len(norms)) + list(norms)
        # Oldest first, and not a number where there are not yet as many.
        self._norms_W = torch.tensor(known, dtype=torch.float64, device=self._device)
        self._shut = torch.zeros((), device=self._device)

    def judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the latch is shut by this step or was before: 1 or 0, float32 [], on the device.

        Both are float64 [] and reduced over the ranks, so all of them get the same answer.
        """
        good = loss.isfinite() & norm.isfinite()
        if self._factor:
            ranked_W = self._norms_W.sort().values
            usual = (ranked_W[(self._window - 1) // 2] + ranked_W[self._window // 2]) / 2
            is_full = self._norms_W[0].isfinite()
            good = good & ~(is_full & (norm > self._factor * usual))
        shut = torch.maximum(self._shut, (~good).float())
        later_W = torch.cat((self._norms_W[1:], norm[None]))
        self._norms_W = torch.where(shut > 0, self._norms_W, later_W)
        self._shut = shut
        return shut
