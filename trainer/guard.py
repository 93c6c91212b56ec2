"""What is done about a step whose loss or gradient is not finite, or whose gradient is far too large.

A bad step is left out: its weights' update is not made, and it counts as done. Too many in a row, and
training goes back to the last checkpoint and leaves them out from there; too often, and it gives up. Pure:
ranks that are given the same numbers decide the same.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import GuardConfig


class Verdict(str, Enum):
    """What to do about a step, before the optimizer has made it."""

    GOOD = "good"
    SKIP = "skip"
    ROLLBACK = "rollback"
    GIVE_UP = "give_up"


class Reason(str, Enum):
    """Why a step is bad."""

    NON_FINITE = "non_finite"
    SPIKE = "spike"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a step, and for the log one line that says why; both but the verdict empty if good."""

    verdict: Verdict
    reason: Reason | None = None
    line: str = ""


GOOD = Judgement(Verdict.GOOD)


class Guard:
    """Judges each step in turn."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._norms: deque[float] = deque(maxlen=config.spike_window)
        self._in_a_row = 0
        self.skipped_steps = 0
        """Steps left out, in this attempt."""
        self.rollbacks = 0
        """Times that training went back, in this attempt: a relaunch has its own."""

    @property
    def norms(self) -> list[float]:
        """Gradient norms of the last good steps, oldest first: what a spike is measured by."""
        return list(self._norms)

    @property
    def doubts(self) -> bool:
        """Whether the last step was bad."""
        return self._in_a_row > 0

    def judge(
        self, step: int, loss: float, grad_norm: float, *, finite: bool, can_roll_back: bool
    ) -> Judgement:
        """Judge `step` by numbers reduced over the ranks, before its update is made.

        `finite` says whether loss and gradients are finite on every rank. `can_roll_back` says whether there
        is a checkpoint; without one, too many bad steps in a row end the run.
        """
        reason, words = self._fault(loss, grad_norm, finite=finite)
        if reason is None:
            self._in_a_row = 0
            self._norms.append(grad_norm)
            return GOOD
        self._in_a_row += 1
        self.skipped_steps += 1
        verdict = self._verdict(can_roll_back=can_roll_back)
        return Judgement(verdict, reason, f"step {step}: {words}; {self._act(verdict)}")

    def _fault(self, loss: float, grad_norm: float, *, finite: bool) -> tuple[Reason | None, str]:
        if not (finite and math.isfinite(loss) and math.isfinite(grad_norm)):
            return Reason.NON_FINITE, f"loss {loss}, gradient norm {grad_norm}, not finite on every rank"
        if not self._config.spike_factor or len(self._norms) < self._config.spike_window:
            return None, ""
        usual = median(self._norms)
        if grad_norm <= self._config.spike_factor * usual:
            return None, ""
        return Reason.SPIKE, (
            f"gradient norm {grad_norm:.3g} is over {self._config.spike_factor:g} times {usual:.3g}, "
            f"the median of the last {len(self._norms)}"
        )

    def _verdict(self, *, can_roll_back: bool) -> Verdict:
        if self._in_a_row <= self._config.max_skips:
            return Verdict.SKIP
        if self._config.max_skips == 0 or not can_roll_back or self.rollbacks >= self._config.max_rollbacks:
            return Verdict.GIVE_UP
        return Verdict.ROLLBACK

    def _act(self, verdict: Verdict) -> str:
        if verdict is Verdict.SKIP:
            return f"left out, weights unchanged ({self._in_a_row} in a row, {self.skipped_steps} in all)"
        if verdict is Verdict.ROLLBACK:
            return (
                f"{self._in_a_row} in a row, over guard.max_skips: back to the last checkpoint, without them "
                f"({self.rollbacks + 1} of {self._config.max_rollbacks})"
            )
        return (
            f"{self._in_a_row} in a row, after going back {self.rollbacks} times: weights unchanged; "
            "resume from the last checkpoint, with a lower optim.lr if it comes again"
        )

    def rolled_back(self, state: dict[str, Any]) -> None:
        """Count a return to a checkpoint, and take up the norms that were known there."""
        self.rollbacks += 1
        self.restore(state)
        self._in_a_row = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: what a verdict depends on, but for this attempt's counters."""
        return {"norms": list(self._norms), "in_a_row": self._in_a_row}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's `state`."""
        self._norms = deque(state["norms"], maxlen=self._config.spike_window)
        self._in_a_row = int(state["in_a_row"])
