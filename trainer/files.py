"""Files that are either whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = 1
_PIECE_BYTES = 1 << 20


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` and wait until it is on the disk.

    Raises:
        OSError: the disk is full (ENOSPC) or the place cannot be written.
    """
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, as fsync of a file does not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path, beat: Callable[[], None] = lambda: None) -> str:
    """Hash a file by pieces, in hex; `beat` is called after each.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            beat()
    return digest.hexdigest()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace `path` by `value` with the schema number added; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_durably(temporary, json.dumps({"schema": SCHEMA, **value}, allow_nan=False).encode())
    temporary.replace(path)


def append_json_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line in a single write."""
    line = json.dumps({"schema": SCHEMA, **value}, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
