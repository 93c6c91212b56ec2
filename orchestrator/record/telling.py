"""How what the driver and the file system say of a record is told to a person, with what to do."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from orchestrator.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def is_locked(error: BaseException | None) -> bool:
    """Another process holds the lock."""
    text = str(getattr(error, "orig", error))
    return "locked" in text or "busy" in text


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the driver and the file system raise into a RecordError."""
    try:
        yield
    except DBAPIError as error:
        raise _tell(path, str(error.orig)) from error
    except sqlite3.Error as error:
        raise _tell(path, str(error)) from error
    except OSError as error:
        raise _tell(path, error.strerror or str(error)) from error


_HINTS = (
    (("locked", "busy"), "another process holds it; look with `fuser -v {path}`, then try again"),
    (("full", "No space", "quota"), "free some space in {parent} (`df -h {parent}`), then try again"),
    (("disk I/O",), "check the disk and its free space (`df -h {parent}`), then try again"),
    (
        ("not a database", "malformed", "not an error"),
        "it is damaged or no record: move it away (`mv {path} {path}.bad`), or set DFLASHCTL_RECORD",
    ),
    (
        (
            "readonly",
            "Permission",
            "denied",
            "Read-only",
            "unable to open",
            "directory",
            "Not a",
            "not permitted",
        ),
        "make {parent} writable for you, or name another file with DFLASHCTL_RECORD",
    ),
    (("FOREIGN KEY",), "the run is not in this record; list them with `dflashctl ps`"),
)


def _tell(path: Path, problem: str) -> RecordError:
    for words, hint in _HINTS:
        if any(word in problem for word in words):
            said = hint.format(path=path, parent=path.parent)
            return RecordError(f"{path}: the record cannot be used: {problem}", hint=said)
    return RecordError(f"{path}: the record cannot be used: {problem}")
