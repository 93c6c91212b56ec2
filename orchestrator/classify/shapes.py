"""The shape of a line: its bytes with every digit made 0. What a shape can mean is found out once.

A log says few things many times. A line whose shape means nothing is passed over, and of steps that differ in
their digits alone only the last counts, so reading costs a look-up a line. Pure but for what it remembers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.classify.analysis import Analysis
from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.text import clean, read_step, split_rank
from orchestrator.classify.words import Words

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_SHAPES = 8192
MAX_SHAPE_BYTES = 400  # a longer line is judged each time it comes

_ZEROS = bytes.maketrans(b"123456789", b"000000000")


@dataclass(frozen=True, kw_only=True, eq=False)
class Meaning:
    """What the lines of a shape can do to a reading while no traceback is open. There is one of each."""

    is_loud: bool = False  # anything but a step: read every one
    is_step: bool = False  # finite progress: of the same meaning and rank only the last counts
    rank_bytes: int = 0  # how much of a line tells the rank
    has_loss: bool = False
    has_number: bool = False  # a step; else an epoch


QUIET = Meaning()
LOUD = Meaning(is_loud=True)
MET = Meaning(is_loud=True)  # for the first time: read like a loud one, judged when it comes again


def fold(lines: bytes) -> bytes:
    """Return lines with every digit made 0, as long as before."""
    return lines.translate(_ZEROS)


# What begins, ends or names a traceback, beside the catalogue's own words.
_STRUCTURE = (
    *(b"traceback", b"exception", b'file "', b"error", b"interrupt", b"failed", b"limithit", b"exceeded"),
    *(b"refused", b"invalid", b"corrupt", b"nonfinite", b"call stack", b"stack (most", b"will restart"),
)
_STEPS = (b"loss", b"step", b"iter", b"num_updates")
_BAR = b"0 [0"
_WORDS = Words(sorted({*_STRUCTURE, *_STEPS, _BAR, *(fold(w.encode()) for s in SIGNATURES for w in s.words)}))
_HUGE = re.compile(r"0e\+?000")  # 1e999 is no finite number


def _with_any_digits(pattern: str) -> str | None:
    """Return a pattern that also matches every line of a shape that `pattern` matches one of.

    None if the pattern names no digit and so cannot tell the lines of a shape apart.
    """
    parts = re.split(r"(\{[\d,]*\}|\\x..|\\.|\d-\d)", pattern)
    named = [place for place, part in enumerate(parts) if place % 2 == 0 and re.search(r"\d", part)]
    ranges = [p for p, part in enumerate(parts) if re.fullmatch(r"\d-\d", part) and part != "0-9"]
    if not named and not ranges:
        return None
    if "(?!" in pattern or "(?<!" in pattern:
        return ""  # what it forbids is forbidden for some of the lines only
    for place in named:
        parts[place] = re.sub(r"\d", r"\\d", parts[place])
    for place in ranges:
        parts[place] = r"\d"
    return "".join(parts)


_BY_DIGIT = tuple(
    (tuple(fold(word.encode()).decode() for word in signature.words), re.compile(wide))
    for signature in SIGNATURES
    if (wide := _with_any_digits(signature.pattern.pattern)) is not None
)


class Shapes:
    """Remembers what shapes mean; at most MAX_SHAPES of at most MAX_SHAPE_BYTES."""

    def __init__(self) -> None:
        self._known: dict[bytes, Meaning] = {}

    def __len__(self) -> int:
        return len(self._known)

    def judge(self, shapes: Collection[bytes]) -> dict[bytes, Meaning]:
        """Return what each of the shapes of a block means."""
        known = self._known
        unknown = [shape for shape in shapes if shape not in known]
        if len(known) + len(unknown) > MAX_SHAPES:
            known = self._known = {}  # what is common is soon known again; another thread keeps what it reads
            unknown = list(shapes)
        fresh = _meet(unknown, known) if unknown else {}
        return {shape: fresh[shape] if shape in fresh else _recall(shape, known) for shape in shapes}

    def again(self, shape: bytes) -> Meaning:
        """Return what a shape means that was met before."""
        known = self._known
        return _recall(shape, known) if shape in known else LOUD


def _recall(shape: bytes, known: dict[bytes, Meaning]) -> Meaning:
    meaning = known[shape]
    if meaning is MET:
        meaning = known[shape] = meaning_of(shape)
    return meaning


def _meet(shapes: list[bytes], known: dict[bytes, Meaning]) -> dict[bytes, Meaning]:
    """Look for words in new shapes; those with one are judged when they come again."""
    met = dict.fromkeys(shapes, QUIET)
    for place in _WORDS.lines_with([shape.lower() for shape in shapes]):
        met[shapes[place]] = MET
    known.update({shape: meaning for shape, meaning in met.items() if len(shape) <= MAX_SHAPE_BYTES})
    return met


def meaning_of(shape: bytes) -> Meaning:
    """Return what lines of this shape can do: tried on an analysis that has met nothing."""
    text = clean(shape)
    if _HUGE.search(text.lower()) or _is_told_by_digits(text):
        return LOUD
    trial = Analysis()
    trial.feed(shape, 0)
    if not trial.has_only_steps:
        return LOUD
    rank, body = split_rank(text)
    step = read_step(body)
    if step is None:
        return QUIET
    return _step(
        rank_bytes=_rank_bytes(shape, body) if rank is not None else 0,
        has_loss=step.loss is not None,
        has_number=step.step is not None,
    )


def _rank_bytes(shape: bytes, body: str) -> int:
    """Return how many bytes come before the body; where colours hide that, the whole line tells the rank."""
    start = shape.find(body.encode())
    return start if start >= 0 else len(shape)


def _is_told_by_digits(text: str) -> bool:
    lowered = text.lower()
    return any(pattern.search(text) for words, pattern in _BY_DIGIT if any(word in lowered for word in words))


@functools.cache
def _step(*, rank_bytes: int, has_loss: bool, has_number: bool) -> Meaning:
    return Meaning(is_step=True, rank_bytes=rank_bytes, has_loss=has_loss, has_number=has_number)
