"""What is shown of a run at one instant, as frozen values that any thread may read. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.observe import NOT_LOOKED
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Blind, Gpu, Heartbeat, Present

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.observe.attempt import AttemptView
    from orchestrator.types.failure import FailureClass
    from orchestrator.types.seen import Liveness, Reading
    from orchestrator.watch.runwatch import RunWatch

OVERDUE_S = (
    30.0  # without a new step, and at least so many steps' time; with no time of a step known UNTIMED_S
)
OVERDUE_STEPS = 10
UNTIMED_S = 120.0
STALE_S = 10.0  # a guest that is there says something every few seconds


@dataclass(frozen=True, kw_only=True)
class NextAct:
    """What the playbook has decided. `due_at` by the near clock; None: now, or never by itself."""

    kind: ActKind
    reason: str
    rule: str | None
    attempts_left: int | None
    due_at: datetime | None
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuCard:
    """One GPU as the run's container sees it. `is_own`: the run may use it."""

    gpu: Gpu
    is_own: bool


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """One run now. Times are aware UTC by the near clock; rates in tokens/s and seconds a step.

    `state` is NEW until something was seen, `blind` says why nothing is seen now. `is_acting`: the watch may
    act on it. `remark` is what a person should know that is no state: a disk that fills, a playbook that
    cannot be used. `known_at`: nothing was seen by this watch, and this is what the record knew at that time.
    `moved_at`: when a new step or phase was last seen. `kind`: of the run's spec, "trainer" or "command".
    """

    id: int
    name: str
    target: str
    state: RunState
    summary: str = ""
    failure: FailureClass | None = None
    attempt: int | None = None
    phase: str | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    checkpoint_step: int | None = None
    started_at: datetime | None = None
    looked_at: datetime | None = None
    known_at: datetime | None = None
    moved_at: datetime | None = None
    kind: str = "trainer"
    clock_skew_s: float = 0.0
    blind: str | None = None
    next_act: NextAct | None = None
    is_acting: bool = False
    is_busy: bool = False
    has_ended: bool = False
    remark: str = ""
    holders: str = ""
    gpus: tuple[GpuCard, ...] = ()
    gpu_problem: str | None = None

    @property
    def eta_s(self) -> float | None:
        """The seconds to the last step at the present speed; None where that is not known or stands still."""
        if self.step is None or not self.total_steps or not self.step_s or self.state is not RunState.HEALTHY:
            return None
        if self.looked_at is not None and self.is_overdue(self.looked_at):
            return None
        return max(0, self.total_steps - self.step) * self.step_s

    def age_s(self, now: datetime) -> float | None:
        """How long ago the last good look was; never negative, though a clock was set back."""
        return max(0.0, (now - self.looked_at).total_seconds()) if self.looked_at is not None else None

    def is_overdue(self, now: datetime) -> bool:
        """Whether a run in training took far longer for its next step than its steps took."""
        is_living = self.state is RunState.HEALTHY and not self.has_ended
        if not is_living or self.phase != "train" or self.moved_at is None:
            return False
        limit_s = max(OVERDUE_S, OVERDUE_STEPS * self.step_s) if self.step_s else UNTIMED_S
        return (now - self.moved_at).total_seconds() > limit_s

    def is_stale(self, now: datetime) -> bool:
        """Whether what is shown may be of the past."""
        age_s = self.age_s(now)
        return self.blind is not None or (age_s is not None and age_s > STALE_S and not self.has_ended)


def card_of(run: RunWatch, *, remark: str = "") -> RunCard:
    """Return what a watch knows of its run."""
    tracker, view, diagnosis = run.tracker, run.tracker.view, run.diagnosis
    beat = view.heartbeat.value if view is not None and isinstance(view.heartbeat, Present) else None
    forecast = run.notices.forecast
    gpus = tracker.gpus
    card = RunCard(
        id=run.row.id,
        name=run.row.name,
        target=run.row.target_key,
        state=diagnosis.state if diagnosis is not None else RunState.NEW,
        summary=diagnosis.summary if diagnosis is not None else "",
        failure=diagnosis.failure if diagnosis is not None else None,
        attempt=view.number if view is not None else None,
        phase=beat.phase.value if beat is not None else None,
        step=_step(run, beat),
        total_steps=beat.total_steps if beat is not None else None,
        loss=beat.loss if beat is not None else None,
        tokens_per_s=beat.tokens_per_s if beat is not None else None,
        step_s=tracker.median_step_s or (beat.step_s if beat is not None else None),
        checkpoint_step=tracker.checkpoint_step,
        started_at=_near(view.began_at, tracker.clock_skew_s) if view is not None else None,
        looked_at=tracker.looked_at,
        moved_at=_moved_at(view) if view is not None else None,
        kind=str(run.row.spec.get("kind") or "trainer"),
        clock_skew_s=tracker.clock_skew_s,
        blind=_blind(tracker.liveness),
        next_act=_next_act(run),
        is_acting=run.acting,
        is_busy=run.busy,
        has_ended=run.ended is not None,
        remark=remark or (forecast.short if forecast is not None else ""),
        holders=run.holders,
        gpus=_gpus(gpus.value, tracker.own_gpus) if isinstance(gpus, Present) else (),
        gpu_problem=gpus.reason if isinstance(gpus, Blind) else None,
    )
    is_still = card.looked_at is not None and card.is_overdue(card.looked_at)
    return replace(card, tokens_per_s=None) if is_still else card


def _moved_at(view: AttemptView) -> datetime | None:
    told = (view.heartbeat_seen_at, view.step_seen_at)
    return max((at for at in told if at is not None), default=None)


def _step(run: RunWatch, beat: Heartbeat | None) -> int | None:
    """A heartbeat is thinned; a command of the user's own tells its steps by its log alone."""
    if beat is not None:
        return beat.step
    return run.tracker.view.log_reading().last_step if run.tracker.view is not None else None


def _blind(liveness: Reading[Liveness]) -> str | None:
    """That nobody has looked yet, as after each start, is no blindness: what is new is shown as new."""
    return liveness.reason if isinstance(liveness, Blind) and liveness != NOT_LOOKED else None


def _near(at: datetime | None, clock_skew_s: float) -> datetime | None:
    """A time of the container's clock by the near one."""
    return at - timedelta(seconds=clock_skew_s) if at is not None else None


def _next_act(run: RunWatch) -> NextAct | None:
    decision = run.decision
    if decision is None or decision.kind is ActKind.NONE:
        return None
    return NextAct(
        kind=decision.kind,
        reason=decision.reason,
        rule=decision.rule,
        attempts_left=decision.attempts_left,
        due_at=decision.not_before,
        changes=(*decision.changes, *decision.env_changes),
    )


def _gpus(seen: tuple[Gpu, ...], own: frozenset[int] | None) -> tuple[GpuCard, ...]:
    return tuple(GpuCard(gpu=gpu, is_own=own is None or gpu.index in own) for gpu in seen)
