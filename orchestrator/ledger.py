"""What of a run's past counts against its budgets. Pure.

A budget belongs to a fingerprint and is refilled only by an advancing checkpoint step. An attempt whose
progress is unknown neither refills nor spends it; the crash loop and the daily ceiling bound those.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.types.decision import History, PastAttempt
    from orchestrator.types.snapshot import Snapshot

_NO_DEATHS = (FailureClass.KILLED_BY_USER, FailureClass.COMPLETED, FailureClass.HEALTHY)
# Ends that come from outside say nothing about the step they fell on.
_FROM_OUTSIDE = (
    *(FailureClass.CONTAINER_RESTARTED, FailureClass.CONTAINER_STOPPED, FailureClass.CONTAINER_FROZEN),
    *(FailureClass.HOST_REBOOTED, FailureClass.INTERRUPTED),
)
SAME_STEP_DEATHS = 3
_DAY = timedelta(days=1)
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The past attempts that count against a budget."""

    chain: tuple[PastAttempt, ...]  # since a checkpoint last advanced, the attempt that advanced it included
    all: tuple[PastAttempt, ...]  # since a person last launched it
    own: PastAttempt | None = None  # the attempt that is decided about, as far as it is on record
    own_started_at: datetime | None = None

    @property
    def num_failures(self) -> int:
        """Failures in a row without progress before this one."""
        return len(self.chain)

    def num_spent(self, fingerprint: str | None) -> int:
        """Relaunches already spent on `fingerprint`."""
        return sum(1 for a in self.chain if a.fingerprint == fingerprint and is_known(a))

    def num_uncounted(self, fingerprint: str | None) -> int:
        """Relaunches for `fingerprint` that spent nothing, for nobody knows how far their attempts came."""
        return sum(1 for a in self.chain if a.fingerprint == fingerprint and not is_known(a))

    def rung(self, fingerprint: str | None) -> int:
        """The ladder's next rung: changes made stay made, so progress does not climb down.

        A death takes a rung at least; where rungs were passed over, the next attempt's tells how far it went.
        """
        followers = (*self.all[1:], self.own)
        pairs = list(zip(self.all, followers, strict=True)) if self.all else []
        climbed = [b.rung + 1 for a, b in pairs if a.fingerprint == fingerprint and b and b.rung is not None]
        return max([sum(1 for a in self.all if a.fingerprint == fingerprint), *climbed])

    def num_today(self, now: datetime) -> int:
        """Attempts started in the last 24 hours, the one that is decided about included."""
        begun = [a.started_at or a.ended_at or now for a in self.all]
        return sum(1 for at in (*begun, self.own_started_at or now) if at >= now - _DAY)

    def num_deaths(self, now: datetime, window_s: float) -> int:
        """Deaths in the window without an advancing checkpoint, this one included."""
        since = now - timedelta(seconds=window_s)
        return 1 + sum(1 for a in self.chain if a.ended_at is not None and a.ended_at >= since)


def open_ledger(history: History, snapshot: Snapshot) -> Ledger:
    """Return the attempts that count against a budget.

    A person who launched an attempt took the run into their hands: what came before it is theirs, too.
    """
    past = [a for a in history.attempts if a.attempt < snapshot.attempt and a.failure not in _NO_DEATHS]
    own = next((a for a in history.attempts if a.attempt == snapshot.attempt), None)
    by_hand = next((i for i in range(len(past) - 1, -1, -1) if not past[i].by_watch), 0)
    mine = [] if own is not None and not own.by_watch else past[by_hand:]
    start, top = 0, best(past[:by_hand])
    for place, attempt in enumerate(mine):
        if attempt.checkpoint_step is not None and attempt.checkpoint_step > top:
            start, top = place, attempt.checkpoint_step
    step = checkpoint(snapshot, own)
    has_advanced = step is not None and step > max(top, best(past))
    chain = [] if has_advanced else mine[start:]
    began = snapshot.started_at or (own.started_at if own is not None else None)
    return Ledger(chain=tuple(chain), all=tuple(mine), own=own, own_started_at=began)


def best(attempts: Iterable[PastAttempt]) -> int:
    """The furthest checkpoint that any of them had; 0 if none."""
    return max((a.checkpoint_step for a in attempts if a.checkpoint_step is not None), default=0)


def checkpoint(snapshot: Snapshot, own: PastAttempt | None = None) -> int | None:
    """The newest checkpoint that is known now."""
    if isinstance(snapshot.heartbeat, Present) and snapshot.heartbeat.value.checkpoint_step is not None:
        return snapshot.heartbeat.value.checkpoint_step
    return own.checkpoint_step if own is not None else None


def poison_step(ledger: Ledger, last_step: int | None) -> tuple[int, tuple[PastAttempt, ...]] | None:
    """Return the step at which attempt after attempt ends, and those before this one; None if there is none.

    `last_step` is of the attempt that is decided about. Only attempts that made steps count: one that dies
    before its first says nothing about a step.
    """
    if last_step is None:
        return None
    same: list[PastAttempt] = []
    for attempt in reversed(ledger.all):
        is_here = attempt.last_step == last_step and (attempt.first_step or 0) < last_step
        if not is_here or attempt.failure in _FROM_OUTSIDE:
            break
        same.append(attempt)
    return (last_step, tuple(reversed(same))) if len(same) >= SAME_STEP_DEATHS - 1 else None


def is_known(attempt: PastAttempt) -> bool:
    """A step or a checkpoint was seen, so a checkpoint that did not advance is a fact."""
    return attempt.checkpoint_step is not None or attempt.last_step is not None


def story(attempts: Iterable[PastAttempt]) -> str:
    """Return how each ended, the newest last, equal ones in a row together."""
    told = [(a.attempt, _end(a)) for a in attempts]
    lines = []
    for how, group in groupby(told, key=lambda item: item[1]):
        numbers = [number for number, _ in group]
        which = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        lines.append(f"attempt{'s' if len(numbers) > 1 else ''} {which}: {how}")
    left_out = ["..."] if len(lines) > _SHOWN else []
    return "; ".join([*left_out, *lines[-_SHOWN:]])


def _end(attempt: PastAttempt) -> str:
    name = attempt.failure.value if attempt.failure is not None else "ended"
    return name if attempt.last_step is None else f"{name} at step {attempt.last_step}"
