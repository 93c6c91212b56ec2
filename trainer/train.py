"""One rank of one attempt, read top to bottom: load, compile, warm up, train or serve, evaluate, export."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch

from trainer import failures, metrics
from trainer.caching import open_cache
from trainer.checkpoint import Checkpoints
from trainer.clock import utc_now
from trainer.compiling.caches import cache_dirs
from trainer.console import say, warn
from trainer.drafting import Drafting, begin_draft
from trainer.environment import fingerprint, set_up_torch
from trainer.errors import Interrupted
from trainer.evaluation.evaluators import FINAL, Evaluator, LocalEvaluator, RemoteEvaluator
from trainer.export import export
from trainer.files import write_json
from trainer.guard import Guard
from trainer.heartbeat import Phase
from trainer.loading import Loaded, choose_machine, load, require_memory
from trainer.loop import Loop
from trainer.model import DraftModel
from trainer.optim import make_optimizer
from trainer.parallel.group import Group, open_group
from trainer.parallel.schedule import Schedule, make_schedule
from trainer.parallel.transport import Layout, Remote
from trainer.parallel.wrap import full_state, unwrap, wrap
from trainer.serving import serve
from trainer.skips import Skips
from trainer.sources import CachedSource, LocalSource, RemoteSource, Source
from trainer.stepping import Stepper
from trainer.target.load import load_target
from trainer.warming import compile_and_warm_up

if TYPE_CHECKING:
    from trainer.job import Job


def run(job: Job) -> None:
    """Do this rank's part to the end, from the newest checkpoint if there is one.

    Raises:
        TrainerError: one of its kinds; anything else is a defect or the machine's fault.
    """
    failures.check_possible(job.injections)
    machine = choose_machine(job.config)
    set_up_torch(job.config, machine.device, job.topology.local_world_size)
    job.enter(Phase.LOAD)
    require_memory(job.config, job.topology.num_drafters, machine)
    schedule = make_schedule(job.topology, job.config.optim)
    group = open_group(job.topology, job.config.parallel, machine.device)
    loaded = load(job, machine)
    try:
        if job.topology.is_drafter:
            _draft(job, group, schedule, loaded)
        else:
            serve(job, group, schedule, loaded)
    except Interrupted:
        group.barrier()  # all ranks end well together, and none takes another's end for a failure
        group.close()
        raise
    job.enter(Phase.DONE)
    group.barrier()
    group.close()


def _draft(job: Job, group: Group, schedule: Schedule, loaded: Loaded) -> None:
    config, machine = job.config, loaded.machine
    draft = begin_draft(config, loaded.shape, _pattern(job, loaded), machine.device)
    if job.topology.is_leader:
        _introduce(job, loaded, draft)
    wrapped = wrap(draft, group, config.parallel, machine.dtype)
    drafting = Drafting(config, loaded.shape, wrapped, loaded.vocabulary, loaded.mask_token, machine.dtype)
    job.enter(Phase.COMPILE, draft)
    dirs = cache_dirs(job.run_dir.run)
    warmed = compile_and_warm_up(job, drafting, draft, machine.backend, dirs, trains=True)
    job.enter(Phase.WARMUP, draft)
    say(
        f"compiled {warmed.graphs} graphs in {warmed.seconds:.1f} s, {warmed.cache_hits} from the cache; a "
        "recompile is now an error"
    )
    optimizer = make_optimizer(wrapped, config.optim)
    source, evaluator, remote = _sources(job, group, schedule, loaded, drafting)
    checkpoints = Checkpoints(
        job.run_dir.checkpoints, config.checkpoint.keep, group.drafters_cpu, beat=job.alive
    )
    data = loaded.data.train.fingerprint
    origin = {"data": data, "target": loaded.target_sha256, "seed": config.seed}
    loop = Loop(
        job=job,
        group=group,
        draft=draft,
        optimizer=optimizer,
        schedule=schedule,
        stepper=Stepper(config, drafting, source, optimizer, group, schedule),
        source=source,
        guard=Guard(config.guard),
        skips=Skips(job.run_dir.run / "skips.jsonl", data, leader=job.topology.is_leader),
        checkpoints=checkpoints,
        warmed=warmed,
        origin=origin,
        evaluator=evaluator,
        runs_ahead=machine.device.type == "cuda" and not job.step_by_step,
    )
    state = loop.resume()
    if state is not None:
        loop.guard.restore(state["guard"])
        job.heartbeat.resumed_from_step = loop.step
        say(f"resumed from step {loop.step}")
        if loop.step > config.total_steps and job.topology.is_leader:
            warn(f"the checkpoint is past total_steps, {config.total_steps}; nothing is left to train")
    try:
        loop.run()
        job.enter(Phase.EVAL, draft)
        begun = time.monotonic()
        told = evaluator(FINAL)
        say(f"evaluated in {time.monotonic() - begun:.1f} s")
        _finish(job, loaded, drafting, told, loop)
    except Interrupted:
        _release(remote)
        raise
    finally:
        source.close()
    _release(remote)


def _release(remote: Remote | None) -> None:
    if remote is not None:
        remote.bye()


def _pattern(job: Job, loaded: Loaded) -> Any:  # noqa: ANN401 - a target, if init = target needs one
    if job.config.draft.init != "target" or loaded.target is not None:
        return loaded.target
    return load_target(job.config.target, "cpu", torch.float32)


def _introduce(job: Job, loaded: Loaded, draft: DraftModel) -> None:
    told = fingerprint(
        job.config,
        corpus=loaded.data.fingerprint,
        target_sha256=loaded.target_sha256,
        overrides=job.overrides,
        compile_cache=job.run_dir.run / "compile-cache",
    )
    write_json(job.run_dir.attempt / "environment.json", told)
    shape, topology = loaded.shape, job.topology
    ranks = f"{topology.num_targets} targets, {topology.num_drafters} drafters"
    parameters = sum(parameter.numel() for parameter in draft.parameters())
    say(
        f"drafter {parameters:,} parameters, {shape.num_layers} layers, block "
        f"{shape.block_size}, target layers {list(shape.target_layer_ids)}; {topology.placement}, "
        f"{'1 process' if topology.is_alone else ranks}, "
        f"{loaded.machine.device.type} {str(loaded.machine.dtype).removeprefix('torch.')}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def _sources(
    job: Job, group: Group, schedule: Schedule, loaded: Loaded, drafting: Drafting
) -> tuple[Source, Evaluator, Remote | None]:
    train, device = loaded.data.train, loaded.machine.device
    taps, last = drafting.tap_layers, drafting.wants_last
    if job.topology.is_split:
        width = loaded.shape.hidden_size

        def layout(index: int) -> Layout:
            bucket = train.bucket(index)
            return Layout(bucket.rows, bucket.context_tokens, len(taps) * width, width if last else 0)

        remote = Remote(group, schedule, layout, loaded.machine.dtype)
        source = RemoteSource(train, remote, device)
        return source, RemoteEvaluator(job, group, remote, drafting.draft), remote
    evaluator = LocalEvaluator(job, group, loaded, drafting)
    if job.topology.placement == "cached":
        count = min(train.per_epoch(0), job.config.total_steps * schedule.per_step)
        cache = open_cache(job, group, loaded, count, last=last)
        return CachedSource(train, cache, device, count=count), evaluator, None
    assert loaded.target is not None
    return LocalSource(train, loaded.target, taps, device, last=last), evaluator, None


def _finish(job: Job, loaded: Loaded, drafting: Drafting, told: dict[str, Any], loop: Loop) -> None:
    """Export the drafter and write result.json."""
    for line in told.get("lines", ()):
        say(line)
    job.enter(Phase.EXPORT, cast("DraftModel", unwrap(drafting.draft)))
    state = full_state(drafting.draft)
    if not job.topology.is_leader:
        return
    whole = DraftModel(loaded.shape)
    whole.load_state_dict({name: value.cpu() for name, value in state.items()})
    directory = job.run_dir.export
    dtype = job.config.export.dtype
    export(directory, whole, loaded.target_shape, mask_token=loaded.mask_token, dtype=dtype)
    metrics.record_eval(job.run_dir.attempt / "metrics.jsonl", loop.step, told["acceptance_length"])
    value = {
        "step": loop.step,
        "loss": loop.loss,
        "export": str(directory),
        "acceptance_length": told["acceptance_length"],
        "acceptance": told["acceptance"],
        "at": utc_now(),
    }
    write_json(job.run_dir.attempt / "result.json", value)
    say(f"exported {directory}")
