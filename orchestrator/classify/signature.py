"""What a signature is: one known face of one failure class. Facts; what to do about it is a playbook's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from orchestrator.types.failure import FailureClass, Role


class Where(str, Enum):
    """Where a signature may match."""

    EXCEPTION = "exception"  # the text of an exception: its last line, or the lines that continue it
    LINE = "line"  # any line, exceptions included


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One known face of one failure class.

    One of `words` (lower case) is in every line that it matches: a cheap look before the pattern.
    `example` is such a line; a test holds both to it. `weak` ones decide only when nothing stronger was seen.
    A plain line is a mention, an exception of the same attempt knows better; of a `certain` one it is proof.
    A `generic` one gives way to a line of the same message that says more.
    """

    name: str
    failure: FailureClass
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    example: str
    where: Where = Where.LINE
    role: Role = Role.ROOT
    weak: bool = False
    certain: bool = False
    generic: bool = False


def sig(
    name: str,
    failure: FailureClass,
    words: tuple[str, ...],
    pattern: str,
    example: str,
    *,
    where: Where = Where.LINE,
    role: Role = Role.ROOT,
    weak: bool = False,
    certain: bool = False,
    generic: bool = False,
) -> Signature:
    """Return a signature with its pattern compiled."""
    return Signature(
        name=name,
        failure=failure,
        words=words,
        pattern=re.compile(pattern),
        example=example,
        where=where,
        role=role,
        weak=weak,
        certain=certain,
        generic=generic,
    )
