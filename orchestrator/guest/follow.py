"""Shows the growing log in the pane; a pane that is full or gone loses bytes and holds nobody up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestrator.guest import files
from orchestrator.guest.masked import MaskedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.masking import Masker

PIECE_BYTES = 1 << 16
SHOWN_BYTES = 1 << 18


class Follower:
    """Copies a file as it grows to a terminal."""

    def __init__(self, path: Path, fd: int, masker: Callable[[], Masker]) -> None:
        self._path = path
        self._fd = fd
        self._offset = 0
        self._is_open = True
        self._masked = MaskedFile(path, masker)
        os.set_blocking(fd, False)

    def turn(self, *, is_final: bool = False) -> None:
        """Copy what has come; far behind, skip to the newest. `is_final`: nothing more comes."""
        while self._is_open:
            size = files.size_of(self._path)
            if size - self._offset > 4 * SHOWN_BYTES:
                self._offset = size - SHOWN_BYTES
            piece = b""
            if size > self._offset:
                piece = self._masked.piece(self._offset, PIECE_BYTES, is_final=is_final)
            if not piece or not self._copy(piece):
                return

    def _copy(self, piece: bytes) -> bool:
        try:
            num_written = os.write(self._fd, piece)
        except BlockingIOError:
            return False
        except OSError:
            self._is_open = False  # EIO: the pane was closed
            return False
        self._offset += num_written
        return num_written == len(piece)
