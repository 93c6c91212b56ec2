"""Checkpoints on disk: whole or absent. Nothing here knows torch.

`step-<n>/` holds what torch.distributed.checkpoint writes (`.metadata`, `__<rank>_<i>.distcp`), state.json
and COMPLETE, a JSON object with the sha256 of each of them. It is written as `.step-<n>.tmp` and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainer.errors import CheckpointCorrupt
from trainer.files import SCHEMA, sha256_of, sync_directory, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARKER = "COMPLETE"
STATE = "state.json"
_NAME = re.compile(r"step-(\d+)")
_TEMPORARY = re.compile(r"\.step-\d+\.tmp")
_REPLACED = re.compile(r"\.(step-\d+)\.old")


class Corrupt(Exception):  # noqa: N818 - a state of a checkpoint, not an end of the program
    """This one checkpoint cannot be read back as it was written; an older one may."""


def complete_steps(directory: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    names = (_NAME.fullmatch(path.name) for path in directory.iterdir() if (path / MARKER).is_file())
    return sorted(int(match[1]) for match in names if match)


def temporary(directory: Path, step: int) -> Path:
    """Where `step-<step>` is written before it is whole."""
    return directory / f".step-{step}.tmp"


def begin(directory: Path, step: int, num_bytes: int) -> None:
    """Make an empty temporary folder, if there is room for `num_bytes`.

    Raises:
        OSError: too little space (ENOSPC), or the place cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    path = temporary(directory, step)
    shutil.rmtree(path, ignore_errors=True)
    if free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.mkdir()


def publish(directory: Path, step: int, state: bytes, digests: dict[str, str]) -> None:
    """Add state.json and the marker to the temporary folder and give it its name, durably.

    Raises:
        OSError: no space, or the directory cannot be written.
    """
    path, final = temporary(directory, step), directory / f"step-{step}"
    write_durably(path / STATE, state)
    marker = {"schema": SCHEMA, "sha256": {**digests, STATE: hashlib.sha256(state).hexdigest()}}
    write_durably(path / MARKER, json.dumps(marker).encode())
    sync_directory(path)
    replaced = directory / f".step-{step}.old"
    if final.exists():  # its step was reached again; `tidy` puts it back if we die between the two renames
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    path.rename(final)
    sync_directory(directory)
    shutil.rmtree(replaced, ignore_errors=True)


def rotate(directory: Path, keep: int) -> None:
    """Remove all but the `keep` newest complete checkpoints, at least one, and those being read."""
    for step in complete_steps(directory)[: -max(1, keep)]:
        path = directory / f"step-{step}"
        try:
            with (path / MARKER).open("rb") as file:
                _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path / MARKER).unlink()  # first, so that half of one is never taken for a whole
        except (BlockingIOError, FileNotFoundError):
            continue
        shutil.rmtree(path, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Remove what killed saves and removals left behind. Only when nothing else writes here."""
    if not directory.is_dir():
        return
    for path in list(directory.iterdir()):
        replaced = _REPLACED.fullmatch(path.name)
        if replaced and not (directory / replaced[1] / MARKER).is_file():
            shutil.rmtree(directory / replaced[1], ignore_errors=True)
            path.rename(directory / replaced[1])
        elif replaced or _TEMPORARY.fullmatch(path.name):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    for path in list(directory.iterdir()):
        if _NAME.fullmatch(path.name) and path.is_dir() and not (path / MARKER).is_file():
            shutil.rmtree(path)


def set_aside(directory: Path, step: int) -> None:
    """Rename one that was passed over, so that nobody takes it for the newest; a person may look at it."""
    path = directory / f"step-{step}.corrupt"
    shutil.rmtree(path, ignore_errors=True)
    (directory / f"step-{step}").rename(path)


@contextmanager
def reading(path: Path) -> Iterator[dict[str, str]]:
    """Keep a checkpoint from rotation while its files are read; yields the sha256 of each file.

    Raises:
        Corrupt: the marker is gone or is no marker.
        CheckpointCorrupt: it is of the older one-file format.
    """
    try:
        file = (path / MARKER).open("rb")
    except OSError as error:
        raise Corrupt(f"unreadable: {error}") from error
    with file:
        _lock(file.fileno(), fcntl.LOCK_SH)
        if not (path / MARKER).is_file():
            raise Corrupt("removed while it was opened")
        digests = _digests(file.read())
        if "state.pt" in digests:
            raise CheckpointCorrupt(
                f"checkpoint {path}: one file of an older trainer (state.pt), which this one does not read; "
                "move the folder away to start anew"
            )
        yield digests


def _digests(marker: bytes) -> dict[str, str]:
    try:
        digests = json.loads(marker)["sha256"]
        return {str(file): str(digest) for file, digest in digests.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"unreadable: {MARKER}: {error!r}") from error


def verify(path: Path, digests: dict[str, str], beat: Callable[[], None]) -> None:
    """Compare files with their digests.

    Raises:
        Corrupt: one is missing or is not what was written.
    """
    for file, digest in digests.items():
        try:
            found = sha256_of(path / file, beat)
        except OSError as error:
            raise Corrupt(f"unreadable: {error}") from error
        if found != digest:
            raise Corrupt(f"{file} is not what was written: its sha256 differs from that in {MARKER}")


def read_state(path: Path) -> dict[str, Any]:
    """The content of state.json.

    Raises:
        Corrupt: it is missing or is no JSON object.
    """
    try:
        state = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise Corrupt(f"unreadable: {error}") from error
    if not isinstance(state, dict):
        raise Corrupt(f"{STATE} is no JSON object")
    return state


def _lock(descriptor: int, how: int) -> None:
    """Take an advisory lock, where the file system has them."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
