"""The way from the command line to a rank's work: the run directory, the ranks, last words. No torch here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import inject, settings
from trainer.compiling.caches import point_caches
from trainer.console import quieten
from trainer.errors import Interrupted
from trainer.heartbeat import Heartbeat, Phase
from trainer.importing import keep_for_good, uncollected
from trainer.lastwords import LastWords
from trainer.packages import require_packages
from trainer.parallel.gpus import hide_other_gpus, num_processes, visible_gpus
from trainer.parallel.schedule import make_schedule
from trainer.parallel.spawn import launch
from trainer.parallel.topology import is_rank, place, read_topology
from trainer.rundir import RunDir, environ_of, only_trainer, open_run_dir
from trainer.signals import StopSignals, print_stacks_on_request, write_stacks_on_request

if TYPE_CHECKING:
    import argparse

    from trainer.config import Config
    from trainer.inject import Injection

DETERMINISTIC_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def attempt(options: argparse.Namespace) -> int:
    """Run one attempt, or this rank's part of it, and return the exit code.

    Raises:
        TrainerError: how the attempt ended, if not well.
    """
    print_stacks_on_request()
    by_hand = options.run_dir or Path("runs") / Path(options.config).stem
    with only_trainer(os.environ, by_hand):
        return _attempt(options, open_run_dir(os.environ, by_hand))


def _attempt(options: argparse.Namespace, run_dir: RunDir) -> int:
    leads = os.environ.get("RANK", "0") == "0"
    heartbeat = Heartbeat(run_dir.attempt / "heartbeat.json" if leads else None)
    heartbeat.enter(Phase.INIT)
    with LastWords(run_dir.attempt / "error.json", heartbeat) as last_words:
        if options.config == settings.STDIN:  # the ranks have no standard input
            options.config = str(run_dir.attempt / "config.toml")
            Path(options.config).write_bytes(sys.stdin.buffer.read())
        config = settings.load(options.config, options.set)
        injections = inject.due([inject.parse(spec) for spec in options.inject], os.environ)
        require_packages(config)
        if not is_rank(os.environ) and (count := num_processes(config, os.environ)) > 1:
            return _launch(options, config, run_dir, count)
        _work(config, injections, run_dir, heartbeat, last_words, tuple(options.set))
    return 0


def _launch(options: argparse.Namespace, config: Config, run_dir: RunDir, count: int) -> int:
    topology = place(config.parallel, world_size=count)
    make_schedule(topology, config.optim)  # refuses here, before the ranks take seconds to start
    command = [sys.executable, "-m", "trainer", "train", "--config", options.config]
    for name in ("set", "inject"):
        command += [word for value in getattr(options, name) for word in (f"--{name}", value)]
    environ = {**os.environ, **environ_of(run_dir)}
    return launch(command, count, attempt=run_dir.attempt, environ=environ, role_of=topology.role_of)


def _work(
    config: Config,
    injections: list[Injection],
    run_dir: RunDir,
    heartbeat: Heartbeat,
    last_words: LastWords,
    overrides: tuple[str, ...],
) -> None:
    topology = read_topology(os.environ, config.parallel)
    last_words.rank = topology.rank
    write_stacks_on_request(run_dir.attempt, topology.rank)
    if not topology.is_leader:
        quieten(topology.rank)
    if config.compute.device != "cpu" and visible_gpus(os.environ):
        hide_other_gpus(os.environ, topology.local_rank)
    os.environ.setdefault(*DETERMINISTIC_CUBLAS)
    point_caches(run_dir.run, os.environ)
    stop = StopSignals().install()
    # Not above: torch takes seconds to import, and reads its environment when it is.
    with uncollected():
        from trainer.job import Job
        from trainer.parallel.failfast import FailFast
        from trainer.train import run
    keep_for_good()

    failfast = FailFast(topology, run_dir.attempt, timeout_s=config.parallel.timeout_s)
    last_words.announce = failfast.announce
    failfast.start()
    mine = [injection for injection in injections if injection.rank == topology.rank]
    try:
        run(Job(config, mine, run_dir, heartbeat, topology, stop, overrides, step_by_step=bool(injections)))
    except Interrupted:
        failfast.leave()
        raise
    failfast.leave()
