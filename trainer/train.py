"""One attempt, read top to bottom: load, compile, warm up, train, evaluate, export."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer import checkpoint, failures, metrics
from trainer.clock import utc_now
from trainer.compile import check_shapes, compile_layer, forbid_recompiles, num_graphs, run_every_shape
from trainer.console import say, warn
from trainer.corpus import Corpus, read_corpus, stdlib_directory
from trainer.data import Windows, open_windows
from trainer.drafting import Drafting, begin_draft
from trainer.environment import fingerprint, set_up_torch
from trainer.errors import Interrupted, NonFinite
from trainer.evaluate import Evaluation, evaluate, teacher_forced_drafter
from trainer.export import export
from trainer.files import write_json
from trainer.heartbeat import Heartbeat, Phase
from trainer.inject import Failure, Injection
from trainer.optim import learning_rate, make_optimizer, set_learning_rate
from trainer.target import MASK_TOKEN, load_target, target_sha256

if TYPE_CHECKING:
    import threading

    from trainer.config import Config
    from trainer.rundir import RunDir

QUICK_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Job:
    """What an attempt is given."""

    config: Config
    injections: list[Injection]
    run_dir: RunDir
    heartbeat: Heartbeat
    stop: threading.Event
    """Set when the trainer is asked to stop."""


@dataclass(slots=True)
class Parts:
    """What loading makes, and where training stands."""

    drafting: Drafting
    optimizer: torch.optim.Optimizer
    corpus: Corpus
    train: Windows
    held_out: Windows
    step: int = 0
    """Finished optimizer steps."""
    loss: float | None = None
    """Loss of the last of them."""


def run(job: Job) -> None:
    """Train to the end, from the newest checkpoint if there is one.

    Raises:
        TrainerError: one of its kinds; anything else is a defect or the machine's fault.
    """
    set_up_torch(job.config)
    failures.check_possible(job.injections)
    job.heartbeat.enter(Phase.LOAD)
    parts = load(job)
    warm_up(job, parts.drafting)
    train(job, parts)
    job.heartbeat.enter(Phase.EVAL)
    evaluation = evaluate(parts.drafting, parts.held_out, lambda: _alive(job, parts))
    for line in evaluation.lines():
        say(line)
    finish(job, parts, evaluation)


def load(job: Job) -> Parts:
    """Read corpus and target, make the drafter, resume."""
    config, heartbeat = job.config, job.heartbeat
    corpus = read_corpus(stdlib_directory(config.data.stdlib))
    heartbeat.beat()
    train_windows, held_out = open_windows(
        corpus, config.data.context_tokens, config.seed, at_least=config.data.batch_rows
    )
    target = load_target(config.target.path)
    check_shapes(config, target.shape)
    heartbeat.beat()
    draft = begin_draft(config, target)
    parts = Parts(
        Drafting(config, target, draft), make_optimizer(draft, config.optim), corpus, train_windows, held_out
    )
    told = fingerprint(config, corpus=corpus.fingerprint, target_sha256=target_sha256(config.target.path))
    write_json(job.run_dir.attempt / "environment.json", told)
    num_parameters = sum(p.numel() for p in draft.parameters())
    say(
        f"drafter {num_parameters:,} parameters, {config.draft.num_layers} layers, "
        f"block {config.draft.block_size}, target layers {list(draft.shape.target_layer_ids)}; corpus "
        f"{len(corpus.train)} files, {corpus.train_bytes:,} bytes, {len(corpus.held_out)} files held out; "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    _resume(job, parts)
    return parts


def _resume(job: Job, parts: Parts) -> None:
    heartbeat = job.heartbeat
    heartbeat.total_steps = job.config.total_steps
    resumed = checkpoint.resume(job.run_dir.checkpoints, parts.drafting.draft, parts.optimizer)
    if resumed is None:
        return
    if resumed.corpus != parts.corpus.fingerprint:
        warn("the corpus is not the one of the checkpoint; training goes on, but not as it would have")
    parts.step, parts.loss = resumed.step, resumed.loss
    heartbeat.step = heartbeat.resumed_from_step = heartbeat.checkpoint_step = resumed.step
    heartbeat.loss = resumed.loss
    say(f"resumed from step {resumed.step}")


def warm_up(job: Job, drafting: Drafting) -> None:
    """Compile every shape, then see that a second round compiles nothing."""
    started = time.monotonic()
    job.heartbeat.enter(Phase.COMPILE)
    compile_layer(drafting)
    run_every_shape(drafting)
    compiled_s = time.monotonic() - started
    job.heartbeat.enter(Phase.WARMUP)
    forbid_recompiles()
    run_every_shape(drafting)
    say(f"compiled {num_graphs()} graphs in {compiled_s:.1f} s; a recompile is now an error")


def train(job: Job, parts: Parts) -> None:
    """The loop."""
    config, heartbeat = job.config, job.heartbeat
    graphs = num_graphs()
    clock = metrics.StepClock(config.data.batch_rows * config.data.context_tokens)
    heartbeat.enter(Phase.TRAIN)
    while parts.step < config.total_steps:
        _stop_if_asked(job, parts)
        for injection in job.injections:
            _inject(injection, parts)
        lr = learning_rate(parts.step, config.total_steps, config.optim)
        grad_norm = take_step(config, parts, lr)
        clock.count()
        heartbeat.recompiles = num_graphs() - graphs
        heartbeat.step, heartbeat.loss = parts.step, parts.loss
        heartbeat.step_s, heartbeat.tokens_per_s = clock.read()
        _alive(job, parts)
        last = parts.step == config.total_steps
        if parts.step % config.log_every == 0 or last:
            _log(job, parts, lr, grad_norm)
            clock.restart()
        paused_at = time.monotonic()
        if config.eval.every_steps and parts.step % config.eval.every_steps == 0 and not last:
            _quick_evaluation(job, parts)
        if parts.step % config.checkpoint.every_steps == 0 or last:
            save(job, parts)
        clock.skip(time.monotonic() - paused_at)


def take_step(config: Config, parts: Parts, lr: float) -> float:
    """One optimizer step; returns the gradient's norm before clipping.

    Raises:
        NonFinite: the loss or the gradient is not finite; the weights are as they were.
    """
    draft = parts.drafting.draft
    set_learning_rate(parts.optimizer, lr)
    tokens_BT = parts.train.batch(parts.step, config.data.batch_rows)
    loss = parts.drafting.step_loss(tokens_BT, parts.step)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), config.optim.clip)
    loss_value, norm_value = float(loss.detach()), float(norm)
    if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
        raise NonFinite(
            f"step {parts.step + 1}: loss {loss_value}, gradient norm {norm_value}; weights unchanged; "
            "resume from the last checkpoint, with a lower optim.lr if it comes again"
        )
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    parts.step, parts.loss = parts.step + 1, loss_value
    return norm_value


def _inject(injection: Injection, parts: Parts) -> None:
    if injection.step == parts.step + 1:
        failures.fire(injection, parts.drafting.draft)
    if injection.failure is Failure.SLOW and injection.step <= parts.step + 1:
        failures.slow_down()


def _alive(job: Job, parts: Parts) -> None:
    job.heartbeat.peak_memory_bytes = metrics.peak_memory_bytes()
    job.heartbeat.beat()
    if job.heartbeat.phase is Phase.EVAL:
        _stop_if_asked(job, parts)


def _stop_if_asked(job: Job, parts: Parts) -> None:
    if not job.stop.is_set():
        return
    if parts.step != job.heartbeat.checkpoint_step and job.heartbeat.phase is not Phase.EVAL:
        save(job, parts)
    raise Interrupted(f"stopped as asked after step {parts.step}; a checkpoint holds that step")


def _log(job: Job, parts: Parts, lr: float, grad_norm: float) -> None:
    assert parts.loss is not None
    reading = metrics.StepReading(
        step=parts.step,
        loss=parts.loss,
        lr=lr,
        grad_norm=grad_norm,
        step_s=job.heartbeat.step_s or 0.0,
        tokens_per_s=job.heartbeat.tokens_per_s or 0.0,
    )
    say(metrics.step_line(reading, job.config.total_steps))
    metrics.record_step(job.run_dir.attempt / "metrics.jsonl", reading)


def _quick_evaluation(job: Job, parts: Parts) -> None:
    job.heartbeat.enter(Phase.EVAL)
    windows = parts.held_out.spread(QUICK_BATCHES * job.config.data.batch_rows)
    length = teacher_forced_drafter(parts.drafting, windows, job.heartbeat.beat)
    say(f"step {parts.step}/{job.config.total_steps} acceptance length {length:.2f} on held-out files")
    metrics.record_eval(job.run_dir.attempt / "metrics.jsonl", parts.step, length)
    job.heartbeat.enter(Phase.TRAIN)


def save(job: Job, parts: Parts) -> None:
    """Write a checkpoint of the last finished step."""
    before = job.heartbeat.phase
    job.heartbeat.enter(Phase.CHECKPOINT)
    checkpoint.save_checkpoint(
        job.run_dir.checkpoints,
        step=parts.step,
        loss=parts.loss,
        draft=parts.drafting.draft,
        optimizer=parts.optimizer,
        corpus=parts.corpus.fingerprint,
        keep=job.config.checkpoint.keep,
    )
    job.heartbeat.checkpoint_step = parts.step
    say(f"checkpoint step-{parts.step}")
    job.heartbeat.enter(before)


def finish(job: Job, parts: Parts, evaluation: Evaluation) -> None:
    """Export the drafter and write result.json."""
    job.heartbeat.enter(Phase.EXPORT)
    target_shape = parts.drafting.target.shape
    export(
        job.run_dir.export,
        parts.drafting.draft,
        target_shape,
        mask_token=MASK_TOKEN,
        dtype=job.config.export.dtype,
    )
    metrics.record_eval(job.run_dir.attempt / "metrics.jsonl", parts.step, evaluation.acceptance_length)
    value = {
        "step": parts.step,
        "loss": parts.loss,
        "export": str(job.run_dir.export),
        "acceptance_length": evaluation.acceptance_length,
        "acceptance": evaluation.as_json(),
        "at": utc_now(),
    }
    write_json(job.run_dir.attempt / "result.json", value)
    say(f"exported {job.run_dir.export}")
    job.heartbeat.enter(Phase.DONE)
