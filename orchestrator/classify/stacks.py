"""Stacks of several ranks in one sentence: who waits where, and who is elsewhere than the others. Pure.

In a hang most ranks wait in a collective for one that does not come; the odd one out is where to look.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BY_SIGNAL = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<name>[^\n]*)$')
_BY_SPY = re.compile(r"^ {4}(?P<name>\S[^\n]*?) \((?P<file>[^()\n]*):(?P<line>\d+)\)$")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+|^Thread \S+ \(")
_MAIN = re.compile(r'^Thread \S+ .*"MainThread"')
# Frames of these say how a wait is made, not who waits.
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+)/|^<")
_TOLD_GROUPS = 4
_SHORT = 60


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    name: str
    file: str
    line: int

    @property
    def is_library(self) -> bool:
        """Whether it is of Python or of an installed package."""
        return _LIBRARY.search(self.file) is not None

    @property
    def text(self) -> str:
        """As `sum_over_drafters (parallel/group.py:47)`."""
        return f"{self.name[:_SHORT]} ({'/'.join(self.file.split('/')[-2:])[-_SHORT:]}:{self.line})"


@dataclass(frozen=True)
class RankStack:
    """What one process said; `rank` is None for one that is no rank."""

    pid: int
    rank: int | None
    text: str
    state: str = ""

    @property
    def who(self) -> str:
        """For people."""
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"


def main_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames, innermost first; empty if there are none.

    py-spy names it. faulthandler does not, and prints the oldest thread last, which is the main one.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append((line, []))
            continue
        match = _BY_SIGNAL.match(line) or _BY_SPY.match(line)
        if match is not None and threads:
            threads[-1][1].append(Frame(match["name"], match["file"], int(match["line"])))
    named = [frames for head, frames in threads if _MAIN.match(head)]
    found = named[0] if named else threads[-1][1] if threads else []
    return tuple(found)


def place(frames: Sequence[Frame]) -> str:
    """Return where a thread is: its innermost frame, and the first of the program's own that led there."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not frame.is_library), None)
    inner = frames[0]
    if own is None or own == inner:
        return inner.text
    return f"{inner.name[:_SHORT]}, from {own.text}"


def summarize(stacks: Iterable[RankStack]) -> str:
    """Return one sentence for a person; it never says why, for stacks do not."""
    told = list(stacks)
    groups: dict[str, list[RankStack]] = {}
    for stack in told:
        where = place(main_frames(stack.text))
        groups.setdefault(where, []).append(stack)
    silent = groups.pop("", [])
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    parts = [f"{_who(members)} in {where}" for where, members in ordered[:_TOLD_GROUPS]]
    if len(ordered) > _TOLD_GROUPS:
        left = sum(len(members) for _, members in ordered[_TOLD_GROUPS:])
        parts.append(f"{left} more elsewhere")
    if silent:
        parts.append(f"no stack of {_who(silent)}")
    odd = _odd_one(ordered, len(told))
    return "; ".join(parts) + (f". {odd} is where the others are not" if odd else "")


def _odd_one(ordered: Sequence[tuple[str, list[RankStack]]], count: int) -> str | None:
    """Return the one process that is elsewhere than all the others, if it is one alone."""
    if len(ordered) != 2 or count < 3 or len(ordered[1][1]) != 1 or len(ordered[0][1]) != count - 1:
        return None
    return ordered[1][1][0].who.capitalize()


def _who(members: Sequence[RankStack]) -> str:
    ranks = sorted(each.rank for each in members if each.rank is not None)
    pids = sorted(each.pid for each in members if each.rank is None)
    parts = []
    if ranks:
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {_spans(ranks)}")
    if pids:
        parts.append(f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:8]))}")
    return " and ".join(parts)


def _spans(numbers: Sequence[int]) -> str:
    """Return `0 to 2, 5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    words = []
    for span in spans:
        words += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else [str(number) for number in span]
    return ", ".join(words)
