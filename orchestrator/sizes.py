"""Sizes as people write and read them: `512 MiB`, `2 GiB`. Pure."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+) ?([KMGT]iB|B|)")
ALLOWED = "bytes, or a whole number of KiB, MiB, GiB or TiB, such as 500 MiB"


def parse_size(text: str) -> int:
    """Return the bytes of `text`.

    Raises:
        ValueError: Not a size; the message says what is allowed.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'"{text}" is no size; write {ALLOWED}')
    return int(found.group(1)) * _UNITS[found.group(2)]


def size_text(count: float) -> str:
    """Return bytes in the largest unit that leaves a whole part."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
