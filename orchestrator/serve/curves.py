"""A run's curves and GPU readings as arrays for a chart: thinned, and each number finite or null. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.plot.scale import left_out, robust_limits
from orchestrator.report.attempts import is_death
from orchestrator.serve.texts import finite, line, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.fleet import RunCard
    from orchestrator.record import AttemptRow, GpuRow, MetricRow

MAX_POINTS = 2_000
MIN_POINTS = 60
MAX_ALL_POINTS = 40_000  # of all attempts together

T = TypeVar("T")


def curves_body(attempts: Sequence[AttemptRow], metrics: Sequence[MetricRow]) -> dict[str, Any]:
    """Return the fields of `models.Curves`."""
    steps: dict[int, list[MetricRow]] = defaultdict(list)
    for row in metrics:
        if row.kind == "train":
            steps[row.attempt].append(row)
    share = min(MAX_POINTS, max(MIN_POINTS, MAX_ALL_POINTS // max(1, len(steps))))
    series = [_series(n, thinned(rows, share, lambda row: row.loss)) for n, rows in sorted(steps.items())]
    deaths = [_death(each, steps.get(each.n, [])) for each in attempts if is_death(each)]
    limits = _loss_limits([row for rows in steps.values() for row in rows])
    return {"num_attempts": len(attempts), "series": series, "deaths": deaths, "loss_limits": limits}


def _loss_limits(rows: Sequence[MetricRow]) -> dict[str, Any] | None:
    """Return the limits of a picture that a few losses far off would flatten; None if it may show all."""
    losses = [loss for row in rows if (loss := finite(row.loss)) is not None]
    if not losses:
        return None
    low, high = robust_limits(losses)
    note = left_out("training loss", losses, low, high)
    return {"low": low, "high": high, "note": note} if note else None


def _series(attempt: int, rows: Sequence[MetricRow]) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "steps": [row.step for row in rows],
        "loss": [finite(row.loss) for row in rows],
        "tokens_per_s": [finite(row.tokens_per_s) for row in rows],
        "step_s": [finite(row.step_s) for row in rows],
    }


def _death(attempt: AttemptRow, rows: Sequence[MetricRow]) -> dict[str, Any]:
    losses = [loss for row in rows if (loss := finite(row.loss)) is not None]
    last = rows[-1].step if rows else 0
    return {
        "attempt": attempt.n,
        "step": max(attempt.last_step or 0, last),
        "loss": losses[-1] if losses else None,
        "label": attempt.failure.value if attempt.failure is not None else "ended",
        "at": moment(attempt.ended_at),
    }


def gpus_body(readings: Sequence[GpuRow], card: RunCard | None) -> dict[str, Any]:
    """Return the fields of `models.GpuHistory`; names and sizes are those seen now."""
    by_index: dict[int, list[GpuRow]] = defaultdict(list)
    for row in readings:
        by_index[row.index].append(row)
    now = {each.gpu.index: each.gpu for each in card.gpus} if card is not None else {}
    found = []
    for index, all_rows in sorted(by_index.items()):
        rows = thinned(all_rows, MAX_POINTS, lambda row: row.utilization_pct)
        gpu = now.get(index)
        found.append(
            {
                "index": index,
                "name": line(gpu.name) if gpu is not None and gpu.name is not None else None,
                "memory_total_bytes": gpu.memory_total_bytes if gpu is not None else None,
                "times": [round(row.at.timestamp(), 1) for row in rows],
                "memory_used_bytes": [row.memory_used_bytes for row in rows],
                "utilization_pct": [finite(row.utilization_pct) for row in rows],
                "power_w": [finite(row.power_w) for row in rows],
                "temperature_c": [finite(row.temperature_c) for row in rows],
            }
        )
    return {"gpus": found}


def thinned(rows: Sequence[T], limit: int, value: Callable[[T], float | None]) -> list[T]:
    """Return at most `limit` rows: first and last, and of each span between the lowest and the highest."""
    if len(rows) <= limit:
        return list(rows)
    num_spans = (limit - 2) // 2
    inner = len(rows) - 2
    kept = {0, len(rows) - 1}
    for span in range(num_spans):
        begin, end = 1 + span * inner // num_spans, 1 + (span + 1) * inner // num_spans
        places = [at for at in range(begin, end) if finite(value(rows[at])) is not None] or [begin]
        kept |= {min(places, key=lambda at: value(rows[at]) or 0.0)}
        kept |= {max(places, key=lambda at: value(rows[at]) or 0.0)}
    return [rows[at] for at in sorted(kept)]
