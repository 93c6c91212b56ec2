"""The samples and cursors of many runs in one transaction: a watch of hundreds commits twice a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.sqlite import insert

from orchestrator.record import samples, thinning
from orchestrator.record.models import CursorEntry, MetricSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from sqlalchemy.orm import Session

    from orchestrator.types.seen import Gpu

Place = tuple[int, int]  # run id, attempt
Series = tuple[int, int, str]  # run id, attempt, kind


@dataclass
class Batch:
    """What waits to be written."""

    metrics: dict[Place, list[dict[str, Any]]] = field(default_factory=dict)
    gpus: dict[Place, tuple[tuple[Gpu, ...], datetime]] = field(default_factory=dict)
    cursors: dict[Place, tuple[int, int]] = field(default_factory=dict)
    anew: set[Place] = field(default_factory=set)  # whose log was emptied

    def __bool__(self) -> bool:
        return bool(self.metrics or self.gpus or self.cursors)

    def add_metrics(self, place: Place, rows: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """Add lines of metrics.jsonl; what is no such line is skipped."""
        columns = [found for line in rows if (found := thinning.parse_metric(line, now)) is not None]
        if columns:
            self.metrics.setdefault(place, []).extend(columns)

    def move_cursor(self, place: Place, log_offset: int, metrics_offset: int) -> None:
        """Move a cursor forward."""
        log, metrics = self.cursors.get(place, (0, 0))
        self.cursors[place] = (max(log, log_offset), max(metrics, metrics_offset))

    def begin_log_anew(self, place: Place) -> None:
        """Take the log's cursor back to the beginning."""
        self.anew.add(place)
        self.cursors[place] = (0, self.cursors.get(place, (0, 0))[1])


@dataclass(frozen=True)
class Kept:
    """What is kept of one series: how many rows, the last step, the distance that thinning asks for."""

    count: int
    last: int | None
    every: int


class BatchWriter:
    """Writes batches. What it knows of a series saves reading it again for each new step."""

    def __init__(self) -> None:
        self._known: dict[Series, Kept] = {}

    def write(self, session: Session, batch: Batch) -> dict[Series, Kept]:
        """Write a batch; return what to `learn` once it is committed."""
        learned: dict[Series, Kept] = {}
        new: list[dict[str, Any]] = []
        for place, columns in batch.metrics.items():
            by_kind: dict[str, dict[int, dict[str, Any]]] = {}
            for line in columns:
                by_kind.setdefault(line["kind"], {}).setdefault(line["step"], line)
            for kind, lines in by_kind.items():
                series = (place[0], place[1], kind)
                learned[series] = self._add(session, series, lines, new)
        if new:
            session.execute(insert(MetricSample).on_conflict_do_nothing(), new)
        for (run_id, attempt), (gpus, at) in batch.gpus.items():
            samples.add_gpus(session, run_id, attempt, gpus, at)
        for run_id, attempt in batch.anew:
            emptied = update(CursorEntry).where(CursorEntry.run_id == run_id, CursorEntry.attempt == attempt)
            session.execute(emptied.values(log_offset=0))
        self._move(session, batch.cursors)
        return learned

    def learn(self, learned: Mapping[Series, Kept]) -> None:
        """Remember what is on disk now."""
        self._known.update(learned)

    def _add(
        self, session: Session, series: Series, lines: dict[int, dict[str, Any]], new: list[dict[str, Any]]
    ) -> Kept:
        """Add lines that only go on to `new`; anything else is worked out from what is on disk."""
        run_id, attempt, _ = series
        known, steps = self._known.get(series), sorted(lines)
        if known is None or (known.last or 0) >= steps[0] or known.count + len(steps) > thinning.MAX_METRICS:
            samples.add_columns(session, run_id, attempt, list(lines.values()))
            return _read(session, series)
        admitted = thinning.admit(steps, known.last, known.every)
        new += [{"run_id": run_id, "attempt": attempt, **lines[step]} for step in admitted]
        last = admitted[-1] if admitted else known.last
        return Kept(known.count + len(admitted), last, known.every)

    @staticmethod
    def _move(session: Session, cursors: Mapping[Place, tuple[int, int]]) -> None:
        rows = [
            {
                "run_id": run_id,
                "attempt": attempt,
                "log_offset": log,
                "metrics_offset": metrics,
                "strides": {},
            }
            for (run_id, attempt), (log, metrics) in cursors.items()
        ]
        if not rows:
            return
        made = insert(CursorEntry)
        moved = {
            name: func.max(getattr(CursorEntry, name), made.excluded[name])
            for name in ("log_offset", "metrics_offset")
        }
        session.execute(made.on_conflict_do_update(index_elements=["run_id", "attempt"], set_=moved), rows)


def _read(session: Session, series: Series) -> Kept:
    run_id, attempt, kind = series
    count, last = session.execute(
        select(func.count(), func.max(MetricSample.step)).where(
            MetricSample.run_id == run_id, MetricSample.attempt == attempt, MetricSample.kind == kind
        )
    ).one()
    return Kept(count, last, samples.cursor(session, run_id, attempt).strides.get(kind, 0))
