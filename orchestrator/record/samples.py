"""Metric and GPU samples and the cursors, inside a transaction that the caller opened."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.sqlite import insert

from orchestrator.record import thinning
from orchestrator.record.models import CursorEntry, GpuSample, MetricSample, Run
from orchestrator.record.rows import MetricRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

    from orchestrator.types.seen import Gpu


def add_metrics(
    session: Session, run_id: int, attempt: int, rows: Iterable[Mapping[str, Any]], now: datetime
) -> int:
    """Keep the lines of metrics.jsonl that the thinning lets through; return how many of them are new."""
    parsed = (thinning.parse_metric(line, now) for line in rows)
    return add_columns(session, run_id, attempt, [columns for columns in parsed if columns is not None])


def add_columns(session: Session, run_id: int, attempt: int, parsed: Iterable[dict[str, Any]]) -> int:
    """Keep parsed lines that the thinning lets through; return how many of them are new."""
    by_kind: dict[str, dict[int, dict[str, Any]]] = {}
    for columns in parsed:
        by_kind.setdefault(columns["kind"], {}).setdefault(columns["step"], columns)
    if not by_kind:
        return 0
    entry = cursor(session, run_id, attempt)
    strides = dict(entry.strides)
    added = 0
    for kind, lines in by_kind.items():
        known = _known_steps(session, run_id, attempt, kind)
        fresh = sorted(set(lines) - set(known))
        admitted = thinning.admit(fresh, known[-1] if known else None, strides.get(kind, 0))
        kept, every = thinning.thin(sorted([*known, *admitted]))
        strides[kind] = max(every, strides.get(kind, 0))
        _drop(session, (run_id, attempt, kind), set(known) - set(kept))
        chosen = [{"run_id": run_id, "attempt": attempt, **lines[step]} for step in kept if step in lines]
        new = [columns for columns in chosen if columns["step"] not in set(known)]
        if new:
            session.execute(insert(MetricSample).on_conflict_do_nothing(), new)
        added += len(new)
    entry.strides = strides
    return added


def _known_steps(session: Session, run_id: int, attempt: int, kind: str) -> Sequence[int]:
    query = select(MetricSample.step).where(
        MetricSample.run_id == run_id, MetricSample.attempt == attempt, MetricSample.kind == kind
    )
    return session.scalars(query.order_by(MetricSample.step)).all()


def _drop(session: Session, where: tuple[int, int, str], steps: set[int]) -> None:
    run_id, attempt, kind = where
    dropped = sorted(steps)
    for start in range(0, len(dropped), 500):  # SQLite limits the variables of a statement
        session.execute(
            delete(MetricSample).where(
                MetricSample.run_id == run_id,
                MetricSample.attempt == attempt,
                MetricSample.kind == kind,
                MetricSample.step.in_(dropped[start : start + 500]),
            )
        )


def metrics(session: Session, run_id: int, attempt: int | None) -> list[MetricRow]:
    """Return the kept metrics, by attempt and step; of one attempt if it is given."""
    # Columns, not entities: there may be 100,000 rows.
    table = MetricSample.__table__
    query = select(table).where(table.c.run_id == run_id)
    if attempt is not None:
        query = query.where(table.c.attempt == attempt)
    found = session.execute(query.order_by(table.c.attempt, table.c.step, table.c.kind))
    return [MetricRow(**row) for row in found.mappings()]


def add_gpus(session: Session, run_id: int, attempt: int, gpus: Iterable[Gpu], now: datetime) -> int:
    """Keep a reading of each GPU whose last one is old enough; return how many were kept."""
    run = session.get_one(Run, run_id)
    interval = timedelta(seconds=run.gpu_interval_s)
    query = select(GpuSample.gpu_index, func.max(GpuSample.at)).where(GpuSample.run_id == run_id)
    last = {index: at for index, at in session.execute(query.group_by(GpuSample.gpu_index))}
    new = [
        {
            "run_id": run_id,
            "attempt": attempt,
            "at": now,
            "gpu_index": gpu.index,
            "memory_used_bytes": gpu.memory_used_bytes,
            "utilization_pct": gpu.utilization_pct,
            "power_w": gpu.power_w,
            "temperature_c": gpu.temperature_c,
        }
        for gpu in gpus
        if gpu.index not in last or now >= last[gpu.index] + interval
    ]
    if not new:
        return 0
    session.execute(insert(GpuSample).on_conflict_do_nothing(), new)
    _thin_gpus(session, run)
    return len(new)


def _thin_gpus(session: Session, run: Run) -> None:
    """Past the limit keep every second reading of each GPU, and from now on half as many."""
    mine = GpuSample.run_id == run.id
    count = session.scalar(select(func.count()).select_from(GpuSample).where(mine))
    if (count or 0) <= thinning.MAX_GPU_SAMPLES:
        return
    query = select(GpuSample.gpu_index, GpuSample.at).where(mine).order_by(GpuSample.gpu_index, GpuSample.at)
    by_gpu: dict[int, list[datetime]] = {}
    for index, at in thinning.every_second((index, at) for index, at in session.execute(query)):
        by_gpu.setdefault(index, []).append(at)
    for index, times in by_gpu.items():
        for start in range(0, len(times), 500):
            session.execute(
                delete(GpuSample).where(
                    mine, GpuSample.gpu_index == index, GpuSample.at.in_(times[start : start + 500])
                )
            )
    run.gpu_interval_s *= 2


def gpus(session: Session, run_id: int, since: datetime | None) -> Sequence[GpuSample]:
    """Return the kept readings from `since` on, by time and GPU."""
    query = select(GpuSample).where(GpuSample.run_id == run_id)
    if since is not None:
        query = query.where(GpuSample.at >= since)
    return session.scalars(query.order_by(GpuSample.at, GpuSample.gpu_index)).all()


def cursor(session: Session, run_id: int, attempt: int) -> CursorEntry:
    """Return the attempt's cursor, made at the start of both files if there is none."""
    entry = session.get(CursorEntry, (run_id, attempt))
    if entry is None:
        entry = CursorEntry(run_id=run_id, attempt=attempt, log_offset=0, metrics_offset=0, strides={})
        session.add(entry)
        session.flush()
    return entry
