"""What an attempt is given, and what loading makes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer import checkpoint
from trainer.compile import check_shapes
from trainer.console import say, warn
from trainer.corpus import Corpus, read_corpus, stdlib_directory
from trainer.data import Windows, open_windows
from trainer.drafting import Drafting, begin_draft
from trainer.environment import fingerprint
from trainer.files import write_json
from trainer.optim import make_optimizer
from trainer.target import load_target, target_sha256

if TYPE_CHECKING:
    import threading

    from trainer.config import Config
    from trainer.heartbeat import Heartbeat
    from trainer.inject import Injection
    from trainer.rundir import RunDir

MAX_THREADS = 8


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


def set_up_torch(config: Config) -> None:
    """Threads and determinism."""
    torch.set_num_threads(config.compute.threads or min(MAX_THREADS, len(os.sched_getaffinity(0))))
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(config.seed)


def load(job: Job) -> Parts:
    """Read corpus and target, make the drafter, resume."""
    config, heartbeat = job.config, job.heartbeat
    corpus = read_corpus(stdlib_directory(config.data.stdlib))
    heartbeat.beat()
    train_windows, held_out = open_windows(
        corpus, config.data.window_tokens, config.seed, at_least=config.data.batch_windows
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
