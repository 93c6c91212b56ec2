"""Bytes of recorded files, in chunks, with errors that a person can use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, NotFound
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_BYTES = 1 << 20
STDIN = "-"


def read_chunks(path: Path) -> Iterator[bytes]:
    """Return a file's bytes, or those of standard input for `-`.

    Raises:
        NotFound: There is no such file.
        ConfigError: It is no file, or it cannot be read.
    """
    if str(path) == STDIN:
        while chunk := sys.stdin.buffer.read(CHUNK_BYTES):
            yield chunk
        return
    name = one_line(str(path))
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except FileNotFoundError as error:
        raise NotFound(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{name}: a folder, not a file", hint=f"recorded attempts: `dflashctl replay {name}`"
        ) from error
    except (OSError, ValueError) as error:  # the name in an index may hold a byte that no name can have
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"{name}: cannot be read: {why}") from error
