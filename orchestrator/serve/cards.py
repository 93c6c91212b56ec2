"""A card, an event and the fleet's health as the API has them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.classify.titles import title
from orchestrator.serve.texts import detail, finite, line, moment, optional, settings, text

if TYPE_CHECKING:
    from orchestrator.fleet import GpuCard, NextAct, RunCard, Told
    from orchestrator.fleet.health import Health
    from orchestrator.types.failure import FailureClass

# A look alone is told so rarely: less than the time after which a card counts as stale.
LOOK_TOLD_EVERY_S = 4.0
_PROGRESS = (
    "summary",  # of a run that lives it tells the step
    "step",
    "loss",
    "tokens_per_s",
    "step_s",
    "checkpoint_step",
    "looked_at",
    "moved_at",
    "clock_skew_s",
    "gpus",
)


def run_body(card: RunCard) -> dict[str, Any]:
    """Return the fields of `models.Run`."""
    return {
        "id": card.id,
        "name": line(card.name),
        "target": line(card.target),
        "state": card.state.value,
        "summary": text(card.summary),
        "failure": card.failure.value if card.failure is not None else None,
        "failure_title": titled(card.failure),
        "attempt": card.attempt,
        "phase": card.phase,
        "step": card.step,
        "total_steps": card.total_steps,
        "loss": finite(card.loss),
        "tokens_per_s": finite(card.tokens_per_s),
        "step_s": finite(card.step_s),
        "eta_s": finite(card.eta_s),
        "checkpoint_step": card.checkpoint_step,
        "started_at": moment(card.started_at),
        "looked_at": moment(card.looked_at),
        "known_at": moment(card.known_at),
        "moved_at": moment(card.moved_at),
        "is_overdue": card.looked_at is not None and card.is_overdue(card.looked_at),
        "kind": line(card.kind),
        "clock_skew_s": finite(card.clock_skew_s),
        "blind": optional(card.blind),
        "next_act": _next_act(card.next_act) if card.next_act is not None else None,
        "is_acting": card.is_acting,
        "is_busy": card.is_busy,
        "has_ended": card.has_ended,
        "remark": text(card.remark),
        "holders": text(card.holders),
        "gpus": [_gpu(each) for each in card.gpus],
        "gpu_problem": optional(card.gpu_problem),
    }


def titled(failure: FailureClass | None) -> str | None:
    """Return a failure class in a person's words."""
    return title(failure) if failure is not None else None


def _next_act(act: NextAct) -> dict[str, Any]:
    return {
        "kind": act.kind.value,
        "reason": text(act.reason),
        "rule": act.rule,
        "attempts_left": act.attempts_left,
        "due_at": moment(act.due_at),
        "changes": settings(act.changes),
    }


def _gpu(card: GpuCard) -> dict[str, Any]:
    gpu = card.gpu
    return {
        "index": gpu.index,
        "name": line(gpu.name) if gpu.name is not None else None,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "utilization_pct": finite(gpu.utilization_pct),
        "power_w": finite(gpu.power_w),
        "temperature_c": finite(gpu.temperature_c),
        "pids": list(gpu.pids),
        "problem": optional(gpu.problem),
        "is_own": card.is_own,
    }


def told_body(told: Told, run_id: int | None) -> dict[str, Any]:
    """Return the fields of `models.Told`."""
    event = told.event
    return {
        "seq": told.seq,
        "kind": event.kind,
        "level": event.level.value,
        "at": moment(event.at),
        "run_id": run_id,
        "run": line(event.run),
        "target": line(event.target),
        "attempt": event.attempt,
        "text": text(event.text),
        "detail": detail(dict(event.detail)),
    }


def health_body(health: Health) -> dict[str, Any]:
    """Return the fields of `models.Health`."""
    return {"is_well": health.is_well, "why": [text(each) for each in health.why]}


def is_news(before: RunCard, now: RunCard, *, is_due: bool = True) -> bool:
    """Whether a card says something new; that it was looked at again counts seldom.

    Not `is_due`: progress alone (steps, rates, GPU readings) waits.
    """
    if before == now:
        return False
    if not is_due:
        return replace(now, **{name: getattr(before, name) for name in _PROGRESS}) != before
    if before.looked_at is None or now.looked_at is None:
        return True
    looked_later_s = (now.looked_at - before.looked_at).total_seconds()
    if not 0 <= looked_later_s < LOOK_TOLD_EVERY_S:
        return True
    return replace(before, looked_at=now.looked_at) != now
