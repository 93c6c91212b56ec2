"""Where in a log a time is: by the dates in its lines, else by its steps, whose times metrics.jsonl has.

Only what is surely older is left out: a place that cannot be told is taken as too early, never as too late.
A log of many gigabytes is looked at in a few places, by halves.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from orchestrator.guest import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Key = Callable[[bytes], "float | None"]

WINDOW = 64 << 10  # read line by line at the end of the search
SPAN = 1 << 20  # looked through for a line that tells something
HEAD = 100  # bytes of a line where its date stands
SLACK_S = 60.0  # the trainer's clock, and a line that was held back
_DATE = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?"
    rb" ?(Z|UTC|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(
    rb"\b[IWEFC](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
)  # W1129 19:31:31.123 of torch
_STEP = re.compile(rb"\bstep (\d{1,15})/\d")


def offset_since(attempt: Path, since: float) -> tuple[int, str]:
    """Return where the log's lines from `since` (epoch seconds) on begin, and by what that is known.

    `quiet`: nothing was written since; `start`: the attempt began later; `dates`; `steps`; `none`: unknown.
    """
    log = attempt / "log"
    found = files.stamp(log)
    if found is None:
        return 0, "start"
    size, written = found[1], found[2] / 1e9
    began = _began(attempt)
    if began is not None and since <= began:
        return 0, "start"
    if written < since:
        return size, "quiet"
    place = _last_before(log, size, lambda line: _date(line, began, written), since)
    if place is not None:
        return place, "dates"
    steps = _step_before(attempt / "metrics.jsonl", since)
    place = None if steps is None else _last_before(log, size, _step, steps + 1)
    return (0, "none") if place is None else (place, "steps")


def _began(attempt: Path) -> float | None:
    told = (files.read_json(attempt / "attempt.json") or {}).get("started_at")
    return _at(told)


def _at(told: object) -> float | None:
    """Return the epoch seconds of a time as our files have it."""
    if not isinstance(told, str):
        return None
    found = _DATE.match(told.encode())
    return None if found is None else _epoch(found)


def _date(line: bytes, began: float | None, written: float) -> float | None:
    """Return the time that a line begins with, if it can be of this attempt. No zone: the container's own."""
    found = _DATE.search(line, 0, HEAD)
    if found is not None:
        at = _epoch(found)
    else:
        found = _GLOG.search(line, 0, HEAD)
        at = None if found is None else _epoch_of_glog(found, written)
    earliest = written - 366 * 86400 if began is None else began
    return at if at is not None and earliest - SLACK_S <= at <= written + SLACK_S else None


def _epoch(found: re.Match[bytes]) -> float | None:
    *parts, fraction, zone = found.groups()
    year, month, day, hour, minute, second = map(int, parts)
    micro = int((fraction or b"0").ljust(6, b"0"))
    try:
        return datetime(year, month, day, hour, minute, second, micro, _zone(zone)).timestamp()
    except (ValueError, OverflowError):
        return None


def _zone(zone: bytes | None) -> timezone | None:
    if zone is None:
        return None
    if zone in {b"Z", b"UTC"}:
        return timezone.utc
    digits = zone[1:].replace(b":", b"")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-ahead if zone[:1] == b"-" else ahead)


def _epoch_of_glog(found: re.Match[bytes], written: float) -> float | None:
    """It has no year: that of the log's last write, or the one before."""
    month, day, hour, minute, second = map(int, found.groups()[:5])
    for year in (datetime.fromtimestamp(written).year, datetime.fromtimestamp(written).year - 1):
        try:
            at = datetime(year, month, day, hour, minute, second).timestamp()
        except (ValueError, OverflowError):
            continue
        if at <= written + SLACK_S:
            return at
    return None


def _step(line: bytes) -> float | None:
    found = _STEP.search(line)
    return None if found is None else float(found[1])


def _step_before(metrics: Path, since: float) -> int | None:
    """Return the last step logged before `since`, -1 if none was; None if steps were done again since."""
    size = files.size_of(metrics)
    place = _last_before(metrics, size, lambda line: _at((files.parse_object(line) or {}).get("at")), since)
    if not place:
        return None if place is None else -1
    before = [*_steps_of(metrics, max(0, place - WINDOW), place)]
    after = _steps_of(metrics, place, min(size, place + (8 << 20)))
    if not before or any(step <= before[-1] for step in after):
        return None
    return before[-1]


def _steps_of(metrics: Path, start: int, stop: int) -> Iterator[int]:
    for line, _ in _lines(metrics, start, stop, head=4096):
        value = files.parse_object(line) or {}
        if value.get("kind") == "train" and isinstance(value.get("step"), int):
            yield value["step"]


def _last_before(path: Path, size: int, key: Key, limit: float) -> int | None:
    """Return the end of the last line whose key is under `limit`, 0 if none is; None if no line has a key."""
    low, high, knows = 0, size, False
    while high - low > WINDOW:
        middle = (low + high) // 2
        hit = next(_keyed(path, middle, min(high, middle + SPAN), key), None)
        knows = knows or hit is not None
        if hit is not None and hit[0] < limit:
            low = hit[1]
        else:
            high = middle
    for value, end in _keyed(path, low, high, key):
        knows = True
        if value >= limit:
            break
        low = end
    return low if knows else None


def _keyed(path: Path, start: int, stop: int, key: Key) -> Iterator[tuple[float, int]]:
    for line, end in _lines(path, start, stop):
        value = key(line)
        if value is not None:
            yield value, end


def _lines(path: Path, start: int, stop: int, *, head: int = 4096) -> Iterator[tuple[bytes, int]]:
    """Give the whole lines that begin in [start, stop), each cut to `head` bytes, with where it ends.

    A progress bar, states of many times in one line, is left out.
    """
    base = max(0, start - 1)
    data = files.read_piece(path, base, stop - base + head)
    at = data.find(b"\n") + 1 if start > 0 else 0
    if start > 0 and at == 0:
        return
    while base + at < stop and (end := data.find(b"\n", at)) >= 0:
        line = data[at:end].rstrip(b"\r")
        if b"\r" not in line:
            yield line[:head], base + end + 1
        at = end + 1
