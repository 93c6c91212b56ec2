"""A regular expression as a tree: the part of Python's that takes linear time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class PatternError(ValueError):
    """An expression that cannot be used; the message says what and where."""


class EdgeKind(Enum):
    """A place that takes no character."""

    START = "^"
    END = "$"
    WORD = r"\b"
    NO_WORD = r"\B"


@dataclass(frozen=True)
class Chars:
    """A set of characters: single ones, ranges, and kinds such as digits."""

    ranges: tuple[tuple[str, str], ...] = ()
    kinds: tuple[str, ...] = ()  # d, w, s, and D, W, S for what they leave out
    is_negated: bool = False

    def has(self, char: str, *, folds: bool = False) -> bool:
        """Whether `char` is of the set; with `folds`, in either case."""
        forms = [form for form in (char, char.lower(), char.upper()) if len(form) == 1] if folds else [char]
        is_in = any(low <= form <= high for low, high in self.ranges for form in forms) or any(
            _is_kind(char, kind) for kind in self.kinds
        )
        return is_in != self.is_negated


@dataclass(frozen=True)
class Edge:
    """`^`, `$` or a word's edge."""

    kind: EdgeKind


@dataclass(frozen=True)
class Sequence_:  # noqa: N801 - typing has a Sequence
    """One part behind the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Branch:
    """One of several."""

    choices: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """So many times; `most` None is without end."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = "Chars | Edge | Sequence_ | Branch | Repeat"

ANY = Chars((("\n", "\n"),), is_negated=True)


def is_word(char: str) -> bool:
    """Whether it is of a word: a letter, a digit or an underscore."""
    return char == "_" or char.isalnum()


def _is_kind(char: str, kind: str) -> bool:
    lowered = kind.lower()
    is_in = char.isdecimal() if lowered == "d" else char.isspace() if lowered == "s" else is_word(char)
    return is_in != kind.isupper()


def literal_of(node: Node) -> str:
    """Return the longest text, in lower case, that every match holds; empty if there is none."""
    return max((run.lower() for run in _runs(node)), key=len, default="")


def _runs(node: Node) -> list[str]:
    if isinstance(node, Repeat):
        return _runs(node.part) if node.least > 0 else []
    parts = node.parts if isinstance(node, Sequence_) else (node,)
    found, run = [], ""
    for part in parts:
        single = part.ranges[0][0] if isinstance(part, Chars) and _is_single(part) else None
        if single is not None:
            run += single
            continue
        if not isinstance(part, Edge):
            found.append(run)
            run = ""
        if isinstance(part, (Sequence_, Repeat)):
            found += _runs(part)
    return [*found, run]


def _is_single(chars: Chars) -> bool:
    is_one = len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
    # Letters whose other case is another length, or another letter still, would not be found in lower case.
    return is_one and not chars.kinds and not chars.is_negated and chars.ranges[0][0].isascii()
