"""What one rank of one attempt is given, and how it tells where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer import failures, metrics
from trainer.inject import Failure

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.heartbeat import Heartbeat, Phase
    from trainer.inject import Injection
    from trainer.model import DraftModel
    from trainer.parallel.topology import Topology
    from trainer.rundir import RunDir
    from trainer.signals import StopSignals


@dataclass(slots=True)
class Job:
    """One rank's share of an attempt."""

    config: Config
    injections: list[Injection]
    """Those of this rank and attempt."""
    run_dir: RunDir
    heartbeat: Heartbeat
    """Written to disk by the leader alone."""
    topology: Topology
    stop: StopSignals
    overrides: tuple[str, ...] = ()
    """The `key=value` words that the configuration was changed by."""
    step_by_step: bool = False
    """Whether each step is known before the next one is begun: where a rank, this or another, is to fail."""
    _fired: set[Injection] = field(default_factory=set)

    def enter(self, phase: Phase, draft: DraftModel | None = None) -> None:
        """Change the phase, tell it, and fail if that was asked for here."""
        self.heartbeat.enter(phase)
        for injection in self.injections:
            if injection.phase is phase:
                self._fire(injection, draft)

    def before_step(self, step: int, draft: DraftModel | None) -> None:
        """Fail if that was asked for in step `step`, 1 being the first."""
        for injection in self.injections:
            if injection.step is None:
                continue
            if injection.failure is Failure.SLOW and injection.step <= step:
                failures.slow_down()
            elif injection.step == step:
                self._fire(injection, draft)

    def alive(self) -> None:
        """Tell that this rank lives."""
        self.heartbeat.peak_memory_bytes = metrics.peak_memory_bytes()
        self.heartbeat.beat()

    def _fire(self, injection: Injection, draft: DraftModel | None) -> None:
        if injection not in self._fired:  # training that went back to a checkpoint passes the step again
            self._fired.add(injection)
            failures.fire(injection, draft)
