"""Texts of a report: masked, without control sequences, and short. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.durations import format_duration
from orchestrator.masking import Masker
from orchestrator.report.parts import Proof
from orchestrator.terminal import one_line, plain
from orchestrator.types.decision import ActKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.playbook import Rule
    from orchestrator.types.failure import Evidence

MAX_TEXT = 2_000
_MASKER = Masker()
_ACTS = {
    ActKind.NONE: "do nothing",
    ActKind.WAIT: "wait",
    ActKind.RELAUNCH: "relaunch as it was",
    ActKind.RELAUNCH_WITH: "relaunch with the next change of its ladder",
    ActKind.CALL: "call a person",
    ActKind.GIVE_UP: "give up",
}


def said(text: object, limit: int = MAX_TEXT) -> str:
    """Return the text with secrets starred out and without control sequences."""
    # Twice: a sequence inside of a secret hides it from the first look, and a cut from the second.
    return _MASKER.text(plain(_MASKER.text(str(text)), limit))


def line_said(text: object, limit: int = 200) -> str:
    """Return `said` on one line."""
    return _MASKER.text(one_line(_MASKER.text(str(text)), limit))


def value_said(key: str, value: Any) -> str:  # noqa: ANN401 - any scalar of JSON
    """Return a setting's value; that of a key whose name says that it is secret is starred out."""
    if value is None:
        return "(none)"
    return line_said(_MASKER.json({key.rsplit(".", 1)[-1]: str(value)}).popitem()[1], 160)


def moment(at: datetime | None) -> str:
    """Return the second, in UTC."""
    return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


def between(begin: datetime | None, end: datetime | None) -> str:
    """Return how long that was, empty if it is not known."""
    if begin is None or end is None:
        return ""
    return format_duration(max(0.0, (end - begin).total_seconds()))


def proofs(lines: Iterable[Evidence]) -> tuple[Proof, ...]:
    """Return the lines of evidence, none twice."""
    made = (Proof(where=_where(line), role=line.role.value, text=said(line.text)) for line in lines)
    return tuple(dict.fromkeys(made))


def _where(line: Evidence) -> str:
    byte = f", byte {line.offset}" if line.offset is not None else ""
    rank = f", rank {line.rank}" if line.rank is not None else ""
    return line_said(f"{line.source}{byte}{rank}")


def rule_said(rule: Rule) -> str:
    """Return what the playbook does about a failure, and why."""
    does = _ACTS[rule.act]
    if rule.act.is_relaunch and rule.attempts:
        times = "once" if rule.attempts == 1 else f"{rule.attempts} times"
        does += f", at most {times} without progress, then {_ACTS[rule.then]}"
    return said(f"{rule.key}: {does}. {rule.why}")
