"""What the record answers: frozen values, safe to hand to another thread. All times are aware UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, RunState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run at a target. `state` is the last one diagnosed; `target_key` names host and container."""

    id: int
    name: str
    target_key: str
    target: Mapping[str, Any]
    spec: Mapping[str, Any]
    playbook: str | None
    created_at: datetime
    state: RunState
    removed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One launch. `changes` is this rung's (config key -> value), in order; `by` is "user" or "watch".

    `spec` is its run.json and `environment` its environment.json, None where no watch saw them.
    """

    run_id: int
    n: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    failure: FailureClass | None = None
    fingerprint: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    checkpoint_step: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    rung: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    by: str | None = None
    session: str | None = None
    spec: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """The end of the attempt was written down."""
        return self.ended_at is not None


@dataclass(frozen=True, kw_only=True)
class DiagnosisRow:
    """A diagnosis as it was reported, with its evidence."""

    id: int
    run_id: int
    attempt: int
    at: datetime
    state: RunState
    failure: FailureClass | None
    summary: str
    confidence: float
    fingerprint: str | None
    evidence: tuple[Evidence, ...] = ()
    cascades: tuple[Evidence, ...] = ()
    warnings: tuple[Evidence, ...] = ()

    @property
    def diagnosis(self) -> Diagnosis:
        """The same as the classifier's own value."""
        return Diagnosis(
            state=self.state,
            failure=self.failure,
            summary=self.summary,
            evidence=self.evidence,
            cascades=self.cascades,
            warnings=self.warnings,
            confidence=self.confidence,
            fingerprint=self.fingerprint,
        )


@dataclass(frozen=True, kw_only=True)
class ActionRow:
    """An act. Without `outcome_at` it was intended, and nobody wrote down how it went."""

    id: int
    run_id: int
    attempt: int
    kind: str
    reason: str
    intent: Mapping[str, Any]
    intent_at: datetime
    outcome: str | None = None
    outcome_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """One line of a run's story.

    `kind` is `started`, `ended`, `transition`, `diagnosis`, `action` or `outcome`. `run` is the run's name.
    `key` is unique and stable, so that who asks again with an overlapping `since` can drop what it has seen.
    """

    at: datetime
    run: str
    attempt: int
    kind: str
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """A line of metrics.jsonl that was kept. `step_s` in seconds, `acceptance_length` in tokens."""

    run_id: int
    attempt: int
    kind: str
    step: int
    at: datetime
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuRow:
    """A GPU reading that was kept."""

    run_id: int
    attempt: int
    at: datetime
    index: int
    memory_used_bytes: int | None = None
    utilization_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """How far an attempt's files were processed, in bytes."""

    log_offset: int = 0
    metrics_offset: int = 0
