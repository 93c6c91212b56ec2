"""Where this attempt reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDir:
    """The directories of one attempt; all of them exist."""

    run: Path
    attempt: Path
    checkpoints: Path
    attempt_number: int | None
    """None when nobody numbered this attempt, that is, when the trainer was started by hand."""

    @property
    def export(self) -> Path:
        """Where the finished drafter goes."""
        return self.run / "export"


def open_run_dir(environ: Mapping[str, str], by_hand: Path) -> RunDir:
    """Take the directories from the supervisor's environment, else make the next attempt under `by_hand`.

    Raises:
        ConfigInvalid: DFLASHCTL_ATTEMPT is not a number, or a directory cannot be made.
    """
    try:
        run_text = environ.get("DFLASHCTL_RUN_DIR")
        if run_text is None:
            return _next_attempt(by_hand)
        return _numbered_attempt(environ, Path(run_text))
    except OSError as error:
        message = f"run directory: {error.filename}: {error.strerror}; give another with --run-dir"
        raise ConfigInvalid(message) from error


def environ_of(run_dir: RunDir) -> dict[str, str]:
    """The variables by which the ranks of an attempt find its directories."""
    return {
        "DFLASHCTL_RUN_DIR": str(run_dir.run),
        "DFLASHCTL_ATTEMPT": run_dir.attempt.name,
        "DFLASHCTL_ATTEMPT_DIR": str(run_dir.attempt),
        "DFLASHCTL_CHECKPOINT_DIR": str(run_dir.checkpoints),
    }


def _numbered_attempt(environ: Mapping[str, str], run: Path) -> RunDir:
    number = environ.get("DFLASHCTL_ATTEMPT", "")
    if not number.isdecimal():
        raise ConfigInvalid(f"DFLASHCTL_ATTEMPT: {number!r} is not a number; the supervisor sets it")
    attempt = Path(environ.get("DFLASHCTL_ATTEMPT_DIR") or run / "attempts" / number)
    checkpoints = Path(environ.get("DFLASHCTL_CHECKPOINT_DIR") or run / "checkpoints")
    for directory in (attempt, checkpoints):
        directory.mkdir(parents=True, exist_ok=True)
    return RunDir(run=run, attempt=attempt, checkpoints=checkpoints, attempt_number=int(number))


def _next_attempt(run: Path) -> RunDir:
    attempts = run / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in attempts.iterdir() if path.name.isdecimal()), default=0)
    attempt = attempts / str(number)
    attempt.mkdir()
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    return RunDir(run=run.absolute(), attempt=attempt, checkpoints=checkpoints, attempt_number=None)
