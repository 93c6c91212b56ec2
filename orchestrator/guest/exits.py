"""exit.json: the first writer wins, and a full disk does not keep it from being written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import clock, files

if TYPE_CHECKING:
    from pathlib import Path

NAME = "exit.json"
RESERVE = ".exit.reserve"
RESERVE_BYTES = 8192


def fields(
    attempt: int,
    *,
    code: int | None = None,
    signal: int | None = None,
    duration_s: float = 0.0,
    leftover: list[int] | None = None,
    error: str | None = None,
    oom_kills: int | None = None,
) -> dict[str, Any]:
    """Return the content of an exit.json that is written now."""
    return {
        "schema": wire.SCHEMA,
        "attempt": attempt,
        "code": code,
        "signal": signal,
        "at": clock.now(),
        "duration_s": round(duration_s, 3),
        "leftover": leftover or [],
        "error": error,
        "oom_kills": oom_kills,
    }


def reserve(attempt_dir: Path) -> None:
    """Take the blocks now that exit.json will need when the disk is full."""
    with (attempt_dir / RESERVE).open("wb") as file:
        file.write(b" " * RESERVE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def write(attempt_dir: Path, content: dict[str, Any]) -> bool:
    """Write exit.json, durably; False if there is one already, which stays.

    Raises:
        OSError: It could not be written.
    """
    final = attempt_dir / NAME
    if final.exists():
        return False
    temp = attempt_dir / RESERVE
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = json.dumps(content).encode("ascii")
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.link(temp, final)  # unlike a rename, it fails if somebody was first
    except FileExistsError:
        return False
    finally:
        temp.unlink(missing_ok=True)
    files.sync_directory(attempt_dir)
    return True
