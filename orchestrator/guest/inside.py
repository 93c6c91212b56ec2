"""Paths that a request names inside a run's directory: no way out of it, and not to its secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.guest import asked
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator.guest.paths import RunDir

# The file `env` holds secrets, and `lock` is not for reading: only these folders are.
FOLDERS = ("attempts", "checkpoints", "compile-cache", "export")


def checked(path: object) -> str:
    """Return a path relative to the run's directory.

    Raises:
        Refusal: It is none, leads outside, or into what is nobody's business.
    """
    if not isinstance(path, str) or not asked.is_text(path):
        raise Refusal("bad_request", f"path: {path!r} is no path")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Refusal("bad_request", f"path: {path!r} must be relative, without '.', '..' and empty parts")
    if parts[0] not in FOLDERS:
        raise Refusal("bad_request", f"path: {path!r} must begin with one of {', '.join(FOLDERS)}")
    return path


def real(place: RunDir) -> Path:
    """The run's directory, its own links resolved: whoever owns the machine may have moved it."""
    return Path(os.path.realpath(place.path))


def resolved(base: Path, relative: str) -> Path:
    """Return `base / relative`.

    Raises:
        Refusal: There is a link on the way, which could lead anywhere.
    """
    path = base / relative
    if os.path.realpath(path) != str(path):
        raise Refusal("bad_request", f"path: {relative!r}: there is a link in it")
    return path
