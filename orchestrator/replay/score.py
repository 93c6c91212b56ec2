"""How many labelled logs were answered right: by class, with what was taken for what. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.masking import Masker
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.playbook import Playbook
    from orchestrator.replay.judge import Judgement
    from orchestrator.replay.labels import Label

_SILENT = (FailureClass.HEALTHY, FailureClass.COMPLETED)
_NOISE = re.compile(r"\s+|\[(?:rank|default)\d+\]:?|\x1b\[[0-9;]*m")
_ENOUGH = 0.5  # of the label's line; a reading keeps so much of a line and no more


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One label and what was said of its log."""

    label: Label
    found: Judgement

    @property
    def is_right(self) -> bool:
        """The class is the label's, or one that it accepts."""
        return self.label.accepts(self.found.failure)

    @property
    def has_evidence(self) -> bool:
        """The line shown is the label's, whatever breaks, blanks and rank marks either has."""
        shown = self.found.evidence
        wanted, got = _squeeze(self.label.root_cause_line), _squeeze(shown.text if shown is not None else "")
        return bool(got) and (wanted in got or (got in wanted and len(got) >= _ENOUGH * len(wanted)))

    @property
    def is_silent(self) -> bool:
        """It was called well, and nothing was asked for."""
        return self.found.failure in _SILENT and self.found.decision.kind is ActKind.NONE

    def is_relaunched_against(self, playbook: Playbook) -> bool:
        """It would be relaunched, though the playbook relaunches nothing of what it really was."""
        if not self.found.decision.kind.is_relaunch:
            return False
        known = (self.label.failure, *self.label.also)
        return not any(playbook.rule(failure).act.is_relaunch for failure in known)


def score(answers: Sequence[Answer], playbook: Playbook) -> dict[str, Any]:
    """Return the counts: right answers, by class and in all, evidence found, and every wrong answer."""
    clear = [a for a in answers if not a.label.ambiguous]
    lined = [a for a in answers if a.label.has_line]
    silent = [a for a in answers if a.label.failure in _SILENT]
    return {
        "cases": len(answers),
        "right": sum(a.is_right for a in answers),
        "unambiguous": len(clear),
        "unambiguous_right": sum(a.is_right for a in clear),
        "with_evidence_line": len(lined),
        "evidence_found": sum(a.has_evidence for a in lined),
        "well": len(silent),
        "well_and_silent": sum(a.is_silent for a in silent),
        "classes": _by_class(answers),
        "confusion": _confusion(answers),
        "wrong": [_told(a) for a in answers if not a.is_right],
        "evidence_missed": [_told(a) for a in lined if not a.has_evidence],
        "alarmed": [_told(a) for a in silent if not a.is_silent],
        "relaunched_though_call": [_told(a) for a in answers if a.is_relaunched_against(playbook)],
    }


def _by_class(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return precision and recall; an answer that the label accepts counts for the label's own class."""
    wanted, got, both = Counter[str](), Counter[str](), Counter[str]()
    for answer in answers:
        name = answer.label.failure.value
        said = name if answer.is_right else answer.found.failure.value
        wanted[name] += 1
        got[said] += 1
        both[name] += answer.is_right
    return {
        name: {
            "cases": wanted[name],
            "precision": round(both[name] / got[name], 3) if got[name] else None,
            "recall": round(both[name] / wanted[name], 3) if wanted[name] else None,
        }
        for name in sorted(set(wanted) | set(got))
    }


def _confusion(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    pairs = Counter((a.label.failure.value, a.found.failure.value) for a in answers if not a.is_right)
    return [{"label": label, "said": said, "count": n} for (label, said), n in sorted(pairs.items())]


def _told(answer: Answer) -> dict[str, Any]:
    shown = answer.found.evidence
    return {
        "id": answer.label.id,
        "file": answer.label.file,
        "label": answer.label.failure.value,
        "said": answer.found.failure.value,
        "ambiguous": answer.label.ambiguous,
        "decision": answer.found.decision.kind.value,
        "line": Masker().text(shown.text) if shown is not None else None,
    }


def _squeeze(text: str) -> str:
    return _NOISE.sub("", text)
