"""The command line. Nothing here imports torch, so that a wrong configuration is told at once."""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import threading
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer import inject, settings
from trainer.console import say
from trainer.errors import ConfigInvalid, TrainerError
from trainer.heartbeat import Heartbeat, Phase
from trainer.lastwords import LastWords
from trainer.rundir import RunDir, open_run_dir

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.inject import Injection

USAGE_EXIT = 78


def main(argv: list[str] | None = None) -> int:
    """Run one attempt and return its exit code: 0 done, 1 exception, and those of `trainer.errors`."""
    options = _parser().parse_args(argv)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    try:
        if options.check_config:
            settings.load(options.config, options.set)
            _ = [inject.parse(spec) for spec in options.inject]
            _require_packages()
            say(f"{options.config}: valid")
            return 0
        run_dir = open_run_dir(os.environ, options.run_dir or Path("runs") / Path(options.config).stem)
        return _attempt(options, run_dir)
    except TrainerError as error:
        sys.stderr.write(f"trainer: {type(error).__name__}: {error}\n")
        return error.exit_code


def _attempt(options: argparse.Namespace, run_dir: RunDir) -> int:
    heartbeat = Heartbeat(run_dir.attempt / "heartbeat.json")
    heartbeat.enter(Phase.INIT)
    with LastWords(run_dir.attempt / "error.json", heartbeat):
        config = settings.load(options.config, options.set)
        injections = inject.due([inject.parse(spec) for spec in options.inject], os.environ)
        _require_packages()
        _train(config, injections, run_dir, heartbeat)
    return 0


def _train(config: Config, injections: list[Injection], run_dir: RunDir, heartbeat: Heartbeat) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Spinning at OpenMP's barriers wastes a core that another process wants, and then waits for it: on a busy
    # machine of 2 cores a step took five times as long. Read once, when torch loads its OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from trainer.train import Job, run  # not above: torch takes seconds to import

    run(Job(config, injections, run_dir, heartbeat, stop))


def _require_packages() -> None:
    missing = [name for name in ("torch", "safetensors") if util.find_spec(name) is None]
    if missing:
        raise ConfigInvalid(
            f"{sys.executable}: {' and '.join(missing)} not installed; run {sys.executable} -m pip install "
            "'torch>=2.9,<2.15' 'safetensors>=0.4.5' 'numpy>=1.26', or name another python"
        )


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes have the exit code of a wrong configuration."""

    def error(self, message: str) -> NoReturn:
        """Say the mistake in one line and exit."""
        self.exit(USAGE_EXIT, f"trainer: {message}; see python -m trainer --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m trainer", description="Train a DFlash drafter.")
    parser.add_argument(
        "--config",
        default="tiny.toml",
        help="TOML file, tiny.toml or fast.toml, or - for stdin",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override, as optim.lr=3e-4"
    )
    parser.add_argument(
        "--run-dir", type=Path, help="run directory, if no supervisor gives one (default runs/NAME)"
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="only say whether it could be trained with",
    )
    parser.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="CLASS@STEP[!]",
        help="really fail, in the first attempt (with ! in each): "
        + ", ".join(f.value for f in inject.Failure),
    )
    return parser
