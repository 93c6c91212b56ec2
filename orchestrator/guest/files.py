"""JSON files that are whole or absent, and pieces of growing ones."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from orchestrator import wire

if TYPE_CHECKING:
    from pathlib import Path

MAX_JSON_BYTES = 8 << 20
# A value on the wire shares its line with an envelope, and its characters may be escaped six to one.
MAX_VALUE_BYTES = 600_000
MAX_TEXT_CHARS = 48_000
MAX_ITEM_BYTES = 16_000

BLOCK_BYTES = 64 << 10

Stamp = tuple[int, int, int]


def write_json(path: Path, fields: dict[str, Any], *, mode: int = 0o644) -> None:
    """Write an object so that a reader sees all of it or the old one, also after a power cut."""
    write_text(path, json.dumps(fields), mode=mode)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text as `write_json` writes an object."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in `path` last."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems cannot; the rename itself was atomic
    finally:
        os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in `path`; None if there is none. NaN and infinities become null."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError:
        return None
    return parse_object(data) if len(data) <= MAX_JSON_BYTES else None


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`, or None. NaN and infinities, which are not JSON, become null."""
    try:
        value = json.loads(data, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def stamp(path: Path | str) -> Stamp | None:
    """What changes when a file is replaced or written: (inode, size, mtime_ns); None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  hot: many times a second
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_piece(path: Path, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of `path` from `offset`; empty if it is not there or ends before."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.pread(fd, limit, offset)
    finally:
        os.close(fd)


def size_of(path: Path) -> int:
    """Bytes in a file, 0 if it is not there."""
    found = stamp(path)
    return found[1] if found else 0


def last_lines(path: Path, count: int) -> int:
    """Return where the last `count` lines of a file begin; one without its end is a line too."""
    at = size_of(path)
    if at and read_piece(path, at - 1, 1) == b"\n":
        count += 1
    while at > 0 and count > 0:
        start = max(0, at - BLOCK_BYTES)
        piece = read_piece(path, start, at - start)
        at, end = start, len(piece)
        while (end := piece.rfind(b"\n", 0, end)) >= 0:
            count -= 1
            if count == 0:
                return start + end + 1
    return at


def fit(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` small enough for one line: long texts keep their head and tail."""
    if len(json.dumps(value)) <= MAX_VALUE_BYTES:
        return value
    cut: dict[str, Any] = _cut(value)
    if len(json.dumps(cut)) <= MAX_VALUE_BYTES:
        return cut
    return {"schema": wire.SCHEMA, "too_large": True, "keys": [str(key)[:100] for key in list(value)[:100]]}


def whole(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` small enough for one line, without what is long: what is run again is never cut."""
    if len(json.dumps(value)) <= MAX_VALUE_BYTES:
        return value
    return {key: item for key, item in value.items() if len(json.dumps(item)) <= MAX_ITEM_BYTES}


def _cut(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        return f"{value[:half]}\n... {len(value) - 2 * half} characters left out ...\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return value
