"""What a report holds: plain texts, masked and free of control sequences, in the order they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.plot import Curves


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One line of evidence; `where` names its source, byte and rank."""

    where: str
    role: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that happened. `level` is good, bad, warning or plain; `folded` is shown on demand."""

    at: str
    kind: str
    text: str
    level: str = "plain"
    notes: tuple[tuple[str, str], ...] = ()  # (what, text)
    proofs: tuple[Proof, ...] = ()
    folded: tuple[Proof, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first cell of a row heads it."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptPart:
    """One attempt's part of the story."""

    number: int
    end: str  # its failure's class, or what is known instead
    level: str
    words: str  # the end in a person's words, empty if there are none
    facts: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]
    tables: tuple[Table, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole page. `curves` is None, and `curves_note` says why, where nothing can be drawn."""

    name: str
    summary: str
    level: str
    written_at: str
    facts: tuple[tuple[str, str], ...]
    overview: Table
    attempts: tuple[AttemptPart, ...]
    curves: Curves | None
    curves_note: str
    versions: tuple[tuple[str, str], ...]
