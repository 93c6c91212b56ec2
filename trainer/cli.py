"""The command line. Nothing here imports torch, so that a wrong configuration is told at once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from trainer import inject, settings
from trainer.attempt import attempt
from trainer.console import say
from trainer.data.buckets import buckets
from trainer.errors import TrainerError
from trainer.packages import require_packages

USAGE_EXIT = 78
INTERRUPTED_EXIT = 130
COMMANDS = {
    "train": "one attempt, on every GPU it may use (the default)",
    "plan": "memory and disk that the worst step will take, without a GPU",
    "eval": "acceptance length of a finished drafter",
}
EXAMPLES = """examples:
  python -m trainer                                   the embedded target, on the CPU
  python -m trainer --config qwen3-8b --set target.path=/models/Qwen3-8B --set data.path=chats.jsonl
  python -m trainer plan --config seed-8gpu --set data.anchors=2048
  python -m trainer eval --run-dir runs/tiny --prompts 8 --temperature 0.7
  torchrun --nnodes 2 --nproc-per-node 8 ... -m trainer --config qwen3-8b --run-dir /shared/run"""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 exception, and those of `trainer.errors`."""
    options = _parser().parse_args(argv)
    # Spinning at OpenMP's barriers wastes a core that another process wants, and then waits for it: on a busy
    # machine of 2 cores a step took five times as long. Read once, when torch loads its OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if options.check_config:
            config = settings.load(options.config, options.set)
            buckets(config.data)
            require_packages(config)
            _ = [inject.parse(spec) for spec in options.inject]
            say(f"{options.config}: valid")
            return 0
        return _run(options)
    except TrainerError as error:
        sys.stderr.write(f"trainer: {type(error).__name__}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:  # the second Ctrl-C: at once, whatever that loses
        sys.stderr.write("trainer: interrupted at once; resume goes back to the last checkpoint\n")
        return INTERRUPTED_EXIT


def _run(options: argparse.Namespace) -> int:
    if options.command == "train":
        return attempt(options)
    config = settings.load(options.config, options.set)
    require_packages(config)
    # Each imports torch, which takes seconds: not above.
    if options.command == "plan":
        from trainer.planning import plan

        return plan(config, as_json=options.json)
    from trainer.evaluation.finished import evaluate_export

    return evaluate_export(config, options)


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes have the exit code of a wrong configuration."""

    def error(self, message: str) -> NoReturn:
        """Say the mistake in one line and exit."""
        self.exit(USAGE_EXIT, f"trainer: {message}; see python -m trainer --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trainer",
        description="Train a DFlash drafter.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    told = "; ".join(f"{name}: {what}" for name, what in COMMANDS.items())
    parser.add_argument("command", nargs="?", choices=COMMANDS, default="train", metavar="COMMAND", help=told)
    parser.add_argument(
        "--config",
        default="tiny.toml",
        help="TOML file, a bundled one (tiny, fast, qwen3-8b, qwen3.6-27b, seed-8gpu), or - for stdin",
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
        metavar="CLASS@WHEN[:RANK][!]",
        help="really fail at a step or phase, in the first attempt (with ! in each): "
        + ", ".join(f.value for f in inject.Failure),
    )
    shown = parser.add_argument_group("plan and eval")
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.add_argument("--export", type=Path, help="eval: the drafter's folder (default RUN_DIR/export)")
    shown.add_argument("--prompts", type=int, help="eval: held-out prompts decoded (default eval.prompts)")
    shown.add_argument("--temperature", type=float, default=0.0, help="eval: 0 is greedy")
    return parser
