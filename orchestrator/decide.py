"""Decide: a diagnosis, the playbook and the past give one decision. Pure; nothing happens here.

A budget belongs to a fingerprint and is refilled only by an advancing checkpoint step. An attempt whose
progress is unknown neither refills nor spends it; the crash loop and the daily ceiling bound those.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator.durations import format_duration
from orchestrator.types import (
    ActKind,
    Decision,
    Diagnosis,
    FailureClass,
    Heartbeat,
    History,
    PastAttempt,
    Present,
    RunState,
    Snapshot,
)

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook, Rule, Rung

_IDLE: dict[RunState, tuple[ActKind, str]] = {
    RunState.NEW: (ActKind.NONE, "it has just been started"),
    RunState.HEALTHY: (ActKind.NONE, "it is alive"),
    RunState.UNSUPERVISED: (ActKind.NONE, "its trainer may be alive; an unsupervised run is never dead"),
    RunState.FINISHED: (ActKind.NONE, "it is finished"),
    RunState.STOPPED: (ActKind.NONE, "its user stopped it"),
    RunState.BLIND: (ActKind.WAIT, "nothing can be seen, and that says nothing about the run"),
    RunState.CONTAINER_STOPPED: (ActKind.WAIT, "its container is stopped"),
    RunState.CONTAINER_FROZEN: (ActKind.WAIT, "its container is frozen"),
}
_NO_DEATHS = (FailureClass.KILLED_BY_USER, FailureClass.COMPLETED, FailureClass.HEALTHY)


@dataclass(frozen=True, kw_only=True)
class _Ledger:
    """The past attempts that count against a budget."""

    chain: tuple[PastAttempt, ...]  # since a checkpoint last advanced, the attempt that advanced it included
    all: tuple[PastAttempt, ...]  # since a person last launched it

    @property
    def num_failures(self) -> int:
        """Failures in a row without progress before this one."""
        return len(self.chain)

    def num_spent(self, fingerprint: str | None) -> int:
        """Relaunches already spent on `fingerprint`."""
        return sum(1 for a in self.chain if a.fingerprint == fingerprint and _is_known(a))

    def rung(self, fingerprint: str | None) -> int:
        """The ladder's next rung: changes made stay made, so progress does not climb down."""
        return sum(1 for a in self.all if a.fingerprint == fingerprint)


def decide(
    diagnosis: Diagnosis,
    playbook: Playbook,
    history: History,
    snapshot: Snapshot,
    now: datetime,
    jitter: float,
) -> Decision:
    """Return what should happen.

    `history` holds the run's ended attempts; one of the snapshot's own attempt gives its numbers only.
    `jitter` is a random number from -1 to 1, by which the wait moves within the playbook's share.
    """
    if diagnosis.state in _IDLE:
        kind, reason = _IDLE[diagnosis.state]
        return Decision(kind=kind, reason=reason)
    rule = playbook.rule(diagnosis.failure or FailureClass.UNKNOWN)
    name = rule.failure.value
    if rule.act not in (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH):
        return Decision(kind=rule.act, reason=rule.why, rule=name)
    ledger = _open_ledger(history, snapshot)
    note = _resume_note(ledger, snapshot)
    refusal = _refuse(rule, playbook, ledger, diagnosis, snapshot, now)
    if refusal is not None:
        kind, reason = refusal
        return Decision(kind=kind, reason=f"{reason}{note}", attempts_left=0, rule=name)
    return _relaunch(rule, playbook, ledger, diagnosis, now, jitter, note)


def _refuse(
    rule: Rule, playbook: Playbook, ledger: _Ledger, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime
) -> tuple[ActKind, str] | None:
    """Return why a rule that relaunches does not, or None."""
    if rule.needs_progress and not _made_steps(snapshot):
        return ActKind.CALL, f"the attempt finished no step, so it would fail the same way again. {rule.why}"
    since = now - timedelta(seconds=playbook.loop_window_s)
    deaths = 1 + sum(1 for a in ledger.chain if a.ended_at is not None and a.ended_at >= since)
    if deaths >= playbook.loop_deaths:
        window = format_duration(playbook.loop_window_s)
        return ActKind.CALL, f"crash loop: {deaths} deaths within {window} without an advancing checkpoint"
    day = now - timedelta(days=1)
    launched = sum(1 for a in ledger.all if (a.started_at or a.ended_at or now) >= day)
    if launched >= playbook.max_attempts_per_day:
        return (
            ActKind.GIVE_UP,
            f"{launched} attempts in 24 hours; the playbook allows {playbook.max_attempts_per_day}",
        )
    spent = ledger.num_spent(diagnosis.fingerprint)
    if spent >= rule.attempts:
        times = f"{spent} relaunch{'' if spent == 1 else 'es'}"
        return ActKind.GIVE_UP, f"{times} for this cause without an advancing checkpoint; the budget is spent"
    if rule.ladder and ledger.rung(diagnosis.fingerprint) >= len(rule.ladder):
        return ActKind.GIVE_UP, f"every rung of the ladder was tried ({len(rule.ladder)})"
    return None


def _relaunch(
    rule: Rule,
    playbook: Playbook,
    ledger: _Ledger,
    diagnosis: Diagnosis,
    now: datetime,
    jitter: float,
    note: str,
) -> Decision:
    spent = ledger.num_spent(diagnosis.fingerprint)
    waits = rule.backoff_s or playbook.backoff_s
    wait_s = waits[min(ledger.num_failures, len(waits) - 1)]
    wait_s *= 1.0 + playbook.jitter * max(-1.0, min(1.0, jitter))
    place = ledger.rung(diagnosis.fingerprint) if rule.ladder else None
    rung: Rung | None = rule.ladder[place] if place is not None else None
    why = rung.why if rung is not None else rule.why
    count = f"relaunch {spent + 1} of {rule.attempts}"
    return Decision(
        kind=rule.act,
        reason=f"{count} for this cause, in {format_duration(wait_s)}. {why}{note}",
        not_before=now + timedelta(seconds=wait_s),
        changes=rung.changes if rung is not None else (),
        env_changes=rung.env if rung is not None else (),
        rung=place,
        attempts_left=rule.attempts - spent - 1,
        rule=rule.failure.value,
    )


def _open_ledger(history: History, snapshot: Snapshot) -> _Ledger:
    """Return the attempts that count against a budget.

    A person who launched an attempt took the run into their hands: what came before it is theirs, too.
    """
    past = [a for a in history.attempts if a.attempt < snapshot.attempt and a.failure not in _NO_DEATHS]
    own = next((a for a in history.attempts if a.attempt == snapshot.attempt), None)
    by_hand = next((i for i in range(len(past) - 1, -1, -1) if not past[i].by_watch), 0)
    mine = [] if own is not None and not own.by_watch else past[by_hand:]
    start, best = 0, _best(past[:by_hand])
    for place, attempt in enumerate(mine):
        if attempt.checkpoint_step is not None and attempt.checkpoint_step > best:
            start, best = place, attempt.checkpoint_step
    step = _checkpoint(snapshot, own)
    has_advanced = step is not None and step > max(best, _best(past))
    chain = [] if has_advanced else mine[start:]
    return _Ledger(chain=tuple(chain), all=tuple(mine))


def _best(attempts: list[PastAttempt]) -> int:
    return max((a.checkpoint_step for a in attempts if a.checkpoint_step is not None), default=0)


def _checkpoint(snapshot: Snapshot, own: PastAttempt | None) -> int | None:
    heartbeat = _heartbeat(snapshot)
    if heartbeat is not None and heartbeat.checkpoint_step is not None:
        return heartbeat.checkpoint_step
    return own.checkpoint_step if own is not None else None


def _is_known(attempt: PastAttempt) -> bool:
    """A step or a checkpoint was seen, so a checkpoint that did not advance is a fact."""
    return attempt.checkpoint_step is not None or attempt.last_step is not None


def _heartbeat(snapshot: Snapshot) -> Heartbeat | None:
    return snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None


def _made_steps(snapshot: Snapshot) -> bool:
    heartbeat = _heartbeat(snapshot)
    began = heartbeat.resumed_from_step if heartbeat is not None else None
    return (snapshot.last_step or 0) > (began or 0)


def _resume_note(ledger: _Ledger, snapshot: Snapshot) -> str:
    heartbeat = _heartbeat(snapshot)
    known = _best(list(ledger.all))
    if heartbeat is None or known == 0 or (heartbeat.resumed_from_step or 0) >= known:
        return ""
    began = heartbeat.resumed_from_step
    at = f"resumed at step {began}" if began is not None else "began at step 0"
    return f" Note: attempt {snapshot.attempt} {at}, although a checkpoint of step {known} had been seen."
