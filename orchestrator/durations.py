"""Durations as people write them: `30s`, `10m`, `1h30m`. Pure."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
ALLOWED = "a number and a unit of ms, s, m, h or d, such as 30s, 10m, 2h or 1h30m"


def parse_duration(text: str) -> float:
    """Return the seconds of `text`.

    Raises:
        ValueError: Not a duration; the message says what is allowed.
    """
    cleaned = text.strip()
    if cleaned == "0":
        return 0.0
    if not _WHOLE.fullmatch(cleaned):
        raise ValueError(f'"{text}" is no duration; write {ALLOWED}')
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(cleaned))
    if seconds > 366 * _UNITS_S["d"]:
        raise ValueError(f'"{text}" is longer than a year; write {ALLOWED}')
    return seconds


def format_duration(seconds: float) -> str:
    """Return `seconds` in at most two units, for a person: `45s`, `2m30s`, `3h`."""
    whole = round(seconds)
    if whole < 1:
        return "0s" if seconds <= 0 else f"{seconds * 1000:.0f}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        size = int(_UNITS_S[unit])
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
