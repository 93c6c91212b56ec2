"""Where the mirror's files are, and what is written down beside the bytes.

MIRROR/ID-CREATED/run.json             which run it is
MIRROR/ID-CREATED/lock                 flock: the one watch that writes here
MIRROR/ID-CREATED/attempt-3.0001.gz    frames; the segment is full at SEGMENT_BYTES, and another begins
MIRROR/ID-CREATED/attempt-3.tail       journal of what is not compressed yet
MIRROR/ID-CREATED/attempt-3.json       its end, what was removed of it and why
MIRROR/ID-CREATED/attempt-3.emptied-1.0001.gz   what was in it before somebody emptied it
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from orchestrator.clock import timestamp
from orchestrator.mirror.notes import read_object, write_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT_BYTES = 4 << 20  # of a file; the living attempt's newest one is never removed
_SEGMENT = re.compile(r"attempt-(\d{1,9})\.(?:emptied-(\d{1,9})\.)?(\d{1,9})\.gz")
_ATTEMPT = re.compile(r"attempt-(\d{1,9})\..*")


class Row(Protocol):
    """What the record has of a run."""

    @property
    def id(self) -> int: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def target_key(self) -> str: ...  # noqa: D102
    @property
    def created_at(self) -> datetime: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Which run: `id` is the record's, which another record may have too."""

    id: int
    name: str
    target: str
    created_at: datetime

    @classmethod
    def of(cls, row: Row) -> RunKey:
        """Return the key of a run on record."""
        return cls(id=row.id, name=row.name, target=row.target_key, created_at=row.created_at)

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return f"{self.id}-{self.created_at.astimezone(timezone.utc):%Y%m%dT%H%M%S%f}"


@dataclass(frozen=True, order=True)
class Segment:
    """A file of frames; `emptied` 0 is the log as it is now."""

    emptied: int
    number: int
    path: Path = field(compare=False)


def run_key(folder: Path) -> RunKey | None:
    """Return which run a folder is of; None if it does not say."""
    told = read_object(folder / "run.json")
    with suppress(KeyError, TypeError, ValueError):
        created = datetime.fromisoformat(told["created_at"].replace("Z", "+00:00"))
        name, target = str(told["run"]), str(told["target"])
        return RunKey(id=int(told["id"]), name=name, target=target, created_at=created)
    return None


def make_folder(root: Path, key: RunKey) -> Path:
    """Return the run's folder, for our own eyes; made if need be."""
    folder = root / key.folder
    for path in (root, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "run.json").exists():
        told = {"id": key.id, "run": key.name, "target": key.target, "created_at": timestamp(key.created_at)}
        write_object(folder / "run.json", told)
    return folder


def folders(root: Path) -> list[Path]:
    """Return the folders of all runs, by name."""
    with suppress(OSError):
        return sorted(path for path in root.iterdir() if (path / "run.json").exists())
    return []


def attempts(folder: Path) -> list[int]:
    """Return the attempts of which anything is written here."""
    with suppress(OSError):
        found = (_ATTEMPT.fullmatch(path.name) for path in folder.iterdir())
        return sorted({int(match[1]) for match in found if match is not None})
    return []


def segments(folder: Path, attempt: int) -> list[Segment]:
    """Return the attempt's files of frames, what was emptied last."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            match = _SEGMENT.fullmatch(path.name)
            if match is not None and int(match[1]) == attempt:
                found.append(Segment(int(match[2] or 0), int(match[3]), path))
    return sorted(found)


def segment_path(folder: Path, attempt: int, number: int, emptied: int = 0) -> Path:
    """Return the name of a file of frames."""
    generation = f"emptied-{emptied}." if emptied else ""
    return folder / f"attempt-{attempt}.{generation}{number:04d}.gz"


def tail_path(folder: Path, attempt: int) -> Path:
    """Return the name of the attempt's journal."""
    return folder / f"attempt-{attempt}.tail"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock for a moment; gives False if another has it."""
    fd = take_lock(folder)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def take_lock(folder: Path) -> int | None:
    """Return a descriptor that holds the folder's lock until it is closed; None if another has it.

    Raises:
        OSError: There is no locking there, or no writing.
    """
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_watched(folder: Path) -> bool:
    """Whether a watch writes here now."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
