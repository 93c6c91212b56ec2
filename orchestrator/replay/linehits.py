"""Which rules match which lines of a log, the shipped ones and the user's. No clock; one line is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.classify.custom import MAX_LINE_BYTES as MAX_OWN_BYTES
from orchestrator.classify.match import matching
from orchestrator.classify.signature import Where
from orchestrator.classify.text import MAX_TEXT, clean, split_rank
from orchestrator.types.snapshot import CUSTOM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.types.failure import FailureClass, Role
    from orchestrator.userrules import CustomRule

MAX_LINE_BYTES = 32 * 1024  # as much of a line as the scanner reads


@dataclass(frozen=True, kw_only=True)
class RuleHit:
    """One rule that matches a line. `is_first`: of several shipped ones, the one that counts.

    `needs_exception`: it counts only where the line ends a traceback or names an exception.
    """

    name: str
    failure: FailureClass | None
    role: Role | None
    is_first: bool = False
    needs_exception: bool = False


@dataclass(frozen=True, kw_only=True)
class LineHit:
    """A line that some rule matches; `number` from 1, `offset` of its first byte."""

    number: int
    offset: int
    rank: int | None
    text: str
    rules: tuple[RuleHit, ...]


class LineReader:
    """Reads a log chunk by chunk and tells of each line that a rule matches; a carriage return ends one."""

    def __init__(self, custom: Sequence[CustomRule] = ()) -> None:
        self._custom = custom
        self._held = b""
        self._at = 0  # of the line that is held
        self._number = 1
        self._is_skipping = False  # the rest of a line whose head was read

    def feed(self, data: bytes) -> list[LineHit]:
        """Take the next bytes and return the lines that matched."""
        found: list[LineHit] = []
        *whole, rest = data.replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            if not self._is_skipping:
                found += self._look(self._held + line)
            self._at += len(self._held) + len(line) + 1
            self._number += 1
            self._held, self._is_skipping = b"", False
        if self._is_skipping:
            self._at += len(rest)
            return found
        self._held += rest
        if len(self._held) > MAX_LINE_BYTES:
            found += self._look(self._held)
            self._at += len(self._held)
            self._held, self._is_skipping = b"", True
        return found

    def end(self) -> list[LineHit]:
        """Return the last line, if it has no end and matched."""
        held, self._held = self._held, b""
        return self._look(held) if held else []

    def _look(self, line: bytes) -> list[LineHit]:
        rank, body = split_rank(clean(line[:MAX_LINE_BYTES]))
        _, head = split_rank(clean(line[:MAX_OWN_BYTES]))  # a watch holds no more against a user's rule
        rules = (*_own(head, self._custom), *_shipped(body)) if body else ()
        if not rules:
            return []
        text = body.strip()[:MAX_TEXT]
        return [LineHit(number=self._number, offset=self._at, rank=rank, text=text, rules=rules)]


def _own(body: str, custom: Sequence[CustomRule]) -> tuple[RuleHit, ...]:
    matched = (rule for rule in custom if rule.pattern.search(body))
    return tuple(RuleHit(name=f"{CUSTOM}{rule.name}", failure=rule.failure, role=None) for rule in matched)


def _shipped(body: str) -> tuple[RuleHit, ...]:
    found = matching(body)
    first = next(iter(found), None)
    return tuple(
        RuleHit(
            name=each.name,
            failure=each.failure,
            role=each.role,
            is_first=each is first,
            needs_exception=each.where is Where.EXCEPTION,
        )
        for each in found
    )
