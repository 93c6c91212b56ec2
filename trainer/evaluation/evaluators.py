"""Who evaluates: the leader where it has the target, else the first target rank, which is sent weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from torch.distributed.fsdp import FSDPModule

from trainer.compiling.warmup import allowing_compile
from trainer.errors import Interrupted
from trainer.evaluation.figures import evaluate, teacher_forced_drafter
from trainer.model import DraftModel
from trainer.parallel.wrap import full_state, unwrap
from trainer.target.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from trainer.drafting import Drafting
    from trainer.job import Job
    from trainer.loading import Loaded
    from trainer.parallel.group import Group
    from trainer.parallel.transport import Remote
    from trainer.target.api import Target

QUICK_BATCHES = 2
FINAL = -1
"""Stands for the last evaluation where a step is asked for."""


class Evaluator(Protocol):
    """Called by every drafter rank at the same step."""

    def __call__(self, step: int) -> dict[str, Any]:
        """A quick evaluation after `step` steps, `{"acceptance_length"}`, or all of it for FINAL."""


def evaluate_here(
    loaded: Loaded,
    drafting: Drafting,
    target: Target,
    step: int,
    beat: Callable[[], None],
    *,
    compile_more: bool,
) -> dict[str, Any]:
    """Evaluate in this process. `compile_more`: the drafter is not the one that warm-up saw."""
    held_out, data = loaded.data.held_out, drafting.config.data

    def measured() -> dict[str, Any]:
        if step == FINAL:
            found = evaluate(drafting, target, held_out, beat)
            told = {"acceptance_length": found.acceptance_length, "acceptance": found.as_json()}
            return {**told, "lines": found.lines()}
        batches = held_out.batches(QUICK_BATCHES * data.batch_rows)
        return {"acceptance_length": teacher_forced_drafter(drafting, target, batches, beat)}

    if not compile_more:
        return measured()
    with allowing_compile():
        return measured()


class LocalEvaluator:
    """`colocated` and `cached`: the leader evaluates, and the others wait for it."""

    def __init__(self, job: Job, group: Group, loaded: Loaded, drafting: Drafting) -> None:
        self._job, self._group, self._loaded, self._drafting = job, group, loaded, drafting

    def __call__(self, step: int) -> dict[str, Any]:
        """On the leader the figures, elsewhere nothing."""
        drafting, inside = self._drafting, unwrap(self._drafting.draft)
        whole: DraftModel | None = None
        if isinstance(inside, FSDPModule):
            whole = _whole(drafting, inside)
        told: dict[str, Any] = {}
        if self._group.topology.is_leader:
            if self._loaded.target is None:  # `cached` trains without it
                machine = self._loaded.machine
                self._loaded.target = load_target(self._job.config.target, machine.device, machine.dtype)
            own = dataclasses.replace(drafting, draft=whole or inside)
            told = evaluate_here(
                self._loaded,
                own,
                self._loaded.target,
                step,
                self._beat,
                compile_more=whole is not None,
            )
        self._group.drafters_barrier()
        return told

    def _beat(self) -> None:
        self._job.alive()
        # Alone it can stop in the middle of an evaluation; others wait for the leader at its end.
        if self._group.topology.is_alone and self._job.stop.requested:
            raise Interrupted("stopped as asked in an evaluation; a checkpoint holds the last saved step")


class RemoteEvaluator:
    """`split`: the leader sends the weights to a rank that has the target."""

    def __init__(self, job: Job, group: Group, remote: Remote, wrapped: nn.Module) -> None:
        self._job, self._group, self._remote, self._wrapped = job, group, remote, wrapped

    def __call__(self, step: int) -> dict[str, Any]:
        """On the leader the figures, elsewhere nothing."""
        self._remote.discard()
        state = full_state(self._wrapped)
        told: dict[str, Any] = {}
        if self._group.topology.is_leader:
            told = self._remote.evaluate(step, state, self._job.alive)
        self._group.drafters_barrier()
        return told


def _whole(drafting: Drafting, sharded: nn.Module) -> DraftModel:
    """A plain copy; every drafter takes part in making it."""
    state = full_state(sharded)
    made = DraftModel(drafting.shape).to(drafting.vocabulary.head.device)
    made.load_state_dict(state)
    return made
