"""What a scan keeps of the signatures it met: bounded, and aware of what was survived. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.classify.text import MAX_TEXT
from orchestrator.types.failure import Evidence, FailureClass, Role
from orchestrator.types.snapshot import LogMatch

if TYPE_CHECKING:
    from orchestrator.classify.signature import Signature

MAX_SLOTS = 512
MAX_KEPT_LINES = 80  # the innermost of a traceback
WRAPPER = "caught_in_worker"  # the traceback that it wraps follows it


@dataclass
class Found:
    """One signature met at one line."""

    signature: Signature
    offset: int
    rank: int | None
    text: str
    mark_before: float | None = None
    step_before: int | None = None
    weak: bool = False
    is_traceback: bool = False
    is_handled: bool = False
    is_restarted: bool = False  # its launcher began all ranks anew: the progress of any shows that it worked
    hints: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __deepcopy__(self, memo: dict[int, object]) -> Found:
        """A copy that shares what never changes in place, which is all that it holds."""
        return copy.copy(self)

    @property
    def role(self) -> Role:
        """What the line says about the cause."""
        return self.signature.role

    @property
    def telling(self) -> int:
        """How much it says: -1 a consequence or a wrapper, 0 any exception, 1 a known kind, 2 the cause."""
        if self.role is not Role.ROOT or self.signature.name == WRAPPER:
            return -1
        if self.signature.failure is FailureClass.PYTHON_EXCEPTION or self.signature.weak:
            return 0
        return 1 if self.signature.generic else 2

    @property
    def can_be_survived(self) -> bool:
        """False for a prediction, and for a dead thread: the threads that go on do not heal it.

        The race comes of threads, whether the line that names the thread is in view or not.
        """
        is_race = self.signature.failure is FailureClass.FX_TRACE_RACE
        return self.role is not Role.PREDICTION and not is_race and "thread" not in self.hints

    def say(self, signature: Signature, text: str, offset: int) -> None:
        """Let a later line of the same message stand for it, which says more."""
        self.signature, self.text, self.offset = signature, text.strip(), offset
        self.weak = signature.weak

    def survive(self, mark: float) -> bool:
        """Mark it handled if `mark` is newer progress."""
        if not self.can_be_survived:
            return False
        if self.mark_before is None or mark > self.mark_before:
            self.is_handled = True
        return self.is_handled

    def evidence(self) -> Evidence:
        """Return the line as evidence."""
        return Evidence(
            source="log",
            text=self.text.split("\n", 1)[0][:MAX_TEXT],
            role=self.role,
            signature=self.signature.name,
            offset=self.offset,
            rank=self.rank,
        )

    def match(self) -> LogMatch:
        """Return it as the frozen value that leaves the scanner."""
        return LogMatch(
            failure=self.signature.failure,
            evidence=self.evidence(),
            last_step_before=self.step_before,
            weak=self.weak,
            handled=self.is_handled,
            is_traceback=self.is_traceback,
            hints=self.hints,
        )


@dataclass
class _Slot:
    first: Found
    open: Found | None  # the first that was not survived
    newest: Found


@dataclass
class Ledger:
    """The first, the first open and the newest of each signature and rank; at most MAX_SLOTS of those."""

    slots: dict[tuple[str, int | None], _Slot] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    waiting: dict[tuple[str, int | None], _Slot] = field(default_factory=dict)  # for progress to survive them

    @property
    def has_open(self) -> bool:
        """True while something was met that progress may yet show to be survived."""
        return bool(self.waiting)

    def add(self, found: Found) -> bool:
        """Keep `found`; return True if it is a prediction that was not told yet."""
        key = (found.signature.name, found.rank)
        found.lines = tuple(line[:MAX_TEXT] for line in found.lines[-MAX_KEPT_LINES:])
        slot = self.slots.get(key)
        if slot is not None:
            slot.newest = found
            slot.open = slot.open or found
        elif len(self.slots) < MAX_SLOTS:
            slot = self.slots[key] = _Slot(found, found, found)
        if slot is not None and slot.open is not None and slot.open.can_be_survived:
            self.waiting[key] = slot
        is_news = found.role is Role.PREDICTION and found.signature.name not in self.told
        if is_news:
            self.told.add(found.signature.name)
        return is_news

    def progress(self, rank: int | None, mark: float) -> None:
        """Note newer finite progress of `rank`: what that rank met before is survived.

        A sentence without a rank is survived by the progress of any rank; a traceback only by its own.
        """
        for key, slot in list(self.waiting.items()):
            found, slot_rank = slot.open, key[1]
            if found is None:
                continue
            is_others = slot_rank != rank and (slot_rank is not None or found.is_traceback)
            if is_others and not found.is_restarted:
                continue
            if found.survive(mark):
                slot.newest.survive(mark)
                slot.open = None
                del self.waiting[key]

    def restart(self) -> None:
        """Note that a launcher begins all its ranks anew: their steps may come again, and still be new."""
        for slot in self.waiting.values():
            if slot.open is not None:
                slot.open.is_restarted, slot.open.mark_before = True, None
                slot.newest.is_restarted, slot.newest.mark_before = True, None

    def all(self) -> list[Found]:
        """Return everything kept, in the order of the log."""
        kept = {
            id(found): found
            for slot in self.slots.values()
            for found in (slot.first, slot.open, slot.newest)
            if found is not None
        }
        return sorted(kept.values(), key=lambda found: found.offset)
