"""Which of many words a line has, at a cost that grows with the line and hardly with the words. Pure.

A line is cut into runs of letters. Which words a run can belong to is looked up by its threes of letters, and
only for those the line itself is searched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RUNS = 16_384
MAX_RUN_LETTERS = 32
GRAM = 3

_LETTERS = bytes(range(ord("a"), ord("z") + 1))
_ONLY_LETTERS = bytes(c if c in _LETTERS else ord(" ") for c in range(256))


class _Memory:
    """Runs of letters that were met and the words that may be in them; it only grows, and is replaced."""

    def __init__(self) -> None:
        self.runs: set[bytes] = set()
        self.telling: set[bytes] = set()  # those of them that a word can be in
        self.numbers: dict[bytes, tuple[int, ...]] = {}


class Words:
    """An index of words in lower case. What it remembers of runs of letters is bounded by MAX_RUNS."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self.words = tuple(words)
        self._grams: dict[bytes, list[tuple[bytes, int]]] = {}
        self._without: list[int] = []  # words of too few letters are searched for in every line
        self._memory = _Memory()
        for number, word in enumerate(self.words):
            piece = max(re.findall(rb"[a-z]+", word), key=len, default=b"")
            if len(piece) < GRAM:
                self._without.append(number)
            else:
                self._grams.setdefault(piece[:GRAM], []).append((piece, number))

    def lines_with(self, lines: list[bytes]) -> set[int]:
        """Return which of the lines, in lower case, have a word. They are searched all at once."""
        text = b"\n".join(lines)
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        having: set[int] = set()
        for number in self._possible(text):
            word, at = self.words[number], 0
            while (at := text.find(word, at)) >= 0:
                line = bisect_right(starts, at) - 1
                having.add(line)
                at = starts[line + 1]
        return having

    def find(self, line: bytes) -> list[int]:
        """Return the numbers of the words that `line`, in lower case, has; each once, in their order."""
        words = self.words
        return sorted([number for number in self._possible(line) if words[number] in line])

    def _possible(self, text: bytes) -> set[int]:
        """Return the numbers of the words that may be in the text, by its runs of letters."""
        runs = set(text.translate(_ONLY_LETTERS).split())
        found = set(self._without)
        memory = self._memory
        unknown = runs - memory.runs
        for run in runs & memory.telling:
            found.update(memory.numbers[run])
        for run in unknown:
            found.update(self._learn(run))
        return found

    def _learn(self, run: bytes) -> tuple[int, ...]:
        """Return the words whose longest run of letters is within this one."""
        numbers = tuple(
            number
            for start in range(len(run) - GRAM + 1)
            for piece, number in self._grams.get(run[start : start + GRAM], ())
            if run.startswith(piece, start)
        )
        if len(run) <= MAX_RUN_LETTERS:
            memory = self._memory
            if len(memory.runs) >= MAX_RUNS:
                memory = self._memory = _Memory()
            if numbers:
                memory.numbers[run] = numbers
                memory.telling.add(run)
            memory.runs.add(run)  # last: whoever finds it here finds its numbers, in any thread
        return numbers
