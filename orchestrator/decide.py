"""Decide: a diagnosis, the playbook and the past give one decision. Pure; nothing happens here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator import ladder
from orchestrator.durations import format_duration
from orchestrator.ladder import Climbed, Facts
from orchestrator.ledger import Ledger, best, checkpoint, open_ledger, poison_step, story
from orchestrator.types.decision import ActKind, Decision, History, Remedy, RemedyKind
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import Heartbeat, Present

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.playbook import Playbook, Rule
    from orchestrator.types.decision import PastAttempt
    from orchestrator.types.snapshot import Snapshot

_IDLE: dict[RunState, tuple[ActKind, str]] = {
    RunState.NEW: (ActKind.NONE, "it has just been started"),
    RunState.HEALTHY: (ActKind.NONE, "it is alive"),
    RunState.UNSUPERVISED: (ActKind.NONE, "its trainer may be alive; an unsupervised run is never dead"),
    RunState.ENDING: (ActKind.NONE, "its trainer has ended, and how is not yet known"),
    RunState.FINISHED: (ActKind.NONE, "it is finished"),
    RunState.STOPPED: (ActKind.NONE, "its user stopped it"),
    RunState.BLIND: (ActKind.WAIT, "nothing can be seen, and that says nothing about the run"),
    RunState.CONTAINER_STOPPED: (ActKind.WAIT, "its container is stopped"),
    RunState.CONTAINER_FROZEN: (ActKind.WAIT, "its container is frozen"),
}
_BY_HAND = (
    "was begun by hand, so whoever began it says how it goes on; `dflashctl relaunch` starts the next one"
)
_NOTHING_KNOWN = Facts()


def decide(
    diagnosis: Diagnosis,
    playbook: Playbook,
    history: History,
    snapshot: Snapshot,
    now: datetime,
    jitter: float,
    facts: Facts = _NOTHING_KNOWN,
) -> Decision:
    """Return what should happen.

    `history` holds the run's ended attempts; one of the snapshot's own attempt gives its numbers only.
    `jitter` is a random number from -1 to 1, by which the wait moves within the playbook's share. `facts`
    say what a ladder's changes start from.
    """
    if diagnosis.state in _IDLE:
        kind, reason = _IDLE[diagnosis.state]
        return Decision(kind=kind, reason=reason)
    if snapshot.is_by_hand:
        return Decision(kind=ActKind.CALL, reason=f"attempt {snapshot.attempt} {_BY_HAND}")
    rule = playbook.rule_of(diagnosis)
    if not rule.act.is_relaunch:
        return Decision(kind=rule.act, reason=rule.why, rule=rule.key)
    ledger = open_ledger(history, snapshot)
    # A ladder changes what is done at that step, so that it comes to the same step proves nothing.
    stuck_at = None if rule.ladder else poison_step(ledger, snapshot.last_step)
    poison = playbook.rule(FailureClass.NO_PROGRESS)
    if stuck_at is not None and poison.act.is_relaunch:  # such as by leaving the step out
        rule = poison
    note = _resume_note(ledger, snapshot)
    climbed = ladder.climb(rule.ladder, ledger.rung(diagnosis.fingerprint), playbook.allow, facts)
    remedies, lacks = _remedies(rule, climbed, ledger, snapshot)
    refusal = _refuse(rule, playbook, ledger, diagnosis, snapshot, now) or _stuck(rule, climbed, lacks)
    if refusal is not None:
        kind, reason = refusal
        return Decision(kind=kind, reason=f"{reason}{note}", attempts_left=0, rule=rule.key)
    if stuck_at is not None and rule is not poison:
        reason = f"{_same_step(*stuck_at)}. {poison.why}{note}"
        return Decision(kind=poison.act, reason=reason, attempts_left=0, rule=poison.failure.value)
    return _relaunch(rule, playbook, ledger, diagnosis, now, jitter, climbed, remedies, note)


def _refuse(
    rule: Rule,
    playbook: Playbook,
    ledger: Ledger,
    diagnosis: Diagnosis,
    snapshot: Snapshot,
    now: datetime,
) -> tuple[ActKind, str] | None:
    """Return why a rule that relaunches does not, or None."""
    if rule.needs_progress and not _made_steps(snapshot):
        return ActKind.CALL, f"the attempt finished no step, so it would fail the same way again. {rule.why}"
    deaths = ledger.num_deaths(now, playbook.loop_window_s)
    if deaths >= playbook.loop_deaths:
        window = format_duration(playbook.loop_window_s)
        told = f"crash loop: {deaths} deaths within {window} without an advancing checkpoint"
        return ActKind.CALL, f"{told} ({story(ledger.chain)}; then this one)"
    today = ledger.num_today(now)
    if today >= playbook.max_attempts_per_day:
        return (
            ActKind.GIVE_UP,
            f"{today} attempts in 24 hours; the playbook allows {playbook.max_attempts_per_day}",
        )
    spent = ledger.num_spent(diagnosis.fingerprint)
    if spent >= rule.attempts:
        times = f"{spent} relaunch{'' if spent == 1 else 'es'}"
        told = f"{times} for this cause without an advancing checkpoint; the budget is spent"
        return rule.then, f"{told} ({story(ledger.chain)}; then this one)"
    return None


def _same_step(step: int, before: Sequence[PastAttempt]) -> str:
    return f"{len(before) + 1} attempts in a row ended at step {step} ({story(before)}; then this one)"


def _stuck(rule: Rule, climbed: Climbed, lacks: str) -> tuple[ActKind, str] | None:
    """Return why no rung is left, or a remedy lacks what it needs."""
    if rule.ladder and climbed.place is None:
        told = f"every rung of the ladder was tried ({len(rule.ladder)})"
        passed = f"no rung of the ladder is left ({len(rule.ladder)} in all): {'; '.join(climbed.passed)}"
        return rule.then, passed if climbed.passed else told
    return (ActKind.CALL, lacks) if lacks else None


def _remedies(
    rule: Rule, climbed: Climbed, ledger: Ledger, snapshot: Snapshot
) -> tuple[tuple[Remedy, ...], str]:
    """Return the remedies with their steps, and what one of them lacks."""
    kinds = (*rule.remedies, *(climbed.rung.remedies if climbed.rung is not None else ()))
    found: list[Remedy] = []
    for kind in dict.fromkeys(kinds):
        if kind is RemedyKind.RESTORE_CACHE:
            found.append(Remedy(kind))
            continue
        is_back = kind is RemedyKind.PREVIOUS_CHECKPOINT
        last = snapshot.last_step
        step = _newest(ledger, snapshot) if is_back else None if last is None else last + 1
        if step is None:
            lacks = "no checkpoint is known to go back from" if is_back else "no step is known to leave out"
            return (), f"{lacks}. {rule.why}"
        found.append(Remedy(kind, step))
    return tuple(found), ""


def _newest(ledger: Ledger, snapshot: Snapshot) -> int | None:
    """The newest checkpoint that was seen: heartbeat and disk are told of at their own times."""
    told = (checkpoint(snapshot), ledger.own.checkpoint_step if ledger.own is not None else None)
    return max((step for step in told if step is not None), default=None)


def _relaunch(
    rule: Rule,
    playbook: Playbook,
    ledger: Ledger,
    diagnosis: Diagnosis,
    now: datetime,
    jitter: float,
    climbed: Climbed,
    remedies: tuple[Remedy, ...],
    note: str,
) -> Decision:
    spent = ledger.num_spent(diagnosis.fingerprint)
    waits = rule.backoff_s or playbook.backoff_s
    wait_s = waits[min(ledger.num_failures, len(waits) - 1)]
    wait_s *= 1.0 + playbook.jitter * max(-1.0, min(1.0, jitter))
    if diagnosis.state is RunState.HUNG:  # it lives, and whoever was told may see what we do not
        wait_s = max(wait_s, playbook.grace_s)
    why = climbed.rung.why if climbed.rung is not None else rule.why
    count = f"relaunch {spent + 1} of {rule.attempts} for this cause"
    if uncounted := ledger.num_uncounted(diagnosis.fingerprint):
        count += f" (beside {uncounted} of which no step is known)"
    today = f"attempt {ledger.num_today(now) + 1} of at most {playbook.max_attempts_per_day} in 24 hours"
    done = _told(climbed.changes, climbed.env, remedies)
    return Decision(
        kind=rule.act,
        reason=f"{count}, {today}, in {format_duration(wait_s)}. {why}{done}{_and(climbed.passed)}{note}",
        not_before=now + timedelta(seconds=wait_s),
        changes=climbed.changes,
        env_changes=climbed.env,
        remedies=remedies,
        rung=climbed.place,
        attempts_left=rule.attempts - spent - 1,
        rule=rule.key,
    )


def _told(
    changes: Iterable[tuple[str, str]], env: Iterable[tuple[str, str]], remedies: Iterable[Remedy]
) -> str:
    parts = [f"{key}={value}" for key, value in (*changes, *env)] + [each.text for each in remedies]
    return f" With: {', '.join(parts)}." if parts else ""


def _and(passed: tuple[str, ...]) -> str:
    return f" ({'; '.join(passed)}.)" if passed else ""


def _heartbeat(snapshot: Snapshot) -> Heartbeat | None:
    return snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None


def _made_steps(snapshot: Snapshot) -> bool:
    heartbeat = _heartbeat(snapshot)
    began = heartbeat.resumed_from_step if heartbeat is not None else None
    return (snapshot.last_step or 0) > (began or 0)


def _resume_note(ledger: Ledger, snapshot: Snapshot) -> str:
    heartbeat = _heartbeat(snapshot)
    known = best(ledger.all)
    if heartbeat is None or known == 0 or (heartbeat.resumed_from_step or 0) >= known:
        return ""
    began = heartbeat.resumed_from_step
    at = f"resumed at step {began}" if began is not None else "began at step 0"
    return f" Note: attempt {snapshot.attempt} {at}, although a checkpoint of step {known} had been seen."
