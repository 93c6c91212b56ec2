"""Measure a run's drafter where it lies: the run's own trainer, asked once, answers one JSON object.

The contract: `python -m trainer eval --config C --set K=V ... --run-dir DIR --json [--prompts N]
[--temperature T]` prints `{"schema": 1, "acceptance_length": float, "per_position": [float, ...], ...}`, last
on standard output; `per_position` may stand below `acceptance` instead. The acceptance length counts accepted
draft tokens a verification without the target's own; `per_position[k]` is the share of verifications in which
draft token k + 1 was accepted, from 0 to 1.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CommandFailed, CommandTimeout, ConfigError, GuestError
from orchestrator.launch import trainer_argv
from orchestrator.masking import Masker
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.connection import Result, Shell
    from orchestrator.launch import RunSpec

MAX_POSITIONS = 1024
SPARE_S = 60.0  # for the way there, beyond the limit that the far side itself keeps
KILL_AFTER_S = 10
_TIMED_OUT = (124, 137)
_CONFIG_INVALID = 78


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured; `body` is all that the trainer said."""

    acceptance_length: float
    per_position: tuple[float, ...]
    body: dict[str, Any]


def argv(
    spec: RunSpec,
    folder: str,
    attempt: int,
    *,
    prompts: int | None,
    temperature: float | None,
    limit_s: int,
) -> tuple[str, ...]:
    """Return the far command line for the run in `folder`, with the configuration of its attempt.

    `timeout` is in it because a lost connection alone ends nothing.

    Raises:
        ConfigError: The run is not one of the bundled trainer's.
    """
    if spec.is_command or spec.trainer_dir is None:
        raise ConfigError(
            f"run {spec.run!r} has a trainer of its own, which cannot be asked",
            hint="only runs of the bundled trainer can be evaluated",
        )
    words = ["env", "-C", spec.trainer_dir, "LC_ALL=C.UTF-8", "PYTHONUNBUFFERED=1"]
    if spec.gpus is not None:
        words += ["CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={','.join(map(str, spec.gpus))}"]
    if spec.checkpoint_dir is not None:
        words.append(f"DFLASHCTL_CHECKPOINT_DIR={spec.checkpoint_dir}")
    words += ["timeout", "-k", str(KILL_AFTER_S), str(limit_s)]
    python, flag, module, *configured = trainer_argv(replace(spec, inject=()), f"{folder}/attempts/{attempt}")
    words += [python, flag, module, "eval", *configured, "--run-dir", folder, "--json"]
    if prompts is not None:
        words += ["--prompts", str(prompts)]
    if temperature is not None:
        words += ["--temperature", f"{temperature:g}"]
    return tuple(words)


def evaluate(shell: Shell, words: tuple[str, ...], *, limit_s: int) -> Evaluation:
    """Run the far command line and return what it measured.

    Raises:
        CommandTimeout: It took longer.
        ConfigError: The trainer refused what it was asked.
        CommandFailed: The trainer failed.
        BlindError: The way there broke, or the answer is not the contract's.
    """
    result = shell.run(words, timeout_s=limit_s + KILL_AFTER_S + SPARE_S)
    if result.exit_code != 0:
        raise _failure(shell.name, result, limit_s)
    return parse(shell.name, result.stdout)


def _failure(name: str, result: Result, limit_s: int) -> Exception:
    said = result.stderr_text().strip().splitlines() or ["no word on standard error"]
    why = one_line(Masker().text(said[-1]), 400)
    if result.exit_code in _TIMED_OUT:
        return CommandTimeout(
            f"{name}: the evaluation was not done within {limit_s} s", hint="give a longer --timeout"
        )
    if result.exit_code == _CONFIG_INVALID:
        return ConfigError(f"{name}: the trainer refused: {why.removeprefix('trainer: ConfigInvalid: ')}")
    code = "an unknown exit code" if result.exit_code is None else f"exit code {result.exit_code}"
    return CommandFailed(f"{name}: the evaluation ended with {code}: {why}")


def parse(name: str, stdout: bytes) -> Evaluation:
    """Return what the trainer's answer says.

    Raises:
        GuestError: It is not the contract's.
    """
    body = _last_object(stdout)
    if body is None:
        raise GuestError(f"{name}: the evaluation printed no JSON object")
    length, positions = body.get("acceptance_length"), body.get("per_position")
    if positions is None and isinstance(body.get("acceptance"), dict):
        positions = body["acceptance"].get("per_position")
    if not is_number(length):
        raise GuestError(f"{name}: acceptance_length: {one_line(repr(length), 60)} is no number")
    if not isinstance(positions, list) or not all(is_number(each) and 0 <= each <= 1 for each in positions):
        raise GuestError(f"{name}: per_position: {one_line(repr(positions), 60)} is no list of shares")
    shares = tuple(float(each) for each in positions[:MAX_POSITIONS])
    return Evaluation(acceptance_length=float(body["acceptance_length"]), per_position=shares, body=body)


def _last_object(stdout: bytes) -> dict[str, Any] | None:
    """Return the object that stdout ends with, whether on one line or laid out on many."""
    text = stdout.rstrip()
    begin = 0 if text.startswith(b"{") else text.rfind(b"\n{") + 1
    for candidate in (text.rpartition(b"\n")[2], text[begin:]):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
