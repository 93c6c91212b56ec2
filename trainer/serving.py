"""A target rank of a split: it runs the target for whoever asks, and the first one evaluates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.ahead import Ahead
from trainer.compiling.caches import cache_dirs
from trainer.drafting import Drafting
from trainer.evaluation.evaluators import evaluate_here
from trainer.heartbeat import Phase
from trainer.model import DraftModel
from trainer.parallel.transport import Server
from trainer.warming import compile_and_warm_up

if TYPE_CHECKING:
    from trainer.job import Job
    from trainer.loading import Loaded
    from trainer.parallel.group import Group
    from trainer.parallel.schedule import Schedule
    from trainer.target.api import Observation


def serve(job: Job, group: Group, schedule: Schedule, loaded: Loaded) -> None:
    """Answer the drafters until all of them have said good-bye."""
    config, target = job.config, loaded.target
    assert target is not None
    machine = loaded.machine
    drafting: Drafting | None = None
    state = {}
    if job.topology.target_index == 0:
        draft = DraftModel(loaded.shape).to(machine.device)
        state = dict(draft.named_parameters())
        drafting = Drafting(config, loaded.shape, draft, target, loaded.mask_token, machine.dtype)
        job.enter(Phase.COMPILE)
        dirs = cache_dirs(job.run_dir.run)
        compile_and_warm_up(job, drafting, draft, machine.backend, dirs, trains=False)
        job.enter(Phase.WARMUP)
    job.enter(Phase.TRAIN)

    ahead = Ahead(loaded.data.train.micro_batch)

    def make(index: int) -> Observation:
        job.before_step(index // schedule.per_step + 1, None)
        likely = index + schedule.num_targets  # what is asked for next, unless training goes back
        upcoming = [likely] if likely < config.total_steps * schedule.per_step else []
        batch = ahead.take(index, upcoming).to(machine.device)
        return target.observe(batch, loaded.shape.target_layer_ids, last=config.loss.labels == "target")

    server = Server(group)

    def evaluate(step: int) -> dict[str, Any]:
        assert drafting is not None
        return evaluate_here(loaded, drafting, target, step, server.beat, compile_more=False)

    try:
        server.serve(make, evaluate, state)
    finally:
        ahead.close()
