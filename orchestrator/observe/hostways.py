"""Ways to follow a host's kernel log: what to run, how to read it, how to go on after a cut. No I/O.

The journal has cursors, so a cut loses and doubles nothing. `dmesg` prints its whole buffer again, and its
times move by what the clock was corrected; there a line is known again by its text and about its time.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Protocol

from orchestrator.classify.kernel import WANTED
from orchestrator.types.seen import HostLine

MAX_TEXT = 2000
_KEPT_CURSORS = 256
_KEPT_LINES = 2048
_SAME = timedelta(seconds=2)


class Verdict(Enum):
    """Why a way does not work on a host."""

    DENIED = "denied"
    MISSING = "missing"
    OLD = "old"  # the tool is there, and does not know an option


_COMPLAINTS = (
    (Verdict.OLD, r"unrecognized option|invalid option|[Cc]ompiled without pattern matching|unknown option"),
    (
        Verdict.DENIED,
        (
            r"insufficient permissions|not seeing messages from other users and the system|"
            r"Operation not permitted|Permission denied|^sudo: (?!unable to resolve)|"
            r"not (?:allowed to execute|in the sudoers)"
        ),
    ),
    (Verdict.MISSING, r"No journal files were found|not found|No such file or directory"),
)


class Way(Protocol):
    """One way to follow the kernel log; remembers what it read."""

    name: str

    def argv(self, since: datetime) -> tuple[str, ...]:
        """Return what to run: lines from where it was, or from `since` (the host's clock) at first."""
        ...

    def read(self, line: bytes) -> HostLine | None:
        """Return the kernel's line; None for one that is not wanted, or was read before."""
        ...


def judge(stderr: str) -> Verdict | None:
    """Return why the tool says that it cannot do it, or None."""
    found = (verdict for verdict, words in _COMPLAINTS if re.search(words, stderr, re.MULTILINE))
    return next(found, None)


class Journal:
    """`journalctl -k -f`; `is_filtered` where the journal's own filter may be used."""

    def __init__(self, *, is_filtered: bool) -> None:
        self.name = "journalctl"
        self._filter = ("--grep", WANTED) if is_filtered else ()
        self._cursor: str | None = None
        self._seen: OrderedDict[str, None] = OrderedDict()

    def argv(self, since: datetime) -> tuple[str, ...]:
        """See `Way.argv`."""
        place = (
            f"--since=@{since.timestamp():.6f}" if self._cursor is None else f"--after-cursor={self._cursor}"
        )
        options = ("--no-pager", "--no-tail", "--output-fields=MESSAGE", *self._filter, place)
        return ("journalctl", "-k", "-f", "-o", "json", *options)

    def read(self, line: bytes) -> HostLine | None:
        """See `Way.read`."""
        try:
            entry = json.loads(line)
            at = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, timezone.utc)
            cursor, text = str(entry["__CURSOR"]), _message(entry.get("MESSAGE"))
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            return None  # `-- No entries --`, or a line of a journal that is damaged
        if cursor in self._seen:
            return None
        self._cursor = cursor
        self._seen[cursor] = None
        if len(self._seen) > _KEPT_CURSORS:
            self._seen.popitem(last=False)
        return HostLine(text, at) if text and re.search(WANTED, text) else None


class Dmesg:
    """`dmesg --follow`, for a host whose journal does not keep the kernel's lines."""

    _LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d),(\d{1,6})([+-]\d\d:?\d\d) (.*)")

    def __init__(self) -> None:
        self.name = "dmesg"
        self._since: datetime | None = None
        self._before: OrderedDict[str, datetime] = OrderedDict()  # read over earlier connections
        self._now: OrderedDict[str, datetime] = OrderedDict()

    def argv(self, since: datetime) -> tuple[str, ...]:
        """See `Way.argv`."""
        self._since = since
        self._before.update(self._now)
        self._now.clear()
        while len(self._before) > _KEPT_LINES:
            self._before.popitem(last=False)
        return ("dmesg", "--follow", "--time-format", "iso")

    def read(self, line: bytes) -> HostLine | None:
        """See `Way.read`."""
        found = self._LINE.match(line.decode("utf-8", "replace").rstrip())
        if found is None or not re.search(WANTED, found[4]):
            return None
        at = datetime.fromisoformat(f"{found[1]}.{found[2]:0<6}{_zone(found[3])}").astimezone(timezone.utc)
        text = found[4][:MAX_TEXT]
        known = self._before.get(text)
        if (known is not None and abs(at - known) < _SAME) or (self._since is not None and at < self._since):
            return None
        self._now[text] = at
        self._now.move_to_end(text)
        if len(self._now) > _KEPT_LINES:
            self._now.popitem(last=False)
        return HostLine(text, at)


def _message(value: Any) -> str:  # noqa: ANN401
    """Return the text of a journal's field, which is a list of bytes where it is no plain text."""
    if isinstance(value, list):
        value = bytes(value).decode("utf-8", "replace")
    return str(value or "")[:MAX_TEXT]


def _zone(text: str) -> str:
    return text if ":" in text else f"{text[:3]}:{text[3:]}"
