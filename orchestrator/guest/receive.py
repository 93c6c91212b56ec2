"""A file's bytes from stdin, counted and checked."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.guest.link import Lines

PIECE_BYTES = 1 << 18


def receive(path: Path, lines: Lines, size: int, sha256: str, name: str) -> None:
    """Write `size` bytes to `path`, durably; `name` is what a refusal calls it.

    Raises:
        Refusal: fewer bytes came, or others.
    """
    digest = hashlib.sha256()
    left = size
    with path.open("wb") as file:
        while left > 0 and (piece := lines.raw(min(PIECE_BYTES, left))):
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    if left > 0:
        raise Refusal("checksum", f"{name} ended after {size - left} of {size} bytes", "send it again")
    if digest.hexdigest() != sha256:
        raise Refusal("checksum", f"{name}'s sha256 is {digest.hexdigest()}, not {sha256}", "send it again")


def drain(lines: Lines, size: int) -> None:
    """Read `size` bytes that are not wanted, so that what follows them is understood."""
    while size > 0 and (piece := lines.raw(min(PIECE_BYTES, size))):
        size -= len(piece)
