"""What a scan remembers of one rank between two lines. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.classify import lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.classify.found import Found
    from orchestrator.classify.text import StepLine

MAX_HEAD = 400  # characters
_HEAD_END = re.compile(r"\bin [\w.<>]+$|^(?:n )?[\w.<>]+$")
_HEAD_REST = re.compile(r"^[\w.<>]{1,60}$")
MAX_LOST_GRADS = 5  # in a row
MAX_FRAME_CHARS = 32_000
_WITHIN_MARK = 1e-6
MAX_LEAD = 160  # torchrun's loggers name time, process and a long path


@dataclass
class Trace:
    """A traceback whose last line has not come yet."""

    offset: int
    at: int = 0  # offset of the innermost line that has words
    is_thread: bool = False
    is_noise: bool = False
    num_foreign: int = 0
    num_chars: int = 0
    lines: list[str] = field(default_factory=list)

    def mend(self, line: str) -> bool:
        """Join `line` to the last frame's head if a pane's edge broke it there; return whether it did."""
        head = self.lines[-1] if self.lines else ""
        rest = _HEAD_REST if _HEAD_END.search(head) else _HEAD_END
        is_head = head.lstrip().startswith('File "') and len(head) <= MAX_HEAD
        # A frame may have no source line (its file is gone), and then the exception's name follows the head.
        if not is_head or not rest.search(line) or lines.is_bare_exception(line):
            return False
        self.lines[-1] = f"{head} {line}" if head.endswith(" in") else head + line
        return True

    @property
    def text(self) -> str:
        """The innermost line of it, a row of carets left out."""
        return next((line for line in reversed(self.lines) if line.strip("^~ ")), self.lines[-1])

    def add(self, line: str, offset: int) -> None:
        """Take one frame line; of a traceback without end the outermost and the innermost frames stay."""
        self.num_chars += len(line)
        if self.num_chars > MAX_FRAME_CHARS:
            self.num_chars -= sum(map(len, self.lines[10:20]))
            del self.lines[10:20]
        self.lines.append(line)
        if line.strip("^~ "):
            self.at = offset


@dataclass
class RankState:
    """One rank's progress, and the traceback that is being read of it."""

    mark: float | None = None
    told: StepLine | None = None  # the newest step that was read
    step: int | None = None
    num_losses: int = 0
    num_lost: int = 0  # losses in a row that are no numbers
    first_lost: Found | None = None
    num_lost_grads: int = 0  # gradients in a row that are no numbers, beside good losses
    first_lost_grad: Found | None = None
    trace: Trace | None = None
    current: Found | None = None  # the root of the chain being read, until the chain is over
    continuing: int = 0
    is_chained: bool = False
    is_thread: bool = False
    is_noise: bool = False
    lead: re.Pattern[str] | None = None  # of the traceback that is being read

    def advance(self, step: StepLine) -> float:
        """Return how far this rank is. An epoch told with few digits stays, while its losses go on."""
        told, mark = self.told, step.mark
        if told is not None and self.mark is not None and told.mark == step.mark:
            is_new = step.step is None and step.loss is not None and step.loss != told.loss
            mark = self.mark + (_WITHIN_MARK if is_new else 0.0)
        self.mark, self.told = mark, step
        return mark

    def count(self, step: StepLine, found: Callable[[], Found]) -> None:
        """Count the numbers of a step, and keep the first line of a row of lost ones."""
        if step.grad is not None and math.isnan(step.grad):
            self.num_lost_grads += 1
            self.first_lost_grad = self.first_lost_grad or found()
        elif step.grad is not None:
            self.num_lost_grads, self.first_lost_grad = 0, None
        if step.loss is None and step.is_finite:
            return
        self.num_losses += 1
        if step.is_finite:
            self.num_lost, self.first_lost = 0, None
        else:
            self.num_lost += 1
            self.first_lost = self.first_lost or found()

    @property
    def lost(self) -> Found | None:
        """The first line of lost losses, or of gradients lost for longer than a loss scaler takes."""
        if self.first_lost is not None and (self.num_lost >= 2 or self.num_lost == self.num_losses):
            return self.first_lost
        return self.first_lost_grad if self.num_lost_grads >= MAX_LOST_GRADS else None

    def learn_lead(self, text: str) -> None:
        """Take what stood before a traceback's heading (a worker's name, a time) for what leads its lines."""
        words = text.rstrip()
        is_lead = bool(words) and len(text) <= MAX_LEAD
        pattern = re.sub(r"\d+", r"\\d+", re.escape(words)) + f"(?:{text[len(words) :]}|$)"
        self.lead = re.compile(pattern) if is_lead else None

    def drop_lead(self, body: str) -> str:
        """Return a line of the traceback that is being read without its lead."""
        is_reading = self.trace is not None or self.current is not None
        found = self.lead.match(body) if is_reading and self.lead is not None else None
        return body[found.end() :] if found is not None else body

    @property
    def has_only_steps(self) -> bool:
        """True while this rank has reported nothing but steps with finite numbers."""
        return replace(self, mark=None, told=None, step=None, num_losses=0) == RankState()
