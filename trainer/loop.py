"""A drafter rank's loop: step, verdict, log, evaluate, save; and back to a checkpoint if it must be.

With `runs_ahead` the next step is queued before the last one's verdict is read, so that the device never
waits for the host. Should that verdict be bad, the device has not applied the one queued behind it
(`trainer.latch`): it is dropped and computed again, so what is trained, skipped and saved is the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer import metrics
from trainer.console import say, warn
from trainer.errors import Interrupted, NonFinite
from trainer.guard import Verdict
from trainer.heartbeat import Phase

if TYPE_CHECKING:
    from typing import Any

    import torch

    from trainer.checkpoint import Checkpoints
    from trainer.compiling.warmup import WarmUp
    from trainer.evaluation.evaluators import Evaluator
    from trainer.guard import Guard, Judgement
    from trainer.job import Job
    from trainer.model import DraftModel
    from trainer.parallel.group import Group
    from trainer.parallel.schedule import Schedule
    from trainer.skips import Skips
    from trainer.sources import Source
    from trainer.stepping import QueuedStep, Stepper, StepResult


@dataclass(slots=True)
class Loop:
    """What the loop works with, and where it stands."""

    job: Job
    group: Group
    draft: DraftModel
    """Without its wrapper."""
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    stepper: Stepper
    source: Source
    guard: Guard
    skips: Skips
    checkpoints: Checkpoints
    warmed: WarmUp
    origin: dict[str, Any]
    """What a checkpoint says about data and seed; another one is warned of at resume."""
    evaluator: Evaluator
    runs_ahead: bool = False
    """Whether a step may be queued while the one before is computed; the same on all drafters."""
    step: int = 0
    """Steps behind us, those left out included; one that is only queued is not."""
    loss: float | None = None
    """Of the last step taken."""
    _queued: QueuedStep | None = None
    """The step after those, if its verdict was not read yet."""
    _clock: metrics.StepClock = field(init=False)

    def run(self) -> None:
        """Train to the last step.

        Raises:
            Interrupted: asked to stop; a checkpoint holds every finished step.
            NonFinite: the guard gave up.
        """
        config, data = self.job.config, self.job.config.data
        tokens = self.schedule.per_step * data.batch_rows * data.context_tokens
        self._clock = metrics.StepClock(tokens, lambda: self.source.waited_s)
        self.stepper.open(self.guard.norms)
        self.job.enter(Phase.TRAIN, self.draft)
        try:
            while self.step < config.total_steps:
                self._stop_if_asked()
                self.stepper.begin()
                # As people count, in the log, in metrics.jsonl and in skips.jsonl.
                number = self.step + 1 if self._queued is None else self.step + 2
                if number not in self.skips:  # what is not computed cannot fail
                    self.job.before_step(number, self.draft)
                self._tell(self.checkpoints.check())
                self._take(number)
        finally:
            self._tell_queued()

    def resume(self) -> dict[str, Any] | None:
        """Go on from the newest checkpoint that can be read, if there is one; what it says."""
        heartbeat = self.job.heartbeat
        heartbeat.total_steps = self.job.config.total_steps
        state = self.checkpoints.resume(self.draft, self.optimizer)
        if state is None:
            return None
        for key, value in self.origin.items():
            if state.get(key) != value and self.group.topology.is_leader:
                warn(f"{key} is not the checkpoint's; training goes on, but not as it would have")
        self.step, self.loss = state["step"], state["loss"]
        heartbeat.step = heartbeat.checkpoint_step = self.step
        heartbeat.loss = self.loss
        return state

    def save(self, *, wait: bool) -> None:
        """Begin to write a checkpoint of the last step; it is told when it is whole."""
        before = self.job.heartbeat.phase
        self.job.enter(Phase.CHECKPOINT, self.draft)
        self._tell(self.checkpoints.finish())
        state = {"step": self.step, "loss": self.loss, "guard": self.guard.state(), **self.origin}
        self.checkpoints.save(self.step, self.draft, self.optimizer, state, wait=wait)
        if wait:
            self._tell(self.step)
        self.job.heartbeat.enter(before)

    def _tell(self, step: int | None) -> None:
        if step is not None:
            self.job.heartbeat.checkpoint_step = step
            say(f"checkpoint step-{step}")

    def _take(self, number: int) -> None:
        """Queue a step, then read the verdict of the one before, and its own if that cannot wait."""
        if number in self.skips:  # then no step is queued
            self.step += 1
            self._finish(None)
            return
        before, self._queued = self._queued, self.stepper.queue(number - 1)
        if before is not None:
            self._finish(self._judge(before))
        if not self._can_wait(number):
            self._settle()

    def _can_wait(self, number: int) -> bool:
        """Whether the next step may be queued before this one's verdict is read.

        By what all drafters know alike: who queued another step would wait for the others in it.
        """
        config = self.job.config
        pauses = (config.checkpoint.every_steps, config.eval.every_steps, config.total_steps)
        return (
            self.runs_ahead
            and not self.guard.doubts  # another bad step is likely, and one behind it for nothing
            and number + 1 not in self.skips
            and all(number % every for every in pauses if every)
        )

    def _settle(self) -> None:
        """Have no step queued."""
        queued, self._queued = self._queued, None
        if queued is not None:
            self._finish(self._judge(queued))

    def _judge(self, queued: QueuedStep) -> StepResult | None:
        """Go one step forward, or back to a checkpoint; None if no step was taken."""
        result, number = self.stepper.read(queued), queued.step + 1
        judged = self.guard.judge(
            number,
            result.loss,
            result.grad_norm,
            finite=result.finite,
            can_roll_back=self.checkpoints.begun(),
        )
        if result.is_applied != (judged.reason is None):
            raise RuntimeError(f"step {number}: the device applied it: {result.is_applied}, but {judged}")
        if judged.reason is None:
            self.step, self.loss = number, result.loss
            return result
        if self._queued is not None:  # computed for nothing: the latch was shut
            self._queued = None
            self.source.discard()
        self._leave_out(number, result, judged)
        self.stepper.open(self.guard.norms)
        return None

    def _leave_out(self, number: int, result: StepResult, judged: Judgement) -> None:
        if self.job.config.guard.max_skips:
            assert judged.reason is not None
            self.skips.record(number, judged.reason, loss=result.loss, grad_norm=result.grad_norm)
        if judged.verdict is Verdict.GIVE_UP:
            raise NonFinite(judged.line)
        if self.group.topology.is_leader:
            warn(judged.line)
        heartbeat = self.job.heartbeat
        heartbeat.skipped_steps, heartbeat.rollbacks = self.guard.skipped_steps, self.guard.rollbacks
        # What made the very last step not finite may be in the weights, and no later step would show it.
        is_end = number == self.job.config.total_steps and not result.finite and self.checkpoints.begun()
        if judged.verdict is Verdict.SKIP and not is_end:
            self.step += 1
        else:
            self._roll_back()

    def _finish(self, result: StepResult | None) -> None:
        """Tell where training stands; evaluate and save if it is time. None if no step was taken."""
        config, heartbeat, clock = self.job.config, self.job.heartbeat, self._clock
        clock.count()
        heartbeat.recompiles = self.warmed.recompiles()
        heartbeat.step, heartbeat.loss = self.step, self.loss
        heartbeat.step_s, heartbeat.tokens_per_s = clock.read()
        self.job.alive()
        last = self.step == config.total_steps
        if result is not None and (self.step % config.log_every == 0 or last):
            self._log(result, clock.read_data_wait())
            clock.restart()
        paused_at = time.monotonic()
        if config.eval.every_steps and self.step % config.eval.every_steps == 0 and not last:
            self._evaluate()
        # Not after a step that was left out: its weights may be what was wrong with it.
        if (result is not None and self.step % config.checkpoint.every_steps == 0) or last:
            self.save(wait=last or config.checkpoint.wait)
        clock.skip(time.monotonic() - paused_at)

    def _roll_back(self) -> None:
        was = self.step
        self.source.discard()
        self._tell(self.checkpoints.finish())
        state = self.resume()
        assert state is not None  # the guard goes back only to a checkpoint that is there
        self.guard.rolled_back(state["guard"])
        self.job.heartbeat.rollbacks = self.guard.rollbacks
        say(f"went back from step {was} to the checkpoint of step {self.step}")

    def _tell_queued(self) -> None:
        """Where an error ended it: a queued step that is done was not the one that failed."""
        if self._queued is None:
            return
        result = self.stepper.read_soon(self._queued)
        if result is not None and result.is_applied:
            self.job.heartbeat.step, self.job.heartbeat.loss = self._queued.step + 1, result.loss

    def _stop_if_asked(self) -> None:
        if not self.group.any_drafter(self.job.stop.requested):
            return
        self._settle()
        self.source.discard()
        self._tell(self.checkpoints.finish())
        if self.step != self.checkpoints.newest():
            self.save(wait=True)
        by = f" by {self.job.stop.name}" if self.job.stop.name else ""
        raise Interrupted(f"stopped as asked{by} after step {self.step}; a checkpoint holds that step")

    def _log(self, result: StepResult, data_wait_s: float) -> None:
        heartbeat = self.job.heartbeat
        reading = metrics.StepReading(
            step=self.step,
            loss=result.loss,
            lr=result.lr,
            grad_norm=result.grad_norm,
            step_s=heartbeat.step_s or 0.0,
            tokens_per_s=heartbeat.tokens_per_s or 0.0,
            data_wait_s=data_wait_s,
            rank_s=result.rank_s,
        )
        say(metrics.step_line(reading, self.job.config.total_steps))
        if self.group.topology.is_leader:
            metrics.record_step(self.job.run_dir.attempt / "metrics.jsonl", reading)

    def _evaluate(self) -> None:
        self.job.enter(Phase.EVAL, self.draft)
        told = self.evaluator(self.step)
        if self.group.topology.is_leader:
            length = told["acceptance_length"]
            of = f"{self.step}/{self.job.config.total_steps}"
            say(f"step {of} acceptance length {length:.2f} on held-out documents")
            metrics.record_eval(self.job.run_dir.attempt / "metrics.jsonl", self.step, length)
        self.job.heartbeat.enter(Phase.TRAIN)
