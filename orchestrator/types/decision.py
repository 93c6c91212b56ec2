"""What is done about a failure: the act a playbook asks for, and the attempts that bound it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.types.failure import FailureClass


class ActKind(str, Enum):
    """What a playbook may ask for."""

    NONE = "none"
    WAIT = "wait"
    RELAUNCH = "relaunch"  # as is
    RELAUNCH_WITH = "relaunch_with"  # with the changes of a ladder's rung
    CALL = "call"  # stop and call a person
    GIVE_UP = "give_up"  # the budget is spent

    @property
    def is_relaunch(self) -> bool:
        """Whether a new attempt comes of it, with changes or without."""
        return self in (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH)


class RemedyKind(str, Enum):
    """What is done to a run's files before a relaunch."""

    RESTORE_CACHE = "restore_cache"  # damaged or lost compile artifacts are put back
    PREVIOUS_CHECKPOINT = "previous_checkpoint"  # the newest one is set aside, never removed
    SKIP_BATCH = "skip_batch"  # the step that was being computed is left out


@dataclass(frozen=True)
class Remedy:
    """One remedy; `step` is that of the checkpoint to set aside, or the step to leave out."""

    kind: RemedyKind
    step: int | None = None

    @property
    def text(self) -> str:
        """What it does, for people."""
        if self.kind is RemedyKind.PREVIOUS_CHECKPOINT:
            return f"back to the checkpoint before step {self.step}"
        if self.kind is RemedyKind.SKIP_BATCH:
            return f"step {self.step} is left out"
        return "compile artifacts that are lost or damaged are put back"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What should happen and why. Nothing happens before `not_before` (UTC)."""

    kind: ActKind
    reason: str
    not_before: datetime | None = None
    changes: tuple[tuple[str, str], ...] = ()  # ordered (config key, value), of this rung
    env_changes: tuple[tuple[str, str], ...] = ()
    remedies: tuple[Remedy, ...] = ()
    rung: int | None = None
    attempts_left: int | None = None
    rule: str | None = None


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """What the record keeps of an ended attempt, for budgets and patterns."""

    attempt: int
    failure: FailureClass | None
    fingerprint: str | None
    started_at: datetime | None
    ended_at: datetime | None
    first_step: int | None
    last_step: int | None
    checkpoint_step: int | None
    rung: int | None = None
    by_watch: bool = True


@dataclass(frozen=True, kw_only=True)
class History:
    """The ended attempts of a run, oldest first."""

    attempts: tuple[PastAttempt, ...] = field(default=())
