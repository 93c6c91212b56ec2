"""What is written down beside an attempt's bytes: its end, what was removed and why, that it was emptied."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A part of a log that the mirror had: log bytes [start, stop), `size` bytes of files."""

    start: int
    stop: int
    size: int
    at: str
    by: str  # the quota, prune


@dataclass(frozen=True, kw_only=True)
class Emptied:
    """What was in a log before somebody emptied it, kept as generation `number`."""

    number: int
    length: int
    at: str


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What is written down beside an attempt's bytes."""

    ended_at: str | None = None
    removed: tuple[Removed, ...] = ()
    emptied: tuple[Emptied, ...] = ()


def path_of(folder: Path, attempt: int) -> Path:
    """Return the name of the attempt's notes."""
    return folder / f"attempt-{attempt}.json"


def read(folder: Path, attempt: int) -> Notes:
    """Return the attempt's notes; empty ones if there are none."""
    told = read_object(path_of(folder, attempt))
    with suppress(KeyError, TypeError, ValueError):
        return Notes(
            ended_at=told.get("ended_at"),
            removed=tuple(Removed(**each) for each in told.get("removed", ())),
            emptied=tuple(Emptied(**each) for each in told.get("emptied", ())),
        )
    return Notes()


def change(folder: Path, attempt: int, to: Callable[[Notes], Notes]) -> None:
    """Change the attempt's notes.

    Raises:
        OSError: They cannot be written.
    """
    before = read(folder, attempt)
    after = to(before)
    if after != before:
        write_object(path_of(folder, attempt), asdict(after))


def with_removed(before: Notes, removed: Removed) -> Notes:
    """Return the notes with one removal more; it takes in those that it covers, or that it goes on from."""
    inside = [each for each in before.removed if removed.start <= each.start < each.stop <= removed.stop]
    kept = [each for each in before.removed if each not in inside]
    removed = replace(removed, size=removed.size + sum(each.size for each in inside))
    last = kept[-1] if kept else None
    if last is not None and last.by == removed.by and last.stop == removed.start:
        kept[-1] = replace(removed, start=last.start, size=last.size + removed.size)
    else:
        kept.append(removed)
    return replace(before, removed=tuple(kept))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if it is not there or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_object(path: Path, fields: dict[str, Any]) -> None:
    """Write an object so that a reader sees all of it or the old one.

    Raises:
        OSError: It cannot be written.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, **fields}, file)
        temp.replace(path)
    except OSError:
        with suppress(OSError):
            temp.unlink()
        raise
