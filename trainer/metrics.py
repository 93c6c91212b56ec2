"""What one logged step says: the printed line, the line of metrics.jsonl, and the throughput behind both."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.clock import utc_now
from trainer.files import append_json_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReading:
    """One optimizer step, as measured."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    step_s: float
    """Seconds a step, over the steps since the last logged one."""
    tokens_per_s: float
    """Context tokens a second."""
    data_wait_s: float = 0.0
    """Seconds of `step_s` in which this rank waited for what it reads from disk."""
    rank_s: tuple[float, ...] | None = None
    """Seconds of each drafter's own work; see `stepping.StepResult`."""


class StepClock:
    """Mean step time since it was last read; evaluation and checkpoints are taken out with `skip`."""

    def __init__(self, tokens_in_step: int, waited_s: Callable[[], float] = lambda: 0.0) -> None:
        """`waited_s` tells how long data was waited for, in all."""
        self._tokens = tokens_in_step
        self._waited_s = waited_s
        self.restart()

    def skip(self, seconds: float) -> None:
        """Leave out time that was not spent on steps."""
        self._since += seconds

    def count(self) -> None:
        """One more step is finished."""
        self._steps += 1

    def read(self) -> tuple[float, float]:
        """Seconds a step and tokens a second since `restart`."""
        step_s = max(time.monotonic() - self._since, 1e-9) / max(self._steps, 1)
        return step_s, self._tokens / step_s

    def read_data_wait(self) -> float:
        """Seconds a step for which data was waited for, since `restart`."""
        return (self._waited_s() - self._waited_before) / max(self._steps, 1)

    def restart(self) -> None:
        """Measure from now on."""
        self._since = time.monotonic()
        self._waited_before = self._waited_s()
        self._steps = 0


def step_line(reading: StepReading, total_steps: int) -> str:
    """Such as `step 120/380 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step`."""
    return (
        f"step {reading.step}/{total_steps} loss {reading.loss:.3f} lr {reading.lr:.1e} "
        f"grad {reading.grad_norm:.2f} {reading.tokens_per_s / 1000:.1f} ktok/s {reading.step_s:.2f} s/step"
    )


def record_step(path: Path, reading: StepReading) -> None:
    """Append the step to metrics.jsonl."""
    value = {
        "kind": "train",
        "step": reading.step,
        "loss": reading.loss,
        "lr": reading.lr,
        "grad_norm": reading.grad_norm,
        "tokens_per_s": reading.tokens_per_s,
        "step_s": reading.step_s,
        "data_wait_s": round(reading.data_wait_s, 6),
        "rank_s": None if reading.rank_s is None else [round(each, 6) for each in reading.rank_s],
        "acceptance_length": None,
        "at": utc_now(),
    }
    append_json_line(path, value)


def record_eval(path: Path, step: int, acceptance_length: float) -> None:
    """Append an evaluation to metrics.jsonl."""
    value = {
        "kind": "eval",
        "step": step,
        "loss": None,
        "lr": None,
        "grad_norm": None,
        "tokens_per_s": None,
        "step_s": None,
        "data_wait_s": None,
        "rank_s": None,
        "acceptance_length": acceptance_length,
        "at": utc_now(),
    }
    append_json_line(path, value)


def peak_memory_bytes() -> int:
    """The process's largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
