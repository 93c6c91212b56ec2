"""`python -m trainer eval`: a finished drafter's figures, from its export."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.console import say
from trainer.data.dataset import open_data
from trainer.environment import set_up_torch
from trainer.errors import ConfigInvalid
from trainer.evaluation.figures import evaluate_finished, read_finished
from trainer.loading import check_target, choose_machine
from trainer.target.load import load_target

if TYPE_CHECKING:
    import argparse

    from trainer.config import Config
    from trainer.evaluation.figures import Evaluation

SCHEMA = 1
MAX_PROMPTS = 1 << 16  # as of eval.prompts


def evaluate_export(config: Config, options: argparse.Namespace) -> int:
    """Print the figures of `--export`, by default the run directory's, as lines or as one JSON object.

    Raises:
        ConfigInvalid, DataInvalid: drafter, target or held-out documents cannot be used.
        DecodeMismatch: speculative decoding changed a token.
    """
    if not 0 <= options.temperature < math.inf:  # so that a NaN is refused too
        raise ConfigInvalid(f"--temperature {options.temperature}: allowed: 0 (greedy) or more, finite")
    if options.prompts is not None:
        if not 0 <= options.prompts <= MAX_PROMPTS:
            raise ConfigInvalid(f"--prompts {options.prompts}: allowed: 0 to {MAX_PROMPTS}")
        config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, prompts=options.prompts))
    run_dir = options.run_dir or Path("runs", Path(options.config).stem)
    found = _measure(config, options.export or run_dir / "export", run_dir, options.temperature)
    if options.json:
        told = {"schema": SCHEMA, "acceptance_length": found.acceptance_length, **found.as_json()}
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    for line in found.lines():
        say(line)
    return 0


def _measure(config: Config, export: Path, run_dir: Path, temperature: float) -> Evaluation:
    machine = choose_machine(config)
    set_up_torch(config, machine.device, 1)
    token = check_target(config)
    target = load_target(config.target, machine.device, machine.dtype)
    drafting = read_finished(export, config, target, token, machine.dtype)
    data = open_data(
        drafting.config, target.shape.vocab_size, run_dir / "data", lead=True, beat=_nothing, tell=_ignore
    )
    return evaluate_finished(drafting, target, data.held_out, _nothing, temperature=temperature)


def _nothing() -> None:
    """Nobody waits for a heartbeat here."""


def _ignore(line: str) -> None:
    """The figures alone are wanted."""
    del line
