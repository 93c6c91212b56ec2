"""Regular expressions that take linear time whatever they are given: those that a user writes. Pure.

Python's own engine goes back and tries again, which a pattern such as `(a+)+b` makes take for ever. This one
is a table that is made as it is needed (Thompson's construction, determinized lazily), so a character costs
one look-up, and a bounded amount of work where the table has no entry yet. What cannot be done so, references
back and looking around, is refused. It tells whether a line matches, not where.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from orchestrator.patternparse import parse
from orchestrator.patterntree import (
    Branch,
    Chars,
    Edge,
    EdgeKind,
    Node,
    PatternError,
    Repeat,
    Sequence_,
    is_word,
    literal_of,
)

__all__ = ["Pattern", "PatternError"]

MAX_STATES = 2_000  # of the expression, its repeats written out
MAX_TABLE = 4_000  # entries before the table is begun anew


class _Before(Enum):
    """What stands before the place in the line."""

    START = 0
    WORD = 1
    OTHER = 2


@dataclass
class _State:
    """One instruction: takes a character, checks an edge, or goes on to all of `next`."""

    chars: Chars | None = None
    edge: EdgeKind | None = None
    next: list[int] = field(default_factory=list)


_Places = frozenset[int]
_MATCHED: _Places = frozenset((-1,))
_Key = tuple[_Places, _Before]


class Pattern:
    """One compiled expression.

    `literal`, in lower case, is in every line that matches; empty if the expression promises none.
    """

    def __init__(self, text: str) -> None:
        """Compile it.

        Raises:
            PatternError: It is no expression, too large, or cannot be done in linear time; says where.
        """
        self.text = text
        tree, self._folds = parse(text)
        self.literal = literal_of(tree)
        self._states: list[_State] = []
        self._end = self._add(_State())
        self._begin = self._build(tree, self._end)
        self._table: dict[_Key, dict[str, _Key]] = {}
        self._num_entries = 0

    def search(self, text: str) -> bool:
        """Whether `text`, one line, matches anywhere."""
        if self.literal and self.literal not in text.lower():
            return False
        key: _Key = (frozenset(), _Before.START)
        row = self._table.setdefault(key, {})
        for char in text:
            after = row.get(char)
            if after is None:
                after = self._step(key, char)
            if after[0] is _MATCHED:
                return True
            key = after
            row = self._table.setdefault(key, {})
        return self._end in self._closure(key, None)

    def _step(self, key: _Key, char: str) -> _Key:
        """Work out where a character leads, and keep it."""
        places = self._closure(key, char)
        if self._end in places:
            after: _Key = (_MATCHED, _Before.OTHER)
        else:
            states = (self._states[place] for place in places)
            taken = [
                s.next[0] for s in states if s.chars is not None and s.chars.has(char, folds=self._folds)
            ]
            after = (frozenset(taken), _Before.WORD if is_word(char) else _Before.OTHER)
        self._num_entries += 1
        if self._num_entries > MAX_TABLE:
            self._table, self._num_entries = {}, 0
        self._table.setdefault(key, {})[char] = after
        return after

    def _closure(self, key: _Key, following: str | None) -> set[int]:
        """Return every instruction that is reached without taking a character; a match may begin anywhere."""
        places, before = key
        open_, seen = [*places, self._begin], set[int]()
        while open_:
            place = open_.pop()
            if place in seen:
                continue
            state = self._states[place]
            if state.edge is not None and not _holds(state.edge, before, following):
                continue
            seen.add(place)
            if state.chars is None:
                open_ += state.next
        return seen

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError(f"it is too large: more than {MAX_STATES} states with its repeats written out")
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, node: Node, after: int) -> int:
        """Add the instructions of `node` that lead to `after`; return the first."""
        if isinstance(node, Chars):
            return self._add(_State(chars=node, next=[after]))
        if isinstance(node, Edge):
            return self._add(_State(edge=node.kind, next=[after]))
        if isinstance(node, Sequence_):
            for part in reversed(node.parts):
                after = self._build(part, after)
            return after
        if isinstance(node, Branch):
            return self._add(_State(next=[self._build(each, after) for each in node.choices]))
        return self._repeat(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._add(_State())
            self._states[loop].next = [self._build(node.part, loop), after]
            after = loop
        else:
            last = after
            for _ in range(node.most - node.least):
                after = self._add(_State(next=[self._build(node.part, after), last]))
        for _ in range(node.least):
            after = self._build(node.part, after)
        return after


def _holds(edge: EdgeKind, before: _Before, following: str | None) -> bool:
    if edge is EdgeKind.START:
        return before is _Before.START
    if edge is EdgeKind.END:
        return following is None
    is_edge = (before is _Before.WORD) != (following is not None and is_word(following))
    return is_edge == (edge is EdgeKind.WORD)
