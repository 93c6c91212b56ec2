"""A watch as lines of text: for pipes, logs and terminals without colour."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.clock import timestamp
from orchestrator.terminal import clean, plain
from orchestrator.watch.events import Level, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MARKS = {Level.DETAIL: " ", Level.INFO: "-", Level.GOOD: "+", Level.WARNING: "!", Level.BAD: "x"}
_LEVEL_SGR = {Level.INFO: "36", Level.GOOD: "32;1", Level.WARNING: "33;1", Level.BAD: "31;1"}
_SHOWN_EVIDENCE = 3
_HANG = " " * 15  # below the words, right of the time


def evidence_lines(detail: Mapping[str, Any]) -> list[str]:
    """Return the first pieces of evidence of a diagnosis, one a line, none twice."""
    lines: list[str] = []
    for role, items in (
        ("evidence", detail.get("evidence") or ()),
        ("cascade", detail.get("cascades") or ()),
    ):
        told = dict.fromkeys(f"{role} {_told(item)}" for item in items)
        lines += list(told)[:_SHOWN_EVIDENCE]
    return lines


def _told(item: Mapping[str, Any]) -> str:
    where = f"{item['source']}" + (f" byte {item['offset']}" if item.get("offset") is not None else "")
    rank = f" rank {item['rank']}" if item.get("rank") is not None else ""
    return f"({where}{rank}): {plain(item['text'])}"


class PlainSink:
    """Writes one line an event; the trainer's own lines are set off by a bar.

    `width` asks for the terminal's columns, to fold at words what is longer; without it a line stays one.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        show_log: bool = True,
        colour: bool = False,
        many: bool = False,
        width: Callable[[], int] | None = None,
    ) -> None:
        self._out = out
        self._show_log = show_log
        self._colour = colour
        self._many = many
        self._width = width

    def emit(self, event: WatchEvent) -> None:
        """Write one event."""
        for line in self.lines(event):
            self._out.write(line + "\n")
        self._out.flush()

    def lines(self, event: WatchEvent) -> list[str]:
        """Return the lines of one event; empty for what this view leaves out."""
        name = f"{event.run} " if self._many else ""
        if event.kind == "log":
            text = clean(event.text) if self._colour else plain(event.text)
            return [f"  {name}| {text}"] if self._show_log else []
        if event.kind == "metrics":
            return []
        clock = event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
        attempt = f" [{event.attempt}]" if event.attempt is not None else ""
        says_kind = event.text.startswith(f"{event.kind} ")  # "attempt 2", "blind for 30s"
        text = plain(event.text if says_kind else f"{event.kind}: {event.text}")
        head = self._folded(f"{_MARKS[event.level]} {clock} {event.run}{attempt} {text}")
        if self._colour and event.level in _LEVEL_SGR:
            head = [f"\x1b[{_LEVEL_SGR[event.level]}m{line}\x1b[0m" for line in head]
        proof = [part for line in evidence_lines(event.detail) for part in self._folded(f"      {line}")]
        return [*head, *proof]

    def _folded(self, line: str) -> list[str]:
        """A word that is too long alone, such as a path, is left to the terminal."""
        if self._width is None or len(line) <= (width := self._width()):
            return [line]
        return textwrap.wrap(
            line, max(width, 30), subsequent_indent=_HANG, break_long_words=False, break_on_hyphens=False
        )

    def refresh(self) -> None:
        """Lines need no redrawing."""


class JsonSink:
    """Writes one JSON object an event."""

    def __init__(self, out: TextIO, *, show_log: bool = True) -> None:
        self._out = out
        self._show_log = show_log

    def emit(self, event: WatchEvent) -> None:
        """Write one event."""
        if event.kind == "log" and not self._show_log:
            return
        body = {
            "schema_version": 1,
            "at": timestamp(event.at),
            "kind": event.kind,
            "run": event.run,
            "target": event.target,
            "attempt": event.attempt,
            "level": event.level.value,
            "text": plain(event.text),
            "detail": dict(event.detail),
        }
        self._out.write(json.dumps(body) + "\n")
        self._out.flush()

    def refresh(self) -> None:
        """Lines need no redrawing."""
