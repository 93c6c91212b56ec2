"""What a pane's lines show beside the catalogue: an end, a prompt, cards that spin, a crash cut off. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.exits import Cause
from orchestrator.classify.lines import HEADER
from orchestrator.classify.logcause import CUT_ATTENTION
from orchestrator.classify.text import read_step
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading

_F = FailureClass

_PROMPT = re.compile(
    r"^(?:\([\w.+-]+\)[ -]?)*(?:\[?[\w.-]+@[\w.-]+[: ].{0,120}|\S{0,40})[#$%\u276f>]\s*$|^(?:rc|exit)=\d+$"
)
_SUMMARY = re.compile(
    r"train(?:ing)? (?:is |has )?(?:run )?(?:complete|finished|done|ended)|finished training|train_runtime"
    r"|all epochs (?:done|complete)|done\.? total time|\bfinished at step \d+|done training"
    r"|`Trainer\.fit` stopped: `max_\w+=\d+` reached",
    re.IGNORECASE,
)
_CARETS = re.compile(r"^\s*[\^~]{4,}\s*$")
_ATTENTION = re.compile(r"\bself\.(?:self_)?attn\w*\(|\bflex_attention\(|\battn_output\b|\bsdpa_\w+")
_SMI_ROW = re.compile(r"(\d+)W? ?/ ?(\d+)W \|.*\|\s+(\d+)%")
SPIN_PCT = 95
SPIN_POWER = 0.4  # of the card's limit


def last_word(log: LogReading) -> str | None:
    """Return the line that says that it is done, if no work was reported after it: a trial run ends too."""
    for line in reversed(log.tail):
        if _SUMMARY.search(line):
            return line
        if (step := read_step(line)) is not None and not step.is_last:
            return None
    return None


def ends_in_prompt(log: LogReading) -> bool:
    """Whether a shell waits for its next command."""
    return bool(log.tail) and _PROMPT.match(log.tail[-1]) is not None


def spinning(log: LogReading) -> Diagnosis | None:
    """Return a hang where nvidia-smi shows every card busy at the power of an idle one."""
    rows = [(line, found) for line in log.tail if (found := _SMI_ROW.search(line)) is not None]
    spins = [
        line
        for line, found in rows
        if int(found[3]) >= SPIN_PCT and int(found[1]) <= SPIN_POWER * int(found[2])
    ]
    if not rows or len(spins) < len(rows):
        return None
    text = "every GPU is busy at the power of an idle one: ranks that wait for one that does not come"
    shown = tuple(Evidence(source="pane", text=line) for line in spins[:4])
    return Diagnosis(
        state=RunState.UNSUPERVISED, failure=_F.HANG, summary=text, evidence=shown, confidence=0.6
    )


def cut_short(log: LogReading) -> Cause | None:
    """Return a crash of which not even a frame's head is to be seen, only source lines and carets."""
    places = [place for place, line in enumerate(log.tail) if _CARETS.match(line)]
    if not places or any(HEADER in line for line in log.tail[: places[0]]):  # read from its head on
        return None
    if any(read_step(line) is not None for line in log.tail[places[-1] :]):
        return None
    shown = next((line for line in reversed(log.tail) if _ATTENTION.search(line)), None)
    text = shown if shown is not None else log.tail[places[0]]
    root = Evidence(source="pane", text=text.strip(), signature=match.CUT_TRACEBACK.name)
    if shown is None:
        words = "a crash whose exception line is cut off"
        return Cause(failure=_F.PYTHON_EXCEPTION, root=root, words=words, confidence=0.4)
    also = (_F.OOM_DENSE_FALLBACK, _F.OOM_CUDA)
    return Cause(failure=_F.FX_TRACE_RACE, root=root, words=CUT_ATTENTION, also=also, confidence=0.4)
