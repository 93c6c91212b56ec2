"""Lines that a user's own rules know: found as the log comes, dropped when the run goes on after them. Pure.

A rule of a user says what a death was. It never makes a living run dead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.classify.text import ANSI, MAX_TEXT, clean, read_step, split_rank
from orchestrator.classify.titles import shorten
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState
from orchestrator.types.snapshot import CUSTOM, CustomMatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.types.snapshot import Snapshot
    from orchestrator.userrules import CustomRule

MAX_LINE_BYTES = 4096  # a rule looks at no more of a line
CONFIDENCE = 0.9
# The container's or the host's end is no matter of what the log says.
_NOT_THE_LOGS = frozenset({FailureClass.CONTAINER_RESTARTED, FailureClass.HOST_REBOOTED})
# Who pressed Ctrl-C does not want it back; a SIGTERM or a scheduler's notice may be nobody's wish.
_BY_HAND = re.compile(r"KeyboardInterrupt|SIGINT|Ctrl-C|\bAborted!")
# What `clean` takes out may stand within a rule's own text.
_ANSI = re.compile(ANSI.encode())
_CONTROL = bytes({*range(9), *range(11, 32), 127})


@dataclass
class _Hit:
    """The first line of a rule since which the run has not gone on."""

    evidence: Evidence
    mark: float | None = None  # the first step told after it


class CustomReader:
    """Reads one log, in order, for the rules of one playbook. Bounded: one line, and one hit a rule."""

    def __init__(self, rules: Sequence[CustomRule] = ()) -> None:
        self._rules = tuple(rules)
        self._literals = tuple(rule.pattern.literal.encode() for rule in self._rules)
        self._hits: dict[str, _Hit] = {}
        self._partial = b""
        self._at = 0  # of the partial line
        self._is_skipping = False

    def feed(self, data: bytes, offset: int) -> None:
        """Take the bytes at `offset`; a gap ends the line before it."""
        if not self._rules or not data:
            return
        if offset != self._at + len(self._partial) and not self._is_skipping:
            self._partial, self._at = b"", offset
        data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._hold(data, offset)
            return
        first = data.find(b"\n") + 1
        if not self._is_skipping:
            self._block(self._partial + data[:first], self._at)
        self._block(data[first:end], offset + first)
        self._partial, self._at, self._is_skipping = b"", offset + end, False
        self._hold(data[end:], offset + end)

    def matches(self) -> tuple[CustomMatch, ...]:
        """Return what was met and not survived, in the order of the rules, a line without an end included."""
        found = {name: hit.evidence for name, hit in self._hits.items()}
        if self._partial:
            for rule, evidence in self._line(self._partial, self._at, self._rules):
                found.setdefault(rule.name, evidence)
        return tuple(
            CustomMatch(rule=r.name, label=r.label, evidence=found[r.name], failure=r.failure)
            for r in self._rules
            if r.name in found
        )

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the head of a line whose end has not come; of a longer one the head is all that is read."""
        if not data or self._is_skipping:
            return
        if not self._partial:
            self._at = at
        self._partial += data[: MAX_LINE_BYTES - len(self._partial)]
        if len(self._partial) >= MAX_LINE_BYTES:
            self._block(self._partial + b"\n", self._at)
            self._partial, self._is_skipping = b"", True

    def _block(self, block: bytes, at: int) -> None:
        """Read whole lines; a block that holds no rule's own text costs one search a rule."""
        lowered = _bare(block).lower()
        rules = [
            rule for rule, literal in zip(self._rules, self._literals, strict=True) if literal in lowered
        ]
        if not rules and not self._hits:
            return
        for line in block.split(b"\n")[:-1]:
            if self._hits:
                self._progress(line)
            for rule, evidence in self._line(line, at, rules):
                self._hits.setdefault(rule.name, _Hit(evidence))
            at += len(line) + 1

    def _line(
        self, line: bytes, at: int, rules: Sequence[CustomRule]
    ) -> Iterator[tuple[CustomRule, Evidence]]:
        if not line or not rules:
            return
        rank, body = split_rank(clean(line[:MAX_LINE_BYTES]))
        for rule in rules:
            if rule.pattern.search(body):
                signature = f"{CUSTOM}{rule.name}"
                yield (
                    rule,
                    Evidence(
                        source="log", text=body.strip()[:MAX_TEXT], signature=signature, offset=at, rank=rank
                    ),
                )

    def _progress(self, line: bytes) -> None:
        """Note a step: what is followed by two of them, the second further, was survived."""
        rank, body = split_rank(clean(line[:MAX_LINE_BYTES]))
        step = read_step(body)
        if step is None or not step.is_finite:
            return
        for name, hit in list(self._hits.items()):
            if hit.evidence.rank not in (None, rank):
                continue
            if hit.mark is not None and step.mark > hit.mark:
                del self._hits[name]
            elif hit.mark is None:
                hit.mark = step.mark


def apply_custom(diagnosis: Diagnosis, snapshot: Snapshot) -> Diagnosis:
    """Return the diagnosis of a death as the user's first matching rule has it; any other as it is."""
    match = next(iter(snapshot.log.custom), None)
    if match is None or diagnosis.state is not RunState.DEAD or diagnosis.failure in _NOT_THE_LOGS:
        return diagnosis
    if _is_by_hand(diagnosis, match):
        return diagnosis
    step = snapshot.last_step
    at = f"died at step {step}" if step is not None else "died"
    line = shorten(match.evidence.text)
    return replace(
        diagnosis,
        failure=match.failure or diagnosis.failure,
        summary=f'{at}: {match.label}, by the playbook\'s rule "{match.rule}" ("{line}")',
        evidence=(match.evidence, *diagnosis.evidence),
        confidence=CONFIDENCE,
        fingerprint=f"{CUSTOM}{match.rule}",
    )


def _is_by_hand(diagnosis: Diagnosis, match: CustomMatch) -> bool:
    """Whether a person ended it, and the rule is not about that very line."""
    if diagnosis.failure is not FailureClass.KILLED_BY_USER:
        return False
    shown = next(iter(diagnosis.evidence), None)
    is_same = shown is not None and shown.source == "log" and shown.offset == match.evidence.offset
    return not is_same and shown is not None and _BY_HAND.search(shown.text) is not None


def _bare(block: bytes) -> bytes:
    """Return the block without terminal sequences and control characters."""
    if b"\x1b" in block:
        block = b"".join(_ANSI.split(block))
    return block.translate(None, _CONTROL)
