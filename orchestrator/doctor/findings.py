"""A finding: one link of the chain, what was seen of it, and the fix. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """What a check found. Only BAD makes a place not ready; UNKNOWN is no alarm."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict of one check; `check` is its stable name."""

    check: str
    status: Status
    seen: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A finding that has no name yet: what a check returns."""

    status: Status
    seen: str
    fix: str | None = None


def ok(seen: str) -> Verdict:
    """It is as it should be."""
    return Verdict(status=Status.OK, seen=seen)


def warn(seen: str, fix: str | None = None) -> Verdict:
    """It works, and may not for long, or not for everybody."""
    return Verdict(status=Status.WARN, seen=seen, fix=fix)


def bad(seen: str, fix: str | None) -> Verdict:
    """A run cannot start or live there."""
    return Verdict(status=Status.BAD, seen=seen, fix=fix)


def unknown(why: str, fix: str | None = None) -> Verdict:
    """It could not be read."""
    return Verdict(status=Status.UNKNOWN, seen=why, fix=fix)


def skipped(why: str) -> Verdict:
    """It rests on something that failed, or there is nothing of the kind."""
    return Verdict(status=Status.SKIPPED, seen=why)


def size(num_bytes: float) -> str:
    """Return a size for people: `512 MiB`, `1.5 TiB`."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30)):
        if num_bytes >= scale:
            value = num_bytes / scale
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes / 2**20:.0f} MiB"


def numbers(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: `2.11.0+cu130` gives (2, 11, 0); () if it has none."""
    found: list[int] = []
    for part in (text or "").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
