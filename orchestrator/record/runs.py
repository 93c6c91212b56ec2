"""Runs and their attempts, inside a transaction that the caller opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from sqlalchemy import delete, select

from orchestrator.errors import ConfigError, NotFound
from orchestrator.record.convert import storable, without_env
from orchestrator.record.models import Attempt, CursorEntry, GpuSample, MetricSample, Run
from orchestrator.types.failure import FailureClass, RunState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy.orm import Session

GPU_INTERVAL_S = 10.0


class AttemptFields(TypedDict, total=False):
    """What may be said of an attempt; a field that is not given keeps its value."""

    started_at: datetime | None
    ended_at: datetime | None
    failure: FailureClass | None
    fingerprint: str | None
    first_step: int | None
    last_step: int | None
    checkpoint_step: int | None
    exit_code: int | None
    exit_signal: int | None
    rung: int | None
    changes: Mapping[str, Any]
    by: str | None
    session: str | None
    spec: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None


def save(
    session: Session,
    name: str,
    target: Mapping[str, Any],
    target_key: str,
    spec: Mapping[str, Any],
    now: datetime,
    playbook: str | None,
) -> Run:
    """Insert the run, or update the live one of this name at this target."""
    run = session.scalar(
        select(Run).where(Run.name == name, Run.target_key == target_key, Run.removed_at.is_(None))
    )
    if run is None:
        run = Run(
            name=name,
            target_key=target_key,
            created_at=now,
            state=RunState.NEW.value,
            gpu_interval_s=GPU_INTERVAL_S,
        )
        session.add(run)
    run.target = without_env(target)
    run.spec = without_env(spec)
    run.playbook = playbook if playbook is not None else run.playbook
    session.flush()
    return run


def find(session: Session, name: str, target_key: str | None, path: Path) -> Run:
    """Return the live run of this name.

    Raises:
        NotFound: There is none; tells which there are.
        ConfigError: Several targets have one.
    """
    runs = session.scalars(select(Run).order_by(Run.id)).all()
    found = [
        run
        for run in runs
        if run.name == name and run.removed_at is None and target_key in {None, run.target_key}
    ]
    if not found:
        raise NotFound(_missing(name, target_key, runs, path), hint=_what_exists(runs))
    if len(found) > 1:
        where = ", ".join(run.target_key for run in found)
        raise ConfigError(
            f'{path}: {len(found)} runs are named "{name}": {where}', hint="say which with --host and --ct"
        )
    return found[0]


def _missing(name: str, target_key: str | None, runs: Sequence[Run], path: Path) -> str:
    at = f" at {target_key}" if target_key is not None else ""
    same = [run for run in runs if run.name == name and target_key in {None, run.target_key}]
    gone = f" (removed {same[-1].removed_at:%Y-%m-%d %H:%M} UTC)" if same else ""
    return f'{path}: no run "{storable(name, 100)}"{at} in the record{gone}'


def _what_exists(runs: Sequence[Run]) -> str:
    live = [f"{run.name} at {run.target_key}" for run in runs if run.removed_at is None]
    if not live:
        return "it holds no run yet; start one with `dflashctl launch`"
    more = f" and {len(live) - 10} more" if len(live) > 10 else ""
    return f"it holds {', '.join(live[-10:])}{more}"


def remove(session: Session, run_id: int, now: datetime) -> None:
    """Free the run's name and drop its samples; its story stays."""
    run = session.get(Run, run_id)
    if run is None or run.removed_at is not None:
        return
    run.removed_at = now
    for table in (MetricSample, GpuSample, CursorEntry):
        session.execute(delete(table).where(table.run_id == run_id))


def save_attempt(session: Session, run_id: int, n: int, fields: AttemptFields) -> Attempt:
    """Insert or update the attempt with the fields that are given."""
    unknown = set(fields) - AttemptFields.__optional_keys__
    if unknown:
        raise TypeError(f"an attempt has no field {', '.join(sorted(unknown))}")
    attempt = session.get(Attempt, (run_id, n))
    if attempt is None:
        attempt = Attempt(run_id=run_id, n=n, changes={})
        session.add(attempt)
    for key, value in fields.items():
        setattr(attempt, key, _plain(key, value))
    session.flush()
    return attempt


def _plain(key: str, value: Any) -> Any:  # noqa: ANN401 - any field
    if isinstance(value, FailureClass):
        return value.value
    if key == "changes":
        return without_env(value or {})
    if key in ("spec", "environment"):
        return without_env(value)
    return storable(value) if isinstance(value, str) else value


def attempts(session: Session, run_id: int) -> Sequence[Attempt]:
    """Return the run's attempts, oldest first."""
    return session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.n)).all()


def all_runs(session: Session, *, include_removed: bool) -> Sequence[Run]:
    """Return the runs, oldest first."""
    query = select(Run).order_by(Run.id)
    return session.scalars(query if include_removed else query.where(Run.removed_at.is_(None))).all()
