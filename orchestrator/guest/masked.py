"""Pieces of a growing file with its secrets masked, whatever the edges of the pieces.

A piece is masked together with what surrounds it, as far as a secret can reach. At the file's end that is not
there yet, so the last line waits for its own end, for a second at most; then a secret that the end cuts is
masked as far as it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.guest import clock, files
from orchestrator.masking import REACH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.masking import Masker

HOLD_S = 1.0


class MaskedFile:
    """One growing text file, read by offset."""

    def __init__(self, path: Path, masker: Callable[[], Masker]) -> None:
        self.is_holding = False  # more is there, and waits for the end of its line
        self._path = path
        self._masker = masker
        self._held_since = 0.0

    def piece(self, offset: int, limit: int, *, is_final: bool) -> bytes:
        """Return up to `limit` bytes from `offset`; `is_final`: nothing more comes, so nothing waits."""
        is_late = self.is_holding and clock.ticking() - self._held_since >= HOLD_S
        piece, is_holding = masked_piece(
            lambda at, size: files.read_piece(self._path, at, size),
            offset,
            limit,
            self._masker(),
            waits=not (is_final or is_late),
        )
        if is_holding and not self.is_holding:
            self._held_since = clock.ticking()
        self.is_holding = is_holding
        return piece


def masked_piece(
    read: Callable[[int, int], bytes], offset: int, limit: int, masker: Masker, *, waits: bool = False
) -> tuple[bytes, bool]:
    """Return up to `limit` masked bytes from `offset`, and whether there are only some that must wait.

    `read` gives up to so many bytes from an offset. Nothing waits unless `waits`.
    """
    begin = max(0, offset - REACH - 1)
    wanted = offset - begin + limit + REACH
    window = read(begin, wanted)
    start = offset - begin
    if len(window) <= start:
        return b"", False
    line = window.rfind(b"\n", 0, start) + 1  # no secret reaches across a line's end
    window, start = window[line:], start - line
    is_at_end = len(window) + line < wanted
    end = min(start + limit, len(window))
    if waits:
        last_line = max(window.rfind(b"\n"), window.rfind(b"\r")) + 1
        end = min(end, max(last_line, len(window) - REACH))
        if end <= start:
            return b"", True
    return masker.mask(window, is_cut=is_at_end and not waits)[start:end], False
