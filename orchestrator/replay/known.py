"""What the record knows of a run, as the plain data of a recording. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any

from orchestrator.clock import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from orchestrator.record import AttemptRow, DiagnosisRow, EventRow, GpuRow, MetricRow
    from orchestrator.types.failure import Evidence
    from orchestrator.types.seen import HostLine

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 256 * 1024
AROUND_BYTES = 16 * 1024
MAX_WINDOWS = 40
_BEFORE = timedelta(seconds=5)  # the start of an attempt is told a moment late
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
_KERNEL = re.compile(r"NVRM: |oom-kill:|Memory cgroup|Out of memory|EXT4-fs|I/O error")


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the record knows of a run."""

    run: str
    attempts: Sequence[AttemptRow]
    events: Sequence[EventRow]
    diagnoses: Sequence[DiagnosisRow]
    metrics: Sequence[MetricRow]
    gpus: Sequence[GpuRow]
    kernel: Sequence[HostLine] = ()  # read from the host now
    kernel_problem: str | None = None

    def gpu_lines(self, number: int) -> Iterator[dict[str, Any]]:
        """Return the GPU readings of an attempt."""
        samples = [gpu for gpu in self.gpus if gpu.attempt == number]
        return (_gpus(at, list(group)) for at, group in groupby(samples, key=lambda gpu: gpu.at))

    def metric_lines(self, number: int) -> Iterator[dict[str, Any]]:
        """Return the metrics of an attempt that were kept."""
        return (_metric(row) for row in self.metrics if row.attempt == number)

    def event_lines(self) -> Iterator[dict[str, Any]]:
        """Return what happened, in order."""
        return (_event(event) for event in self.events)

    def kernel_lines(self, number: int) -> Iterator[dict[str, Any]]:
        """Return the host's kernel lines of the attempt, those that a diagnosis named included, each once."""
        found: dict[str, tuple[datetime, int | None]]
        found = {
            e.text: (at, None)
            for at, e in self._evidence(number)
            if e.source == "host" and _KERNEL.search(e.text)
        }
        begin, end = self._span(number)
        for line in self.kernel:
            if line.at is not None and begin <= line.at < end:
                found[line.text] = (line.at, line.gpu)
        for text, (at, gpu) in sorted(found.items(), key=lambda item: item[1][0]):
            yield {"at": timestamp(at), "line": text, "gpu": gpu}

    def windows(self, number: int, size: int) -> list[tuple[int, int]]:
        """Return what is kept of a log: head, tail, and around each line that a diagnosis names."""
        shown = {e.offset for _, e in self._evidence(number) if e.source == "log" and e.offset is not None}
        offsets = sorted(shown)[:MAX_WINDOWS]
        wanted = [(0, HEAD_BYTES), *((at - AROUND_BYTES, at + AROUND_BYTES) for at in offsets)]
        return merged([*wanted, (size - TAIL_BYTES, size)], size)

    def row(self, row: AttemptRow) -> dict[str, Any]:
        """Return an attempt's numbers, and who stopped it."""
        stops = [e for e in self.events if e.kind == "action" and e.detail.get("action") == "stop"]
        stop = next((event for event in reversed(stops) if event.attempt == row.n), None)
        told = None
        if stop is not None:
            by = (stop.detail.get("intent") or {}).get("by")
            reason = stop.text.partition(": ")[2]
            told = {"by": by, "reason": reason, "attempt": row.n, "at": timestamp(stop.at)}
        return {
            "n": row.n,
            "by": row.by,
            "rung": row.rung,
            "changes": dict(row.changes),
            "started_at": timestamp(row.started_at) if row.started_at else None,
            "ended_at": timestamp(row.ended_at) if row.ended_at else None,
            "failure": row.failure.value if row.failure else None,
            "first_step": row.first_step,
            "last_step": row.last_step,
            "checkpoint_step": row.checkpoint_step,
            "stop": told,
        }

    def _span(self, number: int) -> tuple[datetime, datetime]:
        """When the attempt was the newest one; never, if nobody knows its beginning."""
        starts = {row.n: row.started_at - _BEFORE for row in self.attempts if row.started_at is not None}
        return starts.get(number, _NEVER), min((at for n, at in starts.items() if n > number), default=_NEVER)

    def _evidence(self, number: int) -> Iterator[tuple[datetime, Evidence]]:
        for diagnosis in self.diagnoses:
            if diagnosis.attempt == number:
                for evidence in (*diagnosis.evidence, *diagnosis.cascades, *diagnosis.warnings):
                    yield diagnosis.at, evidence


def merged(windows: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the windows cut to the file and in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted((max(0, begin), min(size, end)) for begin, end in windows):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _event(event: EventRow) -> dict[str, Any]:
    return {
        "at": timestamp(event.at),
        "attempt": event.attempt,
        "kind": event.kind,
        "text": event.text,
        "detail": dict(event.detail),
    }


def _gpus(at: datetime, rows: list[GpuRow]) -> dict[str, Any]:
    gpus = [
        {
            "index": row.index,
            "memory_used_bytes": row.memory_used_bytes,
            "utilization_pct": row.utilization_pct,
            "power_w": row.power_w,
            "temperature_c": row.temperature_c,
        }
        for row in rows
    ]
    return {"at": timestamp(at), "gpus": gpus}


def _metric(row: MetricRow) -> dict[str, Any]:
    names = ("kind", "step", "loss", "lr", "grad_norm", "tokens_per_s", "step_s", "acceptance_length")
    return {"schema": 1, **{name: getattr(row, name) for name in names}, "at": timestamp(row.at)}
