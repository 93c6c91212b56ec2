"""Between the tables and the frozen rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.masking import Masker
from orchestrator.record.rows import ActionRow, AttemptRow, DiagnosisRow, GpuRow, RunRow
from orchestrator.types.decision import PastAttempt
from orchestrator.types.failure import Evidence, FailureClass, Role, RunState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.record.models import (
        Action,
        Attempt,
        DiagnosisEntry,
        EvidenceLine,
        GpuSample,
        Run,
    )

MAX_TEXT = 8_000
_SHAPES = Masker()


def storable(text: str, limit: int = MAX_TEXT) -> str:
    """Return text that SQLite can hold: no lone surrogates, not over `limit` characters, no token."""
    text = _SHAPES.text(text.encode("utf-8", "replace").decode("utf-8"))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def without_env(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return plain JSON data in which every mapping under a key "env" is reduced to its names.

    Values of environment variables may be secrets, and never enter the record.
    """
    if isinstance(value, Mapping):
        kept = {str(key): without_env(item) for key, item in value.items() if key != "env"}
        env = value.get("env")
        if env is not None:
            names = {str(name) for name in env} if isinstance(env, Mapping) else set()
            kept["env_names"] = sorted(names | set(kept.get("env_names") or ()))
        return kept
    if isinstance(value, (list, tuple)):
        return [without_env(item) for item in value]
    return value


def to_state(word: str) -> RunState:
    """Return the state; BLIND for a word of a newer program, which says nothing to this one."""
    try:
        return RunState(word)
    except ValueError:
        return RunState.BLIND


def to_failure(word: str | None) -> FailureClass | None:
    """Return the failure class; UNKNOWN for a word of a newer program."""
    if word is None:
        return None
    try:
        return FailureClass(word)
    except ValueError:
        return FailureClass.UNKNOWN


def to_run(run: Run) -> RunRow:
    """Freeze a run."""
    return RunRow(
        id=run.id,
        name=run.name,
        target_key=run.target_key,
        target=run.target,
        spec=run.spec,
        playbook=run.playbook,
        created_at=run.created_at,
        state=to_state(run.state),
        removed_at=run.removed_at,
    )


def to_attempt(attempt: Attempt) -> AttemptRow:
    """Freeze an attempt."""
    return AttemptRow(
        run_id=attempt.run_id,
        n=attempt.n,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        failure=to_failure(attempt.failure),
        fingerprint=attempt.fingerprint,
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        checkpoint_step=attempt.checkpoint_step,
        exit_code=attempt.exit_code,
        exit_signal=attempt.exit_signal,
        rung=attempt.rung,
        changes=attempt.changes,
        by=attempt.by,
        session=attempt.session,
        spec=attempt.spec,
        environment=attempt.environment,
    )


def to_past(attempt: Attempt) -> PastAttempt:
    """Return what budgets and patterns need of an ended attempt."""
    return PastAttempt(
        attempt=attempt.n,
        failure=to_failure(attempt.failure),
        fingerprint=attempt.fingerprint,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        checkpoint_step=attempt.checkpoint_step,
        rung=attempt.rung,
        by_watch=attempt.by == "watch",
    )


def to_evidence(line: EvidenceLine) -> Evidence:
    """Freeze a line of evidence."""
    role = Role(line.role) if line.role in {role.value for role in Role} else Role.CONFIRMATION
    return Evidence(
        source=line.source,
        text=line.text,
        role=role,
        signature=line.signature,
        offset=line.offset,
        rank=line.rank,
    )


def to_diagnosis(entry: DiagnosisEntry, lines: Iterable[EvidenceLine]) -> DiagnosisRow:
    """Freeze a diagnosis with its lines, which are in their order."""
    parts: dict[str, list[Evidence]] = {"evidence": [], "cascades": [], "warnings": []}
    for line in lines:
        parts.setdefault(line.part, []).append(to_evidence(line))
    return DiagnosisRow(
        id=entry.id,
        run_id=entry.run_id,
        attempt=entry.attempt,
        at=entry.at,
        state=to_state(entry.state),
        failure=to_failure(entry.failure),
        summary=entry.summary,
        confidence=entry.confidence,
        fingerprint=entry.fingerprint,
        evidence=tuple(parts["evidence"]),
        cascades=tuple(parts["cascades"]),
        warnings=tuple(parts["warnings"]),
    )


def to_action(action: Action) -> ActionRow:
    """Freeze an action."""
    return ActionRow(
        id=action.id,
        run_id=action.run_id,
        attempt=action.attempt,
        kind=action.kind,
        reason=action.reason,
        intent=action.intent,
        intent_at=action.intent_at,
        outcome=action.outcome,
        outcome_at=action.outcome_at,
        error=action.error,
    )


def to_gpu(sample: GpuSample) -> GpuRow:
    """Freeze a GPU sample."""
    return GpuRow(
        run_id=sample.run_id,
        attempt=sample.attempt,
        at=sample.at,
        index=sample.gpu_index,
        memory_used_bytes=sample.memory_used_bytes,
        utilization_pct=sample.utilization_pct,
        power_w=sample.power_w,
        temperature_c=sample.temperature_c,
    )
