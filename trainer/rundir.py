"""Where this attempt reads and writes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOCK = "lock"
LAUNCH = "launch.json"
"""In an attempt that torchrun's ranks share: which launch it is of, and who has come."""
LOCK_TRIES = 20
LOCK_TRY_S = 0.1
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # of a file system without them
_SAME = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


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

    The ranks of one torchrun launch share an attempt: the first makes it, the others find it.

    Raises:
        ConfigInvalid: DFLASHCTL_ATTEMPT is not a number, or a directory cannot be made.
    """
    try:
        run_text = environ.get("DFLASHCTL_RUN_DIR")
        _require_plain(Path(run_text) if run_text is not None else by_hand)
        if run_text is None and "RANK" in environ:
            return _shared_attempt(environ, by_hand)
        if run_text is None:
            return _next_attempt(by_hand)
        return _numbered_attempt(environ, Path(run_text))
    except OSError as error:
        message = f"run directory: {error.filename}: {error.strerror}; give another with --run-dir"
        raise ConfigInvalid(message) from error


@contextmanager
def only_trainer(environ: Mapping[str, str], by_hand: Path) -> Iterator[None]:
    """Keep a second trainer out of a run directory: each would take the other's checkpoints for its own.

    A supervisor holds the lock of its runs, and torchrun's ranks find each other in `open_run_dir`; a trainer
    started by hand takes it here.

    Raises:
        ConfigInvalid: another trainer holds it, or the directory cannot be made.
    """
    if "DFLASHCTL_RUN_DIR" in environ or "RANK" in environ:
        yield
        return
    try:
        by_hand.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(by_hand / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        message = f"run directory: {error.filename}: {error.strerror}; give another with --run-dir"
        raise ConfigInvalid(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _at_work(by_hand) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)


def environ_of(run_dir: RunDir) -> dict[str, str]:
    """The variables by which the ranks of an attempt find its directories."""
    return {
        "DFLASHCTL_RUN_DIR": str(run_dir.run),
        "DFLASHCTL_ATTEMPT": run_dir.attempt.name,
        "DFLASHCTL_ATTEMPT_DIR": str(run_dir.attempt),
        "DFLASHCTL_CHECKPOINT_DIR": str(run_dir.checkpoints),
    }


def _require_plain(run: Path) -> None:
    """Told now, not by a traceback when the drafter is finished."""
    if (run / "export").exists() and not (run / "export").is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(run / "export"))
    if (run / "skips.jsonl").is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(run / "skips.jsonl"))


def _numbered_attempt(environ: Mapping[str, str], run: Path) -> RunDir:
    number = environ.get("DFLASHCTL_ATTEMPT", "")
    if not number.isdecimal():
        raise ConfigInvalid(f"DFLASHCTL_ATTEMPT: {number!r} is not a number; the supervisor sets it")
    attempt = Path(environ.get("DFLASHCTL_ATTEMPT_DIR") or run / "attempts" / number)
    checkpoints = Path(environ.get("DFLASHCTL_CHECKPOINT_DIR") or run / "checkpoints")
    for directory in (attempt, checkpoints):
        directory.mkdir(parents=True, exist_ok=True)
    return RunDir(run=run, attempt=attempt, checkpoints=checkpoints, attempt_number=int(number))


def _shared_attempt(environ: Mapping[str, str], run: Path) -> RunDir:
    """Join the newest attempt if a living rank of this launch made it, and none of this number is in it yet.

    Two launches may have the same id and port, one after the other; so a lock, which the first rank holds
    until it ends, says that its launch is not over. All nodes see `run`.
    """
    launch = {name: environ[name] for name in _SAME if name in environ}
    with _alone(run / "attempts"):
        newest = max(_numbers(run), default=0)
        marker = run / "attempts" / str(newest) / LAUNCH
        told = json.loads(marker.read_text() or "{}") if marker.exists() else {}
        _keep_others_out(run)
        joins = told.get("launch") == launch and environ["RANK"] not in told["ranks"] and _is_held(marker)
        where = _at(run, newest) if joins else _next_attempt(run)
        # Never closed, and so held for as long as this process lives.
        held = os.open(where.attempt / LAUNCH, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(held, fcntl.LOCK_SH)
        ranks = [*(told["ranks"] if joins else ()), environ["RANK"]]
        os.pwrite(held, json.dumps({"launch": launch, "ranks": ranks}).encode(), 0)
        return where


def _keep_others_out(run: Path) -> None:
    """Hold the run's lock together with the other ranks for as long as this process lives.

    Raises:
        ConfigInvalid: a trainer holds it for itself.
    """
    held = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    tries = 0
    while not _shares(held):
        tries += 1
        if tries == LOCK_TRIES:
            os.close(held)
            raise _at_work(run)
        time.sleep(LOCK_TRY_S)  # noqa: TID251 - a look of somebody else holds it for an instant


def _shares(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _at_work(run: Path) -> ConfigInvalid:
    return ConfigInvalid(
        f"run directory: {run}: another trainer is at work in it; wait for its end or stop it, or "
        "give another with --run-dir"
    )


def _next_attempt(run: Path) -> RunDir:
    (run / "attempts").mkdir(parents=True, exist_ok=True)
    number = 1 + max(_numbers(run), default=0)
    (run / "attempts" / str(number)).mkdir()
    (run / "checkpoints").mkdir(exist_ok=True)
    return _at(run, number)


def _at(run: Path, number: int) -> RunDir:
    run = run.absolute()
    attempt = run / "attempts" / str(number)
    return RunDir(run=run, attempt=attempt, checkpoints=run / "checkpoints", attempt_number=None)


def _numbers(run: Path) -> list[int]:
    return [int(path.name) for path in (run / "attempts").iterdir() if path.name.isdecimal()]


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    """Whether a rank that lives holds it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
